//! Snapshots of this process, each in a child process of one thread.

#[path = "snapshot/arenas.rs"]
mod arenas;
#[path = "snapshot/child.rs"]
mod child;
#[path = "snapshot/core_number.rs"]
mod core_number;
#[path = "snapshot/descriptors.rs"]
mod descriptors;
#[path = "snapshot/heirs.rs"]
mod heirs;
#[path = "snapshot/memory.rs"]
mod memory;
#[path = "snapshot/programs.rs"]
mod programs;
#[path = "snapshot/refusing.rs"]
mod refusing;
#[path = "snapshot/variables.rs"]
mod variables;

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use child::{asleep_in_read, play};
use memory::{map, page, range, read, write};
use palimpsest_fork::snapshot::{
    Descriptors, Ended, Layout, Left, RestoreError, Restored, Scope, SignalMask, Snapshot, SnapshotOptions, Sweep,
    TakeError, Threads, abandon, enter, take_and_enter,
};
use palimpsest_fork::{Measure, Options, on_own_stack};
use refusing::Refuses;

fn ranges(all: impl Into<Vec<Range<usize>>>) -> SnapshotOptions {
    SnapshotOptions::new(Scope::Ranges(all.into()))
}

fn whole() -> SnapshotOptions {
    SnapshotOptions::new(Scope::Whole)
}

fn take(options: &SnapshotOptions) -> Snapshot {
    // SAFETY: 1. the scenario's process has one thread, and does no asynchronous I/O; 2. scenarios use no such calls on
    // memory that they look at for zeros;
    // 3. they close only what they opened.
    unsafe { Snapshot::take(options) }.unwrap()
}

fn restore(snapshot: &mut Snapshot) -> Restored {
    // SAFETY: 1. as in `take`; 2. scenarios keep values that were made before, or forget them; 3. their claims hold.
    unsafe { snapshot.restore() }.unwrap()
}

static COUNTER: AtomicU64 = AtomicU64::new(5);
thread_local! {
    static LOCAL: Cell<u64> = const { Cell::new(6) };
}

#[test]
fn ranges_come_back() {
    play("ranges_come_back", || {
        let memory = map(600);
        (0..300).for_each(|index| write(memory.wrapping_add(index * page()), 1));
        for sweep in [Sweep::OnFaults, Sweep::Always, Sweep::Every(1)] {
            let mut snapshot = take(&ranges([range(memory, 600)]).sweep(sweep));
            for round in 0..200_usize {
                // Of the untouched half, too.
                for index in [round, 2 * round + 1, 599] {
                    write(memory.wrapping_add(index * page() + round), 9);
                }
                let restored = restore(&mut snapshot);
                assert!(restored.pages >= 2, "{restored:?}");
                for index in 0..600 {
                    let at = memory.wrapping_add(index * page());
                    assert_eq!(read(at), u8::from(index < 300), "page {index} in round {round}, {sweep:?}");
                    assert_eq!(read(at.wrapping_add(round + usize::from(round == 0))), 0);
                }
            }
        }
    });
}

#[test]
fn without_faults_there_is_no_sweep() {
    play("without_faults_there_is_no_sweep", || {
        let memory = map(64);
        (0..64).for_each(|index| write(memory.wrapping_add(index * page()), 1));
        let mut snapshot = take(&ranges([range(memory, 64)]));
        let mut round = |index: usize| {
            write(memory.wrapping_add(index * page()), 2);
            let restored = restore(&mut snapshot);
            assert_eq!(read(memory.wrapping_add(index * page())), 1);
            restored
        };
        assert!(round(3).swept);
        let quiet = (0..20).map(|_| round(3)).filter(|restored| !restored.swept && restored.by_memcpy == 1).count();
        assert!(quiet >= 15, "{quiet} of 20 rounds were without a sweep");
        assert!(round(4).swept, "a new page is a fault");
        // Page 4 is not written any more, and is dropped in time.
        let dropped: usize = (0..200).map(|_| round(3).by_drop).sum();
        assert!(dropped >= 1, "cold pages stay for ever");
    });
}

