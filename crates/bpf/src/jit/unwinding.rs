//! Call frame information: how a debugger or an unwinder gets from an instruction of a program to its caller's.
//!
//! All of a frame is found from the stack pointer, which only the first and the last instructions of a function move.
//! So each of them says what it does to the stack, and the result is right at every instruction.

use alloc::vec::Vec;

/// Whether it is noted what the code does to the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Unwinding {
    #[default]
    Untold,
    Told,
}

/// What an instruction does to the stack: known behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A function begins here, or code that calls one.
    Begins,
    /// The stack has grown by so many bytes; it shrinks by negative numbers.
    Grown(i32),
    /// The register with this number of DWARF is at the stack pointer, plus so many bytes.
    Kept { register: u8, above: u8 },
    /// The register has the caller's value again. Its place may be below the stack pointer from now on, where signal
    /// handlers write.
    GivenBack { register: u8 },
    /// The function leaves: what follows is undone at [`Self::Left`].
    Leaves,
    /// What was where the function left is as it was before.
    Left,
    /// The stack is as long as it was when the function began.
    Empty,
}

/// What call frame information needs to know of an architecture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Frames {
    /// The stack pointer, as a number of DWARF.
    pub(super) stack_pointer: u8,
    /// The column of the return address.
    pub(super) return_address: u8,
    /// Bytes that a call puts on the stack: the return address, if it is there.
    pub(super) on_entry: u8,
}

/// Stack slots.
const SLOT: i64 = 8;

/// `DW_CFA_advance_loc4`, `DW_CFA_def_cfa`, `DW_CFA_def_cfa_offset`, `DW_CFA_remember_state`, `DW_CFA_restore_state`,
/// `DW_CFA_offset` and `DW_CFA_restore`, which have a register in their lower bits (DWARF 5, section 7.24).
const ADVANCE: u8 = 0x04;
const DEFINE: u8 = 0x0c;
const OFFSET: u8 = 0x0e;
const REMEMBER: u8 = 0x0a;
const RESTORE: u8 = 0x0b;
const AT: u8 = 0x80;
const AGAIN: u8 = 0xc0;

