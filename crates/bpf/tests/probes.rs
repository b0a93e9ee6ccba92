//! Loads that the verifier cannot prove: they give 0 where nothing is, and the program goes on. Faults of other code
//! are not touched.
//!
//! Mutants that are caught: a register that is not cleared, a load of the stack that is tried.

mod common;

use std::process::Command;

use palimpsest_bpf::host::{Host, HostedProgram};
use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers, OnFault};
use palimpsest_bpf::jit::{Target, compile};
use palimpsest_bpf::verify::{ContextAccess, Contract, Fault, Unproven};
use palimpsest_bpf::{Code, VerifiedProgram, asm};

use common::packs;

fn code(text: &str) -> Code {
    Code::new(&asm::assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"))).expect("its structure is right")
}

fn contract() -> Contract {
    Contract::new().context(16, ContextAccess::Write).unproven(Unproven::Probe)
}

/// Addresses where nothing is: the first page, one that is not canonical on x86-64, and the kernel's.
const NOWHERE: [u64; 6] = [0, 8, 4088, 0x8000_0000_0000, 1 << 62, u64::MAX - 4096];

#[test]
fn loads_of_nothing_give_zero_and_the_program_goes_on() {
    let Some(packs) = packs() else { return };
    // The address comes from the context; every size and extension, near and far, into the base and beside it.
    let loads = [
        "r0 = *(u8 *)(r3 + 0)",
        "r0 = *(u16 *)(r3 + 2)",
        "r0 = *(u32 *)(r3 - 4)",
        "r0 = *(u64 *)(r3 + 8)",
        "r0 = *(s8 *)(r3 + 1)",
        "r0 = *(s16 *)(r3 + 300)",
        "r0 = *(s32 *)(r3 + 32000)",
        "r3 = *(u64 *)(r3 + 0)\nr0 = r3",
        "r3 = *(s8 *)(r3 - 32000)\nr0 = r3",
        "r7 = r3\nr7 = *(u32 *)(r7 + 4)\nr0 = r7",
    ];
    for load in loads {
        let text = format!("r3 = *(u64 *)(r1 + 0)\nr0 = 77\nr6 = 5\n{load}\nr6 += r0\n*(u64 *)(r1 + 8) = r6\nexit");
        let verified = contract().verify(code(&text)).expect("loads are tried");
        assert_eq!(verified.probes().len(), 1, "{text}");
        let program = VerifiedProgram::load(&packs, &verified, &()).expect("room");
        let value = [0x8899_aabb_ccdd_eeff_u64; 8192];
        let somewhere = value.as_ptr() as u64 + 32_768;
        for address in NOWHERE.into_iter().chain([somewhere]) {
            let mut context = [address, 0];
            let mut bytes: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let got = program.run(&mut bytes).expect("a context");
            context[1] = u64::from_ne_bytes(bytes[8..].try_into().expect("8 bytes"));
            let mut given: Vec<u8> = [address, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
            let shown: Vec<u8> = value.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let mut memory = Memory::new();
            memory.add(0x10_0000, &mut given).expect("free");
            memory.add_read_only(value.as_ptr() as u64, &shown).expect("free");
            let interpreter = Interpreter::default().on_fault(OnFault::LoadZero).stack(0x20_0000);
            let expected = interpreter.run(verified.code(), [0x10_0000, 16, 0, 0, 0], &mut memory, &mut NoHelpers);
            assert_eq!(Ok(got), expected, "{load} at {address:#x}");
            assert_eq!(context[1], got.wrapping_add(5), "{load} at {address:#x}");
            assert_eq!(got == 0, address != somewhere, "{load} at {address:#x}");
        }
    }
}

#[test]
fn what_is_proven_is_not_tried_and_stores_through_numbers_are_refused() {
    let probes = |text: &str| contract().verify(code(text)).map(|verified| verified.probes().to_vec());
    assert_eq!(probes("r0 = *(u64 *)(r1 + 8)\nexit"), Ok(vec![]));
    // Beyond the context, and an address that is one on only one of two ways.
    assert_eq!(probes("r0 = *(u64 *)(r1 + 9)\nexit"), Ok(vec![0]));
    assert_eq!(probes("r3 = r1\nif r2 == 0 goto on\nr3 = 5\non: r0 = *(u8 *)(r3 + 0)\nexit"), Ok(vec![3]));
    let refused = |text: &str| contract().verify(code(text)).expect_err(text).fault;
    use palimpsest_bpf::insn::Register::{R2, R3};
    assert_eq!(refused("*(u8 *)(r2 + 0) = 1\nr0 = 0\nexit"), Fault::NoAddress { register: R2 });
    assert_eq!(refused("r3 = 1\nlock *(u64 *)(r2 + 0) += r3\nr0 = 0\nexit"), Fault::NoAddress { register: R2 });
    assert_eq!(refused("r0 = *(u8 *)(r3 + 0)\nexit"), Fault::Unset { register: R3 });
    assert!(matches!(refused("r0 = *(u64 *)(r10 + 8)\nexit"), Fault::Stack { .. }));
    assert!(matches!(refused("r0 = load_acquire((u64 *)(r2 + 0))\nexit"), Fault::NoAddress { .. }));
    let without = Contract::new().context(16, ContextAccess::Read).verify(code("r0 = *(u8 *)(r2 + 0)\nexit"));
    assert_eq!(without.expect_err("it is not asked for").fault, Fault::NoAddress { register: R2 });
    // Unverified programs have none.
    for target in Target::ALL {
        assert!(compile(&code("r0 = *(u8 *)(r2 + 0)\nexit"), target, &()).expect("it is compiled").faults().is_empty());
    }
}

#[test]
fn the_bytes_of_the_context_are_read_where_they_are() {
    let Some(packs) = packs() else { return };
    let text = "r3 = r1\nif r2 == 0 goto on\nr3 = 5\non: r0 = *(u8 *)(r3 + 3)\nexit";
    let verified = contract().verify(code(text)).expect("tried");
    let program = VerifiedProgram::load(&packs, &verified, &()).expect("room");
    assert_eq!(program.run(&mut [9; 16]), Ok(0), "r2 is the length, so that r3 is 5");
    let turned = text.replace("r2 == 0", "r2 != 0");
    let verified = contract().verify(code(&turned)).expect("tried");
    let program = VerifiedProgram::load(&packs, &verified, &()).expect("room");
    assert_eq!(program.run(&mut [9; 16]), Ok(9));
}

/// Set in the children of the tests below.
const CHILD: &str = "PALIMPSEST_BPF_FAULTS";

/// Plays the test of this name in a child. Returns what it says, and the signal that ends it.
fn play(name: &str) -> (String, Option<i32>) {
    let own = std::env::current_exe().expect("a test has a path");
    let output = Command::new(own).args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().expect("it starts");
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    (String::from_utf8_lossy(&output.stdout).into_owned(), signal)
}

#[test]
fn faults_of_others_end_the_process() {
    let Some(packs) = packs() else { return };
    if std::env::var_os(CHILD).is_some() {
        let verified = contract().verify(code("r0 = *(u8 *)(r2 + 0)\nexit")).expect("tried");
        let program = VerifiedProgram::load(&packs, &verified, &()).expect("room");
        assert_eq!(program.run(&mut [9; 16]), Ok(0));
        println!("it went on");
        // A fault of Rust's own code, at an address that nobody has.
        let place = std::ptr::without_provenance::<u8>(64);
        // SAFETY: it is not; the process must end by it.
        let byte = unsafe { place.read_volatile() };
        println!("it read {byte}");
        return;
    }
    let (said, signal) = play("faults_of_others_end_the_process");
    assert!(said.contains("it went on") && !said.contains("it read"), "{said}");
    assert_eq!(signal, Some(11), "{said}");
}

/// What the documentation says of threads that block the signals: the kernel lets no handler do anything about it.
#[test]
fn a_thread_that_blocks_the_signal_of_its_fault_ends_the_process() {
    let Some(packs) = packs() else { return };
    if std::env::var_os(CHILD).is_some() {
        let verified = contract().verify(code("r0 = *(u8 *)(r2 + 0)\nexit")).expect("tried");
        let program = VerifiedProgram::load(&packs, &verified, &()).expect("room");
        let mask = |how| {
            // SAFETY: all-zero is a valid set.
            let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: a set, and a signal.
            unsafe { libc::sigaddset(&mut set, libc::SIGSEGV) };
            // SAFETY: a valid set; null asks for nothing.
            assert_eq!(unsafe { libc::pthread_sigmask(how, &set, std::ptr::null_mut()) }, 0);
        };
        mask(libc::SIG_BLOCK);
        mask(libc::SIG_UNBLOCK);
        assert_eq!(program.run(&mut [9; 16]), Ok(0));
        println!("it went on");
        mask(libc::SIG_BLOCK);
        println!("it went on to {:?}", program.run(&mut [9; 16]));
        return;
    }
    let (said, signal) = play("a_thread_that_blocks_the_signal_of_its_fault_ends_the_process");
    assert!(said.contains("it went on") && !said.contains("it went on to"), "{said}");
    assert_eq!(signal, Some(11), "{said}");
}

/// What the documentation says of the host's stack.
#[test]
fn helpers_read_what_plain_loads_may_not() {
    let Some(packs) = packs() else { return };
    let loaded = contract().verify(code("r0 = *(u64 *)(r10 + 8)\nexit")).expect_err("beyond the frame").fault;
    assert!(matches!(loaded, Fault::Stack { .. }), "{loaded}");
    let read = "r1 = r10\nr1 += -8\nr2 = 8\nr3 = r10\nr3 += 8\ncall 113\nexit";
    let linked = Host::builder().build().verify(contract(), code(read)).expect("any address");
    assert_eq!(HostedProgram::load(&packs, &linked).expect("room").run(&mut [0; 16]), Ok(0));
}
