//! The verifier: finds out which programs can do no harm.
//!
//! It follows every way through a program with what is known of registers and stack, as Linux's verifier does. A
//! program that passes reads only what has a value, reaches only its context and its stack, lets no address out, calls
//! only the helpers of its [`Contract`], and ends.
//!
//! # Why that is so
//!
//! * *What is known includes what is.* Each instruction maps a set of states to one that includes every result
//!   (`scalar`, `state`), and is refused if it could do harm in any of them.
//! * *Each way is followed*, unless a state that includes the present one was followed to its ends from the same place
//!   (`explore`). Registers that nobody reads again do not count (`live`), and neither do numbers on which nothing
//!   depended from there on (`state::Sources`): any number would have passed. A number is used if an address, an
//!   argument or what the stack keeps is made of it, and if a comparison has only one result for it. Each register
//!   knows from which registers of the last kept state its number was made; when it is used, so are those, and what
//!   they were made of. Where both results of a comparison are followed, what one operand is then known to be depends
//!   on the other one, too.
//! * *A function that is followed alone* is followed with all arguments that its type allows, and calls with others are
//!   followed each by itself (`alone`).
//! * *It ends.* A way through a program is as long as the followed one; if a loop could go on from exactly the same
//!   state without a `may_goto` on the way, the program is refused. Behind a `may_goto` whatever differs from round to
//!   round is forgotten, so that one more round covers all; at run time its count, which each call of a function has
//!   for itself, ends the loop. Once that has run out, all `may_goto`s of that call jump: what comes then is followed
//!   like any other loop. A program with fuel may have any loops, since each has a jump back, which costs fuel.
//!
//! That a program ends does not say when: nested loops of this kind have 65 535 rounds each, those of helpers up to 8
//! 388 608. For a bound, give fuel, which those loops always take. Under a lock they are refused without it, since
//! others wait.

mod alone;
mod call;
mod checked;
mod explore;
mod fault;
mod leans;
mod live;
mod log;
mod scalar;
mod signature;
mod state;
mod step;
mod stored;
mod tnum;
mod typed_call;
mod typed_context;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::TypeId;

pub use crate::function::{FunctionType, Null, Parameter};
pub use fault::{Fault, MissingFunction, VerifyError};
pub(crate) use log::Names;
pub use log::{Detail, Log, LogChange, LogStep, Statistics};
pub use signature::{Argument, MapUse, Signature};
pub(crate) use signature::{Returns, TAIL_CALL};
pub(crate) use state::Backing;
pub(crate) use stored::Region;

use alone::Functions;
use explore::{Explored, Limits, Loops, explore};
use log::Watch;

use crate::code::Code;
use crate::insn::{Callee, Instruction, Wide};
use crate::map::{Definition, Kind, ValueAccess};

/// What a program may do with its context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContextAccess {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

/// What happens to loads and stores that cannot be proven harmless.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Unproven {
    /// The program is refused.
    #[default]
    Refuse,
    /// Loads are compiled so that they give 0 where nothing is, and the program goes on. It can then read whatever the
    /// process can, at addresses that it makes of numbers: keep its results from everybody who must not know that.
    ///
    /// Threads that run it must not block SIGSEGV and SIGBUS, nor must the `sa_mask` of a signal handler that does: the
    /// kernel ends a process whose thread blocks the signal of its own fault.
    ///
    /// Stores are compiled with a check if their addresses were made from that of the context, or of a value of one of
    /// the host's maps without timers and locks: one that would leave the context, or that map, ends the program with
    /// an error. Stores elsewhere, and atomic operations, are proven or refused, also here: a store that merely does
    /// not fault could change anything in the process.
    Probe,
}

/// Whether the maker of a program is trusted not to attack the process that runs it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Trust {
    /// It may have mistakes.
    #[default]
    Full,
    /// It may also try to read through side channels what the CPU does in speculation, and to place bytes of its choice
    /// in executable memory: compilers guard against both, and programs are slower.
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

/// What keeps the CPU from doing in speculation what the program never does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guard {
    /// Nothing, in the states seen: a sum of two numbers, or a distance, which no mask may change.
    Unmasked,
    /// A number added to an address, or subtracted from it, counts as 0 if it is greater than this one.
    Mask {
        /// The greatest value that it has.
        most: u32,
        /// Which operand it is.
        number: Side,
    },
    /// Everything before it is done before the instruction.
    Before,
    /// Everything before it is done before the next instruction.
    Behind,
    /// The same, whether it jumps or not.
    Edges,
}

