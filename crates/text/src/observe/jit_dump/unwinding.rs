//! Call frame information for `perf inject`: position-independent, followed by a search table.
//!
//! `perf inject` writes an ELF file per program, in which the code starts at an address of its own choice, `.eh_frame`
//! follows at the next multiple of 8 and `.eh_frame_hdr` directly after that (`jit_write_elf`,
//! tools/perf/util/genelf.c). Absolute pointers would be wrong there, so every record is rewritten with pointers
//! relative to themselves. Personality and language data are left out: they serve exceptions, not backtraces.
//!
//! A program of which functions are known has a record for each, but one table, whose descriptions (FDEs) may cover
//! many functions: it is read once ([`Frames`]), and each function gets what covers it, cut to its code ([`Table`]).

use std::{borrow::Cow, collections::BTreeMap};

use super::{cursor::Cursor, instructions, record};
use crate::observe::Loaded;

const WORD: usize = size_of::<u32>();
/// Records and sections begin at multiples of this many bytes.
const ALIGNMENT: usize = 8;

/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`.
const SELF_RELATIVE: u8 = 0x1b;
/// `DW_EH_PE_udata4`.
const COUNT: u8 = 0x03;
/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`.
const TABLE_RELATIVE: u8 = 0x3b;

/// A CIE.
#[derive(PartialEq, Eq, Debug)]
struct Cie {
    /// Its offset in the program's table.
    source: usize,
    is_augmented: bool,
    /// Bytes by which an advance of 1 advances.
    code_factor: usize,
    /// It as it will be, from the version on.
    rewritten: Vec<u8>,
}

/// An FDE that covers something.
#[derive(PartialEq, Eq, Debug)]
struct Fde<'a> {
    /// The first address that it covers.
    start: usize,
    /// The first address behind these.
    end: usize,
    /// Its CIE's index.
    cie: usize,
    instructions: &'a [u8],
}

/// A program's table, read.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Frames<'a> {
    /// By their offsets.
    cies: Vec<Cie>,
    /// By their starts.
    fdes: Vec<Fde<'a>>,
}

impl<'a> Frames<'a> {
    /// Reads `eh_frame`, whose pointers are absolute. `None` if something in it cannot be rewritten: the dump then has
    /// none.
    pub(super) fn read(eh_frame: &'a [u8]) -> Option<Self> {
        let mut frames = Frames { cies: Vec::new(), fdes: Vec::new() };
        let mut rest = Cursor { data: eh_frame };
        while !rest.data.is_empty() {
            let offset = eh_frame.len() - rest.data.len();
            let len = rest.word()?;
            let mut body = Cursor { data: rest.take(len as usize)? };
            match body.word()? {
                0 => frames.read_cie(offset, body)?,
                distance => frames.read_fde((offset + WORD).checked_sub(distance as usize)?, body)?,
            }
        }
        frames.fdes.sort_unstable_by_key(|fde| (fde.start, fde.end));
        Some(frames)
    }

    fn read_cie(&mut self, source: usize, mut body: Cursor<'_>) -> Option<()> {
        let version = body.byte()?;
        let augmentation = body.text()?;
        let code_factor = body.peek_leb128()?;
        let factors = body.take(body.leb128_len()?)?;
        let data_factor = body.take(body.leb128_len()?)?;
        let return_register_len = if version == 1 { 1 } else { body.leb128_len()? };
        let return_register = body.take(return_register_len)?;
        let is_augmented = augmentation.first() == Some(&b'z');
        if is_augmented {
            let len = body.leb128()?;
            body.take(len)?;
        } else if !augmentation.is_empty() {
            return None;
        }
        let mut rewritten = vec![version];
        rewritten.extend(b"zR");
        // `S` has no data: the function is a signal trampoline. `B` has none either: its return addresses are signed
        // with the second key.
        rewritten.extend(augmentation.iter().filter(|letter| matches!(letter, b'S' | b'B')));
        rewritten.push(0);
        for field in [factors, data_factor, return_register] {
            rewritten.extend(field);
        }
        // One byte of augmentation data.
        rewritten.extend([1, SELF_RELATIVE]);
        rewritten.extend(body.data);
        self.cies.push(Cie { source, is_augmented, code_factor, rewritten });
        Some(())
    }

