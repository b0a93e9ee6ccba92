//! Call frame information for `perf inject`: position-independent, followed by a search table.
//!
//! `perf inject` writes an ELF file per program, in which the code starts at an address of its own choice, `.eh_frame`
//! follows at the next multiple of 8 and `.eh_frame_hdr` directly after that (`jit_write_elf`,
//! tools/perf/util/genelf.c). Absolute pointers would be wrong there, so every record is rewritten with pointers
//! relative to themselves. Personality and language data are left out: they serve exceptions, not backtraces.

use super::record;
use crate::observe::Loaded;

const WORD: usize = size_of::<u32>();
const POINTER: usize = size_of::<usize>();
/// Records and sections begin at multiples of this many bytes.
const ALIGNMENT: usize = 8;

/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`.
const SELF_RELATIVE: u8 = 0x1b;
/// `DW_EH_PE_udata4`.
const COUNT: u8 = 0x03;
/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`.
const TABLE_RELATIVE: u8 = 0x3b;

/// `.eh_frame` followed by `.eh_frame_hdr`.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Table {
    data: Vec<u8>,
    header_bytes: usize,
}

impl Table {
    /// Rewrites `eh_frame`, whose pointers are absolute. `None` if something in it cannot be rewritten: the dump then
    /// has none.
    pub(super) fn convert(eh_frame: &[u8], loaded: &Loaded<'_>) -> Option<Table> {
        let mut converter = Converter {
            code: loaded.address.get(),
            code_len: loaded.code.len(),
            frame_start: loaded.code.len().next_multiple_of(ALIGNMENT),
            output: Vec::new(),
            cies: Vec::new(),
            fdes: Vec::new(),
        };
        let mut rest = Cursor { data: eh_frame };
        while !rest.data.is_empty() {
            let offset = eh_frame.len() - rest.data.len();
            let len = rest.word()?;
            let mut body = Cursor { data: rest.take(len as usize)? };
            match body.word()? {
                0 => converter.cie(offset, body)?,
                distance => converter.fde((offset + WORD).checked_sub(distance as usize)?, body)?,
            }
        }
        converter.finish()
    }

    /// Returns the record for the dump; empty if it would be too long.
    pub(super) fn encode(&self, nanoseconds: u64) -> Vec<u8> {
        record::encode_unwinding(&self.data, self.header_bytes, nanoseconds).unwrap_or_default()
    }
}

/// A CIE that has been rewritten.
struct Cie {
    /// Its old offset.
    source: usize,
    /// Its new offset.
    target: usize,
    augmented: bool,
}

struct Converter {
    /// Address of the code in the process.
    code: usize,
    /// Bytes of it.
    code_len: usize,
    /// Start of `.eh_frame`, in bytes from the start of the code.
    frame_start: usize,
    output: Vec<u8>,
    cies: Vec<Cie>,
    /// Starts of the function and of its FDE, in bytes from the start of the code.
    fdes: Vec<(i32, i32)>,
}

impl Converter {
    fn cie(&mut self, source: usize, mut body: Cursor<'_>) -> Option<()> {
        let version = body.byte()?;
        let augmentation = body.text()?;
        let factors = body.take(body.leb128_len()?)?;
        let data_factor = body.take(body.leb128_len()?)?;
        let return_register_len = if version == 1 { 1 } else { body.leb128_len()? };
        let return_register = body.take(return_register_len)?;
        let augmented = augmentation.first() == Some(&b'z');
        if augmented {
            let len = body.leb128()?;
            body.take(len)?;
        } else if !augmentation.is_empty() {
            return None;
        }
        // `S` has no data: the function is a signal trampoline. `B` has none either: its return addresses are signed
        // with the second key.
        let flags: Vec<u8> = augmentation.iter().copied().filter(|letter| matches!(letter, b'S' | b'B')).collect();
        self.cies.push(Cie { source, target: self.output.len(), augmented });
        self.record(|data| {
            data.extend(0_u32.to_ne_bytes());
            data.push(version);
            data.extend(b"zR");
            data.extend(&flags);
            data.push(0);
            data.extend(factors);
            data.extend(data_factor);
            data.extend(return_register);
            // One byte of augmentation data.
            data.extend([1, SELF_RELATIVE]);
            data.extend(body.data);
            Some(())
        })
    }

    fn fde(&mut self, cie: usize, mut body: Cursor<'_>) -> Option<()> {
        let cie = self.cies.iter().find(|known| known.source == cie)?;
        let (cie, augmented) = (cie.target, cie.augmented);
        let start = body.pointer()?.wrapping_sub(self.code);
        // Of another function of the same program, which has a record of its own in the dump.
        if start >= self.code_len {
            return Some(());
        }
        let len = u32::try_from(body.pointer()?).ok()?;
        if augmented {
            let len = body.leb128()?;
            body.take(len)?;
        }
        let record = self.output.len();
        let start = i32::try_from(start).ok()?;
        let here = i32::try_from(self.frame_start + record).ok()?;
        self.fdes.push((start, here));
        self.record(|data| {
            data.extend(u32::try_from(record + WORD - cie).ok()?.to_ne_bytes());
            // The pointer is relative to its own place, two words behind the start of the record.
            let place = here.checked_add(2 * WORD as i32)?;
            data.extend((start - place).to_ne_bytes());
            data.extend(len.to_ne_bytes());
            // No augmentation data.
            data.push(0);
            data.extend(body.data);
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

/// Reads from the start of `data`; `None` at its end.
struct Cursor<'a> {
    data: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.data.split_at_checked(len)?;
        self.data = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn word(&mut self) -> Option<u32> {
        let bytes = self.take(WORD)?;
        bytes.try_into().ok().map(u32::from_ne_bytes)
    }

    fn pointer(&mut self) -> Option<usize> {
        let bytes = self.take(POINTER)?;
        bytes.try_into().ok().map(usize::from_ne_bytes)
    }

    /// Returns the text up to the next zero byte.
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.data.iter().position(|&byte| byte == 0)?;
        let text = self.take(len)?;
        self.take(1)?;
        Some(text)
    }

    /// Returns the length of the LEB128 number that comes next: all bytes but its last have the highest bit set.
    fn leb128_len(&self) -> Option<usize> {
        Some(self.data.iter().position(|byte| byte & 0x80 == 0)? + 1)
    }

    fn leb128(&mut self) -> Option<usize> {
        let bytes = self.take(self.leb128_len()?)?;
        bytes.iter().rev().try_fold(0_usize, |value, byte| Some(value.checked_mul(0x80)? | usize::from(byte & 0x7f)))
    }
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::{address::CodeAddress, observe::frame_pointer_eh_frame};

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
        let table = Table::convert(&with_personality(), &loaded(&code)).expect("convertible");
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
        let table = Table::convert(&eh_frame, &loaded).expect("convertible");
        assert_eq!(table.header_bytes, 20);
        assert_eq!(table.data.len() % 4, 0);
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let code = [0; 10];
        let whole = with_personality();
        for len in 0..whole.len() {
            assert_eq!(Table::convert(&whole[..len], &loaded(&code)), None, "{len}");
        }
    }
}
