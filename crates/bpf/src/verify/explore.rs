//! Follows every way through a program.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use super::alone::Functions;
use super::fault::{Fault, VerifyError};
use super::leans::Leans;
use super::live::live;
use super::log::Watch;
use super::scalar::Scalar;
use super::state::{Area, Callback, Content, Effort, Links, Sources, State, Value};
use super::step::{Next, Seen, Shared, Step};
use super::stored::{Region, Stored};
use super::{ContextUse, Contract, EFFORT, Guard, Leftovers, MOST_VALUES};
use crate::code::Code;
use crate::insn::{Instruction, Register, Wide};

/// Fewest instructions between two kept states of one way.
const APART: usize = 8;
/// Kept states of one place to look at, the latest first.
const LOOKED_AT: usize = 64;

/// How loops are known to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Loops {
    /// They are followed to their ends, or have a `may_goto`.
    Proven,
    /// Each jump back pays when the program runs.
    Fuelled,
}

/// A state seen where ways meet.
struct Kept {
    /// Without what nobody looks at again. Its numbers were made of those of the state before it.
    state: State,
    /// Which of its numbers are linked with each other.
    links: Links,
    /// The previous state kept at its instruction.
    earlier: Option<u32>,
    /// The state before it on its way.
    before: Option<usize>,
    /// Ways from here that have not ended: while there are some, the way followed now came by here, since the latest
    /// way is followed first.
    open: usize,
    /// Earlier states that ways from here lead back to.
    leans: Cell<Leans>,
    /// The numbers that ways from here have used so far: all, once these have ended.
    used: Cell<Sources>,
}

const _: () = assert!(size_of::<Kept>() <= State::BESIDE * size_of::<Content>());
const _: () = assert!(size_of::<Way>() <= State::BESIDE * size_of::<Content>());

/// What is kept at an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meeting {
    /// Two ways never meet there: nothing.
    Never,
    /// Nothing yet.
    Yet,
    /// The latest state there.
    Latest(u32),
}

/// A way that is still to be followed.
struct Way {
    at: usize,
    state: State,
    /// The last kept state on it.
    before: Option<usize>,
    /// Whether a helper calls the function that begins here.
    entering: bool,
    /// Instructions since the last kept state.
    since: usize,
}

/// Whether a way enters a function that a helper calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entering {
    Yes,
    No,
}

struct Explorer<'a> {
    shared: Shared<'a>,
    loops: Loops,
    live: Vec<u16>,
    kept: Vec<Kept>,
    /// What is kept at each instruction.
    meetings: Vec<Meeting>,
    /// Whether a jump back goes to each instruction, if each pays.
    heads: Vec<bool>,
    pending: Vec<Way>,
    /// What timers call, by instruction and map: followed once each, since all calls begin alike.
    later: BTreeSet<(u32, Option<u32>)>,
    /// Values in `kept` and `pending`.
    values: usize,
    /// What was seen of each instruction.
    seen: Vec<Seen>,
    /// Whoever wants a log.
    watch: Option<&'a mut Watch>,
}

/// Most of what is followed and kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    /// Instructions followed.
    pub(super) followed: usize,
    /// The same, and those run in calls that are not followed.
    pub(super) budget: usize,
    /// [`State::weight`] of all that is kept.
    pub(super) values: usize,
    /// Values that are compared and copied.
    pub(super) effort: usize,
}

impl Limits {
    pub(super) const fn new(budget: usize) -> Self {
        Self { followed: budget, budget, values: MOST_VALUES, effort: budget.saturating_mul(EFFORT) }
    }
}

/// What was found out about a program that can do no harm.
#[derive(Debug)]
pub(super) struct Explored {
    pub(super) context_use: ContextUse,
    /// Loads that may find nothing, in order.
    pub(super) probes: Vec<u32>,
    /// Stores that are checked, in order, and within which memory they are.
    pub(super) checked: Vec<(u32, Region)>,
    /// What guards instructions, in order.
    pub(super) guards: Vec<(u32, Guard)>,
    /// What registers without a value hold when the program runs.
    pub(super) leftovers: Leftovers,
    /// How many instructions were followed.
    pub(super) followed: usize,
}

