//! The verifier: which programs can do no harm.
//!
//! It follows every way through a program with what is known of registers and stack, as Linux's verifier does. A
//! program that passes reads only what has a value, reaches only its context and its stack, lets no address out, calls
//! only the helpers of its [`Contract`], and ends.
//!
//! # Why that is so
//!
//! * *What is known includes what is.* Each instruction maps a set of states to one that includes every result
//!   (`scalar`, `state`), and is refused if it could do harm in any of them.
//! * *Each way is followed*, unless a state that includes the one at hand was followed to its ends from the same place
//!   (`explore`). Registers that nobody reads again do not count (`live`).
//! * *It ends.* A way through a program is as long as the followed one; where a loop could go on from a state that is
//!   just as it was, without a `may_goto` on the way, the program is refused. Behind a `may_goto` what differs from
//!   round to round is forgotten, so that one more round says all; at run time its count, which each call of a function
//!   has for itself, ends the loop. Once it has run out all `may_goto`s of that call jump: what comes then is followed
//!   as any other loop. A program with fuel may have all loops, since each has a jump back, which is paid for.
//!
//! That a program ends says little of when: such loops in each other have 65 535 rounds each, those of helpers up to
//! 8 388 608. Who wants a bound gives fuel, which those loops take in any case.

mod call;
mod explore;
mod fault;
mod leans;
mod live;
mod scalar;
mod signature;
mod state;
mod step;
mod tnum;

use alloc::vec::Vec;

pub use fault::{Fault, MissingFunction, VerifyError};
pub use signature::{Argument, MapUse, Signature};
pub(crate) use signature::{Returns, TAIL_CALL};
pub(crate) use state::Backing;

use explore::{Explored, Limits, Loops, explore};

use crate::code::Code;
use crate::insn::{Instruction, Wide};
use crate::map::{Definition, Kind, ValueAccess};

/// What a program may do with its context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContextAccess {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

/// What becomes of loads that cannot be proven to be harmless.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Unproven {
    /// The program is refused.
    #[default]
    Refuse,
    /// They are compiled in such a way that they give 0 where nothing is, and the program goes on. It can then read
    /// whatever the process can, at addresses that it makes of numbers: give what it returns to nobody who must not
    /// know that.
    Probe,
}

/// Whether whoever has made a program is trusted not to attack what runs it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Trust {
    /// It may have mistakes.
    #[default]
    Full,
    /// It may also try to read by side channels what the machine does ahead of time, and to have bytes of its choice in
    /// executable memory: compilers guard against both, and programs are slower.
    None,
}

/// An operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// The first, which is the result, too.
    Left,
    /// The second.
    Right,
}

/// What keeps the machine from doing ahead of time what the program never does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guard {
    /// Nothing, in the states that were seen: a sum of two numbers, or a distance, which no mask may change.
    Unmasked,
    /// The number that is added to an address, or taken from it, is taken for 0 if it is greater than this one.
    Mask {
        /// The greatest number that it is.
        most: u32,
        /// Which operand it is.
        number: Side,
    },
    /// What came before is done before the instruction.
    Before,
    /// What came before is done before the next one.
    Behind,
    /// The same, whether it jumps or not.
    Edges,
}

/// How a program uses its context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ContextUse {
    /// By loads and stores at most.
    Plain,
    /// By operations that nothing comes between, which want it aligned.
    Atomic,
}

/// What a program gets, and what it may call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contract {
    context: Option<(u32, ContextAccess)>,
    helpers: Vec<(i32, Signature)>,
    functions: Vec<Result<Signature, MissingFunction>>,
    /// The host's, and behind them what stands for maps in maps.
    maps: Vec<MapShape>,
    own_maps: usize,
    budget: Option<usize>,
    unproven: Unproven,
    fuel: Option<u64>,
    trust: Trust,
}

/// What the verifier knows of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MapShape {
    pub(crate) kind: Kind,
    pub(crate) key_len: u32,
    pub(crate) value_len: u32,
    pub(crate) max_entries: u32,
    pub(crate) access: ValueAccess,
    /// Where a timer lies in each value.
    pub(crate) timer: Option<u32>,
    /// What maps in it are, by index.
    pub(crate) inner: Option<u32>,
}

/// Instructions that are followed at most: `BPF_COMPLEXITY_LIMIT_INSNS` of Linux (`include/linux/bpf.h`).
const BUDGET: usize = 1_000_000;
/// Instructions that are followed before the loops of a program that may have fuel are taken for such that need it.
const PROOF_BUDGET: usize = 100_000;
/// Values of registers and stack in all kept states and all ways that are to be followed, at most: some hundred MiB.
const MOST_VALUES: usize = 8 << 20;
/// Jumps back that fuel can be for.
pub const MOST_FUEL: u64 = 1 << 62;

impl Contract {
    /// A program without context and helpers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives programs `len` bytes of context at least: `r1` is its address, `r2` how many bytes it has. Of those behind
    /// `len` they make no use.
    pub fn context(self, len: u32, access: ContextAccess) -> Self {
        Self { context: Some((len, access)), ..self }
    }

    /// Lets programs call helper `id` with `arguments` numbers, five at most.
    pub fn helper(mut self, id: i32, arguments: u8) -> Self {
        self.set_helper(id, Signature::of_numbers(arguments));
        self
    }

    /// Lets programs call a helper that may take and give addresses: for a host that has that very helper.
    pub(crate) fn set_helper(&mut self, id: i32, signature: Signature) {
        self.helpers.retain(|(known, _)| *known != id);
        self.helpers.push((id, signature));
    }

    /// Gives programs functions by index: for a host that has those very functions.
    pub(crate) fn set_functions(&mut self, functions: Vec<Result<Signature, MissingFunction>>) {
        self.functions = functions;
    }