/// A huge page that the kernel makes of a few pages and many holes can be written without a fault.
#[test]
fn holes_that_the_kernel_fills_are_zeros_again() {
    const MADV_COLLAPSE: i32 = 25;
    const HUGE: usize = palimpsest_sys::HUGE_PAGE;
    play("holes_that_the_kernel_fills_are_zeros_again", || {
        for round in ["leaves them", "unmaps them", "maps them anew"] {
            const PIECES: usize = 4;
            let memory = map((PIECES + 1) * HUGE / page());
            let memory = memory.wrapping_add(memory.align_offset(HUGE));
            let mut snapshot = take(&whole());
            for huge in (0..PIECES).map(|index| memory.wrapping_add(index * HUGE)) {
                if round != "leaves them" {
                    // SAFETY: the scenario's own memory.
                    assert_eq!(unsafe { libc::munmap(huge.cast(), HUGE) }, 0);
                }
                if round == "unmaps them" {
                    assert!(restore(&mut snapshot).remade >= HUGE);
                }
                if round == "maps them anew" {
                    let rights = libc::PROT_READ | libc::PROT_WRITE;
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                    // SAFETY: where nothing is since the call above.
                    let there = unsafe { libc::mmap(huge.cast(), HUGE, rights, flags, -1, 0) };
                    assert_eq!(there, huge.cast());
                }
                // Until the first page is all that is known here. Weeding sweeps without a fault.
                let quiet = (0..1000).any(|_| {
                    write(huge, 9);
                    !restore(&mut snapshot).swept
                });
                assert!(quiet, "every restore sweeps");
                // SAFETY: changes no contents.
                unsafe { libc::madvise(huge.cast(), HUGE, MADV_COLLAPSE) };
                (0..HUGE).step_by(page()).for_each(|at| write(huge.wrapping_add(at), 9));
                let restored = restore(&mut snapshot);
                let left = (0..HUGE).step_by(page()).filter(|at| read(huge.wrapping_add(*at)) != 0).count();
                assert_eq!(left, 0, "so many pages keep what was written by a round that {round}: {restored:?}");
            }
        }
    });
}

