//! A program whose structure is right: what the interpreter and the compilers take.
//!
//! Structure is what can be told without following values: every slot is part of an instruction, jumps go to
//! instructions of their own function, functions end, calls go to functions and nest no deeper than [`MOST_FRAMES`].
//! Whether an access to memory is allowed is another question.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::function::FunctionType;
use crate::insn::{Callee, DecodeError, Instruction, SLOT, Wide, common, decode};
use crate::source::Source;

/// Most slots that a program can have: `BPF_COMPLEXITY_LIMIT_INSNS` of Linux (`include/linux/bpf.h`).
pub const MOST_SLOTS: usize = 1_000_000;
/// Most functions that are active at once: `MAX_CALL_FRAMES` of Linux (`include/linux/bpf_verifier.h`).
pub const MOST_FRAMES: usize = 8;

/// A program whose structure is right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    instructions: Vec<Instruction>,
    /// The slot of each instruction; empty if all have one slot, since both then count alike.
    slots: Vec<u32>,
    /// The first instruction of each function, in order; the program's own comes first.
    functions: Vec<u32>,
    /// How many functions are active at once, at most.
    frames: usize,
    needs: Needs,
    /// Where jumps back go, and these jumps, in their order.
    jumps_back: Vec<(u32, u32)>,
    source: Option<Arc<Source>>,
    /// The types of some functions, by their first instruction, in order.
    types: Vec<(u32, FunctionType)>,
}

/// What some programs have, and most small ones do not: these need not be searched for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Needs {
    /// Calls of its own functions, or their addresses.
    functions: bool,
    outside: Outside,
    /// A `may_goto`.
    counts: bool,
    /// Registers that it names, a bit for each.
    registers: u16,
}

/// Why the structure is wrong. Slots are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StructureError {
    /// The program is empty.
    #[error("the program is empty")]
    Empty,
    /// The program is too long.
    #[error("the program has {slots} slots, and {MOST_SLOTS} are allowed")]
    Long {
        /// Slots.
        slots: usize,
    },
    /// A slot is not an instruction.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A jump, a call or a reference goes where no instruction begins.
    #[error("`{instruction}` in slot {slot} goes to slot {target}, where no instruction begins")]
    Target {
        /// Its slot.
        slot: usize,
        /// The instruction.
        instruction: Instruction,
        /// Where it goes.
        target: i64,
    },
    /// A jump leaves its function.
    #[error(
        "`{instruction}` in slot {slot} jumps to slot {target}, out of its function, which has slots {start} to {last}"
    )]
    Leaves {
        /// Its slot.
        slot: usize,
        /// The instruction.
        instruction: Instruction,
        /// Where it goes.
        target: usize,
        /// First slot of the function.
        start: usize,
        /// Last slot of the function.
        last: usize,
    },
    /// A function goes on behind its end.
    #[error(
        "the function that begins in slot {start} does not end: behind `{instruction}` in slot {slot} comes something \
         else; end it by `exit`"
    )]
    FallsThrough {
        /// First slot of the function.
        start: usize,
        /// Slot of its last instruction.
        slot: usize,
        /// Its last instruction.
        instruction: Instruction,
    },
    /// Calls nest too deeply, or without end.
    #[error(
        "the function that begins in slot {start} is called {MOST_FRAMES} calls deep or by itself, and {MOST_FRAMES} \
         functions can be active at once"
    )]
    Depth {
        /// First slot of the function.
        start: usize,
    },
    /// A load stands for something that a loader must fill in.
    #[error(
        "`{instruction}` in slot {slot} stands for something that is not here; load an object by the loader, and give \
         maps with descriptors to the host (HostBuilder::map_at, Host::code)"
    )]
    Unresolved {
        /// Its slot.
        slot: usize,
        /// The instruction.
        instruction: Instruction,
    },
    /// An instruction that is always refused.
    #[error("`{instruction}` in slot {slot} is {what}")]
    Refused {
        /// Its slot.
        slot: usize,
        /// The instruction.
        instruction: Instruction,
        /// What it is, and why it is refused.
        what: &'static str,
    },
}

/// What a program uses from outside. One that calls may also have maps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Outside {
    #[default]
    Nothing,
    Maps,
    Calls,
}

/// What has been read of a program.
#[derive(Default)]
struct Read {
    instructions: Vec<Instruction>,
    /// As in [`Code`].
    slots: Vec<u32>,
    /// The instructions that jump, in order.
    jumps: Vec<u32>,
    needs: Needs,
}