/// Follows every way through `code`, and through the functions that are verified `alone`.
pub(super) fn explore<'a>(
    code: &'a Code,
    alone: &'a Functions<'a>,
    contract: &'a Contract,
    (loops, limits): (Loops, Limits),
    watch: Option<&'a mut Watch>,
) -> Result<Explored, VerifyError> {
    let shared = Shared {
        code,
        contract,
        alone,
        context_use: Cell::new(ContextUse::Plain),
        // The program's own function has the number 0.
        instances: Cell::new(1),
        bases: Cell::new(0),
        frames: Cell::new(1),
        unfollowed: Cell::new(0),
        counted: (loops == Loops::Fuelled).then(RefCell::default),
        effort: Effort::default(),
        unset: if contract.may_print(code) { Value::Cleared } else { Value::Unset },
        leftovers: Cell::new(Leftovers::Any),
    };
    let mut explorer = Explorer {
        shared,
        loops,
        live: live(code),
        kept: Vec::new(),
        meetings: meetings(code),
        heads: match loops {
            Loops::Proven => Vec::new(),
            Loops::Fuelled => heads(code),
        },
        pending: Vec::new(),
        later: BTreeSet::new(),
        values: 0,
        seen: alloc::vec![Seen::default(); code.instructions().len()],
        watch,
    };
    let mut followed = 0;
    for function in alone.in_order() {
        let state = function.state(explorer.instance());
        let before = explorer.counted(followed);
        explorer.shared.begin_root();
        explorer.follow(function.entry, state, limits, &mut followed)?;
        // A run passes each followed step once at most, until a jump back pays. None of them was left out since it is
        // like one of an earlier root: what a timer calls comes before whoever sets the timer.
        function.steps.set(explorer.counted(followed) - before);
        function.frames.set(explorer.shared.frames.replace(1));
    }
    let mut state = State::new();
    state.top_mut().lose(explorer.shared.unset);
    if contract.context.is_some() {
        let registers = state.top_mut();
        registers.set(Register::R1, Value::Pointer(Area::Context, Scalar::constant(0)));
        registers.set(Register::R2, Value::Scalar(Scalar::UNKNOWN));
    }
    explorer.shared.begin_root();
    explorer.follow(0, state, limits, &mut followed)?;
    let Explorer { shared, seen, .. } = explorer;
    let (mut probes, mut checked, mut guards) = (Vec::new(), Vec::new(), Vec::new());
    for (index, seen) in (0..).zip(&seen) {
        if seen.is_probe.get() {
            probes.push(index);
        }
        if let Stored::Checked(region) = seen.stored.get() {
            checked.push((index, region));
        }
        guards.extend(seen.guard.get().filter(|guard| *guard != Guard::Unmasked).map(|guard| (index, guard)));
    }
    let (context_use, leftovers) = (shared.context_use.get(), shared.leftovers.get());
    Ok(Explored { context_use, probes, checked, guards, leftovers, followed })
}

/// Finds where several ways meet: targets of jumps, and what `may_goto` guards.
fn meetings(code: &Code) -> Vec<Meeting> {
    let mut meetings = alloc::vec![Meeting::Never; code.instructions().len()];
    for (index, instruction) in code.instructions().iter().enumerate() {
        let distance = match *instruction {
            Instruction::Jump { offset, .. } => offset,
            Instruction::Branch { offset, .. } => offset.into(),
            Instruction::MayGoto { offset } => {
                meetings[index] = Meeting::Yet;
                offset.into()
            }
            Instruction::LoadWide { value: Wide::Function(distance), .. } => distance,
            _ => continue,
        };
        if let Some(target) = code.target(index, distance) {
            meetings[target] = Meeting::Yet;
        }
    }
    meetings
}

/// Finds the targets of jumps back: every loop has one.
fn heads(code: &Code) -> Vec<bool> {
    let mut heads = alloc::vec![false; code.instructions().len()];
    code.jumps_back().for_each(|(target, _)| heads[target] = true);
    heads
}

