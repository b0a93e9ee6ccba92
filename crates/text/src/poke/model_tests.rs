//! Every interleaving of two batches with a core that fetches at its own times, and with the core's trap handler.
//!
//! The batches' steps are recorded from the real protocols; mutants drop or move one step. The core may fetch each byte
//! of the site separately, as it is or as it was at any time since the last sync: no real core is so careless.
//!
//! A site has two bytes, of versions 0 and 1, and a third value for the first: the trap, or the detour.

use std::cell::RefCell;
use std::collections::HashSet;

use super::protocol::{Machine, apply_by_detours, apply_by_single_stores, apply_by_traps};
use super::site::{Action, Code, Part, Site};

/// A step of a batch on the only site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Publish,
    /// What follows the site leads to this version's place from this step on.
    Lead(u8),
    First(u8),
    Tail(u8),
    Sync,
    Withdraw,
    /// The call has returned; the site has these bytes.
    Done(u8, u8),
}

const TRAP: u8 = 2;

struct Recorder(RefCell<Vec<Step>>);

impl Machine for Recorder {
    type Error = ();
    const TRAP: &'static [u8] = &[TRAP];

    fn write(&self, sites: &[Site], part: Part) -> Result<(), ()> {
        let Some((address, bytes)) = sites[0].part(part) else { return Ok(()) };
        let mut steps = self.0.borrow_mut();
        for (place, &byte) in (address..).zip(bytes) {
            let offset = place - sites[0].address;
            // In words that are stored: nobody notices the store of a byte that does not change.
            if part == Part::Stored && sites[0].old.as_slice()[offset] == byte {
                continue;
            }
            steps.push(if place == sites[0].address { Step::First(byte) } else { Step::Tail(byte) });
        }
        Ok(())
    }

    fn sync_cores(&self) -> Result<(), ()> {
        self.0.borrow_mut().push(Step::Sync);
        Ok(())
    }

    fn publish(&self, _sites: &[Site]) {
        self.0.borrow_mut().push(Step::Publish);
    }

    fn withdraw(&self) {
        self.0.borrow_mut().push(Step::Withdraw);
    }
}

/// The protocol that is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protocol {
    Traps,
    SingleStores,
    Detours,
}

/// Returns the steps of a batch that turns the site's bytes from one version into another.
fn batch(protocol: Protocol, from: [u8; 2], to: [u8; 2]) -> Vec<Step> {
    let code = |bytes: [u8; 2]| Code::new(&bytes).unwrap();
    let action = Some(Action { target: 0, otherwise: 0, condition: 0 });
    let sites = [Site { address: 8, old: code(from), new: code(to), action }];
    let recorder = Recorder(RefCell::default());
    match protocol {
        Protocol::Traps => apply_by_traps(&recorder, &sites),
        Protocol::SingleStores => apply_by_single_stores(&recorder, &sites),
        Protocol::Detours => {
            // What `StaticCall::set` does first.
            recorder.0.borrow_mut().push(Step::Lead(to[0]));
            apply_by_detours(&recorder, &sites, &[TRAP])
        }
    }
    .unwrap();
    let mut steps = recorder.0.into_inner();
    steps.push(Step::Done(to[0], to[1]));
    steps
}

/// What the other core is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Core {
    Fetching,
    /// In the handler, before each of its steps ([`judge`](super::table::judge)).
    Trapped,
    Stamped {
        stamp: u8,
    },
    Searched {
        stamp: u8,
    },
    SawTrap {
        stamp: u8,
    },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    next_step: usize,
    memory: [u8; 2],
    /// Bit `n`: the core may fetch value `n`.
    fetchable: [u8; 2],
    stamp: u8,
    /// Where what follows the site leads.
    leads: u8,
    /// Whether the versions have different tails, so that the wrong tail makes an instruction that never existed.
    tails_differ: bool,
    /// The site's bytes while no batch is under way.
    settled: Option<[u8; 2]>,
    core: Core,
}

/// What the third value of the first byte does, and how a handler decides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handler {
    /// None: it lets the core through, whatever the tail is.
    None,
    Real,
    /// Takes what is in no table for foreign.
    WithoutLookAtCode,
    /// Does not look at the stamp again.
    WithoutSecondLook,
}