impl Read {
    /// Reads an instruction that is not a common one. Returns how many slots it has. Apart from the loop over the
    /// common ones, which is faster by itself.
    #[cold]
    #[inline(never)]
    fn uncommon(&mut self, bytes: &[u8], slot: usize) -> Result<usize, StructureError> {
        let needs = &mut self.needs;
        let instruction = decode(bytes, slot)?;
        instruction.each_register(|register| needs.registers |= 1 << register.number());
        match instruction {
            Instruction::MayGoto { .. } => needs.counts = true,
            Instruction::Call(Callee::Local(_)) => needs.functions = true,
            Instruction::Call(_) => needs.outside = Outside::Calls,
            Instruction::LoadWide { value: Wide::Function(_), .. } => needs.functions = true,
            Instruction::LoadWide { value: Wide::Value(_), .. } => {}
            Instruction::LoadWide { .. } | Instruction::Packet { .. } | Instruction::Cast { .. } => {
                refuse(slot, instruction)?;
                needs.outside = needs.outside.max(Outside::Maps);
            }
            _ => {}
        }
        if matches!(instruction, Instruction::Jump { .. } | Instruction::Branch { .. } | Instruction::MayGoto { .. }) {
            self.jumps.push(self.instructions.len() as u32);
        }
        self.instructions.push(instruction);
        if instruction.slots() > 1 && self.slots.is_empty() {
            // Up to here both count alike.
            self.slots = (0..self.instructions.len() as u32).collect();
        }
        Ok(instruction.slots())
    }
}

impl Code {
    /// Checks the slots of a program.
    ///
    /// # Errors
    ///
    /// [`StructureError`].
    pub fn new(bytes: &[u8]) -> Result<Self, StructureError> {
        let count = bytes.len().div_ceil(SLOT);
        if count > MOST_SLOTS {
            return Err(StructureError::Long { slots: count });
        }
        // In most programs one instruction in ten jumps.
        let (instructions, jumps) = (Vec::with_capacity(count), Vec::with_capacity(count / 8 + 4));
        let mut read = Read { instructions, jumps, ..Read::default() };
        let (whole, _) = bytes.as_chunks::<SLOT>();
        let (mut slot, mut registers) = (0, 0);
        while slot < count {
            let index = read.instructions.len() as u32;
            if !read.slots.is_empty() {
                read.slots.push(slot as u32);
            }
            let common = whole.get(slot).and_then(|slot| {
                common::decode(slot, |instruction, named| {
                    registers |= named;
                    if matches!(instruction, Instruction::Branch { .. }) {
                        read.jumps.push(index);
                    }
                    read.instructions.push(instruction);
                })
            });
            slot += if common.is_some() { 1 } else { read.uncommon(bytes, slot)? };
        }
        read.needs.registers |= registers;
        let Read { instructions, slots, jumps, needs } = read;
        if instructions.is_empty() {
            return Err(StructureError::Empty);
        }
        let (functions, jumps_back, types) = (Vec::from([0]), Vec::new(), Vec::new());
        let mut code = Self { instructions, slots, functions, frames: 1, needs, jumps_back, source: None, types };
        if needs.functions {
            code.functions = code.find_functions()?;
        }
        code.jumps_back = code.check_jumps(&jumps)?;
        if needs.functions {
            code.frames = code.depths()?.into_iter().max().unwrap_or(1);
        }
        Ok(code)
    }

    /// Notes where it comes from, for those who profile and debug it.
    pub fn with_source(self, source: Arc<Source>) -> Self {
        Self { source: Some(source), ..self }
    }

    /// Sets the types of functions, by the slots in which they begin. These functions are [verified](crate::verify)
    /// alone, once, and calls of them are not followed. Slots in which no function begins are ignored.
    pub fn with_types(self, types: impl IntoIterator<Item = (usize, FunctionType)>) -> Self {
        let entry = |slot: usize| {
            let first = self.at_slot(i64::try_from(slot).ok()?)?;
            self.function_number(first).map(|_| first as u32)
        };
        let mut found: Vec<(u32, FunctionType)> =
            types.into_iter().filter_map(|(slot, takes)| Some((entry(slot)?, takes))).collect();
        found.sort_by_key(|(first, _)| *first);
        found.dedup_by_key(|(first, _)| *first);
        Self { types: found, ..self }
    }

    /// Returns the types of functions, by their first instructions.
    pub(crate) fn types(&self) -> impl Iterator<Item = (usize, &FunctionType)> {
        self.types.iter().map(|(first, takes)| (*first as usize, takes))
    }

