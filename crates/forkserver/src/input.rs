//! The source of a run's test case.

use std::io::Read;

use palimpsest_sys::memory::sysv::SharedBytes;

/// Bytes before a test case in shared memory: its length.
pub(crate) const HEADER: usize = 4;
/// The longest test case of AFL++, in bytes. Standard input is not read further.
const LONGEST: u64 = 1 << 20;

/// The source of test cases.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TestCase {
    /// Shared memory: a word with the length, then the bytes.
    Shared(SharedBytes),
    /// Standard input, which the fuzzer rewinds before each run.
    StandardInput,
}

impl TestCase {
    /// Calls `target` with the current test case.
    pub(crate) fn give_to(self, target: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Shared(segment) => {
                let header = segment.start.cast::<u32>();
                // SAFETY: the segment begins with the word, is page-aligned, and the fuzzer writes it only between
                // runs.
                let len = unsafe { header.read() } as usize;
                let len = len.min(segment.len.saturating_sub(HEADER));
                // SAFETY: the segment is longer than its header.
                let bytes = unsafe { segment.start.add(HEADER) };
                // SAFETY: `len` bytes follow the header in the segment, which stays attached, and the fuzzer does not
                // write them before this run has ended.
                target(unsafe { std::slice::from_raw_parts(bytes.as_ptr(), len) });
            }
            Self::StandardInput => {
                let mut bytes = Vec::new();
                // A test case that cannot be read completely is still useful: the fuzzer sees what it reaches.
                let _ = std::io::stdin().lock().take(LONGEST).read_to_end(&mut bytes);
                target(&bytes);
            }
        }
    }
}

/// Puts a test case, or as much of it as fits, where [`TestCase::Shared`] finds it.
///
/// # Safety
///
/// 1. The segment is longer than its header, and nobody else uses it now.
pub(crate) unsafe fn place(segment: SharedBytes, bytes: &[u8]) {
    let len = bytes.len().min(segment.len - HEADER);
    // SAFETY: (1) the segment is page-aligned and begins with the word. `HostOptions` limits segments to lengths that
    // fit a word.
    unsafe { segment.start.cast::<u32>().write(u32::try_from(len).unwrap_or(u32::MAX)) };
    // SAFETY: (1) the segment is longer than its header.
    let place = unsafe { segment.start.add(HEADER) };
    // SAFETY: (1) `len` bytes fit behind the header, and `bytes` does not overlap memory that nobody else uses.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), len) };
}
