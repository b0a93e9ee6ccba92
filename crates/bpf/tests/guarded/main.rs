//! What the verifier accepts stays within its memory, as the machine itself shows: random programs near the limit run
//! compiled, in a child process, between pages that nobody may touch. The context and the value of a map lie at either
//! end of theirs; the stack ends at such a page, or has only as many bytes above one as a program may use.
//!
//! A program that leaves its memory ends the child with a signal, spoils bytes that are nobody's, or returns with other
//! registers than it must keep. The interpreter, which knows every bound to the byte, must agree. Loads that the
//! verifier lets a program try may find nothing, and end nobody; stores that are checked end the program.
//!
//! Mutants of the verifier that the programs of every run on x86-64 catch, each planted by itself:
//!
//! | where | mutant |
//! |---|---|
//! | `scalar` | `<` learns a bound that is too small by one |
//! | `scalar` | a remainder is less than the divisor less one |
//! | `scalar` | a quotient is divided by one more |
//! | `scalar` | `|` is at most the greater operand |
//! | `scalar` | the low half of a range is the range of the low halves of its ends |
//! | `scalar` | what a comparison of 32 bits tells is learned of all 64 |
//! | `scalar` | a difference's ends are those of its operands |
//! | `scalar` | a left shift that overflows keeps its range |
//! | `scalar` | a sign extension keeps numbers whose sign bit is set |
//! | `scalar` | the opposite of `>` is `<` |
//! | `scalar` | `!=` leaves two numbers out |
//! | `scalar` | `<=` with signs is one without |
//! | `scalar` | `-` has a bound of the sign that the number had |
//! | `step` | a byte behind the context is in it; bytes before a map's value; a slot below the stack |
//! | `step` | what a look-up returns is there, or is there where it was compared with 0 |
//! | `step` | a load that is tried is not noted |
//! | `checked` | a store of two areas is checked against the first |
//! | `jit` | a checked store may begin one byte later, or is compared with signs |
//! | `state` | an address survives on the stack when a byte of it is written |
//! | `explore` | a state is known if it includes one that was followed |

mod arch;
mod generator;
mod memory;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use palimpsest_bpf::host::{Host, Linked, Runner};
use palimpsest_bpf::insn::Callee;
use palimpsest_bpf::interp::{Access, Answer, HelperError, Interpreter, Trap};
use palimpsest_bpf::jit::{Outcome, Target, compile};
use palimpsest_bpf::map::{Definition, Kind, Map, Update};
use palimpsest_bpf::verify::{ContextAccess, Contract, Unproven};
use palimpsest_bpf::{Code, Packs, asm};
use palimpsest_text::{Fault, Program};

use arch::{CURRENT, Entrance, PROGRAMS};
use generator::{CONTEXT, Random, VALUE, program};
use memory::{End, Guarded, NEXT_VALUE};

/// Words of the map's value.
pub(crate) const VALUE_WORDS: usize = VALUE as usize / 8;
/// Which programs the child runs: the first seed, and how many.
const CHILD: &str = "PALIMPSEST_BPF_GUARDED_CHILD";
/// Programs that one child runs: few, so that few need be looked through after a signal.
const BATCH: u64 = 1000;
/// Contexts that each program is run with.
const CONTEXTS: usize = 6;

/// Programs here call nobody: look-ups are made in place.
enum Nobody {}

// SAFETY: 1. `guard` makes no call and returns nothing.
unsafe impl Runner for Nobody {
    fn guard(_call: impl FnOnce() -> Result<Answer, HelperError>) -> Result<Answer, HelperError> {
        unreachable!("no helper is called")
    }

    fn peek(_address: u64, _bytes: &mut [u8]) -> usize {
        unreachable!("no helper is called")
    }

    fn failed(_callee: Callee, _error: HelperError) {}

    fn hold(_record: u64) -> Result<(), HelperError> {
        Ok(())
    }

    fn let_go(_record: u64) {}

    fn cpu() -> u32 {
        0
    }
}

/// The memory of one placement.
struct Room {
    end: End,
    context: Guarded,
    stack: Guarded,
    value: Guarded,
    host: Arc<Host>,
}

