//! Hunts for a program that runs differently in two worlds. The oracle of sandboxes uses it, too.

use std::cell::Cell;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::calls::World;
use crate::program::Program;

/// A hunt for the oracle `of`, whose settings are in `PALIMPSEST_{of}_…`.
pub(crate) struct Hunt {
    pub(crate) of: &'static str,
    /// How many programs, unless `…_PROGRAMS` says otherwise; and how many of the usual ones that number would be.
    pub(crate) programs: u32,
    pub(crate) usual: u32,
    /// Most steps on the way to a smaller program.
    pub(crate) shrinks: u32,
}

/// How often the same programs are run if nothing was frozen.
const TIMES: u32 = 5;

/// Compares runs: takes a program, the world beside the plain one, and the count of frozen bytes.
pub(crate) type Compare = fn(&Program, World, &Cell<usize>) -> Result<(), TestCaseError>;

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, which is no number")),
        Err(_) => default,
    }
}

impl Hunt {
    /// Runs programs in both worlds until they differ. Returns the smallest that does, and what differs.
    fn run(
        &self,
        world: World,
        any: &impl Strategy<Value = Program>,
        compare: Compare,
        frozen: &Cell<usize>,
    ) -> Result<(), TestError<Program>> {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&setting(&format!("PALIMPSEST_{}_SEED", self.of), 1_u64).to_le_bytes());
        // Nobody reads the smallest program that catches a mutant.
        let max_shrink_iters = if world == World::Mutant { 0 } else { self.shrinks };
        let config = Config { cases: self.programs, failure_persistence: None, max_shrink_iters, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
        runner.run(any, |program| compare(&program, world, frozen))
    }

    /// Fails if a program runs differently when it is frozen: the one of `PALIMPSEST_{of}_REPLAY`, or one of many.
    pub(crate) fn finds_none(self, any: &impl Strategy<Value = Program>, compare: Compare) {
        self.finds_none_in(World::Frozen, any, compare);
    }

    /// Does the same in another world.
    pub(crate) fn finds_none_in(self, world: World, any: &impl Strategy<Value = Program>, compare: Compare) {
        let frozen = Cell::new(0);
        if let Ok(program) = std::env::var(format!("PALIMPSEST_{}_REPLAY", self.of)) {
            let program = Program::from_hex(&program).expect("a program as a failure prints it");
            println!("{program:?}");
            compare(&program, world, &frozen).unwrap_or_else(|error| panic!("{error}"));
            return;
        }
        let asked = setting(&format!("PALIMPSEST_{}_PROGRAMS", self.of), self.usual);
        let programs = (asked * self.programs).div_ceil(self.usual);
        // Where the threads of a program are done before a slice comes, nothing is frozen.
        let mut times = 0;
        let hunted = loop {
            let hunted = Self { programs, ..self }.run(world, any, compare, &frozen);
            times += 1;
            if hunted.is_err() || frozen.get() > 0 || times == TIMES || matches!(world, World::Deputed(_)) {
                break hunted;
            }
        };
        match hunted {
            // A busy machine may not let a deputy begin.
            Ok(()) if matches!(world, World::Deputed(_)) => {}
            Ok(()) => assert_ne!(frozen.get(), 0, "nothing was ever frozen, so nothing was compared"),
            Err(TestError::Fail(reason, program)) => {
                // What `xtask` repeats at the end is the first line.
                let first = reason.message().lines().next().unwrap_or_default();
                panic!("{first}, in {program:?}{reason}")
            }
            Err(abort) => panic!("{abort}"),
        }
    }

    /// Returns why a program runs differently in the world that is wrong on purpose; if none does, fails and says what
    /// is wrong.
    pub(crate) fn catches(self, wrong: &str, any: &impl Strategy<Value = Program>, compare: Compare) -> String {
        let caught = self.run(World::Mutant, any, compare, &Cell::new(0));
        let Err(TestError::Fail(reason, program)) = caught else {
            panic!("{wrong}, and {} programs have not seen it: {caught:?}", self.programs);
        };
        println!("caught by {program:?}{reason}");
        reason.message().to_owned()
    }
}