/// What `r3` to `r5` hold where the program has put nothing: at its beginning, where a helper calls a function of it,
/// and behind calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Leftovers {
    /// Anything: the program does not look.
    #[default]
    Any,
    /// 0: the program passes them to a helper that prints, since it has fewer numbers than the helper takes.
    Zero,
}

/// How a program uses its context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ContextUse {
    /// By loads and stores at most.
    Plain,
    /// By atomic operations, which need it aligned.
    Atomic,
}

/// What a program gets, and what it may call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contract {
    context: Option<(u32, ContextAccess)>,
    helpers: Vec<(i32, Signature)>,
    functions: Vec<Result<Signature, MissingFunction>>,
    /// Types of the host's objects, in order.
    objects: Vec<TypeId>,
    /// The host's, and behind them those that stand for maps inside maps.
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
    /// Where a lock lies in each value.
    pub(crate) lock: Option<u32>,
    /// What maps in it are, by index.
    pub(crate) inner: Option<u32>,
}

/// Most instructions followed: `BPF_COMPLEXITY_LIMIT_INSNS` of Linux (`include/linux/bpf.h`).
const BUDGET: usize = 1_000_000;
/// Instructions followed before the loops of a program that may have fuel count as needing it.
const PROOF_BUDGET: usize = 100_000;
/// Most values of registers and stack in all kept states and all ways to be followed, with what is kept beside them:
/// 96 bytes each, so that all take 576 MiB at most.
const MOST_VALUES: usize = 6 << 20;
/// Values of registers and stack that may be compared and copied, on average, for each instruction of the budget.
/// Programs that are seen need 1 to 50.
const EFFORT: usize = 128;
/// Most fuel: jumps back.
pub const MOST_FUEL: u64 = 1 << 62;

impl Contract {
    /// Makes the contract of a program without context and helpers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives programs at least `len` bytes of context: `r1` is its address, `r2` how many bytes it has. They do not use
    /// those behind `len`.
    pub fn context(self, len: u32, access: ContextAccess) -> Self {
        Self { context: Some((len, access)), ..self }
    }

    /// Lets programs call helper `id` with `arguments` numbers, at most five.
    pub fn helper(mut self, id: i32, arguments: u8) -> Self {
        self.set_helper(id, Signature::of_numbers(arguments));
        self
    }

    /// Lets programs call a helper that may take and return addresses: for a host that has that very helper.
    pub(crate) fn set_helper(&mut self, id: i32, signature: Signature) {
        self.helpers.retain(|(known, _)| *known != id);
        self.helpers.push((id, signature));
    }

    /// Gives programs functions by index: for a host that has those very functions.
    pub(crate) fn set_functions(&mut self, functions: Vec<Result<Signature, MissingFunction>>) {
        let found = functions.iter().flatten().chain(self.helpers.iter().map(|(_, signature)| signature));
        self.objects = found.flat_map(Signature::objects).collect();
        self.objects.sort_unstable();
        self.objects.dedup();
        self.functions = functions;
    }

