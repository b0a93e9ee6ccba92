//! Mistakes that no other test noticed when they were planted. Each test names the mutant that it fails on, by the
//! functions that had it then.

mod common;

use std::fs;
use std::os::fd::AsRawFd;

use common::kernels::refuse;
use common::{Memory, freeze, page, play, skip};
use palimpsest_fork::arena::Arena;
use palimpsest_fork::guard::{self, Remap};
use palimpsest_fork::{ExtentLen, Measure, Options, Skip};
use palimpsest_sys::pages::maps::{Maps, Permissions};
use palimpsest_sys::proc::sysctl;
use rustix::io::Errno;

const MIB: usize = 1 << 20;

fn options() -> Options {
    Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing)
}

fn frozen(len: usize) -> Memory {
    let memory = Memory::apart(len);
    memory.fill(0..len, 1);
    freeze(&options());
    assert!(memory.is_frozen());
    memory
}

/// Discards through the guard, and checks that the guard does it.
fn discard(memory: &Memory, offset: usize, len: usize) {
    // SAFETY: the scenario's own memory.
    let done = unsafe { guard::madvise(memory.at(offset).addr(), len, libc::MADV_DONTNEED) };
    assert_eq!(done, Ok(()), "at {offset:#x}");
}

fn rights(address: usize) -> String {
    Maps::read().expect("/proc").at(address).expect("mapped").permissions.to_string()
}

/// Returns the seals of each mapped file of this name.
fn seals(name: &str) -> Vec<i32> {
    let maps = Maps::read().expect("/proc");
    let ours = maps.iter().filter(|map| map.path.as_ref().is_some_and(|path| path.to_string_lossy().contains(name)));
    let seals = ours.map(|map| {
        let path = format!("/proc/self/map_files/{:x}-{:x}", map.start, map.end);
        let Ok(file) = fs::File::open(&path) else { skip("this user may not open what is mapped (map_files)") };
        // SAFETY: only asks.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) }
    });
    seals.collect()
}

/// Fails on: `State::keep` without `seal`.
#[test]
fn frozen_memory_is_shown_by_files_that_are_constant() {
    play("frozen_memory_is_shown_by_files_that_are_constant", || {
        let _memory = frozen(16 * MIB);
        let seals = seals("palimpsest-frozen");
        assert!(seals.len() >= 4, "{seals:?}");
        let wanted = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;
        assert!(seals.iter().all(|seals| seals & wanted == wanted), "{seals:?}");
    });
}

/// Fails on: `Segments::flip` without `seal`, and on `Segment::refreeze` without it.
#[test]
fn an_arena_that_is_frozen_lies_in_files_that_are_constant() {
    play("an_arena_that_is_frozen_lies_in_files_that_are_constant", || {
        let arena = Arena::new();
        let block = arena.allocate(9 * MIB, 16);
        // SAFETY: as long as this, and this scenario's own.
        unsafe { block.write_bytes(1, 9 * MIB) };
        arena.freeze().expect("the files are open");
        let all_sealed = || {
            let seals = seals("palimpsest-arena");
            assert!(!seals.is_empty() && seals.iter().all(|seals| seals & libc::F_SEAL_WRITE != 0), "{seals:?}");
        };
        all_sealed();
        // SAFETY: as above.
        unsafe { block.write_bytes(2, 9 * MIB) };
        // SAFETY: the arena is this scenario's alone.
        assert!(unsafe { arena.refreeze() }.expect("a pagemap and files").copied > 0);
        all_sealed();
    });
}

