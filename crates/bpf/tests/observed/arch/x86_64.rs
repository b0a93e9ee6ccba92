//! Runs a program instruction by instruction, and looks at each what its table says of the caller.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use gimli::{
    BaseAddresses, CfaRule, EhFrame, NativeEndian, Register, RegisterRule, UnwindContext, UnwindSection, UnwindTableRow,
};

use palimpsest_bpf::Packs;
use palimpsest_bpf::host::Host;
use palimpsest_bpf::verify::Signature;

use crate::unwinding::{Told, load, whoever_runs_the_program};

/// `rbx`, `rbp` and `r12` to `r15`, which functions keep: their numbers in DWARF, and in a signal's frame.
const KEPT: [(u16, usize); 6] = [
    (3, libc::REG_RBX as usize),
    (6, libc::REG_RBP as usize),
    (12, libc::REG_R12 as usize),
    (13, libc::REG_R13 as usize),
    (14, libc::REG_R14 as usize),
    (15, libc::REG_R15 as usize),
];

/// Which of them is the gauge.
const GAUGE: usize = 2;

/// What a table says of some instructions.
#[derive(Clone, Debug)]
struct Row {
    start: u64,
    end: u64,
    /// Whether a function begins here.
    begins: bool,
    /// From the stack pointer to where it was before the call.
    above: u64,
    /// Where registers are, from there downwards.
    kept: [Option<u64>; 6],
}

/// A function that runs.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// The stack pointer before its call.
    stack: u64,
    returns_to: u64,
    kept: [u64; 6],
}

#[derive(Debug, Default)]
struct Stepping {
    rows: Vec<Row>,
    frames: Vec<Frame>,
    steps: usize,
    deepest: usize,
    /// The first instruction of which something wrong is said.
    wrong: Option<(u64, &'static str)>,
}

static STEPPING: AtomicPtr<Stepping> = AtomicPtr::new(std::ptr::null_mut());
static IS_OVER: AtomicBool = AtomicBool::new(false);
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

fn word(address: u64) -> u64 {
    let place = std::ptr::with_exposed_provenance::<u64>(address as usize);
    // SAFETY: on the stack of this thread, above what is in use.
    unsafe { place.read_volatile() }
}

impl Stepping {
    fn step(&mut self, at: u64, stack: u64, registers: [u64; 6]) {
        let place = self.rows.partition_point(|row| row.end <= at);
        let Some(row) = self.rows.get(place).filter(|row| row.start <= at) else { return };
        self.steps += 1;
        let begins = row.begins && at == row.start;
        // Those that have returned, also to who calls again from there.
        let end = if begins { stack + 8 } else { stack };
        while self.frames.last().is_some_and(|frame| end >= frame.stack) {
            self.frames.pop();
        }
        if begins {
            let frame = Frame { stack: stack + 8, returns_to: word(stack), kept: registers };
            self.frames.push(frame);
            self.deepest = self.deepest.max(self.frames.len());
        }
        let Some(frame) = self.frames.last() else { return self.note(at, "nobody has called it") };
        let caller = stack + row.above;
        if caller != frame.stack {
            return self.note(at, "the caller's stack");
        }
        if word(caller - 8) != frame.returns_to {
            return self.note(at, "the return address");
        }
        for (index, place) in row.kept.iter().enumerate() {
            // The gauge is of the whole program: only who enters it from outside keeps the caller's.
            if index == GAUGE && place.is_none() && self.frames.len() > 1 {
                continue;
            }
            if place.is_some_and(|below| caller - below < stack) {
                return self.note(at, "a register where signal handlers write");
            }
            let found = place.map_or(registers[index], |below| word(caller - below));
            if found != frame.kept[index] {
                return self.note(at, "a register");
            }
        }
    }

    fn note(&mut self, at: u64, what: &'static str) {
        self.wrong = self.wrong.or(Some((at, what)));
    }
}

extern "C" fn handle(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    /// The trap flag, which the CPU looks at behind each instruction (Intel SDM, volume 1, section 3.4.3.3).
    const TRAP: i64 = 1 << 8;
    // SAFETY: the kernel passes the interrupted thread's registers to handlers with `SA_SIGINFO`.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let registers = &mut context.uc_mcontext.gregs;
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    if IS_OVER.load(Ordering::Relaxed) {
        registers[libc::REG_EFL as usize] &= !TRAP;
        return;
    }
    registers[libc::REG_EFL as usize] |= TRAP;
    // SAFETY: null, or the test's, which waits; the handler is not interrupted by itself.
    if let Some(stepping) = unsafe { STEPPING.load(Ordering::Relaxed).as_mut() } {
        let (at, stack) = (registers[libc::REG_RIP as usize], registers[libc::REG_RSP as usize]);
        stepping.step(at as u64, stack as u64, KEPT.map(|(_, index)| registers[index] as u64));
    }
}

fn row(row: &UnwindTableRow<usize>, start: u64) -> Row {
    let CfaRule::RegisterAndOffset { register: Register(7), offset } = *row.cfa() else { panic!("{row:?}") };
    assert!(matches!(row.register(Register(16)), Some(RegisterRule::Offset(-8))), "{row:?}");
    let kept = KEPT.map(|(number, _)| match row.register(Register(number)) {
        Some(RegisterRule::Offset(offset)) => Some(-offset as u64),
        None | Some(RegisterRule::Undefined) => None,
        other => panic!("{other:?}"),
    });
    let begins = row.start_address() == start;
    Row { start: row.start_address(), end: row.end_address(), begins, above: offset as u64, kept }
}

/// Reads a table, as a debugger does.
fn rows(table: &[u8]) -> Vec<Row> {
    let (section, bases) = (EhFrame::new(table, NativeEndian), BaseAddresses::default());
    let mut entries = section.entries(&bases);
    let (mut rows, mut context) = (Vec::new(), UnwindContext::new());
    while let Some(entry) = entries.next().expect("a table") {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset).expect("it has a CIE");
        let mut table = fde.rows(&section, &bases, &mut context).expect("rows");
        while let Some(next) = table.next_row().expect("a row") {
            rows.push(row(next, fde.initial_address()));
        }
    }
    rows.sort_by_key(|row| row.start);
    rows
}

#[test]
fn the_caller_is_found_at_every_instruction() {
    // SAFETY: all-zero is a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: a valid action, whose handler has the type that its flags say; null asks for nothing.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()) }, 0);
    let told = Told::default();
    let packs = Packs::builder().observer(told.clone()).open().expect("packs");
    for fuel in [None, Some(100)] {
        let host = Host::builder().helper(70_000, Signature::new([]), |_| Ok(0));
        let program = load(&packs, host, fuel);
        let table = told.0.lock().expect("nobody panics").1.clone();
        let mut stepping = Stepping { rows: rows(&table), frames: Vec::with_capacity(16), ..Stepping::default() };
        STEPPING.store(&raw mut stepping, Ordering::Relaxed);
        IS_OVER.store(false, Ordering::Relaxed);
        // SAFETY: a valid signal, for which there is a handler.
        unsafe { libc::raise(libc::SIGTRAP) };
        let result = whoever_runs_the_program(&program);
        IS_OVER.store(true, Ordering::Relaxed);
        // The last step, if the compiler has not made it one of the above.
        std::hint::black_box(&program);
        STEPPING.store(std::ptr::null_mut(), Ordering::Relaxed);
        assert_eq!(result, 5);
        assert_eq!(stepping.wrong, None, "{stepping:x?}");
        assert!(stepping.steps > 70 && stepping.deepest == 3, "{stepping:x?}");
    }
    assert!(SIGNALS.load(Ordering::Relaxed) > 200);
}