    fn read_fde(&mut self, cie: usize, mut body: Cursor<'a>) -> Option<()> {
        let cie = self.cies.binary_search_by_key(&cie, |known| known.source).ok()?;
        let start = body.pointer()?;
        let end = start.saturating_add(body.pointer()?);
        if self.cies[cie].is_augmented {
            let len = body.leb128()?;
            body.take(len)?;
        }
        if start < end {
            self.fdes.push(Fde { start, end, cie, instructions: body.data });
        }
        Some(())
    }
}

/// `.eh_frame` followed by `.eh_frame_hdr`.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Table {
    data: Vec<u8>,
    header_bytes: usize,
}

impl Table {
    /// Makes the table of what `loaded` is: the program, or a function of it. `None` if nothing covers it, or what
    /// covers it cannot be rewritten.
    pub(super) fn of(frames: &Frames<'_>, loaded: &Loaded<'_>) -> Option<Table> {
        let code = loaded.address.get();
        let code_end = code.checked_add(loaded.code.len())?;
        // An unwinder that searches takes the last FDE that begins at or before an address.
        let first = frames.fdes.partition_point(|fde| fde.start <= code).saturating_sub(1);
        let behind = frames.fdes.partition_point(|fde| fde.start < code_end);
        let frame_start = loaded.code.len().next_multiple_of(ALIGNMENT);
        let mut writer = Writer { frame_start, output: Vec::new(), cies: BTreeMap::new(), fdes: Vec::new() };
        for fde in frames.fdes.get(first..behind)? {
            let (start, end) = (fde.start.max(code), fde.end.min(code_end));
            if start >= end {
                continue;
            }
            let cie = &frames.cies[fde.cie];
            let instructions = match start - fde.start {
                0 => Cow::Borrowed(fde.instructions),
                skipped => Cow::Owned(instructions::after(fde.instructions, cie.code_factor, skipped)?),
            };
            writer.fde(cie, start - code, end - start, &instructions)?;
        }
        writer.finish()
    }

    /// Returns the record for the dump; empty if it would be too long.
    pub(super) fn encode(&self, nanoseconds: u64) -> Vec<u8> {
        record::encode_unwinding(&self.data, self.header_bytes, nanoseconds).unwrap_or_default()
    }
}

struct Writer {
    /// Start of `.eh_frame`, in bytes from the start of the code.
    frame_start: usize,
    output: Vec<u8>,
    /// New offsets of CIEs, by their old ones.
    cies: BTreeMap<usize, usize>,
    /// Starts of what an FDE covers and of the FDE, in bytes from the start of the code.
    fdes: Vec<(i32, i32)>,
}

impl Writer {
    /// Returns the new offset of a CIE, which is written before the first FDE that refers to it.
    fn cie(&mut self, cie: &Cie) -> Option<usize> {
        if let Some(&target) = self.cies.get(&cie.source) {
            return Some(target);
        }
        let target = self.output.len();
        self.record(|data| {
            data.extend(0_u32.to_ne_bytes());
            data.extend(&cie.rewritten);
            Some(())
        })?;
        self.cies.insert(cie.source, target);
        Some(target)
    }

