//! System V segments like those of a fuzzer.

use std::io;

/// A segment of this process, removed when dropped.
pub(crate) struct Segment {
    pub(crate) id: i32,
    start: *mut u8,
    len: usize,
}

impl Segment {
    pub(crate) fn new(len: usize) -> Self {
        // SAFETY: makes a new segment.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, len, libc::IPC_CREAT | 0o600) };
        assert!(id >= 0, "{}", io::Error::last_os_error());
        // SAFETY: no address is given, so nothing is replaced.
        let start = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        assert!(start.addr() != usize::MAX, "{}", io::Error::last_os_error());
        Self { id, start: start.cast(), len }
    }

    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: the place lies in the segment.
        let place = unsafe { self.start.add(at) };
        // SAFETY: the bytes fit, and the target does not read them now.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }

    pub(crate) fn clear(&mut self) {
        // SAFETY: the whole segment; the target does not run now.
        unsafe { self.start.write_bytes(0, self.len) };
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        // SAFETY: the whole segment; the target does not run now.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }.to_vec()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: it was attached here, and nothing points into it any more.
        unsafe { libc::shmdt(self.start.cast()) };
        // SAFETY: removes it once nobody has it attached.
        unsafe { libc::shmctl(self.id, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}
