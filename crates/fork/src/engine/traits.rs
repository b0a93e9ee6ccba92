//! What a mapping must have again after it was replaced: rights, and flags that the program has set by advice or otherwise.

use palimpsest_sys::extent::Commit;
use palimpsest_sys::proc::maps::Permissions;
use palimpsest_sys::vmas::{Vma, VmaFlags};
use rustix::io::Errno;

use super::span::Span;

/// Flags that advice sets, whatever is mapped.
const ADVISED: [(VmaFlags, i32); 7] = [
    (VmaFlags::HUGE_PAGE, libc::MADV_HUGEPAGE),
    (VmaFlags::NO_HUGE_PAGE, libc::MADV_NOHUGEPAGE),
    (VmaFlags::DONT_DUMP, libc::MADV_DONTDUMP),
    (VmaFlags::DONT_FORK, libc::MADV_DONTFORK),
    (VmaFlags::MERGEABLE, libc::MADV_MERGEABLE),
    (VmaFlags::SEQUENTIAL, libc::MADV_SEQUENTIAL),
    (VmaFlags::RANDOM, libc::MADV_RANDOM),
];

/// Those, and what is given in the mapping itself.
const KEPT: VmaFlags = {
    let (mut all, mut index) = (VmaFlags::NO_RESERVE, 0);
    while index < ADVISED.len() {
        all = all.union(ADVISED[index].0);
        index += 1;
    }
    all
};

/// Rights of AArch64 (`arch/arm64/include/uapi/asm/mman.h`), with the flags that tell of them. Other kernels never show these flags.
const SPECIAL: [(VmaFlags, i32); 2] = [(VmaFlags::BRANCH_TARGETS, 0x10), (VmaFlags::TAGGED, 0x20)];

/// Rights and flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Traits {
    pub(crate) permissions: Permissions,
    pub(crate) flags: VmaFlags,
    pub(crate) protection_key: u32,
}

impl Traits {
    /// Those of a mapping that was read with its figures.
    pub(crate) const fn of(vma: &Vma) -> Self {
        Self { permissions: vma.permissions, flags: vma.flags, protection_key: vma.protection_key }
    }

    /// The flags, if they and the rights are all that is to be restored: nothing is locked, protected by a key, or special in another way.
    pub(crate) fn known_flags(self) -> Option<VmaFlags> {
        let odd = VmaFlags::LOCKED
            .union(VmaFlags::USERFAULT)
            .union(VmaFlags::TAGGED)
            .union(VmaFlags::BRANCH_TARGETS)
            .union(VmaFlags::SEALED);
        let is_plain = self.protection_key == 0 && !self.flags.intersects(odd);
        is_plain.then_some(self.flags.without(self.flags.without(KEPT)))
    }

    /// Whether anonymous memory in its place is counted as committed.
    pub(crate) const fn commit(self) -> Commit {
        if self.flags.intersects(VmaFlags::NO_RESERVE) { Commit::Uncounted } else { Commit::Counted }
    }

    /// The same, counted or not.
    #[must_use]
    pub(crate) const fn with_commit(self, commit: Commit) -> Self {
        let flags = match commit {
            Commit::Counted => self.flags.without(VmaFlags::NO_RESERVE),
            Commit::Uncounted => self.flags.union(VmaFlags::NO_RESERVE),
        };
        Self { flags, ..self }
    }

    /// The rights for `mmap` and `mprotect`.
    pub(crate) fn rights(self) -> i32 {
        [
            (Permissions::READ, libc::PROT_READ),
            (Permissions::WRITE, libc::PROT_WRITE),
            (Permissions::EXECUTE, libc::PROT_EXEC),
        ]
        .into_iter()
        .filter(|(permission, _)| self.permissions.contains(*permission))
        .fold(libc::PROT_NONE, |all, (_, right)| all | right)
    }

    /// Gives a new mapping with these rights all else that the old one had. A refusal loses a hint, or a lock that the limit forbids by now.
    pub(crate) fn give_to(self, span: Span) {
        self.advise(span);
        self.restrict(span);
    }

    /// The part of [`give_to`](Self::give_to) that is best done before the memory is written to: two pieces of anonymous memory become one mapping only while
    /// one of them has no pages.
    pub(crate) fn advise(self, span: Span) {
        let at = std::ptr::with_exposed_provenance_mut::<libc::c_void>(span.start);
        for (flag, advice) in ADVISED {
            if self.flags.intersects(flag) {
                // SAFETY: none of these changes contents.
                unsafe { libc::madvise(at, span.len(), advice) };
            }
        }
    }

    /// The part that may forbid to write.
    pub(crate) fn restrict(self, span: Span) {
        let special =
            SPECIAL.into_iter().filter(|(flag, _)| self.flags.intersects(*flag)).fold(0, |all, (_, bit)| all | bit);
        if self.protection_key != 0 || special != 0 {
            // Key 0 is the one that all mappings have at first.
            // SAFETY: gives memory the rights that it had before it was replaced.
            unsafe {
                libc::syscall(
                    libc::SYS_pkey_mprotect,
                    span.start,
                    span.len(),
                    self.rights() | special,
                    self.protection_key,
                )
            };
        }
        match (self.flags.intersects(VmaFlags::LOCKED), is_locked(span)) {
            (true, false) => {
                // Pages that are discarded come back locked, one by one.
                // SAFETY: locking changes no contents.
                unsafe { libc::syscall(libc::SYS_mlock2, span.start, span.len(), libc::MLOCK_ONFAULT) };
            }
            (false, true) => {
                // All new mappings are locked (`MCL_FUTURE`), and the old one was made before that.
                // SAFETY: unlocking changes no contents.
                unsafe { libc::syscall(libc::SYS_munlock, span.start, span.len()) };
            }
            _ => {}
        }
    }
}

/// Whether memory at `span`, which is mapped, is locked. Changes nothing: `MS_INVALIDATE` has no other effect than this error (`msync(2)`).
pub(crate) fn is_locked(span: Span) -> bool {
    // Past the C library's function, at which a thread may be cancelled.
    // SAFETY: asks for nothing to be written.
    let answer = unsafe { libc::syscall(libc::SYS_msync, span.start, span.len(), libc::MS_INVALIDATE) };
    answer != 0 && super::measure::last_errno() == Errno::BUSY
}