fn unsigned(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Puts a record's length before it, and fills it up with what does nothing.
fn record(out: &mut Vec<u8>, body: &[u8]) {
    let len = (4 + body.len()).next_multiple_of(SLOT as usize) - 4;
    out.extend_from_slice(&(len as u32).to_ne_bytes());
    let end = out.len() + len;
    out.extend_from_slice(body);
    out.resize(end, 0);
}

/// Returns the bytes of an `.eh_frame` section without a terminator, for code that begins at `address` and has
/// `code_len` bytes. `steps` are in order, each with the place behind it.
pub(super) fn eh_frame(frames: Frames, steps: &[(u32, Step)], address: u64, code_len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    // A CIE of version 1 without augmentation: pointers are absolute. Code is counted in bytes, the stack in slots that
    // lie below.
    let mut cie = Vec::from([0, 0, 0, 0, 1, 0, 1, 0x78, frames.return_address]);
    cie.extend_from_slice(&[DEFINE, frames.stack_pointer, frames.on_entry]);
    if frames.on_entry > 0 {
        cie.extend_from_slice(&[AT | frames.return_address, 1]);
    }
    record(&mut out, &cie);
    let begins = |(_, step): &(u32, Step)| *step == Step::Begins;
    let mut rest = steps;
    while let Some(((start, _), behind)) = rest.split_first() {
        let next = behind.iter().position(begins).unwrap_or(behind.len());
        let end = behind.get(next).map_or(code_len as u32, |(start, _)| *start);
        let distance = out.len() as u32 + 4;
        let mut fde = Vec::from(distance.to_ne_bytes());
        fde.extend_from_slice(&(address + u64::from(*start)).to_ne_bytes());
        fde.extend_from_slice(&u64::from(end - start).to_ne_bytes());
        instructions(&mut fde, frames, *start, &behind[..next]);
        record(&mut out, &fde);
        rest = &behind[next..];
    }
    out
}

fn instructions(out: &mut Vec<u8>, frames: Frames, start: u32, steps: &[(u32, Step)]) {
    let on_entry = i64::from(frames.on_entry);
    let (mut at, mut len, mut remembered) = (start, on_entry, on_entry);
    for (place, step) in steps {
        if *place > at {
            out.push(ADVANCE);
            out.extend_from_slice(&(place - at).to_ne_bytes());
            at = *place;
        }
        match *step {
            Step::Begins => {}
            Step::Grown(by) => {
                len += i64::from(by);
                out.push(OFFSET);
                unsigned(out, len as u64);
            }
            Step::Empty => {
                len = on_entry;
                out.push(OFFSET);
                unsigned(out, len as u64);
            }
            Step::Kept { register, above } => {
                out.push(AT | register);
                unsigned(out, ((len - i64::from(above)) / SLOT) as u64);
            }
            Step::GivenBack { register } => out.push(AGAIN | register),
            Step::Leaves => {
                remembered = len;
                out.push(REMEMBER);
            }
            Step::Left => {
                len = remembered;
                out.push(RESTORE);
            }
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use std::collections::BTreeMap;

    use gimli::{
        BaseAddresses, CfaRule, CieOrFde, EhFrame, NativeEndian, Register, RegisterRule, UnwindContext, UnwindSection,
    };

    use super::*;
    use crate::asm::assemble;
    use crate::code::Code;
    use crate::jit::{Called, Metering, Resolve, Target, Then, Wanted, compile_resolved};

    const AT: u64 = 0x7f00_1234_5640;

    /// A host whose helpers are nowhere.
    struct Nowhere;

    impl Resolve for Nowhere {
        fn helper(&self, _id: i32) -> Option<Called> {
            Some(Called { function: 0x1122_3344_5566, data: None, then: Then::GoOn })
        }
    }

    /// Where the stack pointer was before the call, in bytes above where it is, and registers of the caller's, in bytes
    /// below that.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    struct Caller {
        above: i64,
        kept: BTreeMap<u16, i64>,
    }

    /// Returns the caller of each row: where it begins and ends, from the beginning of the code.
    fn callers(table: &[u8]) -> Vec<(u64, u64, Caller)> {
        let (section, bases) = (EhFrame::new(table, NativeEndian), BaseAddresses::default());
        let (mut callers, mut context) = (Vec::new(), UnwindContext::new());
        let mut entries = section.entries(&bases);
        while let Some(entry) = entries.next().expect("records") {
            let CieOrFde::Fde(partial) = entry else { continue };
            let fde = partial.parse(EhFrame::cie_from_offset).expect("it has a CIE");
            let mut rows = fde.rows(&section, &bases, &mut context).expect("rows");
            while let Some(row) = rows.next_row().expect("a row") {
                let CfaRule::RegisterAndOffset { register: Register(31), offset } = *row.cfa() else {
                    panic!("{row:?}")
                };
                let kept = row.registers().map(|(register, rule)| match rule {
                    RegisterRule::Offset(offset) => (register.0, -offset),
                    other => panic!("{other:?}"),
                });
                let caller = Caller { above: offset, kept: kept.collect() };
                callers.push((row.start_address() - AT, row.end_address() - AT, caller));
            }
        }
        callers
    }

    /// What an instruction of AArch64 code does to the stack, as the instructions themselves say.
    fn step(caller: &mut Caller, word: u32) {
        let pair = || [word & 31, word >> 10 & 31].map(|register| register as u16).into_iter().zip([0, 8]);
        match word {
            // stp, ldp
            _ if word & 0xffff_83e0 == 0xa9bf_03e0 => {
                caller.above += 16;
                let above = caller.above;
                caller.kept.extend(
                    pair().filter(|(register, _)| *register != 31).map(|(register, at)| (register, above - at)),
                );
            }
            _ if word & 0xffff_83e0 == 0xa8c1_03e0 => {
                caller.above -= 16;
                caller.kept.retain(|kept, _| pair().all(|(register, _)| register != *kept));
            }
            // sub, add
            _ if word & 0xffc0_03ff == 0xd100_03ff => caller.above += i64::from(word >> 10 & 0xfff),
            _ if word & 0xffc0_03ff == 0x9100_03ff => caller.above -= i64::from(word >> 10 & 0xfff),
            _ => {}
        }
    }

    /// Checks the table at each instruction of AArch64 code; how the other target's code steps is tried where it runs.
    #[test]
    fn tables_say_what_the_instructions_do() {
        const RET: u32 = 0xd65f_03c0;
        let text = "r6 = r1\ncall local f\nr2 = func[each] ll\ncall 1\nmay_goto on\non: if r0 == 0 goto out\nr0 = 3\n\
                    exit\nout: exit\nf: r0 = 1\nexit\neach: r7 = r1\nr9 = 2\n*(u64 *)(r10 - 8) = r7\nr0 = r9\nexit";
        let code = Code::new(&assemble(text).expect("a program")).expect("its structure is right");
        for metering in [Metering::Free, Metering::Fuel] {
            let wanted = Wanted { unwinding: Unwinding::Told, metering, ..Wanted::default() };
            let compiled = compile_resolved(&code, Target::Aarch64, &Nowhere, wanted).expect("it compiles");
            let begins = |place: u32| code.functions().any(|first| compiled.starts()[first] == place);
            let table = callers(&compiled.eh_frame(AT));
            let words = compiled.bytes()[..compiled.code_len()].chunks_exact(4);
            let (mut caller, mut inside, mut returns) = (Caller::default(), Caller::default(), Vec::new());
            for (place, word) in (0_u32..).step_by(4).zip(words) {
                // Behind the last function lies where helpers call it.
                if begins(place) || returns.get(2).is_some_and(|last| last + 4 == place) {
                    (caller, inside) = (Caller::default(), Caller::default());
                }
                let said = table.iter().find(|(start, end, _)| (*start..*end).contains(&u64::from(place)));
                assert_eq!(said.map(|(.., caller)| caller), Some(&caller), "{metering:?}, {place:#x}");
                let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                let before = caller.clone();
                step(&mut caller, word);
                // Where it begins to leave.
                if caller.above < before.above && inside == Caller::default() {
                    inside = before;
                }
                if word == RET {
                    assert_eq!(caller, Caller::default());
                    returns.push(place);
                    // What lies behind is not what has left.
                    caller = inside.clone();
                }
            }
            assert_eq!(returns.len(), if metering == Metering::Fuel { 4 } else { 3 });
        }
    }
}
