//! Forks at every step of a batch.

use std::cell::Cell;

use palimpsest_sys::{Mapping, Piece, Protection, Source, TextWriter, trap};

use crate::poke::domain::Domain;
use crate::poke::error::PokeError;
use crate::poke::handler::claim;
use crate::poke::machine::{Target, UserMachine};
use crate::poke::protocol::{Machine, apply_by_traps};
use crate::poke::site::{Action, Code, Part, Site};
use crate::poke::{Batch, Mode, ModeChoice, arch, traps_hit};

/// A machine that forks before its call number `at`. The child ends there.
struct ForkAt<'a> {
    machine: UserMachine<'a>,
    at: usize,
    call: Cell<usize>,
    child: &'a dyn Fn(),
}

impl ForkAt<'_> {
    fn step(&self) {
        let call = self.call.replace(self.call.get() + 1);
        if call != self.at {
            return;
        }
        // SAFETY: the child runs code, pokes, and leaves by `_exit`; glibc keeps its allocator usable in it.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.child)()));
            // SAFETY: ends the child without the harness's exit handlers.
            unsafe { libc::_exit(i32::from(ended.is_err())) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place for the answer.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "a child that was forked before call {call} of the machine failed");
    }
}

impl Machine for ForkAt<'_> {
    type Error = PokeError;
    const TRAP: &'static [u8] = arch::TRAP;

    fn write(&self, sites: &[Site], part: Part) -> Result<(), PokeError> {
        self.step();
        self.machine.write(sites, part)
    }

    fn sync_cores(&self) -> Result<(), PokeError> {
        self.step();
        self.machine.sync_cores()
    }

    fn publish(&self, sites: &[Site]) {
        self.step();
        self.machine.publish(sites);
    }

    fn withdraw(&self) {
        self.step();
        self.machine.withdraw();
    }
}

const SITES: usize = 3;
const OLD: [u8; 5] = [0x0F, 0x1F, 0x44, 0, 0];
/// A jump over `inc eax`.
const NEW: [u8; 5] = [0xE9, 2, 0, 0, 0];

/// Returns the code: xor eax, eax; then each site followed by inc eax; and ret.
fn code() -> Vec<u8> {
    let site = [&OLD[..], &[0xFF, 0xC0]].concat();
    [&[0x31, 0xC0][..], &site.repeat(SITES), &[0xC3]].concat()
}

/// A child runs what the parent has left half-way, as the old or the new code, then finishes it and pokes for itself.
#[test]
fn a_child_lives_with_a_batch_that_it_inherits() {
    let mapping = Mapping::new(Source::Anonymous, 1 << 16, Protection::ReadExecute, 1 << 16).unwrap();
    let mut writer = TextWriter::new();
    // SAFETY: 1. this test's own; 2. nobody runs it.
    let mut write =
        |code: &[u8]| unsafe { writer.write([Piece::of_text(mapping.address(), code)].into_iter()) }.unwrap();
    // SAFETY: the code above.
    let function = unsafe { std::mem::transmute::<*mut u8, extern "C" fn() -> usize>(mapping.as_ptr()) };
    let site = |index: usize| {
        let address = mapping.address() + 2 + index * 7;
        let action: Action = arch::check(address, &OLD, &NEW).unwrap().unwrap();
        let code = |bytes: &[u8]| Code::new(bytes).unwrap();
        Site { address, old: code(&OLD), new: code(&NEW), action: Some(action) }
    };
    let sites: Vec<Site> = (0..SITES).map(site).collect();
    let child = || {
        // All old or all new: one system call has written them.
        let passed = function();
        assert!(passed == 0 || passed == SITES, "{passed} sites let it through");
        let (from, to) = if passed == 0 { (&NEW, &OLD) } else { (&OLD, &NEW) };
        let mut batch = Batch::new();
        for site in &sites {
            // SAFETY: 1. mapped; 2. whole instructions; 3. this test works with both; 4. no references.
            unsafe { batch.add_text(site.address, from, to) }.unwrap();
        }
        match batch.apply_in(ModeChoice::Only(Mode::Trap)) {
            Ok(applied) => assert_eq!((applied.sites, applied.syncs), (SITES, 3)),
            Err(error) => panic!("{error}"),
        }
        let before = traps_hit();
        assert_eq!(function(), SITES - passed);
        assert_eq!(traps_hit(), before, "traps are left");
    };
    trap::install(claim).unwrap();
    for at in 0.. {
        write(&code());
        let domain = Domain::own().unwrap();
        let mut state = domain.lock();
        let targets = [Target::Text; SITES];
        let tables = domain.tables(&mut state, SITES).unwrap();
        domain.set_in_flight(Some(&sites));
        let calls = {
            // SAFETY: 1. all text, written above; 2. this test works with both.
            let machine = unsafe { UserMachine::new(Some(tables), &mut state, &targets) };
            let machine = ForkAt { machine, at, call: Cell::new(0), child: &child };
            apply_by_traps(&machine, &sites).map_err(|_| ()).unwrap();
            machine.call.get()
        };
        domain.set_in_flight(None);
        assert_eq!(function(), 0);
        if at >= calls {
            assert_eq!(calls, 8, "publish, three times write and sync, withdraw");
            break;
        }
    }
}
