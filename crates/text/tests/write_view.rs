//! Tests when the memory of code can be written, and by whom.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{assert_never_writable_and_executable, call, exit_code, fork_and_wait, identity, one_at_a_time};
use palimpsest_sys::pages::maps::Maps;
use palimpsest_text::{Backing, OpenError, Packs, PacksBuilder, ReclaimPolicy, WriteView, poke};

fn manual() -> PacksBuilder {
    Packs::builder().reclaim(ReclaimPolicy::Manual)
}

/// Returns how many views of packs for code this process could write to now.
fn writable_views() -> usize {
    let maps = Maps::read().unwrap();
    let is_ours = |path: &Option<_>| {
        path.as_ref().is_some_and(|path: &std::path::PathBuf| path.to_string_lossy().contains("palimpsest-code"))
    };
    maps.iter().filter(|entry| is_ours(&entry.path) && entry.permissions.to_string().contains('w')).count()
}

#[test]
fn no_view_is_writable_but_during_a_copy() {
    let _one = one_at_a_time();
    let shared = [Backing::CollapsedMemfd, Backing::HugetlbMemfd, Backing::SmallMemfd];
    for backing in shared {
        let packs = match manual().backing(backing).write_view(WriteView::DuringCopies).open() {
            Ok(packs) => packs,
            Err(error) => {
                eprintln!("skipped: backing {backing}: {}", std::error::Error::source(&error).unwrap_or(&error));
                continue;
            }
        };
        assert_eq!((packs.write_view(), packs.stats().write_view), (WriteView::DuringCopies, WriteView::DuringCopies));
        assert_eq!(writable_views(), 0, "{backing}");
        let programs: Vec<_> = (0..50).map(|id| packs.load(&identity(id, 100), 16).unwrap()).collect();
        assert_eq!(writable_views(), 0, "{backing}, after loads");
        let identity_of_99 = identity(99, 100);
        // SAFETY: 1. nobody else has the program; 2. it is a whole function before and after.
        unsafe { poke::copy(&programs[7], 0, &identity_of_99) }.unwrap();
        assert_eq!(writable_views(), 0, "{backing}, after a change in place");
        for (id, program) in programs.iter().enumerate() {
            assert_eq!(call(program), if id == 7 { 99 } else { id as u64 });
        }
        drop(programs);
        assert_eq!(packs.reclaim().unwrap().programs, 50);
        drop(packs.stage(100, 16).unwrap());
        assert_eq!(writable_views(), 0, "{backing}, after a reclaim");
        assert_never_writable_and_executable();
    }
    let standing = manual().write_view(WriteView::Standing).open().unwrap();
    assert_eq!((standing.write_view(), writable_views()), (WriteView::Standing, 1));
    drop(standing);
    let none = manual().write_view(WriteView::None).open().unwrap();
    assert_eq!((none.write_view(), none.backing(), writable_views()), (WriteView::None, Backing::ProcMem, 0));
    assert_eq!(call(&none.load(&identity(5, 100), 16).unwrap()), 5);
}

/// A thread reads the list of mappings all the time. What it sees counts if no copy was under way when it began to read
/// and none had begun when it ended.
#[test]
fn whoever_watches_sees_the_view_during_copies_only() {
    let _one = one_at_a_time();
    let packs = manual().write_view(WriteView::DuringCopies).open().unwrap();
    // Odd while a copy is under way.
    let phase = AtomicU64::new(0);
    let (seen_during_a_copy, quiet_looks) = (AtomicBool::new(false), AtomicU64::new(0));
    let code = identity(1, 1 << 20);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !seen_during_a_copy.load(Ordering::Relaxed) || quiet_looks.load(Ordering::Relaxed) < 20 {
                let before = phase.load(Ordering::SeqCst);
                let views = writable_views();
                let is_quiet = before.is_multiple_of(2) && phase.load(Ordering::SeqCst) == before;
                if is_quiet {
                    assert_eq!(views, 0, "writable though nobody copies");
                    quiet_looks.fetch_add(1, Ordering::Relaxed);
                }
                // An odd phase at the end proves nothing, but an open view does: somebody is copying.
                seen_during_a_copy.fetch_or(views > 0, Ordering::Relaxed);
            }
        });
        while !watcher.is_finished() {
            phase.fetch_add(1, Ordering::SeqCst);
            let programs: Vec<_> = (0..4).map(|_| packs.load(&code, 16).unwrap()).collect();
            drop(programs);
            packs.reclaim().unwrap();
            phase.fetch_add(1, Ordering::SeqCst);
            let quiet = quiet_looks.load(Ordering::Relaxed);
            while quiet == quiet_looks.load(Ordering::Relaxed) && !watcher.is_finished() {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn threads_may_copy_into_one_pack_at_once() {
    let _one = one_at_a_time();
    let packs = manual().write_view(WriteView::DuringCopies).open().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let packs = &packs;
            scope.spawn(move || {
                for round in 0..300 {
                    let program = packs.load(&identity(thread * 1000 + round, 200), 16).unwrap();
                    assert_eq!(call(&program), thread * 1000 + round);
                }
            });
        }
    });
    assert_eq!(writable_views(), 0);
}