    /// Returns where it comes from, if that was noted.
    pub fn source(&self) -> Option<&Source> {
        self.source.as_deref()
    }

    /// Returns its instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Returns the slot of an instruction.
    pub fn slot(&self, index: usize) -> usize {
        if self.slots.is_empty() { index } else { self.slots[index] as usize }
    }

    /// Returns how many slots it has.
    pub fn len(&self) -> usize {
        let last = self.instructions.len() - 1;
        self.slot(last) + self.instructions[last].slots()
    }

    /// Returns false: a program has at least one instruction.
    pub fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }

    /// Returns the first instruction of each function, in order; the program's own comes first.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.functions.iter().map(|first| *first as usize)
    }

    /// Whether it calls functions of its own, or uses their addresses.
    pub(crate) const fn has_functions(&self) -> bool {
        self.needs.functions
    }

    /// Whether it calls helpers or functions of the host, or refers to maps.
    pub(crate) const fn goes_outside(&self) -> bool {
        !matches!(self.needs.outside, Outside::Nothing)
    }

    /// Whether it calls helpers or functions of the host.
    pub(crate) const fn calls_outside(&self) -> bool {
        matches!(self.needs.outside, Outside::Calls)
    }

    /// Whether it counts rounds of loops.
    pub(crate) const fn counts(&self) -> bool {
        self.needs.counts
    }

    /// Returns the registers that it names, a bit for each.
    pub(crate) const fn registers(&self) -> u16 {
        self.needs.registers
    }

    /// Returns how many functions are active at once, at most.
    pub const fn frames(&self) -> usize {
        self.frames
    }

    /// Returns the instruction `distance` slots behind the one after `index`. There is one for each distance in this
    /// program's instructions.
    pub fn target(&self, index: usize, distance: i32) -> Option<usize> {
        let slot = self.slot(index) as i64 + self.instructions[index].slots() as i64 + i64::from(distance);
        self.at_slot(slot)
    }

    /// Returns the target of instruction `index` if it jumps back, or to itself. Every loop of a function has such a
    /// jump.
    pub(crate) fn goes_back(&self, index: usize) -> Option<usize> {
        let distance = match self.instructions[index] {
            Instruction::Jump { offset, .. } => offset,
            Instruction::Branch { offset, .. } | Instruction::MayGoto { offset } => offset.into(),
            _ => return None,
        };
        // Most go forward.
        if distance >= 0 { None } else { self.target(index, distance) }
    }

    /// Returns where jumps back go, and these jumps, in their order.
    pub(crate) fn jumps_back(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.jumps_back.iter().map(|(target, jump)| (*target as usize, *jump as usize))
    }

    /// Returns the number of the function that begins with this instruction.
    pub(crate) fn function_number(&self, first: usize) -> Option<usize> {
        self.functions.binary_search(&u32::try_from(first).ok()?).ok()
    }

    /// Returns the instruction that begins in this slot.
    pub(crate) fn at_slot(&self, slot: i64) -> Option<usize> {
        let slot = usize::try_from(slot).ok()?;
        if self.slots.is_empty() {
            return (slot < self.instructions.len()).then_some(slot);
        }
        // Before a slot begin as many instructions as there are slots, less one for each of two slots.
        let wide = self.len() - self.slots.len();
        let first = slot.saturating_sub(wide);
        let near = self.slots.get(first..=slot.min(self.slots.len() - 1))?;
        Some(first + near.binary_search(&(slot as u32)).ok()?)
    }

    fn target_of(&self, index: usize, distance: i32) -> Result<usize, StructureError> {
        let (slot, instruction) = (self.slot(index), self.instructions[index]);
        let target = slot as i64 + instruction.slots() as i64 + i64::from(distance);
        self.at_slot(target).ok_or(StructureError::Target { slot, instruction, target })
    }

    /// Finds where functions begin.
    fn find_functions(&self) -> Result<Vec<u32>, StructureError> {
        let mut functions = Vec::from([0]);
        for (index, instruction) in self.instructions.iter().enumerate() {
            if let Instruction::Call(Callee::Local(distance))
            | Instruction::LoadWide { value: Wide::Function(distance), .. } = *instruction
            {
                functions.push(self.target_of(index, distance)? as u32);
            }
        }
        functions.sort_unstable();
        functions.dedup();
        Ok(functions)
    }

    /// Returns the function of an instruction: its number and its instructions.
    fn function_of(&self, index: usize) -> (usize, core::ops::Range<usize>) {
        let number = self.functions.partition_point(|first| *first as usize <= index) - 1;
        let end = self.functions.get(number + 1).map_or(self.instructions.len(), |next| *next as usize);
        (number, self.functions[number] as usize..end)
    }

    /// Checks those instructions, all that jump, and the ends of functions. Returns the jumps back.
    fn check_jumps(&self, jumps: &[u32]) -> Result<Vec<(u32, u32)>, StructureError> {
        let mut back = Vec::new();
        let mut jumps = jumps.iter().map(|index| *index as usize).peekable();
        let ends = self.functions().skip(1).chain([self.instructions.len()]);
        for function in self.functions().zip(ends).map(|(start, end)| start..end) {
            while let Some(index) = jumps.next_if(|index| *index < function.end) {
                let distance = match self.instructions[index] {
                    Instruction::Jump { offset, .. } => offset,
                    Instruction::Branch { offset, .. } | Instruction::MayGoto { offset } => offset.into(),
                    _ => continue,
                };
                let target = self.target_of(index, distance)?;
                if !function.contains(&target) {
                    let (slot, instruction) = (self.slot(index), self.instructions[index]);
                    let (start, last) = (self.slot(function.start), self.slot(function.end - 1));
                    let target = self.slot(target);
                    return Err(StructureError::Leaves { slot, instruction, target, start, last });
                }
                if target <= index {
                    back.push((target as u32, index as u32));
                }
            }
            let (slot, instruction) = (self.slot(function.end - 1), self.instructions[function.end - 1]);
            if !matches!(instruction, Instruction::Exit | Instruction::Jump { .. }) {
                return Err(StructureError::FallsThrough { start: self.slot(function.start), slot, instruction });
            }
        }
        Ok(back)
    }

    /// Returns how many functions are active at once in each function, itself included.
    pub(crate) fn heights(&self) -> Vec<usize> {
        self.depths().expect("the depth was checked when the code was made")
    }

    /// Returns how deeply calls nest in each function: the length of the longest path in the graph of calls, which must
    /// have no circle. Each round reaches the functions that are one call deeper, so that as many rounds as there may
    /// be frames reach all.
    fn depths(&self) -> Result<Vec<usize>, StructureError> {
        let mut calls = Vec::new();
        for (index, instruction) in self.instructions.iter().enumerate() {
            // A helper may call a function whose address is taken.
            if let Instruction::Call(Callee::Local(distance))
            | Instruction::LoadWide { value: Wide::Function(distance), .. } = *instruction
            {
                let callee = self.target_of(index, distance)?;
                let call = (self.function_of(index).0, self.function_of(callee).0);
                if call.1 == 0 {
                    // Who runs the program alone enters it: compiled, it has arguments that no function has.
                    return Err(StructureError::Depth { start: 0 });
                }
                // What a timer calls may say that it calls it again, which is no call inside it. Whether a helper makes
                // one of it, who follows values knows.
                let is_own_address = call.0 == call.1 && matches!(instruction, Instruction::LoadWide { .. });
                if !is_own_address {
                    calls.push(call);
                }
            }
        }
        calls.sort_unstable();
        calls.dedup();
        let mut depth = Vec::new();
        depth.resize(self.functions.len(), 1_usize);
        for _ in 0..MOST_FRAMES {
            let mut changed = false;
            for &(caller, callee) in &calls {
                if depth[caller] <= depth[callee] {
                    (depth[caller], changed) = (depth[callee] + 1, true);
                    if depth[caller] > MOST_FRAMES {
                        return Err(StructureError::Depth { start: self.slot(self.functions[callee] as usize) });
                    }
                }
            }
            if !changed {
                break;
            }
        }
        Ok(depth)
    }
}

