//! Promises of compiled programs that random programs do not reach, each compared with the interpreter.

mod common;

use palimpsest_bpf::interp::{HelperError, Helpers, Interpreter, Memory};
use palimpsest_bpf::jit::{CompileError, Dispatcher, Helper, HelperTable, Target, compile};
use palimpsest_bpf::{Code, Program, asm};

use common::packs;

fn code(text: &str) -> Code {
    Code::new(&asm::assemble(text).expect("a program")).expect("its structure is right")
}

/// Folds its arguments, and writes to every register that a call may: `extern "C"` functions do.
extern "C" fn fold(a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
    [a, b, c, d, e].into_iter().fold(7, |sum, value| sum.wrapping_mul(31).wrapping_add(value))
}

extern "C" fn dispatch(a: u64, b: u64, c: u64, d: u64, e: u64, id: u64) -> u64 {
    fold(a, b, c, d, e) ^ id
}

struct Host;

impl HelperTable for Host {
    fn helper(&self, id: i32) -> Option<Helper> {
        (id == 1).then_some(fold)
    }

    fn dispatcher(&self) -> Option<Dispatcher> {
        Some(dispatch)
    }
}

impl Helpers for Host {
    fn call(&mut self, id: i32, [a, b, c, d, e]: [u64; 5], _memory: &mut Memory<'_>) -> Result<u64, HelperError> {
        // By number, or by a register.
        Ok(if id == 1 { fold(a, b, c, d, e) } else { dispatch(a, b, c, d, e, id as u64) })
    }
}

/// Runs `text` both ways, and returns what both return; says so if that is not possible here.
fn both(text: &str) -> Option<u64> {
    let (packs, code) = (packs()?, code(text));
    let arguments = [1, 2, 3, 4, 5];
    let interpreted = Interpreter::default().run(&code, arguments, &mut Memory::new(), &mut Host).expect("it ends");
    let program = Program::load(&packs, &code, &Host).expect("it can be compiled");
    // SAFETY: 1. the interpreter has run it to its end within its own stack. 2. the helpers are safe functions.
    let compiled = unsafe { program.run(arguments) };
    assert_eq!(compiled, interpreted, "{text}");
    Some(compiled)
}

#[test]
fn loops_are_left_for_good_when_their_rounds_are_spent() {
    let text = "r0 = 0
          one: may_goto two
               r0 += 1
               goto one
          two: may_goto out
               r0 += 1
               goto two
          out: r6 = r0
               call local f
               r0 += r6
               exit
            f: r0 = 0
        again: may_goto done
               r0 += 1
               goto again
         done: exit";
    assert!(both(text).is_none_or(|rounds| rounds == 2 * 0xffff));
}

#[test]
fn calls_keep_what_they_must() {
    let text = "r6 = 6
                r7 = 7
                r8 = 8
                r9 = 9
                *(u64 *)(r10 - 8) = 77
                call 1
                r1 = r0
                r2 = r6
                r3 = r7
                r4 = r8
                r5 = r9
                callx r6
                r1 = r0
                r2 = 22
                r3 = 33
                r4 = 44
                r5 = 55
                call local f
                r1 = *(u64 *)(r10 - 8)
                r0 ^= r1
                r0 ^= r6
                r0 ^= r7
                r0 ^= r8
                r0 ^= r9
                exit
             f: r6 = 1
                r8 = 2
                *(u64 *)(r10 - 8) = 3
                call 1
                r0 += r6
                r0 += r8
                exit";
    both(text);
}

#[test]
fn jumps_reach_over_long_ways() {
    // Over distances that are short and long on either machine, in both directions.
    for gap in [1, 30, 31, 32, 33, 40, 2000] {
        let filler = "r0 += 1\n".repeat(gap);
        let text = format!(
            "r0 = 0\nr6 = 0\nback: r6 += 1\nif r6 > 3 goto out\n{filler}if r6 != 2 goto back\ngoto back\nout: exit"
        );
        assert!(both(&text).is_none_or(|sum| sum == 3 * gap as u64));
    }
}