#[test]
fn a_backing_and_a_write_view_that_exclude_each_other_are_refused() {
    let _one = one_at_a_time();
    for (backing, write_view) in [
        (Backing::SmallMemfd, WriteView::None),
        (Backing::ProcMem, WriteView::Standing),
        (Backing::ProcMem, WriteView::DuringCopies),
    ] {
        let error = manual().backing(backing).write_view(write_view).open().unwrap_err();
        assert!(matches!(error, OpenError::WriteView { .. }), "{error}");
        assert!(error.to_string().contains(backing.name()), "{error}");
    }
}

/// A child has the executable view, and may run as another user. It must not be able to change what its parent runs.
#[test]
fn a_child_cannot_make_its_view_writable() {
    let _one = one_at_a_time();
    for backing in Backing::ALL {
        let Ok(packs) = manual().backing(backing).open() else {
            eprintln!("skipped: backing {backing}: not to be had here");
            continue;
        };
        let program = packs.load(&identity(3, 100), 16).unwrap();
        let page = program.address().get() & !(palimpsest_text::PACK - 1);
        let status = fork_and_wait(|| {
            let at = std::ptr::with_exposed_provenance_mut(page);
            // SAFETY: the child's own view, to which nobody has a reference; it is not run any more if this succeeds.
            let done = unsafe { libc::mprotect(at, palimpsest_text::PACK, libc::PROT_READ | libc::PROT_WRITE) };
            if done == 0 {
                let byte = std::ptr::with_exposed_provenance_mut::<u8>(program.address().get());
                // SAFETY: writable by now.
                unsafe { byte.write_volatile(0xC3) };
                // SAFETY: readable.
                return i32::from(unsafe { byte.read_volatile() } == 0xC3);
            }
            0
        });
        // A child may change private memory: it is a copy.
        if backing != Backing::ProcMem {
            assert_eq!(exit_code(status), Some(0), "{backing}: the child could write to its parent's code");
        }
        assert_eq!(call(&program), 3, "{backing}");
    }
}

/// The descriptors that a child inherits: no memory object of a pack, and no file that leads to its parent's memory.
#[test]
fn no_descriptor_of_a_pack_is_left_open() {
    let _one = one_at_a_time();
    for backing in Backing::ALL {
        for write_view in [WriteView::Standing, WriteView::DuringCopies, WriteView::None] {
            let Ok(packs) = manual().backing(backing).write_view(write_view).open() else { continue };
            let _program = packs.load(&identity(3, 100), 16).unwrap();
            let open = std::fs::read_dir("/proc/self/fd").unwrap();
            let names = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
            let bad: Vec<_> = names
                .filter(|name| name.to_string_lossy().contains("palimpsest-code") || name.ends_with("mem"))
                .collect();
            assert!(bad.is_empty(), "{backing}, {write_view:?}: {bad:?}");
        }
    }
}

#[test]
fn a_program_that_is_started_gets_no_descriptor() {
    let _one = one_at_a_time();
    // The witness that watches for forks is included: its descriptor stays open.
    let packs = manual().open().unwrap();
    let _program = packs.load(&identity(3, 100), 16).unwrap();
    let listing = match std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output() {
        Ok(listing) => listing,
        Err(error) => {
            eprintln!("skipped: `ls` cannot be started ({error})");
            return;
        }
    };
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    assert!(listing.contains("/proc/"), "{listing}");
    assert!(!listing.contains("palimpsest"), "{listing}");
    let own: Vec<_> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .collect();
    assert!(
        own.iter().any(|name| name.to_string_lossy().contains("palimpsest-witness")),
        "nothing that could leak: {own:?}"
    );
}
