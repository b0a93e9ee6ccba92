//! Compilers: programs to machine code, for every architecture on every host.
//!
//! A program is translated instruction by instruction, with a fixed mapping of registers, as in Linux, so that what a
//! register holds is known at every address. The result can be put anywhere: the only addresses in it are those of
//! helpers, which are literals behind the code, and of maps.
//!
//! There is one pass. Jumps have their long form until everything is written; then near ones get the short form, the
//! gaps are closed, and distances are filled in. Where the long form is a different sequence of instructions (AArch64),
//! all targets are assumed to be near; in the rare program that is too long for that, one pass assumes that unknown
//! targets are far and finds the last place where each instruction can be, and another uses the near form where that
//! suffices. Nothing moves further away by this, so that each choice holds.
//!
//! On x86-64 room is reserved before short loops, and what they need of it remains when gaps are closed (`loops`).
//!
//! Machine code does what the program says, with the addresses that it computes. Whether it may is not checked here.
//!
//! There are no passes for dead moves and for stack slots that a register holds, since clang leaves them nothing: one
//! move in 3778 instructions, one of 176 loads (`docs/records/2026-11-26-bpf`).

mod arch;
mod buffer;
mod check;
mod compiled;
mod frame;
mod inline;
mod lines;
mod loops;
mod unwinding;
mod wanted;

use alloc::vec::Vec;
use core::ops::Range;

use crate::code::Code;
use crate::insn::{Callee, Instruction, Wide};
use crate::map::ArrayPlace;
use crate::verify::{Guard, Region, Verified};
use arch::{Isa, Place};

use buffer::{Buffer, Mark, Parts, Unknown};
use check::{Bounds, Check};
pub use compiled::Compiled;
use frame::{ContextAddress, Frame};
use loops::Loops;
use unwinding::Step;
#[cfg(feature = "std")]
pub(crate) use unwinding::Unwinding;
use wanted::OUTSIDE;
pub(crate) use wanted::{Gauge, Metering, STOPPED, Wanted};
pub use wanted::{OUT_OF_FUEL, Outcome};

/// What machine code is made for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// x86-64 with the System V calling convention.
    X86_64,
    /// AArch64 with the Procedure Call Standard of Arm.
    Aarch64,
}

impl Target {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// This machine's, if there is a compiler for it.
    pub const NATIVE: Option<Self> = arch::NATIVE;

    /// Returns the bytes to which its code must be aligned.
    pub const fn alignment(self) -> usize {
        match self {
            Self::X86_64 | Self::Aarch64 => Self::LEAST_ALIGNMENT,
        }
    }

    /// Instructions may begin anywhere, or are shorter; literals are aligned to 8 bytes.
    const LEAST_ALIGNMENT: usize = 8;
}

/// A helper of the host: it gets `r1` to `r5`, and its result goes to `r0`. It must not unwind.
pub type Helper = extern "C" fn(u64, u64, u64, u64, u64) -> u64;

/// Called if the helper's number is only known at run time (`callx`); the number comes last.
pub type Dispatcher = extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64;

/// The helpers of a host, by number.
pub trait HelperTable {
    /// The helper with this number.
    fn helper(&self, id: i32) -> Option<Helper>;

    /// Returns what `callx` calls.
    fn dispatcher(&self) -> Option<Dispatcher> {
        None
    }
}

/// A helper as compiled code calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Called {
    /// Its address.
    pub(crate) function: u64,
    /// A sixth argument.
    pub(crate) data: Option<u64>,
    /// What follows the call.
    pub(crate) then: Then,
}

/// What follows a call of a helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// The next instruction: the helper returns one number, and cannot end the program.
    GoOn,
    /// A check: the program has ended if the second result is negative.
    MayStop,
    /// It calls functions of the program: it gets the fuel as `r5`, and its second result is what is left.
    Calls,
    /// As [`Self::MayStop`]; and the program's own function returns unless the helper returned 0.
    LeaveUnlessZero,
}

/// What a host has for programs. Whoever implements it guarantees the addresses, so that only this crate can.
pub(crate) trait Resolve {
    /// The helper with this number.
    fn helper(&self, id: i32) -> Option<Called>;

    /// The function that programs know by this index.
    fn function(&self, _index: i32) -> Option<Called> {
        None
    }

