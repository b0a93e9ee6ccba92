//! Programs that rbpf compiles: their results, and their places in packs.

use std::sync::{Mutex, PoisonError};

use palimpsest_rbpf::packs;
use rbpf::EbpfVmRaw;
use rbpf::assembler::assemble;

/// Lets tests run alone: all programs are in the same packs, and one test counts them.
static ONE: Mutex<()> = Mutex::new(());

/// A program whose result depends on each of its instructions.
fn program(number: i32) -> Vec<u8> {
    let text = format!(
        "ldxdw r2, [r1]
         mov r0, {number}
         mov r3, 20
         add r0, r2
         mul r0, 7
         xor r0, {}
         sub r3, 1
         jne r3, 0, -5
         stxdw [r1+8], r0
         exit",
        number ^ 0x55
    );
    assemble(&text).expect("it is right")
}

/// Computes the same in Rust.
fn expected(number: i32, input: u64) -> u64 {
    (0..20).fold(i64::from(number) as u64, |sum, _| {
        (sum.wrapping_add(input)).wrapping_mul(7) ^ i64::from(number ^ 0x55) as u64
    })
}

#[test]
fn two_hundred_programs_share_packs_and_answer_what_the_interpreter_does() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Until then, programs that the other test has retired would count.
    packs().reclaim().expect("reclaimed");
    let before = packs().stats().programs;
    let code: Vec<_> = (0..200).map(program).collect();
    let mut machines: Vec<_> = code.iter().map(|code| EbpfVmRaw::new(Some(code)).expect("verified")).collect();
    for machine in &mut machines {
        machine.cranelift_compile().expect("compiled");
    }
    let stats = packs().stats();
    assert_eq!((stats.programs - before, stats.packs), (200, 1), "{stats:?}");
    for input in [0, 3, u64::MAX, 0x1234_5678_9abc] {
        for (number, machine) in machines.iter_mut().enumerate() {
            let mut memory = [input.to_le_bytes(), [0; 8]].concat();
            let mut interpreted = memory.clone();
            let answer = machine.execute_program_cranelift(&mut memory).expect("it ends");
            assert_eq!(answer, expected(number as i32, input));
            assert_eq!(machine.execute_program(&mut interpreted).expect("it ends"), answer);
            assert_eq!(memory, interpreted);
        }
    }
    drop(machines);
    packs().reclaim().expect("reclaimed");
    assert_eq!(packs().stats().programs, before, "a machine that is dropped gives its code back");
}

#[test]
fn helpers_are_called() {
    fn add(a: u64, b: u64, _: u64, _: u64, _: u64) -> u64 {
        a + b
    }

    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let code = assemble("mov r1, 40\nmov r2, 2\ncall 7\nexit").expect("it is right");
    let mut machine = EbpfVmRaw::new(Some(&code)).expect("verified");
    machine.register_helper(7, add).expect("registered");
    machine.cranelift_compile().expect("compiled");
    assert_eq!(machine.execute_program_cranelift(&mut [0; 8]).expect("it ends"), 42);
}
