//! The records of a jitdump, version 1 (tools/perf/Documentation/jitdump-specification.txt), in the byte order of the
//! machine.

use crate::observe::SourceLine;

/// The magic number, which reads "JiTD" on a big-endian machine.
const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 40;
/// Record id, total size and time.
const PREFIX_BYTES: usize = 16;
/// The prefix and the fields of JIT_CODE_LOAD before the name.
const LOAD_BYTES: usize = PREFIX_BYTES + 40;
/// The prefix and the fields of JIT_CODE_UNWINDING_INFO before the data.
const UNWINDING_BYTES: usize = PREFIX_BYTES + 24;
/// The prefix and the fields of JIT_CODE_DEBUG_INFO before the entries.
const DEBUG_BYTES: usize = PREFIX_BYTES + 16;

/// `JIT_CODE_LOAD`.
const LOAD: u32 = 0;
/// `JIT_CODE_DEBUG_INFO`.
const DEBUG_INFO: u32 = 2;
/// `JIT_CODE_CLOSE`.
const CLOSE: u32 = 3;
/// `JIT_CODE_UNWINDING_INFO`.
const UNWINDING_INFO: u32 = 4;

/// The start of a file.
pub(super) struct Header {
    pub(super) machine: u32,
    pub(super) pid: u32,
    pub(super) nanoseconds: u64,
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut data = Vec::with_capacity(HEADER_BYTES);
        for word in [MAGIC, VERSION, HEADER_BYTES as u32, self.machine, 0, self.pid] {
            data.extend(word.to_ne_bytes());
        }
        data.extend(self.nanoseconds.to_ne_bytes());
        // No flags: times are those of CLOCK_MONOTONIC and not architecture ticks.
        data.extend(0_u64.to_ne_bytes());
        data
    }
}

/// JIT_CODE_LOAD: a program was placed.
pub(super) struct CodeLoad<'a> {
    pub(super) nanoseconds: u64,
    pub(super) pid: u32,
    pub(super) thread: u32,
    pub(super) address: u64,
    pub(super) index: u64,
    pub(super) name: &'a [u8],
    pub(super) code: &'a [u8],
}

impl CodeLoad<'_> {
    /// Returns the bytes before the name; the name, a zero byte and the code follow. `None` if the record is longer
    /// than its length field can express.
    pub(super) fn encode_prefix(&self) -> Option<Vec<u8>> {
        let total = LOAD_BYTES + self.name.len() + 1 + self.code.len();
        let mut data = prefix(LOAD, u32::try_from(total).ok()?, self.nanoseconds);
        data.extend(self.pid.to_ne_bytes());
        data.extend(self.thread.to_ne_bytes());
        // The mapped address and the address of the code are the same.
        for word in [self.address, self.address, self.code.len() as u64, self.index] {
            data.extend(word.to_ne_bytes());
        }
        Some(data)
    }
}

/// Encodes JIT_CODE_DEBUG_INFO for the next function, which is at `address`, and whose program begins at `program`.
/// `None` if the record is too long.
pub(super) fn encode_lines<'a>(
    lines: impl ExactSizeIterator<Item = SourceLine<'a>>,
    program: u64,
    address: u64,
    nanoseconds: u64,
) -> Option<Vec<u8>> {
    let count = lines.len() as u64;
    let mut entries = Vec::new();
    for line in lines {
        entries.extend((program + u64::from(line.offset)).to_ne_bytes());
        entries.extend(line.line.to_ne_bytes());
        // The column distinguishes several parts of one line.
        entries.extend(line.column.to_ne_bytes());
        entries.extend(line.file.as_bytes());
        entries.push(0);
    }
    let total = (DEBUG_BYTES + entries.len()).next_multiple_of(size_of::<u64>());
    let mut record = prefix(DEBUG_INFO, u32::try_from(total).ok()?, nanoseconds);
    for word in [address, count] {
        record.extend(word.to_ne_bytes());
    }
    record.extend(entries);
    record.resize(total, 0);
    Some(record)
}