#[test]
fn the_stack_is_aligned_where_helpers_are_called() {
    // A vector operation of the host would fault otherwise; the number of kept registers decides.
    for kept in 0..=4 {
        let sets: String = (0..kept).map(|number| format!("r{} = {number}\n", 6 + number)).collect();
        both(&format!("{sets}r1 = 1\nr2 = 2\nr3 = 3\nr4 = 4\nr5 = 5\ncall 1\nexit"));
        both(&format!(
            "{sets}*(u64 *)(r10 - 8) = 1\ncall local f\nexit\n\
             f: {sets}r1 = 1\nr2 = 2\nr3 = 3\nr4 = 4\nr5 = 5\ncall 1\nexit"
        ));
    }
}

#[test]
fn what_the_host_lacks_is_named() {
    for target in Target::ALL {
        let error = compile(&code("r0 = 0\ncall 77\nexit"), target, &()).expect_err("there are no helpers");
        assert_eq!(error, CompileError::Helper { slot: 1, id: 77 });
        assert_eq!(compile(&code("callx r1\nexit"), target, &()), Err(CompileError::Dispatcher { slot: 0 }));
        let kernel = compile(&code("call kernel 5\nexit"), target, &()).expect_err("there is no kernel");
        assert_eq!(kernel.to_string(), "`call kernel 5` in slot 0 cannot be compiled; interpret the program");
    }
}

#[test]
fn a_function_that_jumps_to_its_beginning_begins_once() {
    // The program's own function, whose loop would take stack in each round.
    let whole = "start: r6 = 6\nr7 = 7\n*(u64 *)(r10 - 8) = r7\nr2 += 1\nif r2 < 100000 goto start\n\
                 r0 = *(u64 *)(r10 - 8)\nr0 += r2\nexit";
    assert!(both(whole).is_none_or(|sum| sum == 100_007));
    let plain = "start: r2 += 1\nr6 = r2\nif r2 == 9 goto out\ngoto start\nout: r0 = r6\nexit";
    assert!(both(plain).is_none_or(|rounds| rounds == 9));
    // A function that is called, keeps registers and has a frame.
    let local = "r6 = 6\nr7 = 7\nr8 = 8\nr9 = 9\n*(u64 *)(r10 - 8) = 10\nr1 = 5\nr0 = 0\ncall local f\n\
                 r1 = *(u64 *)(r10 - 8)\nr0 += r1\nr0 ^= r6\nr0 += r7\nr0 ^= r8\nr0 += r9\nexit\n\
                 f: r6 = r1\nr7 = r10\n*(u64 *)(r7 - 8) = r6\nr8 = 1\nr9 = *(u64 *)(r10 - 8)\nr0 += r9\nr1 -= r8\n\
                 if r1 != 0 goto f\nexit";
    both(local);
    // The count of rounds begins once, too.
    let guarded = "start: may_goto out\nr2 += 1\ngoto start\nout: r0 = r2\nexit";
    assert!(both(guarded).is_none_or(|rounds| rounds == 2 + 0xffff));
    let spent = "start: r2 += 1\nif r2 > 5 goto out\nagain: may_goto start\ngoto again\nout: r0 = r2\nexit";
    assert!(both(spent).is_none_or(|rounds| rounds == 6));
}

#[test]
fn loops_count_right_wherever_they_lie_in_a_line() {
    for filler in 0..40 {
        // 2 bytes each on x86-64. The second loop begins with its function.
        let text = format!(
            "r0 = 1\n{}r2 = 3\nouter: r4 = 0\ninner: r0 += r4\nif r0 > 9 goto +1\nr0 += 1\nr4 += 1\n\
             if r4 != 7 goto inner\nr2 -= 1\nif r2 != 0 goto outer\nr6 = r0\nr1 = 5\nr0 = 0\ncall local f\n\
             r0 += r6\nexit\nf: r0 += r1\nr7 = r0\nr1 -= 1\nif r1 != 0 goto f\nexit",
            "w0 += w0\n".repeat(filler)
        );
        both(&text);
    }
}