/// Fails on: `discard` with the right to read and write instead of the entry's rights.
#[test]
fn what_is_discarded_keeps_its_rights() {
    play("what_is_discarded_keeps_its_rights", || {
        let memory = frozen(16 * MIB);
        let none = Permissions::default();
        for (offset, rights, permissions) in [(4 * MIB, libc::PROT_READ, Permissions::READ), (8 * MIB, 0, none)] {
            // SAFETY: the scenario's own memory.
            assert_eq!(unsafe { libc::mprotect(memory.at(offset), 2 * MIB, rights) }, 0);
            guard::protected(memory.at(offset).addr()..memory.at(offset + 2 * MIB).addr(), Ok(permissions));
        }
        // Large ones get new memory; small ones, after many, are written over.
        for (offset, letters) in [(0, "rw-p"), (4 * MIB, "r--p"), (8 * MIB, "---p"), (12 * MIB, "rw-p")] {
            discard(&memory, offset + MIB, MIB);
            discard(&memory, offset, page());
            for at in [offset, offset + page(), offset + MIB, offset + 2 * MIB - page()] {
                assert_eq!(rights(memory.at(at).addr()), letters, "at {at:#x}");
            }
        }
        assert!(memory.is_zero(MIB..2 * MIB) && memory.is_zero(5 * MIB..6 * MIB) && memory.holds(2 * MIB..4 * MIB, 1));
    });
}

/// Fails on: `move_to` without the way back; `move_parts` that leaves a refused part's entry at the new place.
#[test]
fn a_move_that_is_refused_half_way_is_undone() {
    play("a_move_that_is_refused_half_way_is_undone", || {
        let memory = frozen(16 * MIB);
        let target = Memory::apart(16 * MIB);
        // Two extents have moved by then.
        refuse(libc::SYS_mremap, 0, memory.at(8 * MIB).addr(), libc::ENOMEM);
        for flags in [libc::MREMAP_MAYMOVE, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED] {
            let (new_len, new_address) = match flags {
                libc::MREMAP_MAYMOVE => (memory.len + MIB, 0),
                _ => (memory.len, target.at(0).addr()),
            };
            let asked = Remap { address: memory.at(0).addr(), len: memory.len, new_len, flags, new_address };
            // SAFETY: the scenario's own memory.
            assert_eq!(unsafe { guard::mremap(asked) }, Err(Errno::NOMEM));
            assert!(memory.is_frozen() && memory.holds(0..memory.len, 1), "{flags}");
        }
        assert!(!guard::touches(target.range()), "it would be taken for frozen memory");
        // The guards know all of it, at its old place.
        for offset in (0..memory.len).step_by(4 * MIB) {
            discard(&memory, offset + MIB, 2 * MIB);
            assert!(memory.is_zero(offset + MIB..offset + 3 * MIB));
            assert!(memory.holds(offset..offset + MIB, 1) && memory.holds(offset + 3 * MIB..offset + 4 * MIB, 1));
        }
    });
}

/// Fails on: `make_anonymous` that does not give back the rights of what it could not replace; `thaw_part` that notes a
/// piece before it is replaced.
#[test]
fn a_thaw_that_is_refused_half_way_leaves_the_rest_as_it_was() {
    play("a_thaw_that_is_refused_half_way_leaves_the_rest_as_it_was", || {
        let memory = frozen(8 * MIB);
        // SAFETY: the scenario's own memory.
        assert_eq!(unsafe { libc::mprotect(memory.at(0), memory.len, 0) }, 0);
        guard::protected(memory.range(), Ok(Permissions::default()));
        // The second piece's place.
        refuse(libc::SYS_mremap, 4, memory.at(2 * MIB).addr(), libc::ENOMEM);
        assert_eq!(guard::thaw(memory.range()), Err(Errno::NOMEM));
        for offset in (0..memory.len).step_by(2 * MIB) {
            assert_eq!(rights(memory.at(offset).addr()), "---p", "at {offset:#x}");
            let piece = Memory { start: memory.at(offset).cast(), len: 2 * MIB };
            assert_eq!((piece.is_frozen(), piece.is_anonymous()), (offset > 0, offset == 0), "at {offset:#x}");
        }
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(memory.at(0), memory.len, both) }, 0);
        guard::protected(memory.range(), Ok(Permissions::READ_WRITE));
        assert!(memory.holds(0..memory.len, 1));
        for offset in (2 * MIB..memory.len).step_by(2 * MIB) {
            discard(&memory, offset, MIB);
            assert!(memory.is_zero(offset..offset + MIB), "at {offset:#x}");
            assert!(memory.holds(offset + MIB..offset + 2 * MIB, 1), "behind {offset:#x}");
        }
    });
}