impl Explorer<'_> {
    /// Follows every way from instruction `at` on.
    fn follow(&mut self, at: usize, state: State, limits: Limits, followed: &mut usize) -> Result<(), VerifyError> {
        self.values += state.weight();
        self.pending.push(Way { at, state, before: None, entering: false, since: 0 });
        self.watch(Watch::add_root);
        let Limits { followed: most_followed, budget, values: most_values, effort: most_effort } = limits;
        // Whoever watches sees each step.
        let unseen = if self.watch.is_some() { 0 } else { most_followed };
        while let Some(mut way) = self.pending.pop() {
            self.values -= way.state.weight();
            self.watch(Watch::begin);
            loop {
                let at = way.at;
                *followed += 1;
                let outcome = if *followed > unseen && self.arrive(&way, *followed > most_followed) {
                    Err(Fault::Budget { budget: most_followed })
                } else if self.counted(*followed) > budget {
                    Err(Fault::Budget { budget })
                } else if self.values > most_values {
                    Err(Fault::Values { most: most_values })
                } else if self.shared.effort.get() > most_effort {
                    Err(Fault::Effort { most: most_effort })
                } else {
                    self.advance(&mut way)
                };
                match outcome {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(fault) => {
                        let (slot, instruction) = (self.shared.code.slot(at), self.shared.code.instructions()[at]);
                        return Err(VerifyError { slot, instruction, fault });
                    }
                }
            }
            self.end(way.before);
        }
        Ok(())
    }

    /// Returns how many instructions count against the budget, if so many were followed.
    #[inline]
    fn counted(&self, followed: usize) -> usize {
        followed.saturating_add(self.shared.unfollowed.get())
    }

    /// Tells whoever watches.
    #[inline]
    fn watch(&mut self, tell: impl FnOnce(&mut Watch)) {
        if let Some(watch) = &mut self.watch {
            tell(watch);
        }
    }

    /// Tells whoever watches that a step begins. Returns whether it is one too many.
    #[cold]
    #[inline(never)]
    fn arrive(&mut self, way: &Way, is_beyond: bool) -> bool {
        let instruction = self.shared.code.instructions()[way.at];
        self.watch(|watch| watch.arrive(way.at, instruction, &way.state));
        is_beyond
    }

    /// Returns a number for a call of a function.
    fn instance(&self) -> u32 {
        // Cannot overflow: there are fewer than instructions that are followed, and functions.
        let instance = self.shared.instances.get();
        self.shared.instances.set(instance + 1);
        instance
    }

    /// Follows one instruction. Returns false if the way ends.
    fn advance(&mut self, way: &mut Way) -> Result<bool, Fault> {
        if self.meetings[way.at] != Meeting::Never {
            if self.is_known(way)? {
                self.watch(Watch::meet);
                return Ok(false);
            }
            let live = self.live[way.at];
            self.watch(|watch| watch.go_on(live, &way.state));
        }
        way.since += 1;
        let used = Cell::new(Sources::NONE);
        let (shared, seen) = (&self.shared, &self.seen[way.at]);
        let step = Step { shared, at: way.at, state: &mut way.state, seen, used: &used };
        let next = step.follow()?;
        self.note_used(way.before, used.get());
        match next {
            Next::One(at) => way.at = at,
            Next::Two(at, other, state) => {
                way.at = at;
                self.push(way, other, state, Entering::No);
            }
            Next::Iterate { behind, enter, entered } => {
                way.at = behind;
                self.push(way, enter, entered, Entering::Yes);
            }
            Next::Later { behind, callback } => {
                way.at = behind;
                if self.later.insert((callback.entry, callback.map)) {
                    self.push_later(callback);
                }
            }
            Next::Ended => return Ok(false),
        }
        Ok(true)
    }

    /// Notes a way that begins at another time: no state of this way was before it.
    fn push_later(&mut self, callback: Callback) {
        let has_lock = callback.map.is_some_and(|map| self.shared.contract.maps[map as usize].lock.is_some());
        let state = State::of_timer(callback, has_lock, self.shared.unset, self.instance());
        self.values += state.weight();
        let at = callback.entry as usize;
        self.pending.push(Way { at, state, before: None, entering: false, since: 0 });
        self.watch(Watch::add_root);
    }

    /// Notes another way that goes on from `way`.
    fn push(&mut self, way: &Way, at: usize, state: State, entering: Entering) {
        if let Some(before) = way.before {
            self.kept[before].open += 1;
        }
        let Way { before, since, .. } = *way;
        self.values += state.weight();
        self.shared.effort.add(state.weight());
        self.pending.push(Way { at, state, before, entering: entering == Entering::Yes, since });
        self.watch(Watch::add_fork);
    }

    /// Whether the way need not be followed, since one from here that includes it was. Otherwise keeps its state.
    ///
    /// Apart from [`advance`](Self::advance), since few instructions are reached on several ways.
    #[inline(never)]
    fn is_known(&mut self, way: &mut Way) -> Result<bool, Fault> {
        // What counts rounds: a helper that calls a function again and again, a `may_goto`, and fuel.
        let is_guard = matches!(self.shared.code.instructions()[way.at], Instruction::MayGoto { .. });
        let is_fuelled = self.loops == Loops::Fuelled;
        let guarded = core::mem::take(&mut way.entering)
            || (is_guard && !way.state.top().is_spent)
            || (is_fuelled && self.heads[way.at]);
        let latest = match self.meetings[way.at] {
            Meeting::Latest(latest) => Some(latest),
            Meeting::Never | Meeting::Yet => None,
        };
        // What nobody looks at again is unset in kept states, and unset includes everything.
        let state = &way.state;
        let mut earlier_round = None;
        let mut met = latest;
        for _ in 0..LOOKED_AT {
            let Some(index) = met.map(|index| index as usize) else { break };
            let kept = &self.kept[index];
            met = kept.earlier;
            let is_open = kept.open > 0;
            if is_open && guarded && earlier_round.is_none() {
                let is_call = is_fuelled || kept.state.is_call_of(state);
                if is_call && kept.state.has_functions_of(state) {
                    earlier_round = Some(index);
                }
            }
            // While ways from it are followed, what they use is not known yet.
            let is_covered = if is_open {
                kept.state.includes(&kept.links, state, &self.shared.effort)
            } else {
                kept.state.covers(&kept.links, state, kept.used.get(), &self.shared.effort)
            };
            if !is_covered {
                continue;
            }
            // What the ways from there depend on, this one depends on, too.
            let used = if is_open { Sources::ALL } else { kept.used.get() };
            let inner = state.made_of(used, &kept.state).and(state.sources_of_callers());
            match is_open {
                // Once more, if what ends loops through here is a count that differs in this call.
                false => match self.leans_of(index, state) {
                    Some(leans) => {
                        self.note_used(way.before, inner);
                        self.lean(way.before, &leans);
                        return Ok(true);
                    }
                    None => continue,
                },
                // Each way back to here takes a jump back, and the fuel ends it.
                true if is_fuelled => {
                    self.note_used(way.before, inner);
                    return Ok(true);
                }
                // Another round from here does what was done before, and the count of this call ends it. A `may_goto`
                // leads back to itself only if it was passed, since behind its jump the count has run out.
                true if guarded && kept.state.is_call_of(state) => {
                    let mut leans = Leans::default();
                    leans.add(state.frames.len() - 1, index);
                    self.note_used(way.before, inner);
                    self.lean(way.before, &leans);
                    return Ok(true);
                }
                true => {
                    let (looked_at, effort) = (self.looked_at(way), &self.shared.effort);
                    let is_same = looked_at.includes(&looked_at.links(effort), &kept.state, effort);
                    if is_same && kept.state.has_rounds_of(state) {
                        return Err(Fault::Endless);
                    }
                }
            }
        }
        let state = if let Some(earlier) = earlier_round {
            // Forget what differs from round to round, so that few rounds cover all.
            way.state = self.kept[earlier].state.widened(&self.looked_at(way));
            way.state.clone()
        } else if way.since < APART && !guarded && latest.is_some() {
            return Ok(false);
        } else {
            self.looked_at(way)
        };
        let index = self.kept.len();
        let links = state.links(&self.shared.effort);
        self.values += state.weight() + links.weight();
        // Of functions around the innermost one, whoever compares states compares the numbers.
        self.note_used(way.before, way.state.sources_of_callers());
        let (before, leans, used) = (way.before, Cell::default(), Cell::default());
        self.kept.push(Kept { state, links, earlier: latest, before, open: 1, leans, used });
        self.watch(Watch::keep);
        way.state.begin_sources();
        self.meetings[way.at] = Meeting::Latest(index as u32);
        (way.before, way.since) = (Some(index), 0);
        Ok(false)
    }

    /// Returns the state of a way without what nobody looks at again.
    fn looked_at(&self, way: &Way) -> State {
        self.shared.effort.add(way.state.weight());
        let mut state = way.state.clone();
        state.forget(way.at, &self.live);
        state
    }

    /// Returns the open states that the kept state `index`, which was followed to its ends, leans on; `None` if `state`
    /// is in another call of a function that counts there.
    fn leans_of(&self, index: usize, state: &State) -> Option<Leans> {
        let closed = |on: usize| (self.kept[on].open == 0).then_some(self.kept[on].leans.get());
        let leans = self.kept[index].leans.get().open(closed);
        self.kept[index].leans.set(leans);
        let is_call = |depth: usize| self.kept[index].state.frames[depth].instance == state.frames[depth].instance;
        leans.iter().all(|(depth, _)| is_call(depth)).then_some(leans)
    }

    /// Notes that a way has used numbers that were made of those of its last kept state, `before`, and so of those of
    /// the states before that.
    fn note_used(&self, mut before: Option<usize>, mut used: Sources) {
        while let Some(index) = before.filter(|_| used != Sources::NONE) {
            let kept = &self.kept[index];
            // Those that were noted before were so in the states before it, too.
            let new = used.without(kept.used.get());
            kept.used.set(kept.used.get().and(new));
            (before, used) = (kept.before, kept.state.made_of(new, &kept.state));
        }
    }

    /// Notes what the last kept state of a way leans on.
    fn lean(&self, before: Option<usize>, leans: &Leans) {
        if let Some(before) = before {
            let mut all = self.kept[before].leans.get();
            all.add_older(leans, before);
            self.kept[before].leans.set(all);
        }
    }

    /// Notes that a way has ended whose last kept state is `before`.
    fn end(&mut self, mut before: Option<usize>) {
        while let Some(index) = before {
            let kept = &mut self.kept[index];
            kept.open -= 1;
            if kept.open > 0 {
                return;
            }
            let (leans, parent) = (kept.leans.get(), kept.before);
            self.lean(parent, &leans);
            before = parent;
        }
    }
}