impl Room {
    fn new(end: End) -> Self {
        let value = Guarded::new();
        let place = value.address() + value.at(end, VALUE as usize);
        NEXT_VALUE.store(place, Ordering::Relaxed);
        let map = Map::new(Definition::new("value", Kind::Array, 4, VALUE as u32, 1)).expect("good measures");
        assert_eq!(NEXT_VALUE.load(Ordering::Relaxed), 0, "the map's value lies between the pages");
        map.update(&[0; 4], &[1; VALUE as usize], Update::Always).expect("there");
        assert!(value.bytes()[value.at(end, VALUE as usize)..][..VALUE as usize].iter().all(|byte| *byte == 1));
        let host = Host::builder().map(Arc::new(map)).build();
        Self { end, context: Guarded::new(), stack: Guarded::new(), value, host }
    }

    fn verified(&self, text: &str, unproven: Unproven) -> Option<Linked> {
        let bytes = asm::assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let code = Code::new(&bytes).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let contract = Contract::new().context(CONTEXT as u32, ContextAccess::Write).budget(5000).unproven(unproven);
        self.host.verify(contract, code).ok()
    }

    /// Returns the bytes of the value, or of the context.
    fn value(&self) -> &mut [u8] {
        &mut self.value.bytes()[self.value.at(self.end, VALUE as usize)..][..VALUE as usize]
    }

    fn context(&self) -> &mut [u8] {
        &mut self.context.bytes()[self.context.at(self.end, CONTEXT as usize)..][..CONTEXT as usize]
    }

    /// Runs it between the pages. Returns what it returns, or says what it has spoilt.
    fn run(&self, program: &Program) -> Result<Outcome, String> {
        let top = match self.end {
            // Below what it may use is a page that it must not touch.
            End::Low => arch::DEPTH,
            // Above its return address is one.
            End::High => memory::LEN,
        };
        self.stack.bytes().copy_from_slice(&memory::UNTOUCHED);
        let mut entrance = Entrance {
            entry: program.entry().expose_provenance() as u64,
            stack: (self.stack.address() + top) as u64,
            arguments: [self.context().as_mut_ptr().expose_provenance() as u64, CONTEXT as u64],
            kept: std::array::from_fn(|index| 0x0101_0101_0101_0101 * (index as u64 + 1)),
            ..Entrance::default()
        };
        CURRENT.store(&raw mut entrance, Ordering::Relaxed);
        // SAFETY: 1. a verified program, with its context; what it does to memory is what is tested, in a process of
        // its own. 2. stored just now; the test has one thread.
        unsafe { arch::enter(&raw mut entrance) };
        if entrance.stack_after != entrance.stack || entrance.kept_after != entrance.kept {
            return Err(format!("registers that it must keep: {entrance:x?}"));
        }
        let (stack, depth) = (self.stack.bytes(), top.saturating_sub(arch::DEPTH));
        if stack[..depth] != memory::UNTOUCHED[..depth] {
            return Err("the stack below what it may use".to_owned());
        }
        for (name, guarded, own) in [("context", &self.context, CONTEXT), ("value", &self.value, VALUE)] {
            let start = guarded.at(self.end, own as usize);
            let (before, rest) = guarded.bytes().split_at(start);
            let behind = &rest[own as usize..];
            if before != &memory::UNTOUCHED[..start] || behind != &memory::UNTOUCHED[..behind.len()] {
                return Err(format!("memory beside the {name}"));
            }
        }
        Ok(Outcome { value: entrance.result, gauge: entrance.gauge })
    }
}

fn load(packs: &Packs, linked: &Linked) -> Program {
    let target = Target::NATIVE.expect("asked before");
    let compiled = linked.compile::<Nobody>(target, 1).expect("it is compiled");
    let is_checked = linked.verified().checked_stores().len() > 0;
    assert_eq!(compiled.has_gauge(), is_checked, "nobody is called");
    let mut staged = packs.stage(compiled.bytes().len(), target.alignment()).expect("room");
    staged.image().copy_from_slice(compiled.bytes());
    let fault = |&(offset, landing)| Fault { offset, landing };
    staged.set_faults(compiled.faults().iter().map(fault).collect()).expect("in order");
    staged.finalize().expect("room")
}

