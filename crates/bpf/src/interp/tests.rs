use super::*;
use crate::asm::assemble;

fn code(text: &str) -> Code {
    Code::new(&assemble(text).expect("a program")).expect("its structure is right")
}

fn run(text: &str) -> Result<u64, Trap> {
    let options = Interpreter::default().budget(1000);
    options.run(&code(text), [0; 5], &mut Memory::new(), &mut NoHelpers).map_err(|error| error.trap)
}

#[test]
fn functions_keep_what_they_must_and_have_frames_of_their_own() {
    let text = "r6 = 7
                *(u64 *)(r10 - 8) = 1
                r1 = r10
                call local f
                r1 = *(u64 *)(r10 - 8)
                r0 += r1
                r0 += r6
                exit
             f: r6 = 99
                *(u64 *)(r10 - 8) = 50
                *(u64 *)(r1 - 8) += 0 # not an instruction
                exit";
    let text = text.replace("*(u64 *)(r1 - 8) += 0 # not an instruction", "r0 = *(u64 *)(r1 - 8)\nr0 += 100");
    assert_eq!(run(&text), Ok(1 + 100 + 1 + 7));
}

#[test]
fn loops_end_by_the_budget_or_by_may_goto() {
    assert_eq!(run("goto -1"), Err(Trap::Budget { budget: 1000 }));
    let options = Interpreter::default().may_goto(9);
    let text = "r0 = 0\nagain: may_goto out\nr0 += 1\ngoto again\nout: exit";
    assert_eq!(options.run(&code(text), [0; 5], &mut Memory::new(), &mut NoHelpers), Ok(9));
}

#[test]
fn memory_that_is_not_there_is_a_fault_or_zero() {
    let text = "r0 = 5\nr0 = *(u64 *)(r1 + 16)\nexit";
    let fault = MemoryFault { address: 16, len: 8, access: Access::Read };
    assert_eq!(run(text), Err(Trap::Memory(fault)));
    let probing = Interpreter::default().on_fault(OnFault::LoadZero);
    assert_eq!(probing.run(&code(text), [0; 5], &mut Memory::new(), &mut NoHelpers), Ok(0));
    let store = "*(u8 *)(r1 + 0) = 1\nexit";
    let error = probing.run(&code(store), [0; 5], &mut Memory::new(), &mut NoHelpers);
    let fault = MemoryFault { address: 0, len: 1, access: Access::Write };
    assert_eq!(error, Err(RunError { slot: 0, trap: Trap::Memory(fault) }));
    // One byte above the first frame.
    assert!(matches!(run("r0 = *(u8 *)(r10 + 0)\nexit"), Err(Trap::Memory(_))));
}

#[test]
fn calls_reach_the_host() {
    struct Host;
    impl Helpers for Host {
        fn call(&mut self, id: i32, arguments: [u64; 5], memory: &mut Memory<'_>) -> Result<u64, HelperError> {
            match id {
                1 => Ok(arguments.iter().sum()),
                2 => Ok(memory.bytes(arguments[0], 2)?.iter().map(|byte| u64::from(*byte)).sum()),
                3 => Err(HelperError::Exit(33)),
                _ => Err(HelperError::Unknown),
            }
        }
    }
    let run = |text: &str| {
        let mut bytes = [4, 5];
        let mut memory = Memory::new();
        memory.add(0x1000, &mut bytes).expect("free");
        Interpreter::default().run(&code(text), [0x1000, 2, 3, 4, 5], &mut memory, &mut Host)
    };
    assert_eq!(run("call 1\nexit"), Ok(0x1000 + 14));
    assert_eq!(run("r6 = 2\ncallx r6\nexit"), Ok(9));
    assert_eq!(run("call 3\nr0 = 0\nexit"), Ok(33));
    let unknown = Trap::Helper { id: 9, error: HelperError::Unknown };
    assert_eq!(run("r0 = 1\ncall 9\nexit"), Err(RunError { slot: 1, trap: unknown }));
    assert_eq!(run("call kernel 7\nexit"), Err(RunError { slot: 0, trap: Trap::Kernel { id: 7 } }));
}

#[test]
fn comparing_and_exchanging_leaves_what_was_there_in_r0() {
    let text = "*(u64 *)(r10 - 8) = 5
                r0 = 5
                r1 = 9
                r0 = cmpxchg_64(r10 - 8, r0, r1)
                r2 = r0
                r0 = cmpxchg_64(r10 - 8, r0, r1)
                r2 <<= 8
                r0 += r2
                exit";
    assert_eq!(run(text), Ok(5 << 8 | 9));
    // With 32 bits the upper half of r0 does not count, and is gone.
    let text = "*(u64 *)(r10 - 8) = 5
                r0 = 0x700000005 ll
                r1 = 9
                w0 = cmpxchg32_32(r10 - 8, w0, w1)
                r1 = *(u64 *)(r10 - 8)
                r1 <<= 8
                r0 += r1
                exit";
    assert_eq!(run(text), Ok(9 << 8 | 5));
}