    /// Writes an FDE for `len` bytes, `start` bytes behind the start of the code.
    fn fde(&mut self, cie: &Cie, start: usize, len: usize, instructions: &[u8]) -> Option<()> {
        let cie = self.cie(cie)?;
        let record = self.output.len();
        let start = i32::try_from(start).ok()?;
        let here = i32::try_from(self.frame_start + record).ok()?;
        self.fdes.push((start, here));
        self.record(|data| {
            data.extend(u32::try_from(record + WORD - cie).ok()?.to_ne_bytes());
            // The pointer is relative to its own place, two words behind the start of the record.
            let place = here.checked_add(2 * WORD as i32)?;
            data.extend((start - place).to_ne_bytes());
            data.extend(u32::try_from(len).ok()?.to_ne_bytes());
            // No augmentation data.
            data.push(0);
            data.extend(instructions);
            Some(())
        })
    }

    /// Appends a record with what `fill` writes after its length, padded by `DW_CFA_nop`, which is zero.
    fn record(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> Option<()>) -> Option<()> {
        let start = self.output.len();
        self.output.extend([0; WORD]);
        fill(&mut self.output)?;
        self.output.resize(self.output.len().next_multiple_of(ALIGNMENT), 0);
        let len = u32::try_from(self.output.len() - start - WORD).ok()?;
        self.output[start..start + WORD].copy_from_slice(&len.to_ne_bytes());
        Some(())
    }

    fn finish(mut self) -> Option<Table> {
        if self.fdes.is_empty() {
            return None;
        }
        let frame_bytes = self.output.len();
        let header = i32::try_from(self.frame_start + frame_bytes).ok()?;
        self.fdes.sort_unstable();
        self.output.extend([1, SELF_RELATIVE, COUNT, TABLE_RELATIVE]);
        // The distance to `.eh_frame` from this word, the second of the header.
        let back = i32::try_from(frame_bytes + WORD).ok()?;
        self.output.extend((-back).to_ne_bytes());
        self.output.extend(u32::try_from(self.fdes.len()).ok()?.to_ne_bytes());
        for (start, fde) in self.fdes {
            self.output.extend((start - header).to_ne_bytes());
            self.output.extend((fde - header).to_ne_bytes());
        }
        Some(Table { header_bytes: self.output.len() - frame_bytes, data: self.output })
    }
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::{address::CodeAddress, observe::frame_pointer_eh_frame};

    fn convert(eh_frame: &[u8], loaded: &Loaded<'_>) -> Option<Table> {
        Table::of(&Frames::read(eh_frame)?, loaded)
    }