/// Runs the child: says which program it runs, and at the end how many were accepted.
fn child(first: u64, count: u64) {
    let packs = Packs::new().expect("packs");
    packs.resume_after_faults().expect("a handler");
    let rooms = [End::Low, End::High].map(Room::new);
    let (mut accepted, mut refused, mut probing, mut ended) = (0, 0, 0, 0);
    for seed in first..first + count {
        let text = program(seed);
        // One program in four has its other loads tried, and its other stores checked.
        let unproven = if seed % 4 == 0 { Unproven::Probe } else { Unproven::Refuse };
        let linked: Vec<Linked> = rooms.iter().filter_map(|room| room.verified(&text, unproven)).collect();
        if linked.is_empty() {
            refused += 1;
            continue;
        }
        assert_eq!(linked.len(), 2, "where memory lies makes no difference\n{text}");
        accepted += 1;
        println!("seed {seed}");
        for (room, linked) in rooms.iter().zip(&linked) {
            let tried = !linked.verified().probes().is_empty();
            let is_checked = linked.verified().checked_stores().len() > 0;
            probing += u32::from(tried && room.end == End::Low);
            let program = load(&packs, linked);
            let random = &mut Random::new(seed ^ 0x5eed);
            for _ in 0..CONTEXTS {
                let numbers: [u64; CONTEXT as usize / 8] = std::array::from_fn(|_| match random.below(4) {
                    0 => random.next(),
                    1 => (random.below(70) as u64).wrapping_neg(),
                    2 => 1 << random.below(64),
                    _ => random.below(70) as u64,
                });
                let context: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
                let value: Vec<u8> = (0..VALUE).map(|_| random.next() as u8).collect();
                room.context().copy_from_slice(&context);
                room.value().copy_from_slice(&value);
                let outcome = room.run(&program).unwrap_or_else(|what| panic!("seed {seed} spoils {what}\n{text}"));
                let outside = outcome.outside().filter(|_| is_checked);
                ended += u32::from(outside.is_some());
                let left = (room.context().to_vec(), room.value().to_vec());
                if tried {
                    // What it finds where it only may look is whatever lies there.
                    continue;
                }
                let mut view = context.clone();
                room.value().copy_from_slice(&value);
                let expected = linked.interpret(&Interpreter::default(), &mut view);
                match outside {
                    None => assert_eq!(Ok(outcome.value), expected, "seed {seed}: {numbers:x?}\n{text}"),
                    Some(slot) => {
                        let error = expected.expect_err(&text);
                        let is_store = matches!(error.trap, Trap::Memory(fault) if fault.access == Access::Write);
                        assert!(error.slot == slot && is_store, "seed {seed}: {error}, {slot}: {numbers:x?}\n{text}");
                    }
                }
                assert_eq!(left, (view, room.value().to_vec()), "seed {seed}: {numbers:x?}\n{text}");
            }
        }
    }
    println!("{accepted} accepted, {refused} refused, {ended} ended, {probing} probing");
}

/// Runs the programs of `seeds` in children. Returns how many were accepted, were refused, were ended by a store, and
/// try loads.
fn run_children(seeds: std::ops::Range<u64>) -> [u64; 4] {
    let own = std::env::current_exe().expect("a test has a path");
    let mut sums = [0; 4];
    for first in seeds.clone().step_by(BATCH as usize) {
        let count = BATCH.min(seeds.end - first);
        let mut command = Command::new(&own);
        command.args(["--exact", "what_is_accepted_stays_between_its_pages", "--nocapture"]);
        let output = command.env(CHILD, format!("{first} {count}")).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        let last = said.lines().filter_map(|line| line.strip_prefix("seed ")?.parse().ok()).next_back();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{}, in the program of seed {last:?}:\n{}\n{errors}",
            output.status,
            last.map(program).unwrap_or_default()
        );
        let counts = said.lines().find(|line| line.ends_with(" probing")).expect("a child says what it has done");
        let counts = counts.split(' ').filter_map(|word| word.parse::<u64>().ok());
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    sums
}