#[test]
fn declared_pages_need_no_sweep() {
    play("declared_pages_need_no_sweep", || {
        let memory = map(16);
        (0..16).for_each(|index| write(memory.wrapping_add(index * page()), 1));
        let mut snapshot = take(&ranges([range(memory, 16)]).sweep(Sweep::Never));
        snapshot.declare(memory.addr() + 2 * page()..memory.addr() + 4 * page() + 1).unwrap();
        (0..16).for_each(|index| write(memory.wrapping_add(index * page()), 2));
        let restored = restore(&mut snapshot);
        assert_eq!((restored.by_memcpy, restored.swept), (3, false));
        let values: Vec<u8> = (0..16).map(|index| read(memory.wrapping_add(index * page()))).collect();
        assert_eq!(values, [2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
    });
}

#[test]
fn declaring_passes_over_what_cannot_be_written() {
    play("declaring_passes_over_what_cannot_be_written", || {
        let memory = map(8);
        (0..8).for_each(|index| write(memory.wrapping_add(index * page()), 1));
        for (index, rights) in [(1, libc::PROT_NONE), (3, libc::PROT_READ)] {
            // SAFETY: the scenario's own memory.
            assert_eq!(unsafe { libc::mprotect(memory.wrapping_add(index * page()).cast(), page(), rights) }, 0);
        }
        let mut snapshot = take(&whole().sweep(Sweep::Never));
        snapshot.declare(range(memory, 8)).unwrap();
        write(memory, 2);
        write(memory.wrapping_add(2 * page()), 2);
        assert_eq!(restore(&mut snapshot).by_memcpy, 6);
        assert_eq!((read(memory), read(memory.wrapping_add(2 * page()))), (1, 1));
    });
}

#[test]
fn declaring_takes_any_range() {
    play("declaring_takes_any_range", || {
        let memory = map(4);
        (0..4).for_each(|index| write(memory.wrapping_add(index * page()), 1));
        let mut snapshot = take(&ranges([range(memory, 4)]).sweep(Sweep::Never));
        // Nothing, and nothing inside a page.
        for at in [usize::MAX, memory.addr() + 1] {
            snapshot.declare(at..at).unwrap();
        }
        assert_eq!(restore(&mut snapshot).by_memcpy, 0);
        snapshot.declare(memory.addr() + 2 * page() + 1..usize::MAX).unwrap();
        (0..4).for_each(|index| write(memory.wrapping_add(index * page()), 2));
        assert_eq!(restore(&mut snapshot).by_memcpy, 2);
        let values = [0, 1, 2, 3].map(|index| read(memory.wrapping_add(index * page())));
        assert_eq!(values, [2, 2, 1, 1]);
    });
}

#[test]
fn what_exceeds_the_budget_is_dropped() {
    play("what_exceeds_the_budget_is_dropped", || {
        let memory = map(100);
        (0..100).for_each(|index| write(memory.wrapping_add(index * page()), 1));
        let mut snapshot = take(&ranges([range(memory, 100)]).resident(30 * page()));
        for _ in 0..3 {
            (0..100).for_each(|index| write(memory.wrapping_add(index * page()), 2));
            let restored = restore(&mut snapshot);
            assert_eq!((restored.by_memcpy, restored.by_drop), (30, 70));
            assert!((0..100).all(|index| read(memory.wrapping_add(index * page())) == 1));
        }
    });
}

/// Plays rounds that lock memory, and restores that drop it.
fn locked_memory_comes_back() {
    let memory = map(100);
    (0..50).for_each(|index| write(memory.wrapping_add(index * page()), 1));
    // Before Linux 5.18 there is no such advice. SAFETY: the scenario's own page, which was not written.
    let droppable =
        unsafe { libc::madvise(memory.wrapping_add(99 * page()).cast(), page(), libc::MADV_DONTNEED_LOCKED) };
    let mut snapshot = take(&whole().resident(20 * page()));
    for round in 0..130 {
        let locked = memory.wrapping_add(40 * page());
        // SAFETY: locking changes no contents.
        if unsafe { libc::mlock(locked.cast(), 20 * page()) } != 0 {
            return println!("skipped: this user may lock no memory");
        }
        (0..100).for_each(|index| write(memory.wrapping_add(index * page()), 2));
        let restored = restore(&mut snapshot);
        assert!(droppable != 0 || restored.by_memcpy <= 20, "more stays than may stay: {restored:?}");
        for index in 0..100 {
            let value = read(memory.wrapping_add(index * page()));
            assert_eq!(value, u8::from(index < 50), "page {index} in round {round}");
        }
    }
}

#[test]
fn memory_that_a_round_locks_comes_back() {
    play("memory_that_a_round_locks_comes_back", locked_memory_comes_back);
}

#[test]
fn memory_that_a_round_locks_comes_back_on_old_kernels() {
    play("memory_that_a_round_locks_comes_back_on_old_kernels", || {
        if let Err(error) = refusing::refuse_advice(libc::MADV_DONTNEED_LOCKED) {
            return println!("skipped: no filters here: {error}");
        }
        locked_memory_comes_back();
    });
}

#[test]
fn the_whole_process_comes_back() {
    play("the_whole_process_comes_back", || {
        let mut text = String::from("before");
        let mut snapshot = take(&whole());
        let (at, capacity) = (text.as_ptr(), text.capacity());
        for _ in 0..3 {
            // SAFETY: as many bytes as the string has.
            unsafe { text.as_bytes_mut() }.copy_from_slice(b"after!");
            COUNTER.store(50, Relaxed);
            LOCAL.set(60);
            std::mem::forget(vec![7_u8; 100_000]);
            restore(&mut snapshot);
            assert_eq!((text.as_str(), COUNTER.load(Relaxed), LOCAL.get()), ("before", 5, 6));
            assert_eq!((text.as_ptr(), text.capacity()), (at, capacity));
        }
    });
}

/// Fails on: a stack that was made since, and is taken for one after the restore that has unmapped it.
#[test]
fn a_stack_that_is_gone_is_made_anew() {
    play("a_stack_that_is_gone_is_made_anew", || {
        // Whose stack there is, is known from here on; there is none yet.
        palimpsest_fork::survey(&Options::new().measure(Measure::Nothing)).unwrap();
        let mut snapshot = take(&whole());
        for _ in 0..2 {
            let local = || {
                let local = [0_u8; 1];
                std::hint::black_box(local.as_ptr()).addr()
            };
            let inside = on_own_stack(local).expect("memory");
            assert!(restore(&mut snapshot).unmapped >= 512 << 10);
            let (start, len) = ((inside & !(page() - 1)) - 15 * page(), 16 * page());
            let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let place = std::ptr::without_provenance_mut(start);
            // SAFETY: where nothing is mapped.
            let own = unsafe { libc::mmap(place, len, rights, flags | libc::MAP_FIXED_NOREPLACE, -1, 0) }.cast::<u8>();
            assert_eq!(own.addr(), start);
            // SAFETY: mapped just now.
            unsafe { own.write_bytes(7, len) };
            assert_eq!(on_own_stack(|| 3), Ok(3));
            // SAFETY: as above.
            assert!(unsafe { std::slice::from_raw_parts(own, len) }.iter().all(|byte| *byte == 7));
            restore(&mut snapshot);
        }
    });
}

#[test]
fn mappings_come_back() {
    play("mappings_come_back", || {
        let kept = map(8);
        (0..8).for_each(|index| write(kept.wrapping_add(index * page()), 3));
        // SAFETY: below every program break, so it is only told. The C library's own variable is restored memory.
        let program_break = || unsafe { libc::syscall(libc::SYS_brk, 0) };
        let before = program_break();
        let mut snapshot = take(&whole());
        for _ in 0..2 {
            let new = map(5);
            write(new, 1);
            // SAFETY: the scenario's own memory.
            assert_eq!(unsafe { libc::munmap(kept.wrapping_add(page()).cast(), 2 * page()) }, 0);
            // SAFETY: as above.
            assert_eq!(unsafe { libc::mprotect(kept.wrapping_add(5 * page()).cast(), page(), libc::PROT_NONE) }, 0);
            // SAFETY: moves the break up; what is above it was unused.
            assert_ne!(unsafe { libc::sbrk(0x4000) }.addr(), usize::MAX);
            let restored = restore(&mut snapshot);
            assert!(restored.unmapped >= 5 * page() && restored.remade >= 2 * page(), "{restored:?}");
            assert_eq!((restored.protected, program_break()), (page(), before));
            assert!(
                palimpsest_sys::memory::calls::in_memory(range(new, 5).into()).is_none(),
                "a mapping made since is still there"
            );
            (0..8).for_each(|index| assert_eq!(read(kept.wrapping_add(index * page())), 3));
        }
    });
}

#[test]
fn a_lost_file_mapping_is_told() {
    play("a_lost_file_mapping_is_told", || {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: a new mapping at an address that the kernel picks.
        let text =
            unsafe { libc::mmap(std::ptr::null_mut(), page(), libc::PROT_READ, libc::MAP_PRIVATE, descriptor, 0) };
        let mut snapshot = take(&whole());
        // SAFETY: the scenario's own mapping.
        assert_eq!(unsafe { libc::munmap(text, page()) }, 0);
        // SAFETY: as in `restore`.
        let error = unsafe { snapshot.restore() }.unwrap_err();
        assert!(matches!(error, RestoreError::Lost { start, .. } if start == text.addr()), "{error}");
    });
}

#[test]
fn targets_are_left_from_signal_handlers_on_stacks_that_are_put_back() {
    extern "C" fn handler(_: i32) {
        // SAFETY: 1. the signal is raised inside the call below; 2. the restore that follows undoes what was begun.
        unsafe { abandon(11) }
    }
    play("targets_are_left_from_signal_handlers_on_stacks_that_are_put_back", || {
        let stack = libc::stack_t { ss_sp: map(16).cast(), ss_flags: 0, ss_size: 16 * page() };
        // SAFETY: the stack is mapped for good.
        assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
        // SAFETY: zeroes are a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        // SAFETY: the handler leaves by `abandon`, which it may.
        assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) }, 0);
        let mut snapshot = take(&whole());
        for _ in 0..100 {
            let crash = || {
                std::mem::forget(String::from("half done"));
                COUNTER.store(1, Relaxed);
                // SAFETY: none: it faults, which is what is tested; the handler never returns here.
                unsafe { std::ptr::without_provenance_mut::<u8>(8).write_volatile(1) };
            };
            // SAFETY: as in `restore`.
            let (ended, _) = unsafe { snapshot.run(SignalMask::Restore, crash) }.unwrap();
            assert_eq!((ended, COUNTER.load(Relaxed)), (Ended::Abandoned(11), 5));
        }
    });
}

