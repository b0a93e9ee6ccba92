//! A generated program as data, and what it computes.
//!
//! A program is a function from `u64` to `u64` over six variables: straight-line arithmetic with constants of its own
//! and a few short forward branches. No two programs of one population are equal, so nothing in the CPU can share work
//! between them.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Number of variables of a program.
pub(crate) const VARIABLES: usize = 6;

/// Operations per program; compiled for x86-64 this gives about 100 instructions and 400 bytes.
const OPERATIONS: usize = 72;

/// One step of a program. `to` and `from` are variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// `to += from`.
    Add { to: usize, from: usize },
    /// `to -= from`.
    Subtract { to: usize, from: usize },
    /// `to ^= from`.
    Xor { to: usize, from: usize },
    /// `to |= from`.
    Or { to: usize, from: usize },
    /// `to += constant`, sign-extended.
    AddConstant { to: usize, constant: i32 },
    /// `to ^= constant`, sign-extended.
    XorConstant { to: usize, constant: i32 },
    /// `to = to rotated left by bits`.
    RotateLeft { to: usize, bits: u8 },
    /// `to <<= bits`.
    ShiftLeft { to: usize, bits: u8 },
    /// If the lowest bit of `tested` is set, leaves out the next `skipped` operations.
    SkipIfOdd { tested: usize, skipped: usize },
}

/// The text of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// What each variable is XORed with at entry.
    pub(crate) initial: [i32; VARIABLES],
    /// The steps.
    pub(crate) operations: Vec<Operation>,
}

impl Source {
    /// Generates the program with number `number`; the same number gives the same program.
    pub(crate) fn generate(number: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(number);
        let initial = std::array::from_fn(|_| random.random());
        let mut operations = Vec::with_capacity(OPERATIONS);
        let mut until_branch = 0;
        for place in 0..OPERATIONS {
            let to = random.random_range(0..VARIABLES);
            let from = (to + random.random_range(1..VARIABLES)) % VARIABLES;
            let bits = random.random_range(1..63);
            let constant = random.random();
            let left = OPERATIONS - place - 1;
            operations.push(match random.random_range(0..18) {
                0..3 => Operation::Add { to, from },
                3..5 => Operation::Subtract { to, from },
                5..8 => Operation::Xor { to, from },
                8 => Operation::Or { to, from },
                9..12 => Operation::AddConstant { to, constant },
                12..15 => Operation::XorConstant { to, constant },
                15 => Operation::RotateLeft { to, bits },
                16 => Operation::ShiftLeft { to, bits },
                // Branches neither overlap nor reach past the end.
                _ if until_branch == 0 && left >= 6 => {
                    let skipped = random.random_range(1..=4);
                    until_branch = skipped + 1;
                    Operation::SkipIfOdd { tested: from, skipped }
                }
                _ => Operation::Xor { to, from },
            });
            until_branch = until_branch.saturating_sub(1);
        }
        Self { initial, operations }
    }

    /// Returns what the program returns for `argument`.
    pub(crate) fn evaluate(&self, argument: u64) -> u64 {
        let mut variables = self.initial.map(|constant| argument ^ extend(constant));
        let mut next = 0;
        while let Some(&operation) = self.operations.get(next) {
            next += 1;
            match operation {
                Operation::Add { to, from } => variables[to] = variables[to].wrapping_add(variables[from]),
                Operation::Subtract { to, from } => variables[to] = variables[to].wrapping_sub(variables[from]),
                Operation::Xor { to, from } => variables[to] ^= variables[from],
                Operation::Or { to, from } => variables[to] |= variables[from],
                Operation::AddConstant { to, constant } => variables[to] = variables[to].wrapping_add(extend(constant)),
                Operation::XorConstant { to, constant } => variables[to] ^= extend(constant),
                Operation::RotateLeft { to, bits } => variables[to] = variables[to].rotate_left(u32::from(bits)),
                Operation::ShiftLeft { to, bits } => variables[to] <<= bits,
                Operation::SkipIfOdd { tested, skipped } => {
                    if variables[tested] & 1 == 1 {
                        next += skipped;
                    }
                }
            }
        }
        variables.into_iter().fold(0, |sum, variable| sum ^ variable)
    }
}

/// Extends the sign, as the machine does with a 32-bit immediate.
fn extend(constant: i32) -> u64 {
    i64::from(constant).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn programs_differ_and_are_reproducible() {
        let texts: HashSet<String> = (0..200).map(|number| format!("{:?}", Source::generate(number))).collect();
        assert_eq!(texts.len(), 200);
        assert_eq!(Source::generate(7), Source::generate(7));
    }

    #[test]
    fn the_model_skips_and_wraps() {
        let source = Source {
            initial: [0; VARIABLES],
            operations: vec![
                Operation::SkipIfOdd { tested: 1, skipped: 1 },
                Operation::AddConstant { to: 0, constant: 100 },
                Operation::AddConstant { to: 0, constant: -1 },
            ],
        };
        // The other five variables cancel to one copy of the argument.
        assert_eq!(source.evaluate(1), 1);
        assert_eq!(source.evaluate(2), (2 + 99) ^ 2);
    }
}
