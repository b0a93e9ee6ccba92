//! Random operations on a family of spaces that fork each other, on a computer in software, beside a plain model of
//! what each must translate to.
//!
//! After each operation the trial [verifies](AddressSpace::verify) the space, and checks that CPUs remember nothing
//! wrong and that the operation did what the model says; now and then it compares all spaces with their models and
//! counts everything. For some operations memory is refused, at each point in turn; they must then change nothing. Any
//! error is a panic that names format, case and operation.
//!
//! ```
//! use palimpsest_paging::format::Sv39;
//! use palimpsest_paging::sim::trial::{Case, run};
//!
//! run::<Sv39>(Case::default().operations(200));
//! ```

mod access;
mod chance;
mod compare;
mod cursor;
mod family;
mod operations;
mod place;

pub use chance::Source;

use std::cell::Cell;
use std::collections::BTreeMap;

use super::{Computer, Config, Delivery, Hardware, Marking};
use crate::address::VirtAddr;
use crate::attributes::Rights;
use crate::id::SpaceId;
use crate::machine::{Machine, Node};
use crate::space::{AddressSpace, SpaceOptions};
use chance::Chance;

/// A machine with a computer behind it, which may make mistakes on purpose.
///
/// # Safety
///
/// 1. Only CPUs of the computer use the tables, and frames are memory of only the computer.
pub unsafe trait Host: Machine + Clone {
    /// Returns the computer.
    fn computer(&self) -> &Computer;
}

// SAFETY: 1. the computer is one in software.
unsafe impl Host for &Computer {
    fn computer(&self) -> &Computer {
        self
    }
}

/// The settings of one trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    options: SpaceOptions,
    nodes: usize,
    delivery: Delivery,
    marking: Marking,
    seed: u64,
    operations: usize,
    compare_every: usize,
    refuse_every: u64,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            options: SpaceOptions::default(),
            nodes: 1,
            delivery: Delivery::Random,
            marking: Marking::ByFormat,
            seed: 1,
            operations: 1000,
            compare_every: 100,
            refuse_every: 16,
        }
    }
}

impl Case {
    /// Sets the options of the first space, and so of all.
    #[must_use]
    pub const fn options(mut self, options: SpaceOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the number of nodes, of the computer and of each space.
    #[must_use]
    pub const fn nodes(mut self, count: usize) -> Self {
        self.nodes = count;
        self
    }

    /// Sets when flushes arrive.
    #[must_use]
    pub const fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Sets who marks pages.
    #[must_use]
    pub const fn marking(mut self, marking: Marking) -> Self {
        self.marking = marking;
        self
    }

    /// Sets the seed of the computer's choices, and of operations from a [`Source::Seed`].
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the number of operations that [`run`] does.
    #[must_use]
    pub const fn operations(mut self, count: usize) -> Self {
        self.operations = count;
        self
    }

    /// Sets the number of operations between two complete comparisons.
    #[must_use]
    pub const fn compare_every(mut self, operations: usize) -> Self {
        self.compare_every = operations;
        self
    }

    /// Has memory refused, at each point in turn, in one of this many operations.
    #[must_use]
    pub const fn refuse_every(mut self, operations: u64) -> Self {
        self.refuse_every = operations;
        self
    }

    /// Returns the configuration of a computer for the case.
    pub fn config(&self) -> Config {
        Config::default().nodes(self.nodes).cpus(CPUS).delivery(self.delivery).marking(self.marking).seed(self.seed)
    }
}

const CPUS: usize = 4;

/// The content of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    Own(u64),
    /// An index in `Trial::cells`.
    Shared(usize),
}

/// The expected state of a page of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Expected {
    value: Value,
    rights: Rights,
    /// Whether it was written since the mark was last cleared.
    dirty: bool,
    /// Whether it was used since the mark was last cleared.
    accessed: bool,
    pins: u32,
}

/// Whether a space may have replicas, which some operations refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Replicas {
    None,
    Some,
}

struct Member<F: Hardware, M: Host> {
    space: AddressSpace<F, M>,
    /// The pages, by number.
    pages: BTreeMap<u64, Expected>,
    replicas: Replicas,
}

/// A family of spaces and its model.
pub struct Trial<'c, F: Hardware, M: Host> {
    computer: &'c Computer,
    machine: M,
    case: Case,
    members: Vec<Member<F, M>>,
    cells: Vec<u64>,
    done: usize,
    windows: Vec<u64>,
    next_id: u64,
    next_value: Cell<u64>,
    chance: Chance<'c>,
}

impl<F: Hardware, M: Host> std::fmt::Debug for Trial<'_, F, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { case, done, members, .. } = self;
        write!(f, "{} {case:?}, operation {done}, {} spaces", F::NAME, members.len())
    }
}

const WINDOW: u64 = 512;
const GIANT: u64 = 512 * 512;

fn at(page: u64) -> VirtAddr {
    VirtAddr(page << 12)
}

impl<'c, F: Hardware, M: Host> Trial<'c, F, M> {
    /// Creates a family of one empty space, on a computer that was made for `case` ([`Case::config`]).
    pub fn new(computer: &'c Computer, machine: M, case: Case, source: Source<'c>) -> Self {
        let mut trial = Self {
            computer,
            machine,
            case,
            members: Vec::new(),
            cells: Vec::new(),
            done: 0,
            windows: Self::windows(),
            next_id: 0,
            next_value: Cell::new(0),
            chance: Chance::new(source, case.seed),
        };
        trial.add_first();
        trial
    }

    /// Returns the number of operations so far.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Returns whether the source is used up.
    pub fn is_over(&self) -> bool {
        self.chance.is_over()
    }

    fn add_first(&mut self) {
        let nodes: Vec<_> = (0..self.case.nodes).map(|node| Node(node as u8)).collect();
        let space = match AddressSpace::new(self.machine.clone(), self.new_id(), &nodes, self.case.options) {
            Ok(space) => space,
            Err(error) => panic!("{self:?}: {error}"),
        };
        self.members.push(Member { space, pages: BTreeMap::new(), replicas: Replicas::None });
    }

    fn new_id(&mut self) -> SpaceId {
        self.next_id += 1;
        SpaceId(self.next_id)
    }

    /// Creates a content that no page has yet.
    fn new_value(&self) -> u64 {
        self.next_value.set(self.next_value.get() + 1);
        self.next_value.get()
    }

    fn below(&self, limit: u64) -> u64 {
        self.chance.below(limit)
    }

    fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Runs `case`.
///
/// # Panics
///
/// If anything is wrong.
pub fn run<F: Hardware>(case: Case) {
    let computer = Computer::new::<F>(case.config());
    let mut trial = Trial::<F, _>::new(&computer, &computer, case, Source::Seed);
    for _ in 0..case.operations {
        trial.operate();
    }
    trial.finish();
}