    /// Returns what `callx` calls.
    fn dispatcher(&self) -> Option<Dispatcher> {
        None
    }

    /// Returns what programs know the map with this index by.
    fn map(&self, _index: i32) -> Option<u64> {
        None
    }

    /// Returns where the values of the map with this index lie, if it is an array in which helper 1 just looks up.
    fn array(&self, _map: i32) -> Option<ArrayPlace> {
        None
    }

    /// Returns the address of byte `offset` of the first value of the map with this index.
    fn map_value(&self, _map: i32, _offset: u32) -> Option<u64> {
        None
    }

    /// Returns where all values of the map with this index lie.
    fn values(&self, _map: i32) -> Option<Range<u64>> {
        None
    }
}

/// Helpers only.
pub(crate) struct Plain<'a, H: ?Sized>(pub(crate) &'a H);

impl<H: HelperTable + ?Sized> Resolve for Plain<'_, H> {
    fn helper(&self, id: i32) -> Option<Called> {
        let function = self.0.helper(id)? as usize as u64;
        Some(Called { function, data: None, then: Then::GoOn })
    }

    fn dispatcher(&self) -> Option<Dispatcher> {
        self.0.dispatcher()
    }
}

/// No helpers.
impl HelperTable for () {
    fn helper(&self, _id: i32) -> Option<Helper> {
        None
    }
}

/// Helpers in a list.
impl HelperTable for [(i32, Helper)] {
    fn helper(&self, id: i32) -> Option<Helper> {
        self.iter().find(|(known, _)| *known == id).map(|(_, helper)| *helper)
    }
}

/// Why a program cannot be compiled. Slots are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// It was verified for the helpers of a host, and others may not do what the verifier relied on.
    #[error("the program was verified for a host; compile it by `Linked::compile`, or load it by `HostedProgram`")]
    Linked,
    /// It calls a helper that the host does not have.
    #[error("slot {slot} calls helper {id}, which the host does not have")]
    Helper {
        /// Slot of the call.
        slot: usize,
        /// Its number.
        id: i32,
    },
    /// It calls by number, and the host has nothing for that.
    #[error("slot {slot} calls a helper by a register, and the host has no dispatcher for that")]
    Dispatcher {
        /// Slot of the call.
        slot: usize,
    },
    /// It uses a map that the host does not have.
    #[error("slot {slot} uses the map with index {index}, which the host does not have")]
    Map {
        /// Slot of the reference.
        slot: usize,
        /// Its index.
        index: i32,
    },
    /// It contains something that cannot be compiled.
    #[error("`{instruction}` in slot {slot} cannot be compiled; interpret the program")]
    Unsupported {
        /// Its slot.
        slot: usize,
        /// The instruction.
        instruction: Instruction,
    },
    /// Its code is longer than jumps reach.
    #[error("the program has {len} bytes of code, and {most} are allowed")]
    Long {
        /// Bytes.
        len: usize,
        /// Bytes.
        most: usize,
    },
}

/// Most bytes of code: what jumps of AArch64 reach, which is less than those of x86-64.
const MOST_BYTES: usize = 128 << 20;

/// Compiles `code` for `target`.
///
/// # Errors
///
/// [`CompileError`].
pub fn compile<H: HelperTable + ?Sized>(code: &Code, target: Target, helpers: &H) -> Result<Compiled, CompileError> {
    compile_resolved(code, target, &Plain(helpers), Wanted::default())
}

/// Compiles a verified program with all that it was verified for: fuel ([`Compiled::takes_fuel`]), loads that may fault
/// ([`Compiled::faults`]), and guards if its maker is not trusted; `random` then blinds constants, and nobody who makes
/// programs may know it.
///
/// # Errors
///
/// [`CompileError`].
pub fn compile_verified<H: HelperTable + ?Sized>(
    verified: &Verified,
    target: Target,
    helpers: &H,
    random: u64,
) -> Result<Compiled, CompileError> {
    if verified.is_of_host() {
        return Err(CompileError::Linked);
    }
    compile_resolved(verified.code(), target, &Plain(helpers), Wanted::of(verified, random))
}

