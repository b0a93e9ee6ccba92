//! Backtraces cross programs, and at every instruction of a program its caller is found.
//!
//! Mutants that are caught: a push that is not told, a register that is looked for beside its place, the end of a
//! function that is not undone for what lies behind it, a table for the code before its jumps were shortened.
#![expect(unsafe_code, reason = "an observer believes what packs say, and signals are handled")]

use std::backtrace::Backtrace;
use std::sync::{Arc, Mutex};

use palimpsest_bpf::host::{Host, HostBuilder, HostedProgram};
use palimpsest_bpf::verify::{ContextAccess, Contract, Signature};
use palimpsest_bpf::{Code, Packs, asm};
use palimpsest_text::CodeAddress;
use palimpsest_text::observe::{Loaded, ObserveError, Observer, UnwindRegistry};

/// A program with functions of several shapes, a callback, a loop, and helpers in the innermost of each.
const PROGRAM: &str = "
    r6 = r1
    call local plain
    call local outer
    r1 = 2
    r2 = func[each] ll
    r3 = r6
    r4 = 0
    call 181
    may_goto on
on: r0 = 5
    exit
plain: r0 = 1
    exit
outer: r7 = 1
    r9 = 2
    *(u64 *)(r10 - 8) = r7
    call local inner
    r0 = *(u64 *)(r10 - 8)
    if r0 != 1 goto out
    r0 = r9
out: exit
inner: r8 = 3
again: r8 += -1
    if r8 s> 0 goto again
    call 70000
    r0 = 0
    exit
each: r6 = r2
    *(u64 *)(r10 - 16) = r6
    call 70000
    r0 = 0
    exit
";

pub(crate) fn load(packs: &Packs, builder: HostBuilder, fuel: Option<u64>) -> HostedProgram {
    let contract = Contract::new().context(8, ContextAccess::Read);
    let contract = fuel.map_or(contract.clone(), |fuel| contract.fuel(fuel));
    let code = Code::new(&asm::assemble(PROGRAM).expect("a program")).expect("its structure is right");
    let linked = builder.build().verify(contract, code).expect("harmless");
    HostedProgram::load(packs, &linked).expect("room")
}

/// Runs the program; its name is looked for in backtraces.
#[inline(never)]
pub(crate) fn whoever_runs_the_program(program: &HostedProgram) -> u64 {
    std::hint::black_box(program.run_read_only(&[0; 8]).expect("a context"))
}

#[test]
fn backtraces_of_helpers_cross_programs() {
    if crate::common::packs().is_none() {
        return;
    }
    for is_registered in [true, false] {
        let builder = Packs::builder();
        // SAFETY: 1. only the compiler of this crate gives tables to programs of these packs.
        let registry = || unsafe { UnwindRegistry::new() };
        let packs = if is_registered { builder.observer(registry()) } else { builder }.open().expect("packs");
        let traces = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&traces);
        let host = Host::builder().helper(70_000, Signature::new([]), move |_| {
            noted.lock().expect("nobody panics").push(Backtrace::force_capture().to_string());
            Ok(0)
        });
        assert_eq!(whoever_runs_the_program(&load(&packs, host, None)), 5);
        let traces = traces.lock().expect("nobody panics");
        assert_eq!(traces.len(), 3, "in a function, and twice in a callback");
        for trace in traces.iter() {
            assert_eq!(trace.contains("whoever_runs_the_program"), is_registered, "{trace}");
        }
    }
}

/// What an observer is told of a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told(pub(crate) Arc<Mutex<(usize, Vec<u8>, usize)>>);

impl Observer for Told {
    fn loaded(&self, loaded: &Loaded<'_>) -> Result<(), ObserveError> {
        let table = loaded.eh_frame.expect("every program has one").to_vec();
        *self.0.lock().expect("nobody panics") = (loaded.address.get(), table, loaded.code.len());
        Ok(())
    }

    fn unloaded(&self, _address: CodeAddress, _len: usize) -> Result<(), ObserveError> {
        Ok(())
    }
}

/// The same bytes on every machine of an architecture; `readelf` and `gdb` have read them.
#[test]
fn tables_name_every_function() {
    if crate::common::packs().is_none() {
        return;
    }
    let told = Told::default();
    let packs = Packs::builder().observer(told.clone()).open().expect("packs");
    let nothing = || Host::builder().helper(70_000, Signature::new([]), |_| Ok(0));
    for fuel in [None, Some(100)] {
        let program = load(&packs, nothing(), fuel);
        let (address, table, len) = told.0.lock().expect("nobody panics").clone();
        // Records: the length, then 0 for a CIE, or the distance to it.
        let (mut at, mut starts) = (0, Vec::new());
        while at < table.len() {
            let word = |at: usize| u32::from_ne_bytes(*table[at..].first_chunk().expect("4 bytes"));
            let long = |at: usize| u64::from_ne_bytes(*table[at..].first_chunk().expect("8 bytes")) as usize;
            if word(at + 4) != 0 {
                assert_eq!(word(at + 4) as usize, at + 4);
                starts.push((long(at + 8), long(at + 16)));
            }
            at += 4 + word(at) as usize;
        }
        assert_eq!(at, table.len());
        // The program, four functions, and where helpers call one: without a gap.
        assert_eq!((starts.len(), starts[0].0), (6, address));
        assert!(starts.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "{starts:x?}");
        assert!(starts[5].0 + starts[5].1 <= address + len);
        drop(program);
    }
}