#[test]
fn a_panic_goes_on_after_the_restore() {
    use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
    play("a_panic_goes_on_after_the_restore", || {
        let memory = map(1);
        let mut snapshot = take(&whole());
        let mut panics = |target: &dyn Fn()| {
            let target = || {
                COUNTER.store(50, Relaxed);
                write(memory, 9);
                target();
            };
            // SAFETY: as in `restore`.
            let run = || unsafe { snapshot.run(SignalMask::Restore, target) };
            let carried = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert_eq!((COUNTER.load(Relaxed), read(memory)), (5, 0));
            let text = carried.downcast_ref::<String>().expect("a message").clone();
            // In the frame: the next restore takes the heap back.
            let mut message = [0_u8; 2000];
            message[..text.len()].copy_from_slice(text.as_bytes());
            (message, text.len())
        };
        for round in 0..3 {
            let (message, len) = panics(&|| panic!("in round {round}"));
            assert_eq!(message[..len], [*b"in round 0", *b"in round 1", *b"in round 2"][round]);
            let (message, len) = panics(&|| panic!("a word"));
            assert_eq!(message[..len], *b"a word");
            let (message, len) = panics(&|| panic!("{}", "x".repeat(3000)));
            assert_eq!(message[..len], [b'x'; 1024]);
            let (_, len) = panics(&|| panic_any(vec![1, 2, 3]));
            assert_ne!(len, 0);
        }
    });
}