/// Explores all executions. The first bad one is the error.
fn explore(steps: &[Step], handler: Handler) -> Result<usize, String> {
    let start = State {
        next_step: 0,
        memory: [0, 0],
        fetchable: [1, 1],
        stamp: 0,
        leads: 0,
        tails_differ: steps.contains(&Step::Tail(1)),
        settled: Some([0, 0]),
        core: Core::Fetching,
    };
    let (mut seen, mut open) = (HashSet::from([start.clone()]), vec![start]);
    while let Some(state) = open.pop() {
        for next in advance_batch(&state, steps).into_iter().chain(advance_core(&state, handler)?) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

fn advance_batch(state: &State, steps: &[Step]) -> Option<State> {
    let step = steps.get(state.next_step)?;
    let mut next = State { next_step: state.next_step + 1, settled: None, ..state.clone() };
    let mut store = |index: usize, value: u8| {
        next.memory[index] = value;
        next.fetchable[index] |= 1 << value;
    };
    match *step {
        Step::First(value) => store(0, value),
        Step::Tail(value) => store(1, value),
        Step::Sync => next.fetchable = next.memory.map(|value| 1 << value),
        Step::Publish | Step::Withdraw => next.stamp += 1,
        Step::Lead(version) => next.leads = version,
        Step::Done(first, tail) => next.settled = Some([first, tail]),
    }
    Some(next)
}

fn advance_core(state: &State, handler: Handler) -> Result<Vec<State>, String> {
    let with = |core: Core| vec![State { core, ..state.clone() }];
    let published = state.stamp % 2 == 1;
    Ok(match state.core {
        Core::Fetching if handler == Handler::None => return fetch_detour(state),
        Core::Fetching => return fetch(state),
        Core::Trapped => with(Core::Stamped { stamp: state.stamp }),
        Core::Stamped { .. } if published => with(Core::Fetching),
        Core::Stamped { stamp } => with(Core::Searched { stamp }),
        Core::Searched { .. } if handler == Handler::WithoutLookAtCode => return Err(format!("foreign: {state:?}")),
        Core::Searched { .. } if state.memory[0] != TRAP => with(Core::Fetching),
        Core::Searched { stamp } => with(Core::SawTrap { stamp }),
        Core::SawTrap { stamp } if stamp == state.stamp || handler == Handler::WithoutSecondLook => {
            return Err(format!("foreign: {state:?}"));
        }
        Core::SawTrap { .. } => with(Core::Trapped),
    })
}

/// Lets the core run the instruction, or the detour and what follows it.
fn fetch_detour(state: &State) -> Result<Vec<State>, String> {
    run_instruction(state)?;
    let takes_detour = state.fetchable[0] >> TRAP & 1 == 1;
    match state.settled {
        Some([first, _]) if takes_detour && state.leads != first => {
            Err(format!("takes the detour to the old place after the batch: {state:?}"))
        }
        _ => Ok(Vec::new()),
    }
}

fn fetch(state: &State) -> Result<Vec<State>, String> {
    run_instruction(state)?;
    match (state.fetchable[0] >> TRAP & 1 == 1, state.settled) {
        (true, Some(_)) => Err(format!("a trap after the batch: {state:?}")),
        (true, None) => Ok(vec![State { core: Core::Trapped, ..state.clone() }]),
        (false, _) => Ok(Vec::new()),
    }
}

/// Checks every mixture of the two versions that the core may have fetched.
fn run_instruction(state: &State) -> Result<(), String> {
    let may = |index: usize, value: u8| state.fetchable[index] >> value & 1 == 1;
    for (first, tail) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        if !may(0, first) || !may(1, tail) {
            continue;
        }
        // If only one byte distinguishes the versions, the tail is always 0.
        if first != tail && state.tails_differ {
            return Err(format!("runs an instruction that never was: {state:?}"));
        }
        if state.settled.is_some_and(|settled| settled != [first, tail]) {
            return Err(format!("runs the old instruction after the batch: {state:?}"));
        }
    }
    Ok(())
}

/// Records batches there and back.
fn two_batches() -> Vec<Step> {
    there_and_back(Protocol::Traps, 1)
}

/// Records batches there and back, where version 1 has this tail.
fn there_and_back(protocol: Protocol, tail: u8) -> Vec<Step> {
    [batch(protocol, [0, 0], [1, tail]), batch(protocol, [1, tail], [0, 0])].concat()
}

#[test]
fn nothing_bad_can_happen() {
    let states = explore(&two_batches(), Handler::Real).unwrap();
    assert!(states > 100, "{states} states are no exploration");
}

#[test]
fn the_steps_are_three_syncs() {
    use Step::{Done, First, Publish, Sync, Tail, Withdraw};
    let expected = [Publish, First(TRAP), Sync, Tail(1), Sync, First(1), Sync, Withdraw, Done(1, 1)];
    assert_eq!(batch(Protocol::Traps, [0, 0], [1, 1]), expected);
    let without_tail = [Publish, First(TRAP), Sync, First(1), Sync, Withdraw, Done(1, 0)];
    assert_eq!(batch(Protocol::Traps, [0, 0], [1, 0]), without_tail);
}

/// Whichever step is dropped, something bad can happen.
#[test]
fn every_step_is_needed() {
    let whole = two_batches();
    for dropped in 0..whole.len() {
        let mut steps = whole.clone();
        let step = steps.remove(dropped);
        // Without a publication or withdrawal the stamp's parity is wrong, which no caller can cause; `Done` only
        // checks.
        if matches!(step, Step::Publish | Step::Withdraw | Step::Done(..)) {
            continue;
        }
        let found = explore(&steps, Handler::Real);
        assert!(found.is_err(), "without step {dropped}, {step:?}, nothing bad was found");
    }
}

fn moved(from: Step, places: isize) -> Vec<Step> {
    let mut steps = two_batches();
    let at = steps.iter().position(|step| *step == from).unwrap();
    let step = steps.remove(at);
    steps.insert(at.wrapping_add_signed(places), step);
    steps
}

#[test]
fn publishing_late_is_caught() {
    let error = explore(&moved(Step::Publish, 1), Handler::Real).unwrap_err();
    assert!(error.contains("foreign"), "{error}");
}

#[test]
fn withdrawing_early_is_caught() {
    for places in [-2, -3, -4, -5] {
        let error = explore(&moved(Step::Withdraw, places), Handler::Real).unwrap_err();
        assert!(error.contains("foreign"), "{places}: {error}");
    }
}

#[test]
fn a_handler_that_forgets_to_look_is_caught() {
    for handler in [Handler::WithoutLookAtCode, Handler::WithoutSecondLook] {
        let error = explore(&two_batches(), handler).unwrap_err();
        assert!(error.contains("foreign"), "{error}");
    }
}

#[test]
fn one_byte_needs_one_store_and_one_sync() {
    let steps = there_and_back(Protocol::SingleStores, 0);
    assert_eq!(steps[..3], [Step::First(1), Step::Sync, Step::Done(1, 0)]);
    explore(&steps, Handler::None).unwrap();
}

#[test]
fn one_byte_without_a_sync_is_caught() {
    for dropped in [1, 4] {
        let mut steps = there_and_back(Protocol::SingleStores, 0);
        assert_eq!(steps.remove(dropped), Step::Sync);
        let error = explore(&steps, Handler::None).unwrap_err();
        assert!(error.contains("the old instruction after the batch"), "{error}");
    }
}

/// This core reads single bytes; [`Part::Stored`] needs one that reads words.
#[test]
fn two_bytes_by_single_stores_are_caught() {
    let error = explore(&there_and_back(Protocol::SingleStores, 1), Handler::None).unwrap_err();
    assert!(error.contains("never was"), "{error}");
}

#[test]
fn detours_need_two_syncs_and_each_step() {
    use Step::{Done, First, Lead, Sync, Tail};
    let steps = there_and_back(Protocol::Detours, 1);
    assert_eq!(steps[..7], [Lead(1), First(TRAP), Sync, Tail(1), Sync, First(1), Done(1, 1)]);
    explore(&steps, Handler::None).unwrap();
    // A detour that stays is right: the last step only makes it fast.
    for (dropped, step) in steps.iter().enumerate().filter(|(_, step)| !matches!(step, Done(..) | First(0 | 1))) {
        let mut steps = steps.clone();
        steps.remove(dropped);
        assert!(explore(&steps, Handler::None).is_err(), "without step {dropped}, {step:?}, nothing bad was found");
    }
}

#[test]
fn leading_elsewhere_late_is_caught() {
    let mut steps = there_and_back(Protocol::Detours, 1);
    // Moves the first step behind `Done`.
    let lead = steps.remove(0);
    steps.insert(6, lead);
    let error = explore(&steps, Handler::None).unwrap_err();
    assert!(error.contains("the detour to the old place"), "{error}");
}
