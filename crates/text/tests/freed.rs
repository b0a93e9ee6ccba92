//! Freed code must be gone: a call of it dies of a trap, and does not run other code.

mod common;

use common::{call, fork_and_wait, identity, killed_by, one_at_a_time};
use palimpsest_text::{Packs, Program, ReclaimPolicy};

fn address_of(program: &Program) -> extern "C" fn() -> u64 {
    // SAFETY: an identity program; these tests examine who may call it and when, in child processes.
    unsafe { program.function() }
}

#[test]
fn calling_a_reclaimed_program_is_a_trap() {
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let kept = packs.load(&identity(1, 64), 16).unwrap();
    let program = packs.load(&identity(2, 64), 16).unwrap();
    let function = address_of(&program);
    assert_eq!(function(), 2);
    drop(program);
    packs.reclaim().unwrap();
    let signal = killed_by(fork_and_wait(|| function() as i32));
    assert!(matches!(signal, Some(libc::SIGTRAP | libc::SIGILL)), "{signal:?}");
    assert_eq!(call(&kept), 1);
}

#[test]
fn running_past_the_end_of_a_program_is_a_trap() {
    let _one = one_at_a_time();
    let packs = Packs::new().unwrap();
    // NOPs without a return.
    let code = identity(3, 200);
    let program = packs.load(&code[..128 - 64], 16).unwrap();
    let function = address_of(&program);
    let signal = killed_by(fork_and_wait(|| function() as i32));
    assert!(matches!(signal, Some(libc::SIGTRAP | libc::SIGILL)), "{signal:?}");
}

#[test]
fn calling_a_program_of_a_pack_that_was_given_back_is_a_fault() {
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().unwrap();
    let program = packs.load(&identity(4, 3 << 20), 16).unwrap();
    let function = address_of(&program);
    assert_eq!(function(), 4);
    drop(program);
    packs.reclaim().unwrap();
    assert_eq!(killed_by(fork_and_wait(|| function() as i32)), Some(libc::SIGSEGV));
}