#[test]
fn rounds_start_with_the_same_stack() {
    play("rounds_start_with_the_same_stack", || {
        let mut local = [1_u64; 64];
        let mut vector = vec![1, 2, 3];
        let body = |round: palimpsest_fork::snapshot::Round| {
            assert_eq!(std::hint::black_box(&local), &[1; 64], "in round {}", round.number);
            assert_eq!((vector.as_slice(), COUNTER.load(Relaxed)), ([1, 2, 3].as_slice(), 5));
            assert_eq!(round.value as u64, round.number * 3);
            if round.number == 50 {
                return vector.len();
            }
            local.fill(round.number + 2);
            vector.extend(0..1000);
            COUNTER.fetch_add(1, Relaxed);
            // SAFETY: 1. inside the body; 2. everything is put back.
            unsafe { abandon((round.value) + 3) }
        };
        // SAFETY: as in `take` and `restore`.
        let len = unsafe { take_and_enter(&whole(), SignalMask::Leave, body) }.unwrap();
        assert_eq!((len, local, vector.len()), (3, [1; 64], 3));
    });
}

#[test]
fn rounds_on_ranges_start_with_the_same_stack() {
    play("rounds_on_ranges_start_with_the_same_stack", || {
        let memory = map(4);
        write(memory, 1);
        let mut local = [1_u64; 64];
        LOCAL.set(60);
        let body = |round: palimpsest_fork::snapshot::Round| {
            assert_eq!(std::hint::black_box(&local), &[1; 64], "in round {}", round.number);
            assert_eq!((read(memory), round.value as u64), (1, round.number * 3));
            assert_eq!(COUNTER.fetch_add(1, Relaxed), 5 + round.number, "statics are not in the snapshot");
            assert_eq!(LOCAL.replace(61 + round.number), 60 + round.number, "nor are the thread's variables");
            if round.number == 50 {
                return 7;
            }
            local.fill(round.number + 2);
            write(memory, 9);
            // SAFETY: 1. inside the body; 2. everything that matters is put back.
            unsafe { abandon(round.value + 3) }
        };
        // SAFETY: as in `take` and `restore`.
        let value = unsafe { take_and_enter(&ranges([range(memory, 4)]), SignalMask::Leave, body) }.unwrap();
        assert_eq!((value, local), (7, [1; 64]));
    });
}

#[test]
fn calls_without_a_snapshot_can_be_left() {
    play("calls_without_a_snapshot_can_be_left", || {
        // SAFETY: 1. inside the call; 2. no frame owns anything.
        assert_eq!(enter(SignalMask::Leave, || unsafe { abandon(3) }), Ended::<()>::Abandoned(3));
    });
}

#[test]
fn calls_go_on_over_a_restore() {
    play("calls_go_on_over_a_restore", || {
        let mut snapshot = take(&whole());
        let ended: Ended<()> = enter(SignalMask::Leave, || {
            COUNTER.store(50, Relaxed);
            restore(&mut snapshot);
            // SAFETY: 1. inside the call, which was entered after the snapshot was taken; 2. no frame owns anything.
            unsafe { abandon(4) }
        });
        assert_eq!((ended, COUNTER.load(Relaxed)), (Ended::Abandoned(4), 5));
    });
}

#[test]
fn the_core_number_is_left_to_the_kernel() {
    play("the_core_number_is_left_to_the_kernel", core_number::is_left_to_the_kernel);
}