#[test]
fn what_is_accepted_stays_between_its_pages() {
    if Target::NATIVE.is_none() {
        eprintln!("skipped: there is no compiler for this machine");
        return;
    }
    if let Ok(range) = std::env::var(CHILD) {
        let mut numbers = range.split(' ').map(|number| number.parse().expect("numbers"));
        let mut number = || numbers.next().expect("two numbers");
        return child(number(), number());
    }
    let [accepted, refused, ended, probing] = run_children(0..PROGRAMS);
    println!("{accepted} accepted, {refused} refused; {probing} try loads; {ended} runs ended by a store");
    assert!(
        accepted > PROGRAMS / 10 && refused > PROGRAMS / 10 && probing > 0 && ended > 0,
        "{accepted} accepted, {refused} refused, {probing} try loads, {ended} ended: the programs tell nothing"
    );
}

/// As many programs as are asked for, other than above; 100 000 take some minutes.
#[test]
#[ignore = "a campaign of minutes: PALIMPSEST_BPF_SEEDS=FIRST..LAST chooses the programs"]
fn what_is_accepted_stays_between_its_pages_in_a_campaign() {
    if Target::NATIVE.is_none() {
        eprintln!("skipped: there is no compiler for this machine");
        return;
    }
    let asked_for = std::env::var("PALIMPSEST_BPF_SEEDS").unwrap_or_else(|_| "1000000..1100000".to_owned());
    let ends = asked_for.split_once("..").and_then(|(first, last)| Some(first.parse().ok()?..last.parse().ok()?));
    let seeds = ends.unwrap_or_else(|| panic!("PALIMPSEST_BPF_SEEDS is {asked_for:?}, and must be FIRST..LAST"));
    let [accepted, refused, ended, probing] = run_children(seeds);
    println!("{accepted} accepted, {refused} refused; {probing} try loads; {ended} runs ended by a store");
}

/// Which of [`LEAVING`] the child runs.
const LEAVES: &str = "PALIMPSEST_BPF_GUARDED_LEAVES";

/// Programs that no verifier has seen, which leave their memory at either end. `r3` is the value of the map.
const LEAVING: [(End, &str); 10] = [
    (End::High, "r0 = *(u8 *)(r1 + 40)"),
    (End::High, "r0 = *(u64 *)(r1 + 33)"),
    (End::Low, "r0 = *(u8 *)(r1 - 1)"),
    (End::High, "r0 = *(u32 *)(r3 + 101)"),
    (End::Low, "r0 = *(u16 *)(r3 - 2)"),
    (End::High, "*(u64 *)(r1 - 8) = 5"),
    (End::Low, "*(u8 *)(r3 + 104) = 5"),
    // Above the stack are its return addresses, and a page.
    (End::High, "r0 = *(u8 *)(r10 + 16)"),
    (End::Low, "*(u64 *)(r10 + 0) = 5\n*(u64 *)(r10 + 8) = 5"),
    (End::Low, "r0 = *(u8 *)(r10 - 600)"),
];

#[test]
fn what_leaves_its_pages_is_noticed() {
    let Some(target) = Target::NATIVE else {
        eprintln!("skipped: there is no compiler for this machine");
        return;
    };
    if let Ok(number) = std::env::var(LEAVES) {
        let (end, text) = LEAVING[number.parse::<usize>().expect("a number")];
        let room = Room::new(end);
        let text = format!("r0 = 0\nr3 = {} ll\n{text}\nexit", room.value().as_ptr().addr());
        let bytes = asm::assemble(&text).expect("a program");
        let code = Code::new(&bytes).expect("its structure is right");
        let packs = Packs::new().expect("packs");
        let program = packs.load(compile(&code, target, &()).expect("compiled").bytes(), 8).expect("room");
        println!("begins");
        println!("{:?}", room.run(&program));
        return;
    }
    for (number, (end, text)) in LEAVING.into_iter().enumerate() {
        let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
        command.args(["--exact", "what_leaves_its_pages_is_noticed", "--nocapture"]).env(LEAVES, number.to_string());
        let output = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("begins"), "{output:?}");
        assert!(!said.contains("Ok("), "{text}, at the end {end:?}, is not noticed: {said}");
    }
}
