//! Compares a run of a program with a plain one. Nothing may be refused.

use std::cell::Cell;

use proptest::test_runner::TestCaseError;

use crate::calls::World;
use crate::program::Program;
use crate::run;

/// Runs a program in this world and plain, and counts what was frozen.
pub(crate) fn compare(program: &Program, world: World, frozen: &Cell<usize>) -> Result<(), TestCaseError> {
    let other = run::run(program, world);
    frozen.set(frozen.get() + other.frozen);
    if world != World::Mutant && !other.complaints.is_empty() {
        return Err(TestCaseError::fail(format!("it complains: {:?}", other.complaints)));
    }
    let plain = run::run(program, World::Plain);
    run::difference(&plain, &other).map_or(Ok(()), |difference| Err(TestCaseError::fail(difference)))
}
