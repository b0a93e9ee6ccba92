//! The traits of a mapping, which it must have again after it was replaced: rights, and flags that the program has set
//! by advice or otherwise.

use rustix::io::Errno;

use super::calls::{Commit, advise, knows, protection};
use super::span::Span;
use crate::last_errno;
use crate::pages::maps::Permissions;
use crate::pages::vmas::{Vma, VmaFlags};
use crate::seccomp::FreezeCall;

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

/// These flags, and those that `mmap` itself sets.
const KEPT: VmaFlags = {
    let (mut all, mut index) = (VmaFlags::NO_RESERVE, 0);
    while index < ADVISED.len() {
        all = all.union(ADVISED[index].0);
        index += 1;
    }
    all
};

/// Rights of AArch64 (`arch/arm64/include/uapi/asm/mman.h`), with the flags that show them. Other kernels never show
/// these flags.
const SPECIAL: [(VmaFlags, i32); 2] = [(VmaFlags::BRANCH_TARGETS, 0x10), (VmaFlags::TAGGED, 0x20)];

/// Rights, flags and protection key of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traits {
    /// What the program may do with the memory.
    pub permissions: Permissions,
    /// What the program has asked of the kernel.
    pub flags: VmaFlags,
    /// The protection key; 0 where there are none.
    pub protection_key: u32,
}

impl Traits {
    /// Returns these rights, without a flag or a key.
    pub const fn bare(permissions: Permissions) -> Self {
        Self { permissions, flags: VmaFlags::from_bits(0), protection_key: 0 }
    }

    /// Returns the traits of a mapping that was read with its figures.
    pub const fn of(vma: &Vma) -> Self {
        Self { permissions: vma.line.permissions, flags: vma.flags, protection_key: vma.protection_key }
    }

    /// Returns the flags, if only they and the rights must be restored: nothing is locked, has a protection key, or is
    /// special in another way.
    pub fn known_flags(self) -> Option<VmaFlags> {
        let odd = VmaFlags::LOCKED
            .union(VmaFlags::USERFAULT)
            .union(VmaFlags::TAGGED)
            .union(VmaFlags::BRANCH_TARGETS)
            .union(VmaFlags::SEALED);
        let is_plain = self.protection_key == 0 && !self.flags.intersects(odd);
        is_plain.then_some(self.flags.without(self.flags.without(KEPT)))
    }

    /// Returns whether anonymous memory in the mapping's place counts as committed.
    pub const fn commit(self) -> Commit {
        if self.flags.intersects(VmaFlags::NO_RESERVE) { Commit::Uncounted } else { Commit::Counted }
    }

    /// Returns the same traits, committed or not.
    #[must_use]
    pub const fn with_commit(self, commit: Commit) -> Self {
        let flags = match commit {
            Commit::Counted => self.flags.without(VmaFlags::NO_RESERVE),
            Commit::Uncounted => self.flags.union(VmaFlags::NO_RESERVE),
        };
        Self { flags, ..self }
    }

    /// Returns the rights for `mmap` and `mprotect`.
    pub const fn rights(self) -> i32 {
        protection(self.permissions)
    }

    /// Gives a new mapping with these rights the other traits. A refusal only loses a hint, or a lock that the limit
    /// forbids by now.
    pub fn give_to(self, span: Span) {
        self.advise(span);
        self.restrict(span);
    }

    /// Does the part of [`give_to`](Self::give_to) that should come before the memory is written: two pieces of
    /// anonymous memory become one mapping only while one of them has no pages.
    pub fn advise(self, span: Span) {
        let at = std::ptr::with_exposed_provenance_mut::<libc::c_void>(span.start);
        for (flag, advice) in ADVISED {
            if self.flags.intersects(flag) {
                // SAFETY: none of these changes contents.
                unsafe { libc::madvise(at, span.len(), advice) };
            }
        }
    }