    fn loaded(code: &[u8]) -> Loaded<'_> {
        Loaded {
            name: "unwound",
            address: CodeAddress::new(0x7f12_3400_0040),
            code,
            eh_frame: None,
            lines: None,
            functions: &[],
        }
    }

    /// Returns a CIE with `P`, `L` and `R`, and an FDE with language data, as a C++ compiler writes them with absolute
    /// pointers.
    fn with_personality() -> Vec<u8> {
        let mut data = vec![];
        let cie =
            [&[0, 0, 0, 0, 1][..], b"zPLR\0", &[1, 0x78, 16, 11, 0], &[9; 8], &[0, 0], &[0x0c, 7, 8, 0x90, 1]].concat();
        data.extend((cie.len() as u32).to_ne_bytes());
        data.extend(&cie);
        let distance = data.len() as u32 + 4;
        let fde = [
            &distance.to_ne_bytes()[..],
            &0x7f12_3400_0044_u64.to_ne_bytes(),
            &6_u64.to_ne_bytes(),
            &[8],
            &[7; 8],
            &[0x41, 0x0e, 16],
        ]
        .concat();
        data.extend((fde.len() as u32).to_ne_bytes());
        data.extend(&fde);
        data
    }

    #[test]
    fn pointers_become_relative_and_language_data_goes() {
        let code = [0; 10];
        let table = convert(&with_personality(), &loaded(&code)).expect("convertible");
        // The code has 10 bytes, so .eh_frame is at 16, the FDE at 16 + 24, the header at 16 + 24 + 24.
        let expected = [
            &[20, 0, 0, 0, 0, 0, 0, 0, 1][..],
            b"zR\0",
            &[1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0],
            &[20, 0, 0, 0, 28, 0, 0, 0],
            &(4 - (16 + 24 + 8_i32)).to_ne_bytes(),
            &[6, 0, 0, 0, 0, 0x41, 0x0e, 16, 0, 0, 0, 0],
            &[1, 0x1b, 3, 0x3b],
            &(-(48 + 4_i32)).to_ne_bytes(),
            &1_u32.to_ne_bytes(),
            &(4 - 64_i32).to_ne_bytes(),
            &(40 - 64_i32).to_ne_bytes(),
        ]
        .concat();
        assert_eq!(table.data, expected);
        assert_eq!(table.header_bytes, 20);
    }

    #[test]
    fn frame_pointer_tables_are_convertible() {
        let code = [0; 64];
        let loaded = loaded(&code);
        let eh_frame = frame_pointer_eh_frame(loaded.address, code.len());
        let table = convert(&eh_frame, &loaded).expect("convertible");
        assert_eq!(table.header_bytes, 20);
        assert_eq!(table.data.len() % 4, 0);
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let code = [0; 10];
        let whole = with_personality();
        for len in 0..whole.len() {
            assert_eq!(convert(&whole[..len], &loaded(&code)), None, "{len}");
        }
    }

    /// Returns the word at `at`.
    fn word(data: &[u8], at: usize) -> i32 {
        i32::from_ne_bytes(data[at..at + WORD].try_into().expect("four bytes"))
    }

    /// Returns what the only FDE of a table covers, in bytes from the start of the code, and its instructions.
    fn only_fde<'a>(table: &'a Table, code: &[u8]) -> (i32, i32, &'a [u8]) {
        assert_eq!(table.header_bytes, 20, "one FDE");
        let fde = WORD + word(&table.data, 0) as usize;
        let place = code.len().next_multiple_of(ALIGNMENT) + fde + 2 * WORD;
        let end = fde + WORD + word(&table.data, fde) as usize;
        let start = word(&table.data, fde + 2 * WORD) + place as i32;
        (start, word(&table.data, fde + 3 * WORD), &table.data[fde + 4 * WORD + 1..end])
    }

    #[test]
    fn an_fde_for_several_functions_is_cut_to_each() {
        // The program and its FDE have 40 bytes, its functions 16 and 24.
        let code = [0; 40];
        let program = loaded(&code);
        let eh_frame = frame_pointer_eh_frame(program.address, code.len());
        let frames = Frames::read(&eh_frame).expect("readable");
        let function = |offset: usize, len| {
            let address = program.address.offset(offset);
            Loaded { address, code: &code[offset..offset + len], ..program }
        };
        let of = |offset, len| Table::of(&frames, &function(offset, len)).expect("covered");
        let whole = of(0, 40);
        let (_, _, all) = only_fde(&whole, &code);
        let first = of(0, 16);
        assert_eq!(only_fde(&first, &code[..16]), (0, 16, all), "cut at its end only");
        let second = of(16, 24);
        let (start, len, rest) = only_fde(&second, &code[..24]);
        assert_eq!((start, len), (0, 24));
        // What the prologue has done before holds from the start on. Zeros pad.
        let rules = instructions::after(all, 1, 16).expect("known instructions");
        let unpadded = |mut data: Vec<u8>| {
            data.truncate(data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
            data
        };
        assert_eq!(unpadded(rest.to_vec()), unpadded(rules));
        assert!(unpadded(rest.to_vec()).len() < unpadded(all.to_vec()).len(), "{rest:x?}");
        // Neither reaches into what is beside it.
        assert_eq!(Table::of(&frames, &function(16, 0)), None);
        let before = Loaded { address: CodeAddress::new(program.address.get() - 16), code: &code[..16], ..program };
        assert_eq!(Table::of(&frames, &before), None);
        let behind = Loaded { address: program.address.offset(40), code: &code[..16], ..program };
        assert_eq!(Table::of(&frames, &behind), None);
    }
}
