//! Programs run by somebody other than `HostedProgram`: a kernel, with its own packs and its own idea of a CPU.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use palimpsest_bpf::host::{Host, Linked, Runner};
use palimpsest_bpf::insn::Callee;
use palimpsest_bpf::interp::{Answer, HelperError, Interpreter};
use palimpsest_bpf::jit::{Compiled, Outcome, Target};
use palimpsest_bpf::map::{Definition, Kind, Map};
use palimpsest_bpf::verify::{MOST_FUEL, Signature, Unproven};
use palimpsest_bpf::{Code, Packs, asm};

use super::contract;

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    static FAILED: Cell<Option<(Callee, HelperError)>> = const { Cell::new(None) };
    static HELD: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Four CPUs, one of which the test names as the present one; nothing at unproven addresses except at one.
struct Kernel;

const THERE: u64 = 0x1000;

// SAFETY: 1. `guard` is the call.
unsafe impl Runner for Kernel {
    fn guard(call: impl FnOnce() -> Result<Answer, HelperError>) -> Result<Answer, HelperError> {
        call()
    }

    fn peek(address: u64, bytes: &mut [u8]) -> usize {
        if address != THERE {
            return 0;
        }
        bytes.fill(7);
        bytes.len()
    }

    fn failed(callee: Callee, error: HelperError) {
        FAILED.set(Some((callee, error)));
    }

    fn hold(record: u64) -> Result<(), HelperError> {
        HELD.with_borrow_mut(|held| held.push(record));
        Ok(())
    }

    fn let_go(record: u64) {
        HELD.with_borrow_mut(|held| held.retain(|known| *known != record));
    }

    fn cpu() -> u32 {
        CPU.get()
    }
}

fn host() -> Arc<Host> {
    let map = |name: &str, kind, key, value, entries| {
        let definition = Definition { cpus: Some(4), ..Definition::new(name, kind, key, value, entries) };
        Arc::new(Map::new(definition).expect("good measures"))
    };
    Host::builder()
        .map(map("counts", Kind::PerCpuArray, 4, 8, 2))
        .map(map("ring", Kind::RingBuffer, 0, 0, 4096))
        .helper(900, Signature::new([]), |_| Err(HelperError::Exit(11)))
        .cpu(|| CPU.get())
        .build()
}

fn verified(text: &str, host: &Arc<Host>) -> Linked {
    let code = Code::new(&asm::assemble(text).expect(text)).expect(text);
    host.verify(contract().unproven(Unproven::Probe), code).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Runs compiled code as its type says.
fn run(packs: &Packs, compiled: &Compiled) -> Outcome {
    type Plain = extern "C" fn(u64, u64, u64, u64, u64) -> u64;
    type Gauged = extern "C" fn(u64, u64, u64, u64, u64, i64) -> Outcome;
    assert!(compiled.faults().is_empty(), "the test has none");
    let code = packs.load(compiled.bytes(), 8).expect("room");
    let mut context = [0_u64; 2];
    let context = context.as_mut_ptr().expose_provenance() as u64;
    if compiled.has_gauge() {
        // SAFETY: code with a gauge has this type, and `code` outlives the call.
        let entry = unsafe { code.function::<Gauged>() };
        return entry(context, 16, 0, 0, 0, MOST_FUEL as i64);
    }
    // SAFETY: code without a gauge has this type.
    let entry = unsafe { code.function::<Plain>() };
    Outcome { value: entry(context, 16, 0, 0, 0), gauge: 0 }
}

#[test]
fn each_cpu_of_a_runner_has_its_values_and_failures_are_its_own() {
    let Some(target) = Target::NATIVE else {
        eprintln!("skipped: there is no compiler for this machine");
        return;
    };
    let (packs, host) = (Packs::new().expect("packs"), host());
    let count = "*(u32 *)(r10 - 4) = 1\nr2 = r10\nr2 += -4\nr1 = map[idx:0] ll\ncall 1\nif r0 == 0 goto out\nr1 = 1\n\
                 lock *(u64 *)(r0 + 0) += r1\nr0 = *(u64 *)(r0 + 0)\nout: exit";
    let compiled = verified(count, &host).compile::<Kernel>(target, 1).expect("compiled");
    for (cpu, times) in [(0, 3), (2, 5), (3, 1)] {
        CPU.set(cpu);
        for time in 1..=times {
            assert_eq!(run(&packs, &compiled).value, time, "CPU {cpu}");
        }
    }
    let of = |cpu| {
        let mut value = [0; 8];
        host.maps()[0].read(&1_u32.to_ne_bytes(), cpu, &mut value).expect("there");
        u64::from_ne_bytes(value)
    };
    assert_eq!([0, 1, 2, 3].map(of), [3, 0, 5, 1]);

    // Interpreted programs run on the CPU that the host names, and all see its number.
    let linked = verified(count, &host);
    let number = verified("call 8\nexit", &host);
    let number_compiled = number.compile::<Kernel>(target, 1).expect("compiled");
    for cpu in [1, 2] {
        CPU.set(cpu);
        let before = of(cpu);
        let interpret = |linked: &Linked| linked.interpret(&Interpreter::default(), &mut [0; 16]).expect("it ends");
        assert_eq!((interpret(&linked), of(cpu)), (before + 1, before + 1), "CPU {cpu}");
        assert_eq!((interpret(&number), run(&packs, &number_compiled).value), (cpu.into(), cpu.into()));
    }

    // Looking at unproven addresses is the runner's business.
    for (address, expected) in [(THERE, 7), (THERE + 1, -14_i64 as u64)] {
        let text = format!(
            "r1 = r10\nr1 += -8\nr2 = 8\nr3 = {address} ll\ncall 113\nif r0 != 0 goto out\nr0 = *(u8 *)(r10 - 8)\nout: \
             exit"
        );
        let compiled = verified(&text, &host).compile::<Kernel>(target, 1).expect("compiled");
        assert_eq!(run(&packs, &compiled).value, expected, "{address:#x}");
    }

    // A helper ends the program, which holds a record: the runner learns of both.
    let ends = "r1 = map[idx:1] ll\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\nr6 = r0\ncall 900\nr1 = r6\nr2 = 0\n\
                call 132\nout: r0 = 0\nexit";
    let compiled = verified(ends, &host).compile::<Kernel>(target, 1).expect("compiled");
    assert!(run(&packs, &compiled).gauge < 0);
    assert_eq!(FAILED.take(), Some((Callee::Helper(900), HelperError::Exit(11))));
    let held = HELD.take();
    assert_eq!(held.len(), 1);
    let ring = host.maps()[1].ring().expect("a ring buffer");
    let mut consumer = ring.take_consumer().expect("nobody else's");
    assert_eq!(consumer.drain(|record| panic!("{record:?}")), 0);
    host.discard(&held);
    assert_eq!((consumer.drain(|record| panic!("{record:?}")), ring.pending()), (0, 0));
}