    /// Gives programs maps by index: for a host that has those very maps.
    pub(crate) fn set_maps(&mut self, maps: &[&Definition]) {
        let shape = |definition: &Definition, inner| {
            let Definition { kind, key_len, value_len, max_entries, access, timer, lock, .. } = *definition;
            MapShape { kind, key_len, value_len, max_entries, access, timer, lock, inner }
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

    /// Returns the number of a type of objects.
    fn object(&self, of: TypeId) -> Option<u32> {
        self.objects.binary_search(&of).ok().map(|number| number as u32)
    }

    fn signature(&self, id: i32) -> Option<Signature> {
        self.helpers.iter().find(|(known, _)| *known == id).map(|(_, signature)| *signature)
    }

    /// Follows this many instructions, on all ways together, before a program is refused; a million if not set. If
    /// functions that are verified alone are refused, as many more with all calls followed. For each instruction, 128
    /// values of registers and stack may be compared, copied and looked through on average.
    pub fn budget(self, budget: usize) -> Self {
        Self { budget: Some(budget), ..self }
    }

    /// Sets what happens to loads and stores that cannot be proven harmless; [`Unproven::Refuse`] if not set.
    pub fn unproven(self, unproven: Unproven) -> Self {
        Self { unproven, ..self }
    }

    /// Also takes loops that cannot be proven to end: a program with one may jump back `fuel` times in a run, and ends
    /// without a result when it would jump back once more. Each call of a function by a helper counts, too. At most
    /// [`MOST_FUEL`]. A program whose loops are all proven gets no fuel and does not pay, unless it has a `may_goto` or
    /// hands a function to a helper: those loops end, but if they are nested only after more rounds than anybody waits
    /// for, so that they take fuel as well.
    ///
    /// Between two jumps back a program runs fewer instructions than the [budget](Self::budget), also in functions that
    /// are verified alone. So both together bound the time of a run, but for what helpers do: a call may copy a value,
    /// whatever its length. Without fuel only its end is certain, not how long that takes.
    pub fn fuel(self, fuel: u64) -> Self {
        Self { fuel: Some(fuel.min(MOST_FUEL)), ..self }
    }

    /// Sets whether the maker of the program is trusted; [`Trust::Full`] if not set. For others compilers blind
    /// constants, and guard against speculation.
    pub fn trust(self, trust: Trust) -> Self {
        Self { trust, ..self }
    }

    /// Whether `code` may call a helper that prints, and takes registers without a value for 0.
    fn may_print(&self, code: &Code) -> bool {
        let prints = |id: i32| self.signature(id).is_some_and(|signature| signature.prints());
        let may_print = |instruction: &Instruction| match *instruction {
            Instruction::Call(Callee::Helper(id)) => prints(id),
            Instruction::Call(Callee::Register(_)) => true,
            _ => false,
        };
        code.goes_outside() && code.instructions().iter().any(may_print)
    }

    /// Verifies `code`.
    ///
    /// # Errors
    ///
    /// [`VerifyError`].
    pub fn verify(&self, code: Code) -> Result<Verified, VerifyError> {
        let decided = self.decide(&code).map_err(|(error, _)| error)?;
        Ok(self.verified(code, decided))
    }

    /// Does the same, and tells in `log` what it took, and how it came to a refusal. The program is followed once more
    /// for that, or twice if it is refused.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn verify_logged(&self, code: Code, log: &mut Log) -> Result<Verified, VerifyError> {
        self.verify_named(code, log, &Names::default())
    }

    /// The same for whoever knows names.
    pub(crate) fn verify_named(&self, code: Code, log: &mut Log, names: &Names) -> Result<Verified, VerifyError> {
        log.clear();
        let decided = self.decide(&code);
        let (Ok((_, attempt)) | Err((_, attempt))) = &decided;
        self.watch(&code, *attempt, log, names);
        let decided = decided.map_err(|(error, _)| error)?;
        Ok(self.verified(code, decided))
    }

    /// Returns what was found out by the attempt that counts.
    fn decide(&self, code: &Code) -> Result<(Explored, Attempt), (VerifyError, Attempt)> {
        let limits = Limits::new(self.budget.unwrap_or(BUDGET));
        if self.fuel.is_none() {
            return self.explore(code, Loops::Proven, limits).map_err(Refused::error);
        }
        let first = limits.budget.min(PROOF_BUDGET);
        // What calls run that are not followed takes no time to prove.
        let first = Limits { budget: limits.budget, ..Limits::new(first) };
        match self.explore(code, Loops::Proven, first) {
            Err(Refused { error, .. }) if error.fault.may_be_fuelled() => {
                self.explore(code, Loops::Fuelled, limits).map_err(Refused::error)
            }
            outcome => outcome.map_err(Refused::error),
        }
    }

    /// Returns the program with what was found out.
    fn verified(&self, code: Code, (explored, attempt): (Explored, Attempt)) -> Verified {
        let fuel = self.fuel.filter(|_| attempt.loops == Loops::Fuelled || counts_rounds(&code));
        let context_align = match explored.context_use {
            ContextUse::Atomic => 8,
            ContextUse::Plain => 1,
        };
        let Explored { probes, checked, guards, leftovers, followed, .. } = explored;
        let Self { context, trust, unproven, .. } = *self;
        Verified {
            fuel,
            code,
            context,
            context_align,
            probes,
            checked,
            unproven,
            guards,
            leftovers,
            trust,
            followed,
            of: Of::Anybody,
        }
    }

    /// Follows `code`: functions with types alone, if that is possible, and otherwise in each of their calls.
    fn explore(&self, code: &Code, loops: Loops, limits: Limits) -> Result<(Explored, Attempt), Refused> {
        let functions = Functions::of(code);
        let attempt = |calls| Attempt { loops, limits, calls };
        let alone = if functions.is_empty() {
            None
        } else {
            match explore(code, &functions, self, (loops, limits), None) {
                Ok(explored) => return Ok((explored, attempt(Calls::Compared))),
                Err(error) => Some(Box::new(error)),
            }
        };
        match explore(code, &Functions::default(), self, (loops, limits), None) {
            Ok(explored) => Ok((explored, attempt(Calls::Followed))),
            Err(error) => Err(Refused { error, alone, attempt: attempt(Calls::Followed) }),
        }
    }

    /// Makes an attempt once more, and tells about it.
    fn watch(&self, code: &Code, Attempt { loops, limits, calls }: Attempt, log: &mut Log, names: &Names) {
        let functions = || match calls {
            Calls::Compared => Functions::of(code),
            Calls::Followed => Functions::default(),
        };
        let mut watch = Watch::new(code);
        let outcome = explore(code, &functions(), self, (loops, limits), Some(&mut watch));
        log.tell_statistics(&watch);
        let Err(error) = outcome else { return };
        let mut watch = watch.again(code, log.looked_at());
        let again = explore(code, &functions(), self, (loops, limits), Some(&mut watch));
        debug_assert_eq!(again.err(), Some(error), "nothing is left to chance");
        log.tell_way(watch, error, (code, self, names));
    }
}

/// A way to verify a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Attempt {
    loops: Loops,
    limits: Limits,
    calls: Calls,
}

