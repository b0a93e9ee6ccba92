//! What the tests of the arena share: children, and blocks whose contents tell whose they are.

use std::ptr::NonNull;

use palimpsest_fork::arena::Arena;

/// Runs `child` in a process forked by the C library, and `parent` here meanwhile. Returns the child's wait status; its
/// exit code is 0 if `child` returned true.
pub(crate) fn forked(child: impl FnOnce() -> bool, parent: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `child`, which uses the arena and makes system calls, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    waited(pid, child, parent)
}

/// Runs each closure in the process where it belongs, and waits.
pub(crate) fn waited(pid: i32, child: impl FnOnce() -> bool, parent: impl FnOnce()) -> i32 {
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        // No clock ends it, since a machine may be slow: a child that waits for ever ends with the test. SAFETY: takes
        // numbers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // Unwinding ends here: the harness would go on in the child.
        let code =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).map_or(101, |passed| i32::from(!passed));
        // SAFETY: ends the child without the exit handlers of the test harness.
        unsafe { libc::_exit(code) };
    }
    parent();
    let mut status = 0;
    // SAFETY: `status` is a place for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// A block filled from a seed, so that any byte shows that changes or comes from elsewhere.
pub(crate) struct Filled {
    block: NonNull<u8>,
    len: usize,
    align: usize,
    seed: u64,
}

// SAFETY: a block is memory of an arena that may be used and freed by any thread.
unsafe impl Send for Filled {}

impl Filled {
    /// Allocates and fills; `None` without memory.
    pub(crate) fn new(arena: &Arena, len: usize, align: usize, seed: u64) -> Option<Self> {
        let block = NonNull::new(arena.allocate(len, align))?;
        Some(Self { block, len, align, seed }.check_place().fill())
    }

    /// Allocates zeros, checks that they are, and fills.
    pub(crate) fn zeroed(arena: &Arena, len: usize, align: usize, seed: u64) -> Option<Self> {
        let block = NonNull::new(arena.allocate_zeroed(len, align))?;
        let filled = Self { block, len, align, seed }.check_place();
        assert!(
            filled.bytes().chunks(PERIOD).all(|piece| *piece == [0; PERIOD][..piece.len()]),
            "{len} zeroed bytes are not zeros"
        );
        Some(filled.fill())
    }

    fn check_place(self) -> Self {
        assert!(self.block.addr().get().is_multiple_of(self.align), "{:p} for {}", self.block, self.align);
        self
    }

    fn fill(mut self) -> Self {
        self.refill(self.seed);
        self
    }

    /// Writes the pattern of another seed.
    pub(crate) fn refill(&mut self, seed: u64) {
        self.seed = seed;
        // SAFETY: the block has `len` bytes and is this value's.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.block.as_ptr(), self.len) };
        expected(seed, bytes.len(), |range, piece| bytes[range].copy_from_slice(piece));
    }

    /// Whether the block still holds its pattern.
    #[must_use]
    pub(crate) fn is_right(&self) -> bool {
        let bytes = self.bytes();
        let mut right = true;
        expected(self.seed, bytes.len(), |range, piece| right &= bytes[range] == *piece);
        right
    }

    /// The contents.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the block has `len` bytes and is this value's.
        unsafe { std::slice::from_raw_parts(self.block.as_ptr(), self.len) }
    }

    /// Changes the length; on false the block is unchanged.
    #[must_use]
    pub(crate) fn resize(&mut self, arena: &Arena, len: usize) -> bool {
        // SAFETY: 1. the block is the arena's and not freed. 2. This is its alignment.
        let Some(block) = NonNull::new(unsafe { arena.resize(self.block, len, self.align) }) else { return false };
        let kept = self.len.min(len);
        self.block = block;
        self.len = kept;
        assert!(self.is_right(), "resizing to {len} lost bytes");
        self.len = len;
        self.refill(self.seed);
        true
    }

    /// Frees it, after a last check.
    pub(crate) fn free(self, arena: &Arena) {
        assert!(self.is_right(), "a block of {} bytes changed", self.len);
        // SAFETY: the block is the arena's, and this value was all that referred to it.
        unsafe { arena.release(self.block) };
    }
}

/// Bytes of the pattern before it repeats, with another number at the start.
const PERIOD: usize = 4096;

/// The pattern of a seed; the first 8 bytes of each repetition count it.
fn pattern(seed: u64) -> [u8; PERIOD] {
    let mut pattern = [0; PERIOD];
    let mut state = seed | 1;
    for word in pattern.chunks_exact_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.copy_from_slice(&state.to_be_bytes());
    }
    pattern
}

/// The pieces of `len` bytes and what they should hold.
fn expected(seed: u64, len: usize, mut piece: impl FnMut(std::ops::Range<usize>, &[u8])) {
    let mut pattern = pattern(seed);
    for (number, start) in (0..len).step_by(PERIOD).enumerate() {
        pattern[..8].copy_from_slice(&(seed ^ number as u64).to_be_bytes());
        let end = len.min(start + PERIOD);
        piece(start..end, &pattern[..end - start]);
    }
}