    /// Gives programs maps by index: for a host that has those very maps.
    pub(crate) fn set_maps(&mut self, maps: &[&Definition]) {
        let shape = |definition: &Definition, inner| {
            let Definition { kind, key_len, value_len, max_entries, access, timer, .. } = *definition;
            MapShape { kind, key_len, value_len, max_entries, access, timer, inner }
        };
        self.own_maps = maps.len();
        let mut inner = Vec::new();
        self.maps = maps
            .iter()
            .map(|definition| {
                let index = definition.inner.as_ref().map(|_| (maps.len() + inner.len()) as u32);
                inner.extend(definition.inner.as_ref().map(|definition| shape(definition, None)));
                shape(definition, index)
            })
            .collect();
        self.maps.extend(inner);
    }

    fn signature(&self, id: i32) -> Option<Signature> {
        self.helpers.iter().find(|(known, _)| *known == id).map(|(_, signature)| *signature)
    }

    /// Follows this many instructions, over all ways, before a program is refused; a million if not set.
    pub fn budget(self, budget: usize) -> Self {
        Self { budget: Some(budget), ..self }
    }

    /// What becomes of loads that cannot be proven to be harmless; [`Unproven::Refuse`] if not set. Stores are refused
    /// in any case.
    pub fn unproven(self, unproven: Unproven) -> Self {
        Self { unproven, ..self }
    }

    /// Takes loops that cannot be proven to end, too: a program that has one may jump back `fuel` times in a run, and
    /// ends without result when it would do so once more. So does each call of a function by a helper count. At most
    /// [`MOST_FUEL`]. A program whose loops are all proven gets no fuel, and does not pay for it, unless it has a
    /// `may_goto` or hands a function to a helper: those loops end, but only after more rounds than anybody waits for
    /// if they are in each other, and they take fuel as well.
    ///
    /// Between two jumps back a program follows fewer instructions than the [budget](Self::budget) has, so that the
    /// time of a run is bounded by both. Without fuel only its end is certain, not how long that takes.
    pub fn fuel(self, fuel: u64) -> Self {
        Self { fuel: Some(fuel.min(MOST_FUEL)), ..self }
    }

    /// Whether who has made the program is trusted; [`Trust::Full`] if not set. For others compilers blind constants
    /// and guard against what the machine does ahead of time.
    pub fn trust(self, trust: Trust) -> Self {
        Self { trust, ..self }
    }

    /// Verifies `code`.
    ///
    /// # Errors
    ///
    /// [`VerifyError`].
    pub fn verify(&self, code: Code) -> Result<Verified, VerifyError> {
        let limits = Limits { budget: self.budget.unwrap_or(BUDGET), values: MOST_VALUES };
        let (explored, fuel) = match self.fuel {
            None => (explore(&code, self, Loops::Proven, limits)?, None),
            Some(fuel) => {
                let first = Limits { budget: limits.budget.min(PROOF_BUDGET), ..limits };
                match explore(&code, self, Loops::Proven, first) {
                    Ok(explored) => (explored, counts_rounds(&code).then_some(fuel)),
                    Err(error) if error.fault.may_be_fuelled() => {
                        (explore(&code, self, Loops::Fuelled, limits)?, Some(fuel))
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let context_align = match explored.context_use {
            ContextUse::Atomic => 8,
            ContextUse::Plain => 1,
        };
        let Explored { probes, guards, followed, .. } = explored;
        let trust = self.trust;
        Ok(Verified { code, context: self.context, context_align, probes, guards, trust, fuel, followed })
    }
}

/// Whether loops of a program may end by counts alone, which are long where loops are in each other.
fn counts_rounds(code: &Code) -> bool {
    let counts = |instruction: &Instruction| match instruction {
        Instruction::MayGoto { .. } => true,
        // What a helper calls.
        Instruction::LoadWide { value: Wide::Function(_), .. } => true,
        _ => false,
    };
    code.instructions().iter().any(counts)
}

/// A program that can do no harm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    code: Code,
    context: Option<(u32, ContextAccess)>,
    context_align: usize,
    /// Loads that may find nothing, by instruction, in order.
    probes: Vec<u32>,
    /// By instruction, in order.
    guards: Vec<(u32, Guard)>,
    trust: Trust,
    /// How often it may jump back in a run, if its loops are not proven to end.
    fuel: Option<u64>,
    /// Instructions that were followed.
    followed: usize,
}

impl Verified {
    /// The program.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Loads that may find nothing, and give 0 then: instructions by number, in order.
    pub fn probes(&self) -> &[u32] {
        &self.probes
    }

    /// How often it may jump back in a run; `None` if it takes no fuel, since all its loops were followed to their
    /// ends, or its contract has none.
    pub const fn fuel(&self) -> Option<u64> {
        self.fuel
    }

    /// What guards instructions of a program that is not trusted.
    pub(crate) fn guards(&self) -> &[(u32, Guard)] {
        &self.guards
    }

    /// Whether who has made it is trusted.
    pub const fn trust(&self) -> Trust {
        self.trust
    }

    /// How many instructions the verifier has followed: what its work is measured by.
    pub const fn followed(&self) -> usize {
        self.followed
    }

    /// Bytes of context that it needs.
    pub fn context_len(&self) -> usize {
        self.context.map_or(0, |(len, _)| len as usize)
    }

    /// To how many bytes its context must be aligned.
    pub const fn context_align(&self) -> usize {
        self.context_align
    }

    /// Whether it writes to its context.
    pub fn may_write(&self) -> bool {
        matches!(self.context, Some((_, ContextAccess::Write)))
    }
}

#[cfg(test)]
mod tests;