/// Encodes JIT_CODE_UNWINDING_INFO for the next program. The last `header_bytes` of `data` are the search table. `None`
/// if the record is too long.
pub(super) fn encode_unwinding(data: &[u8], header_bytes: usize, nanoseconds: u64) -> Option<Vec<u8>> {
    let total = (UNWINDING_BYTES + data.len()).next_multiple_of(size_of::<u64>());
    let mut record = prefix(UNWINDING_INFO, u32::try_from(total).ok()?, nanoseconds);
    // Says that nothing of it is mapped: `perf inject` would extend the mapping of the program by this size, over the
    // next program.
    for word in [data.len() as u64, header_bytes as u64, 0] {
        record.extend(word.to_ne_bytes());
    }
    record.extend(data);
    record.resize(total, 0);
    Some(record)
}

/// Encodes JIT_CODE_CLOSE: no more programs.
pub(super) fn encode_close(nanoseconds: u64) -> Vec<u8> {
    prefix(CLOSE, PREFIX_BYTES as u32, nanoseconds)
}

fn prefix(id: u32, total: u32, nanoseconds: u64) -> Vec<u8> {
    let mut data = Vec::with_capacity(LOAD_BYTES);
    data.extend(id.to_ne_bytes());
    data.extend(total.to_ne_bytes());
    data.extend(nanoseconds.to_ne_bytes());
    data
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::observe::SourceLines;

    #[test]
    fn header() {
        let header = Header { machine: 62, pid: 0x0102_0304, nanoseconds: 0x1112_1314_1516_1718 };
        assert_eq!(
            header.encode(),
            [
                0x44, 0x54, 0x69, 0x4a, 1, 0, 0, 0, 40, 0, 0, 0, 62, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 0x18, 0x17, 0x16,
                0x15, 0x14, 0x13, 0x12, 0x11, 0, 0, 0, 0, 0, 0, 0, 0,
            ]
        );
    }

    #[test]
    fn code_load() {
        let load = CodeLoad {
            nanoseconds: 5,
            pid: 6,
            thread: 7,
            address: 0x7f00_0000_1000,
            index: 8,
            name: b"abc",
            code: &[0; 10],
        };
        assert_eq!(
            load.encode_prefix().expect("short"),
            [
                // Prefix: id, 56 + 4 + 10 bytes in all, time.
                0, 0, 0, 0, 70, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, // Process and thread.
                6, 0, 0, 0, 7, 0, 0, 0, // Address, twice.
                0, 0x10, 0, 0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0, 0, 0x7f, 0, 0, // Length, index.
                10, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0,
            ]
        );
    }

    #[test]
    fn unwinding_info() {
        assert_eq!(
            encode_unwinding(&[0xaa, 0xbb, 0xcc], 2, 5).expect("short"),
            [
                4, 0, 0, 0, 48, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0xaa, 0xbb, 0xcc, 0, 0, 0, 0, 0,
            ]
        );
    }

    #[test]
    fn close() {
        assert_eq!(encode_close(0x0203), [3, 0, 0, 0, 16, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn debug_info() {
        let mut lines = SourceLines::new();
        lines.add(SourceLine { offset: 0, file: "a.c", line: 7, column: 2 });
        lines.add(SourceLine { offset: 5, file: "b", line: 0x0102, column: 0 });
        assert_eq!(
            encode_lines(lines.iter(), 0x7f00_0000_1000, 0x7f00_0000_1000, 5).expect("short"),
            [
                // Prefix: id, 72 bytes in all, time; address, entries.
                2, 0, 0, 0, 72, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x7f, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
                // Address, line, column, file.
                0, 0x10, 0, 0, 0, 0x7f, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, b'a', b'.', b'c', 0, // The same.
                5, 0x10, 0, 0, 0, 0x7f, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, b'b', 0, // Up to 8.
                0, 0,
            ]
        );
    }
}