/// Refuses instructions that no loaded program has.
fn refuse(slot: usize, instruction: Instruction) -> Result<(), StructureError> {
    let what = match instruction {
        Instruction::LoadWide {
            value: Wide::Value(_) | Wide::Function(_) | Wide::MapByIndex(_) | Wide::MapValueByIndex { .. },
            ..
        } => return Ok(()),
        Instruction::LoadWide { .. } => return Err(StructureError::Unresolved { slot, instruction }),
        Instruction::Packet { .. } => {
            "a legacy packet load, which is obsolete (RFC 9669, section 5.5); read the packet through a pointer"
        }
        Instruction::Cast { .. } => "a cast between address spaces, and there are no arenas here",
        _ => return Ok(()),
    };
    Err(StructureError::Refused { slot, instruction, what })
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::{String, ToString};

    use super::*;
    use crate::asm::assemble;

    fn error(text: &str) -> String {
        Code::new(&assemble(text).expect("a program")).expect_err("its structure is wrong").to_string()
    }

    #[test]
    fn jumps_stay_in_their_function() {
        assert_eq!(error("goto +5\nexit"), "`goto +5` in slot 0 goes to slot 6, where no instruction begins");
        assert_eq!(error("goto -2\nexit"), "`goto -2` in slot 0 goes to slot -1, where no instruction begins");
        let half = error("if r1 == 0 goto +1\nr0 = 1 ll\nexit");
        assert_eq!(half, "`if r1 == 0 goto +1` in slot 0 goes to slot 2, where no instruction begins");
        let leaves = error("call local f\ngoto in\nf: r0 = 1\nin: exit");
        assert!(leaves.starts_with("`goto +1` in slot 1 jumps to slot 3, out of its function"), "{leaves}");
    }

    #[test]
    fn the_instruction_of_a_slot_is_found_among_wide_ones() {
        let text = "r0 = 1 ll\nr0 = 2\nr0 = 3 ll\nr0 = 4 ll\nr0 = 5\nexit";
        let code = Code::new(&assemble(text).expect("a program")).expect("its structure is right");
        let found: Vec<Option<usize>> = (-1..10).map(|slot| code.at_slot(slot)).collect();
        let expected = [None, Some(0), None, Some(1), Some(2), None, Some(3), None, Some(4), Some(5), None];
        assert_eq!(found, expected);
        assert_eq!(code.at_slot(i64::MAX), None);
    }

    #[test]
    fn functions_end() {
        let error = error("call local f\nf: r0 = 1\nexit");
        assert!(
            error.starts_with("the function that begins in slot 0 does not end: behind `call local +0`"),
            "{error}"
        );
    }

    #[test]
    fn calls_nest_as_deeply_as_frames_are_allowed() {
        let chain = |functions: usize| {
            let calls = (1..functions).map(|next| format!("call local f{next}\nexit\nf{next}:\n"));
            let text = calls.collect::<String>() + "r0 = 1\nexit";
            Code::new(&assemble(&text).expect("a program")).map(|code| code.frames())
        };
        assert_eq!(chain(1), Ok(1));
        assert_eq!(chain(MOST_FRAMES), Ok(MOST_FRAMES));
        assert!(matches!(chain(MOST_FRAMES + 1), Err(StructureError::Depth { .. })));
        assert!(error("f: call local f\nexit").contains("by itself"));
    }

    #[test]
    fn nobody_calls_the_program_itself() {
        let own = Err(StructureError::Depth { start: 0 });
        let code = |text: &str| Code::new(&assemble(text).expect("a program")).map(drop);
        assert_eq!(code("f: r1 = func[f] ll\nr0 = 0\nexit"), own);
        assert_eq!(code("r0 = 0\nexit\nf: r1 = func[f] ll\nr0 = 0\nexit"), Ok(()), "another function");
        assert_eq!(code("f: r1 = 1\nr2 = func[f] ll\nr3 = 0\nr4 = 0\ncall 181\nr0 = 0\nexit"), own);
        assert_eq!(code("f: r1 = func[g] ll\nr0 = 0\nexit\ng: r1 = func[f] ll\nr0 = 0\nexit"), own);
        // Nor does what nobody calls.
        assert_eq!(code("f: r0 = 0\nexit\ng: r1 = func[g] ll\nr2 = func[f] ll\nr0 = 0\nexit"), own);
        assert_eq!(code("f: r0 = 0\nexit\ng: r1 = func[g] ll\ncall local f\nexit"), own);
    }

    #[test]
    fn what_is_refused_is_named() {
        assert!(error("r0 = *(u8 *)skb[4]\nexit").contains("legacy packet load"));
        assert!(error("r1 = addr_space_cast(r2, 0, 1)\nexit").contains("address spaces"));
        assert!(error("r1 = map[fd:3] ll\nexit").contains("stands for something that is not here"));
        assert_eq!(Code::new(&[]), Err(StructureError::Empty));
        assert!(matches!(Code::new(&[0x95, 0, 0]), Err(StructureError::Decode(_))));
        let long = alloc::vec![0; (MOST_SLOTS + 1) * SLOT];
        assert_eq!(Code::new(&long), Err(StructureError::Long { slots: MOST_SLOTS + 1 }));
    }
}