    /// Does the part that may forbid writing.
    pub fn restrict(self, span: Span) {
        let special =
            SPECIAL.into_iter().filter(|(flag, _)| self.flags.intersects(*flag)).fold(0, |all, (_, bit)| all | bit);
        if self.protection_key == 0 && special != 0 {
            // SAFETY: gives memory the rights that it had before it was replaced.
            unsafe { libc::syscall(libc::SYS_mprotect, span.start, span.len(), self.rights() | special) };
        }
        if self.protection_key != 0 && !FreezeCall::ProtectionKey.is_deadly() {
            // All new mappings have key 0. SAFETY: as above.
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
                // Discarded pages are locked one by one when they come back. SAFETY: locking changes no contents.
                unsafe { libc::syscall(libc::SYS_mlock2, span.start, span.len(), libc::MLOCK_ONFAULT) };
            }
            (false, true) => {
                // All new mappings are locked (`MCL_FUTURE`), but the old one was made earlier. SAFETY: unlocking
                // changes no contents.
                unsafe { libc::syscall(libc::SYS_munlock, span.start, span.len()) };
            }
            _ => {}
        }
    }
}

/// Returns whether the mapped memory at `span` is locked. Changes nothing: `MS_INVALIDATE` has no other effect than
/// this error (`msync(2)`).
pub fn is_locked(span: Span) -> bool {
    // Bypasses the C library's function, in which a thread may be cancelled. SAFETY: writes nothing back.
    let answer = unsafe { libc::syscall(libc::SYS_msync, span.start, span.len(), libc::MS_INVALIDATE) };
    answer != 0 && last_errno() == Errno::BUSY
}

/// Returns whether the private anonymous memory at `span` may be dropped by the kernel and is wiped in children
/// (`MAP_DROPPABLE`, Linux 6.11): the C library keeps its state for `getrandom` in such. Of other memory this takes
/// `MADV_WIPEONFORK` away.
///
/// The kernel tells by refusing `MADV_KEEPONFORK` (`madvise_vma_behavior` in mm/madvise.c).
///
/// # Safety
///
/// 1. No child relies on finding the memory wiped, as far as is known.
pub unsafe fn is_droppable(span: Span) -> bool {
    // SAFETY: 1. by (1).
    let answer = unsafe { advise(span, libc::MADV_KEEPONFORK) };
    // Kernels before 4.14 do not know the advice.
    answer == Err(Errno::INVAL) && knows(libc::MADV_KEEPONFORK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::mapping::{Mapping, Protection, Source};
    use crate::memory::remap;
    use crate::memory::vec::MappedVec;

    /// Runs the check in a child that has all its future memory locked, and returns its exit code; 2 if it may not
    /// lock.
    fn where_all_is_locked(is_right: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child makes system calls only, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: takes a number.
            let may = unsafe { libc::mlockall(libc::MCL_FUTURE) } == 0;
            let code = if may { i32::from(!is_right()) } else { 2 };
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: the child is ours; the status goes to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        if libc::WEXITSTATUS(status) == 2 {
            println!("skipped: this user may lock no memory");
        }
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_replacement_is_locked_like_what_it_replaces() {
        let page = rustix::param::page_size();
        let place = Mapping::new(Source::Anonymous, page, Protection::ReadWrite, page).unwrap();
        let span = Span::from(place.range());
        let seen = where_all_is_locked(|| {
            let plain = Traits::bare(Permissions::READ_WRITE);
            let locked = Traits { flags: VmaFlags::LOCKED, ..plain };
            [(plain, false), (locked, true)].into_iter().all(|(traits, wanted)| {
                // SAFETY: 1. the test's own mapping, without contents; 2. the child has one thread.
                let replaced = unsafe { remap::zero(span, Permissions::READ_WRITE, Commit::Counted) };
                let by_itself = is_locked(span);
                traits.give_to(span);
                replaced.is_ok() && by_itself && is_locked(span) == wanted
            })
        });
        assert_ne!(seen, 1);
    }

    #[test]
    fn tables_outside_the_heap_are_not_locked() {
        let seen = where_all_is_locked(|| {
            MappedVec::<u64>::with_capacity(1 << 16).is_ok_and(|table| {
                let page = rustix::param::page_size();
                let range = table.range();
                !is_locked(Span::new(range.start + page, range.end - page))
            })
        });
        assert_ne!(seen, 1);
    }
}