/// Each test fails on `reason_to_skip` without the line of its reason, and the first on `USERFAULT` without its first
/// bit. The last does not: see there.
fn is_skipped(name: &str, reasons: &[Skip], make: impl FnOnce(&Memory) -> Result<(), &'static str>) {
    play(name, || {
        let memory = Memory::apart(4 * MIB);
        memory.fill(0..memory.len, 1);
        let other = Memory::apart(4 * MIB);
        other.fill(0..other.len, 2);
        if let Err(why) = make(&memory) {
            skip(why);
        }
        let report = freeze(&options());
        assert!(memory.is_anonymous() && other.is_frozen());
        let found = report.skipped.iter().find(|skipped| skipped.range.start == memory.range().start);
        let found = found.unwrap_or_else(|| panic!("{:#x?} is not told of: {report}", memory.range()));
        assert_eq!(found.range, memory.range());
        assert!(reasons.contains(&found.reason), "{:?}", found.reason);
        assert!(memory.holds(0..memory.len, 1) && other.holds(0..other.len, 2));
    });
}

#[test]
fn memory_that_a_userfaultfd_watches_is_skipped() {
    const UFFDIO_API: u64 = 0xC018_AA3F;
    const UFFDIO_REGISTER: u64 = 0xC020_AA00;
    const MODE_MISSING: u64 = 1;
    is_skipped("memory_that_a_userfaultfd_watches_is_skipped", &[Skip::Userfault], |memory| {
        // UFFD_USER_MODE_ONLY.
        // SAFETY: takes a number.
        let watcher = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) } as i32;
        let mut api = [0xAA_u64, 0, 0];
        let mut register = [memory.at(0).addr() as u64, memory.len as u64, MODE_MISSING, 0];
        // SAFETY: `struct uffdio_api`, which outlives the call.
        if watcher < 0 || unsafe { libc::ioctl(watcher, UFFDIO_API as _, api.as_mut_ptr()) } != 0 {
            return Err("this user gets no userfaultfd");
        }
        // SAFETY: `struct uffdio_register`, as above; the scenario's own memory, of which no page is missing.
        assert_eq!(unsafe { libc::ioctl(watcher, UFFDIO_REGISTER as _, register.as_mut_ptr()) }, 0);
        Ok(())
    });
}

#[test]
fn memory_with_a_policy_is_skipped() {
    const MPOL_PREFERRED: usize = 1;
    is_skipped("memory_with_a_policy_is_skipped", &[Skip::MemoryPolicy], |memory| {
        let nodes = 1_u64;
        let address = memory.at(0).addr();
        // SAFETY: the scenario's own memory; a set of 64 nodes, which the kernel reads.
        let done =
            unsafe { libc::syscall(libc::SYS_mbind, address, memory.len, MPOL_PREFERRED, &raw const nodes, 64, 0) };
        if done == 0 { Ok(()) } else { Err("this kernel has no memory policies") }
    });
}

#[test]
fn memory_with_a_protection_key_is_skipped() {
    is_skipped("memory_with_a_protection_key_is_skipped", &[Skip::ProtectionKey], |memory| {
        // SAFETY: asks for a key without restrictions.
        let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the scenario's own memory.
        let given =
            key > 0 && unsafe { libc::syscall(libc::SYS_pkey_mprotect, memory.at(0), memory.len, rights, key) } == 0;
        if given { Ok(()) } else { Err("the CPU or the kernel has no protection keys") }
    });
}

#[test]
fn memory_that_is_sealed_is_skipped() {
    const SYS_MSEAL: i64 = 462;
    is_skipped("memory_that_is_sealed_is_skipped", &[Skip::Sealed], |memory| {
        // SAFETY: the scenario's own memory, which it keeps.
        let sealed = unsafe { libc::syscall(SYS_MSEAL, memory.at(0), memory.len, 0) } == 0;
        if sealed { Ok(()) } else { Err("mseal needs Linux 6.10") }
    });
}