/// What becomes of calls of functions with types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Calls {
    /// They are compared with the type; the function is verified alone.
    Compared,
    /// They are followed.
    Followed,
}

/// Why a program is refused, twice.
struct Refused {
    /// If all calls are followed.
    error: VerifyError,
    attempt: Attempt,
    /// If functions with types are verified alone.
    alone: Option<Box<VerifyError>>,
}

impl Refused {
    /// Returns what the program's maker can change: if following all calls takes too long, that is what is wrong with
    /// the functions. And by which attempt that is known.
    fn error(self) -> (VerifyError, Attempt) {
        let Self { error, attempt, alone } = self;
        match alone {
            Some(alone) if error.fault.may_be_fuelled() && !alone.fault.may_be_fuelled() => {
                (*alone, Attempt { calls: Calls::Compared, ..attempt })
            }
            _ => (error, attempt),
        }
    }
}

/// Whether only counts may end loops of a program, which takes long if they are nested.
fn counts_rounds(code: &Code) -> bool {
    let counts = |instruction: &Instruction| match instruction {
        Instruction::MayGoto { .. } => true,
        // A helper calls it.
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
    /// Stores that are checked when it runs, by instruction, in order.
    checked: Vec<(u32, Region)>,
    /// Whether what it reads need not be proven.
    unproven: Unproven,
    /// By instruction, in order.
    guards: Vec<(u32, Guard)>,
    leftovers: Leftovers,
    trust: Trust,
    /// How often it may jump back in a run, if its loops are not proven to end.
    fuel: Option<u64>,
    /// Instructions that were followed.
    followed: usize,
    of: Of,
}

/// For whose helpers a program was verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    /// Any that exchange only numbers.
    Anybody,
    /// One host's.
    Host,
}

impl Verified {
    /// Returns the program.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Notes that it was verified for a host's helpers.
    pub(crate) fn of_host(self) -> Self {
        Self { of: Of::Host, ..self }
    }

    /// Whether it was verified for a host's helpers, so that it runs with no others.
    pub(crate) fn is_of_host(&self) -> bool {
        self.of == Of::Host
    }

    /// Returns the loads that may find nothing, and then give 0: instructions by number, in order.
    pub fn probes(&self) -> &[u32] {
        &self.probes
    }

    /// Returns the stores that are checked when the program runs, and end it where they would leave their memory:
    /// instructions by number, in order.
    pub fn checked_stores(&self) -> impl ExactSizeIterator<Item = u32> {
        self.checked.iter().map(|(index, _)| *index)
    }

    /// Returns the same with the memory of each.
    pub(crate) fn checked(&self) -> &[(u32, Region)] {
        &self.checked
    }

    /// Returns how often it may jump back in a run; `None` if it takes no fuel, since all its loops were followed to
    /// their ends, or its contract has none.
    pub const fn fuel(&self) -> Option<u64> {
        self.fuel
    }

    /// Returns whether what it reads need not be proven.
    pub(crate) const fn unproven(&self) -> Unproven {
        self.unproven
    }

    /// Returns what guards instructions of an untrusted program.
    pub(crate) fn guards(&self) -> &[(u32, Guard)] {
        &self.guards
    }

    /// Returns what registers without a value hold.
    pub(crate) const fn leftovers(&self) -> Leftovers {
        self.leftovers
    }

    /// Whether its maker is trusted.
    pub const fn trust(&self) -> Trust {
        self.trust
    }

    /// Returns how many instructions the verifier followed: the measure of its work.
    pub const fn followed(&self) -> usize {
        self.followed
    }

    /// Returns the bytes of context that it needs.
    pub fn context_len(&self) -> usize {
        self.context.map_or(0, |(len, _)| len as usize)
    }

    /// Returns the bytes to which its context must be aligned.
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