#[test]
fn exceptions_keep_what_is_written() {
    play("exceptions_keep_what_is_written", || {
        let memory = map(4);
        let mut snapshot = take(&whole().except(memory.addr() + page()..memory.addr() + page() + 1));
        (0..4).for_each(|index| write(memory.wrapping_add(index * page()), 8));
        restore(&mut snapshot);
        let values = [0, 1, 2, 3].map(|index| read(memory.wrapping_add(index * page())));
        assert_eq!(values, [0, 8, 0, 0]);
    });
}

#[test]
fn guards_stay() {
    play("guards_stay", || {
        const MADV_GUARD_INSTALL: i32 = 102;
        let memory = map(8);
        (0..8).for_each(|index| write(memory.wrapping_add(index * page()), 1));
        // SAFETY: the scenario's own memory.
        if unsafe { libc::madvise(memory.wrapping_add(page()).cast(), page(), MADV_GUARD_INSTALL) } != 0 {
            return println!("skipped: MADV_GUARD_INSTALL needs Linux 6.13");
        }
        let snapshot = take(&whole());
        let told = snapshot
            .not_taken()
            .iter()
            .any(|left| (left.start..left.end).contains(&memory.addr()) && left.reason == Left::Special);
        assert!(told, "{:x?}", snapshot.not_taken());
        let mut byte = 0_u8;
        let from = libc::iovec { iov_base: memory.wrapping_add(page()).cast(), iov_len: 1 };
        let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let this = i32::try_from(std::process::id()).unwrap();
        // SAFETY: reads a byte of this process to a local, or fails.
        let read = unsafe { libc::process_vm_readv(this, &raw const to, 1, &raw const from, 1, 0) };
        assert_eq!(read, -1, "the guard is gone");
    });
}

#[test]
fn refusals_say_why() {
    play("refusals_say_why", || {
        let memory = map(4);
        let part = 1..page();
        // SAFETY: as in `take`.
        let try_take = |options: &SnapshotOptions| unsafe { Snapshot::take(options) }.map(drop).unwrap_err();
        assert!(matches!(try_take(&ranges([part])), TakeError::Range { reason: Left::Unaligned, .. }));
        // Nothing is ever mapped there; the snapshot itself could fill a hole elsewhere.
        let nothing = page()..2 * page();
        assert!(matches!(try_take(&ranges([nothing])), TakeError::Range { reason: Left::Unmapped, .. }));
        let twice = ranges([range(memory, 1), range(memory, 1)]);
        assert!(matches!(try_take(&twice), TakeError::Range { reason: Left::Overlapping, .. }));
        let first = take(&whole());
        assert!(matches!(try_take(&whole()), TakeError::Another));
        drop(first);
        // It sleeps in the kernel, and nothing in memory says so.
        let (reader, writer) = std::io::pipe().unwrap();
        let other = asleep_in_read(reader);
        assert!(matches!(try_take(&whole()), TakeError::Threads { count: 2 }));
        let mut snapshot = take(&whole().threads(Threads::Asleep).layout(Layout::Trust));
        restore(&mut snapshot);
        drop(writer);
        assert_eq!(other.join().unwrap().unwrap(), 0);
    });
}

/// Takes a snapshot in a child whose kernel unmaps the memory and then refuses to map the file there. Returns the
/// child's wait status: it exits with 0 if a snapshot was taken and the memory is as it was, and with 77 if nothing can
/// be tried here.
fn taken_where_memory_runs_out(refuses: Refuses) -> i32 {
    let memory = map(4);
    (0..4).for_each(|index| write(memory.wrapping_add(index * page()), 1));
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = match refusing::unmap_and_refuse(memory.addr(), refuses) {
            Err(_) => 77,
            Ok(()) => {
                let _snapshot = take(&ranges([range(memory, 4)]).threads(Threads::Asleep));
                i32::from(!(0..4).all(|index| read(memory.wrapping_add(index * page())) == 1))
            }
        };
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

#[test]
fn a_replacement_that_fails_half_way_leaves_no_hole() {
    play("a_replacement_that_fails_half_way_leaves_no_hole", || {
        let status = taken_where_memory_runs_out(Refuses::Once);
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 77 {
            return println!("skipped: no seccomp notifications here");
        }
        assert_eq!(status, 0, "the memory is as it was, and the snapshot taken");
        let status = taken_where_memory_runs_out(Refuses::Always);
        let ended = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT;
        assert!(ended, "a process whose memory is lost goes on, or ends by itself: {status:#x}");
    });
}