#[test]
fn memory_that_the_kernel_may_drop_is_skipped() {
    const MAP_DROPPABLE: i32 = 8;
    // The kernel also wipes it in children, which is found first: without either line there is still a reason.
    let reasons = [Skip::Droppable, Skip::WipedOnFork];
    is_skipped("memory_that_the_kernel_may_drop_is_skipped", &reasons, |memory| {
        let (rights, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, MAP_DROPPABLE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: replaces the scenario's own memory.
        let made = unsafe { libc::mmap(memory.at(0), memory.len, rights, kind, -1, 0) };
        if made == libc::MAP_FAILED {
            return Err("MAP_DROPPABLE needs Linux 6.11");
        }
        memory.fill(0..memory.len, 1);
        Ok(())
    });
}

/// Fails on: `Budget::take_mappings` that always has some.
#[test]
fn a_freeze_leaves_half_of_the_mappings_that_are_left() {
    const LEFT: usize = 400;
    play("a_freeze_leaves_half_of_the_mappings_that_are_left", || {
        let count = || palimpsest_sys::pages::maps::count().expect("/proc");
        let limit = usize::try_from(sysctl::max_map_count().expect("/proc")).expect("a number");
        if limit > 1 << 18 {
            skip("so many mappings take too long here");
        }
        // Every other piece is populated, so that each becomes a mapping of its own and cuts off another.
        let memory = Memory::apart(1 << 30);
        let pieces = || (0..memory.len).step_by(4 * MIB);
        pieces().for_each(|offset| memory.fill(offset..offset + page(), 1));
        let pages = Memory::map((limit + 4) * page());
        // SAFETY: the scenario's own memory.
        assert_eq!(unsafe { libc::mprotect(pages.at(0), pages.len, 0) }, 0);
        // Each page with other rights cuts one mapping into three.
        for index in 1..=(limit - LEFT - count()) / 2 {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::mprotect(pages.at(2 * index * page()), page(), libc::PROT_READ) }, 0);
        }
        let before = count();
        assert!((LEFT - 8..LEFT + 8).contains(&(limit - before)), "{before} of {limit}");
        let report = freeze(&options());
        let stopped = report.stopped.as_ref().expect("it ends early");
        assert!(stopped.contains("max_map_count"), "{stopped}");
        let (used, most) = (count() - before, (limit - before) / 2);
        // Beside what is frozen the library has a few mappings of its own.
        assert!(most / 2 < used && used <= most + 32, "{used} mappings of {}", limit - before);
        assert!(pieces().all(|offset| memory.holds(offset..offset + page(), 1)));
    });
}

/// Fails on: `FrozenMap` with spans that end a page early, begin a page late, or are rounded up.
#[test]
fn the_map_knows_the_first_page_and_the_last_and_none_beside_them() {
    play("the_map_knows_the_first_page_and_the_last_and_none_beside_them", || {
        // A whole piece, one that is not whole, and a single page.
        for len in [2 * MIB, 4 * MIB + page(), 2 * MIB + 3 * page()] {
            let memory = frozen(len);
            let Memory { start, len } = memory;
            let page_at = |address: usize| address..address + page();
            for known in [start.addr(), start.addr() + len - page()] {
                assert!(guard::touches(page_at(known)), "{known:#x} in {:#x?}", memory.range());
            }
            for strange in [start.addr() - page(), start.addr() + len] {
                assert!(!guard::touches(page_at(strange)), "{strange:#x} beside {:#x?}", memory.range());
            }
            discard(&memory, 0, page());
            discard(&memory, len - page(), page());
            assert!(memory.is_zero(0..page()) && memory.is_zero(len - page()..len));
            assert!(memory.holds(page()..len - page(), 1));
            // Whatever a repair makes of it.
            freeze(&options());
            assert!(memory.is_zero(0..page()) && memory.is_zero(len - page()..len));
        }
    });
}