/// Compiles it with all that a host has.
pub(crate) fn compile_resolved(
    code: &Code,
    target: Target,
    resolve: &dyn Resolve,
    wanted: Wanted<'_>,
) -> Result<Compiled, CompileError> {
    let mut literals = Literals::of(code, resolve, wanted)?;
    literals.gauge = match wanted.metering {
        Metering::Fuel => Gauge::Paid,
        Metering::Free
            if wanted.checked.is_empty() && literals.values.iter().all(|(_, called)| called.then == Then::GoOn) =>
        {
            Gauge::Absent
        }
        Metering::Free => Gauge::Kept,
    };
    match target {
        Target::X86_64 => translate::<arch::x86_64::X86_64>(code, &literals),
        Target::Aarch64 => translate::<arch::aarch64::Aarch64>(code, &literals),
    }
}

/// What is called outside the program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Outside {
    /// The target of calls by register.
    Dispatcher,
    /// A helper, by number.
    Helper(i32),
    /// A function of the host, by index.
    Function(i32),
}

/// Addresses that calls load, and numbers that references stand for.
struct Literals<'a> {
    /// In order.
    values: Vec<(Outside, Called)>,
    resolve: &'a dyn Resolve,
    wanted: Wanted<'a>,
    gauge: Gauge,
    /// Calls that are look-ups in arrays.
    lookups: Vec<(usize, ArrayPlace)>,
}

impl<'a> Literals<'a> {
    fn of(code: &Code, resolve: &'a dyn Resolve, wanted: Wanted<'a>) -> Result<Self, CompileError> {
        // In an untrusted program the helper looks up: in place, an index beyond the array could be used speculatively.
        let is_trusted = wanted.blinding.is_none() && wanted.guards.is_empty();
        let lookups = if is_trusted && code.goes_outside() { inline::lookups(code, resolve) } else { Vec::new() };
        let mut in_place = lookups.iter().map(|(index, _)| *index).peekable();
        let mut values: Vec<(Outside, Called)> = Vec::new();
        let instructions = if code.goes_outside() { code.instructions() } else { &[] };
        for (index, instruction) in instructions.iter().enumerate() {
            if in_place.next_if_eq(&index).is_some() {
                // Nobody is called.
                continue;
            }
            let slot = || code.slot(index);
            let value = match *instruction {
                Instruction::Call(Callee::Helper(id)) => {
                    let called = resolve.helper(id).ok_or_else(|| CompileError::Helper { slot: slot(), id })?;
                    (Outside::Helper(id), called)
                }
                Instruction::Call(Callee::Kernel { id, .. }) => {
                    let (slot, instruction) = (slot(), *instruction);
                    let called = resolve.function(id).ok_or(CompileError::Unsupported { slot, instruction })?;
                    (Outside::Function(id), called)
                }
                Instruction::Call(Callee::Register(_)) => {
                    let dispatcher = resolve.dispatcher().ok_or_else(|| CompileError::Dispatcher { slot: slot() })?;
                    (Outside::Dispatcher, Called { function: dispatcher as usize as u64, data: None, then: Then::GoOn })
                }
                Instruction::LoadWide {
                    value: value @ (Wide::MapByIndex(index) | Wide::MapValueByIndex { map: index, .. }),
                    ..
                } => {
                    resolved(value, resolve).ok_or_else(|| CompileError::Map { slot: slot(), index })?;
                    continue;
                }
                _ => continue,
            };
            if let Err(place) = values.binary_search_by_key(&value.0, |(known, _)| *known) {
                values.insert(place, value);
            }
        }
        Ok(Self { values, resolve, wanted, gauge: Gauge::Absent, lookups })
    }

    /// Returns the place of a literal.
    fn place(&self, who: Outside) -> usize {
        self.values.binary_search_by_key(&who, |(known, _)| *known).expect("everything that is called has a literal")
    }

    fn mark(&self, who: Outside) -> Mark {
        Mark::Literal(self.place(who))
    }

    fn called(&self, who: Outside) -> Called {
        self.values[self.place(who)].1
    }
}

/// Returns what a reference to a map stands for.
fn resolved(value: Wide, resolve: &dyn Resolve) -> Option<u64> {
    match value {
        Wide::Value(value) => Some(value),
        Wide::MapByIndex(index) => resolve.map(index),
        Wide::MapValueByIndex { map, offset } => resolve.map_value(map, offset),
        _ => None,
    }
}

/// What the translation of an instruction knows of its surroundings.
struct Surroundings<'a> {
    code: &'a Code,
    literals: &'a Literals<'a>,
    frame: Frame,
    /// The first instruction of its function.
    first: usize,
    /// The instruction.
    index: usize,
}

impl Surroundings<'_> {
    fn target(&self, distance: i32) -> usize {
        self.code.target(self.index, distance).expect("targets were checked when the code was made")
    }

    /// Returns the function that begins `distance` slots behind the next instruction.
    fn function(&self, distance: i32) -> Mark {
        Mark::Instruction(self.target(distance))
    }

    /// Returns the same function as helpers call it.
    fn entry(&self, distance: i32) -> Mark {
        let target = self.target(distance);
        match self.code.function_number(target) {
            Some(function) if self.literals.gauge != Gauge::Absent => Mark::Entry(function),
            _ => Mark::Instruction(target),
        }
    }

    /// Whether the instruction jumps back and pays for it.
    fn pays(&self) -> bool {
        self.literals.gauge == Gauge::Paid && self.code.goes_back(self.index).is_some()
    }

    /// Whether programs are ended.
    fn has_gauge(&self) -> bool {
        self.literals.gauge != Gauge::Absent
    }

    /// Where the function leaves.
    const fn leave(&self) -> Mark {
        Mark::Leave(self.frame.function)
    }

    /// Returns where a jump by `distance` slots goes: it stays in its function, without repeating the prologue.
    fn jump(&self, distance: i32) -> Mark {
        match self.target(distance) {
            first if first == self.first => Mark::Body(self.frame.function),
            index => Mark::Instruction(index),
        }
    }

    /// Returns what a reference stands for, unless it is a function.
    fn resolved(&self, value: Wide) -> Option<u64> {
        resolved(value, self.literals.resolve)
    }

    /// Returns the array in which the instruction, a call, looks up in place, if it does.
    fn lookup(&self) -> Option<ArrayPlace> {
        let lookups = &self.literals.lookups;
        let place = lookups.binary_search_by_key(&self.index, |(index, _)| *index).ok()?;
        Some(lookups[place].1)
    }

    /// Returns what guards the instruction.
    #[inline]
    fn guard(&self) -> Option<Guard> {
        let guards = self.literals.wanted.guards;
        if guards.is_empty() {
            return None;
        }
        let place = guards.binary_search_by_key(&(self.index as u32), |(index, _)| *index).ok()?;
        Some(guards[place].1)
    }

    /// Returns the number with which to exclusive-or the instruction's constant, if it is blinded: a different one for
    /// each.
    #[inline]
    fn key(&self) -> Option<u64> {
        let seed = self.literals.wanted.blinding?;
        // SplitMix64 by Steele, Lea and Flood; nobody knows the seed.
        let mut key = seed.wrapping_add((self.index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(key ^ key >> 31)
    }

    /// Whether no instruction is guarded, and no constant blinded.
    #[inline]
    fn is_plain(&self) -> bool {
        self.literals.wanted.guards.is_empty() && self.literals.wanted.blinding.is_none()
    }

    /// Whether the instruction is a load that may fault.
    #[inline]
    fn is_probe(&self) -> bool {
        !self.literals.wanted.probes.is_empty()
            && self.literals.wanted.probes.binary_search(&(self.index as u32)).is_ok()
    }

    /// Returns the bounds that the instruction, a store, is checked against, if it is.
    #[inline]
    fn check(&self) -> Option<Check> {
        let Wanted { checked, context_len, .. } = self.literals.wanted;
        if checked.is_empty() {
            return None;
        }
        let place = checked.binary_search_by_key(&(self.index as u32), |(index, _)| *index).ok()?;
        let bounds = match checked[place].1 {
            Region::Context => Bounds::Context { len: context_len },
            // A map without values has no room: every store is outside.
            Region::Map(map) => {
                let Range { start, end } = self.literals.resolve.values(map as i32).unwrap_or_default();
                Bounds::Fixed { start, len: end - start }
            }
        };
        Some(Check { bounds, ended: OUTSIDE + self.code.slot(self.index) as i64 })
    }

    fn unsupported(&self) -> CompileError {
        CompileError::Unsupported {
            slot: self.code.slot(self.index),
            instruction: self.code.instructions()[self.index],
        }
    }
}

fn translate<I: Isa>(code: &Code, literals: &Literals<'_>) -> Result<Compiled, CompileError> {
    let unwinding = literals.wanted.unwinding;
    let new = |unknown| Buffer::new(code.instructions().len(), code.functions().len(), unknown, unwinding);
    let mut buffer = new(Unknown::Near);
    let frames = frames(code, literals);
    pass::<I>(code, literals, &frames, &mut buffer)?;
    if buffer.len() >= I::REACH {
        buffer = new(Unknown::Far);
        pass::<I>(code, literals, &frames, &mut buffer)?;
        buffer.begin_again();
        pass::<I>(code, literals, &frames, &mut buffer)?;
    }
    let alignment = if buffer.has_room() { I::LINES.map(|lines| lines.len as usize) } else { None };
    buffer.shorten(I::LINES);
    let code_len = buffer.len();
    if code_len > MOST_BYTES {
        return Err(CompileError::Long { len: code_len, most: MOST_BYTES });
    }
    if I::LITERALS == Place::BehindTheCode {
        buffer.append_literals(literals.values.iter().map(|(_, called)| called.function));
    }
    buffer.fill_in(I::patch);
    let Parts { bytes, starts, faults, steps } = buffer.into_parts();
    let alignment = alignment.unwrap_or(Target::LEAST_ALIGNMENT);
    Ok(Compiled { bytes, starts, faults, steps, frames: I::FRAMES, code_len, alignment, gauge: literals.gauge })
}

/// Functions whose addresses are taken.
fn named_functions(code: &Code) -> impl Iterator<Item = usize> {
    code.instructions().iter().enumerate().filter_map(|(index, instruction)| match *instruction {
        Instruction::LoadWide { value: Wide::Function(distance), .. } => code.target(index, distance),
        _ => None,
    })
}

/// What each function needs.
fn frames(code: &Code, literals: &Literals<'_>) -> Vec<Frame> {
    let mut named: Vec<usize> = if code.has_functions() { named_functions(code).collect() } else { Vec::new() };
    named.sort_unstable();
    let ends = code.functions().skip(1).chain([code.instructions().len()]);
    let stores = literals.wanted.checked.iter().any(|(_, region)| *region == Region::Context);
    let frame = |(function, (first, end))| Frame {
        is_named: named.binary_search(&first).is_ok(),
        gauge: literals.gauge,
        leftovers: literals.wanted.leftovers,
        context: if function == 0 && stores { ContextAddress::Kept } else { ContextAddress::Passed },
        ..Frame::of(code, first..end, function)
    };
    code.functions().zip(ends).enumerate().map(frame).collect()
}

fn pass<I: Isa>(
    code: &Code,
    literals: &Literals<'_>,
    frames: &[Frame],
    buffer: &mut Buffer,
) -> Result<(), CompileError> {
    let ends = code.functions().skip(1).chain([code.instructions().len()]);
    let mut loops = Loops::of(code, I::LINES.filter(|_| literals.wanted.blinding.is_none()));
    for (frame, (first, end)) in frames.iter().zip(code.functions().zip(ends)) {
        let mut surroundings = Surroundings { code, literals, frame: *frame, first, index: first };
        buffer.begin_function(frame.function);
        for index in first..end {
            surroundings.index = index;
            if index == loops.next && index != first {
                loops.reserve(buffer);
            }
            buffer.begin_instruction(index);
            if index == first {
                buffer.step(Step::Begins);
                I::prologue(buffer, &surroundings.frame);
                if index == loops.next {
                    loops.reserve(buffer);
                }
                buffer.begin_body();
            }
            I::instruction(buffer, &surroundings)?;
        }
        if literals.gauge != Gauge::Absent && !buffer.has_left() {
            // Jumps lead there that are not instructions of the program.
            I::leave(buffer, &surroundings.frame);
        }
    }
    if literals.gauge != Gauge::Absent {
        for (frame, first) in frames.iter().zip(code.functions()).filter(|(frame, _)| frame.is_named) {
            // The program's own prologue would take another register than helpers put the fuel in.
            debug_assert!(frame.function != 0, "the address of the program itself is refused with its structure");
            buffer.begin_entry(frame.function);
            buffer.step(Step::Begins);
            I::entry(buffer, Mark::Instruction(first), frame);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
