use palimpsest_sys::memory::calls;
use palimpsest_sys::memory::vec::leak_zeroed;
use palimpsest_sys::pages::maps::{Maps, Permissions};

use super::*;
use crate::engine::piece::PIECE;
use crate::options::{Measure, OtherThreads};

/// Fails on: advice for a part of what was mapped, which makes three mappings of the tables for forks to copy;
/// pages without rights that stay beside them, which does as well; whatever is written there before there is need.
#[test]
fn the_tables_are_one_mapping_and_no_page_without_rights_beside_it() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        println!("skipped: a kernel without huge pages takes no advice on them");
        return;
    }
    if !is_alone("the_tables_are_one_mapping_and_no_page_without_rights_beside_it") {
        return;
    }
    let before = Maps::read().expect("/proc");
    let shared = known().expect("memory");
    let maps = Maps::read().expect("/proc");
    let far = shared.spans()[1];
    let own = maps.at(far.start).expect("mapped").range();
    for beside in [own.start - 1, own.end] {
        // The page below another thread's stack was there before.
        let is_new = before.at(beside).is_none();
        let beside = maps.at(beside).filter(|beside| is_new && !beside.permissions.contains(Permissions::READ));
        assert!(beside.is_none(), "{beside:?}");
    }
    assert!(own.contains(&(far.end - 1)));
    assert_eq!(shared.spans()[0].start, ROOM.0.get().addr());
    drop(shared.lock().expect("nobody has it"));
    assert_eq!(pages_far_away(shared), Some(0), "what a fork would copy");
}

/// Fails on: a table without its beginning among the variables; whatever is written, or only read, far away before
/// there is need.
#[test]
fn forks_copy_nothing_of_the_tables_of_who_has_frozen_little_in_one_go() {
    if !is_alone("forks_copy_nothing_of_the_tables_of_who_has_frozen_little_in_one_go") {
        return;
    }
    let memory = leak_zeroed(8 * PIECE).expect("memory");
    let all = Span::new(memory.as_ptr().addr(), memory.as_ptr().addr() + 8 * PIECE);
    // SAFETY: 1. changes no contents.
    let _ = unsafe { calls::advise(all, libc::MADV_NOHUGEPAGE) };
    // Not all pages, so that the tables must say which ones an extent holds.
    let pages = || (0..8 * PIECE).step_by(2 * rustix::param::page_size());
    let write = |at: usize, value: u8| {
        let place = memory.as_ptr().wrapping_add(at);
        // SAFETY: inside the memory made for it.
        unsafe { place.write_volatile(value) };
    };
    pages().for_each(|at| write(at, 1));
    let options = Options::new().other_threads(OtherThreads::Stop).measure(Measure::Nothing);
    // SAFETY: nothing else is done in this process meanwhile.
    unsafe { crate::freeze(&options) }.expect("frozen");
    let shared = shared().expect("there are tables");
    let frozen = || shared.map.all().filter(|(span, entry)| entry.extent().is_some() && all.overlaps(*span)).count();
    let mut locked = shared.lock().expect("nobody has it");
    assert!(frozen() > 0 && !locked.tables().expect("memory").extents.is_empty());
    drop(locked);
    assert_eq!(pages_far_away(shared), Some(0), "after a freeze");
    write(PIECE, 2);
    // SAFETY: as above.
    unsafe { crate::freeze(&options) }.expect("frozen again");
    // SAFETY: the child ends at once; the contract of a freeze is kept.
    if matches!(unsafe { crate::fork() }.expect("forked"), crate::Forked::Child) {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    rustix::process::wait(rustix::process::WaitOptions::empty()).expect("a child of ours");
    assert_eq!(pages_far_away(shared), Some(0), "after another one and a fork");
    for piece in 1..100 {
        shared.map.add(Span::new(piece * PIECE, (piece + 1) * PIECE), Entry::unknown());
    }
    assert_eq!(pages_far_away(shared), Some(1), "what is near is full");
}

/// Whether the test of that name is alone in its process: others make tables, too. If not, it is played in one.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "PALIMPSEST_FORK_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut alone = std::process::Command::new(std::env::current_exe().expect("/proc"));
    let name = format!("engine::registry::tests::{test}");
    let alone = alone.args(["--exact", &name, "--nocapture"]).env(ALONE, "1").output().expect("this program");
    let printed = String::from_utf8_lossy(&alone.stdout);
    assert!(alone.status.success() && printed.contains("1 passed"), "{printed}");
    false
}

/// Returns how many pages of the mapping with what is far away are in memory.
fn pages_far_away(shared: &Shared) -> Option<usize> {
    let maps = Maps::read().expect("/proc");
    let whole = Span::from(maps.at(shared.spans()[1].start).expect("mapped").range());
    whole.cut(PIECE).map(calls::in_memory).sum()
}

/// Fails on: a child that works on tables which another thread of its parent had half-written, or drops what lay in
/// them.
#[test]
fn a_child_begins_anew_where_its_parents_holder_was_lost() {
    let shared = known().expect("memory");
    let mut locked = std::iter::repeat_with(|| shared.lock()).flatten().next().expect("it is free some time");
    locked.ledger().hot.tear(Span::new(PIECE, 2 * PIECE));
    locked.agenda().tear();
    // Of a fork by this library, and of any other.
    let forked = [true, false].map(|is_told| {
        // SAFETY: the child makes atomic accesses and system calls, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            if is_told {
                shared.unlock_in_child();
            }
            let Some(mut locked) = shared.lock() else { std::process::abort() };
            let is_empty =
                locked.ledger().hot.in_span(Span::new(0, usize::MAX)).is_empty() && locked.ledger().huge() == 0;
            let is_new = locked.agenda().reason().is_none() && locked.agenda().told().is_none();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!(is_empty && is_new))) };
        }
        child
    });
    locked.agenda().begin_in_child();
    locked.ledger().hot.begin_in_child();
    drop(locked);
    for child in forked {
        let mut status = -1;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}

/// Fails on: tables that are not whole, or are frozen themselves, where another thread has taken the room.
#[test]
fn who_finds_the_room_taken_has_tables_in_the_mapping() {
    if !is_alone("who_finds_the_room_taken_has_tables_in_the_mapping") {
        return;
    }
    assert!(take_room().is_some() && take_room().is_none());
    let memory = leak_zeroed(100 * PIECE).expect("memory");
    let start = memory.as_ptr().addr().next_multiple_of(PIECE);
    // SAFETY: 1. changes no contents.
    let _ = unsafe { calls::advise(Span::new(start, start + 99 * PIECE), libc::MADV_NOHUGEPAGE) };
    let write = |at: usize, value: u8| {
        let place = memory.as_ptr().wrapping_add(start - memory.as_ptr().addr() + at);
        // SAFETY: inside the memory made for it.
        unsafe { place.write_volatile(value) };
    };
    // Every other page, in every other piece: more pieces than are near.
    (0..99 * PIECE).step_by(8192).filter(|at| (at / PIECE).is_multiple_of(2)).for_each(|at| write(at, 1));
    let options = Options::new().other_threads(OtherThreads::Stop).measure(Measure::Nothing);
    for round in 0..3 {
        // SAFETY: nothing else is done in this process meanwhile.
        unsafe { crate::freeze(&options) }.expect("frozen");
        let shared = shared().expect("there are tables");
        let [own, far] = shared.spans();
        assert_ne!(own.start, ROOM.0.get().addr());
        assert!(own.end <= far.start, "{own:?} {far:?}");
        assert!(!shared.map.all().any(|(span, _)| span.overlaps(own) || span.overlaps(far)), "the tables are frozen");
        let frozen = shared.map.all().filter(|(_, entry)| entry.extent().is_some()).count();
        assert!(frozen > 10, "{frozen}");
        let mut locked = shared.lock().expect("nobody has it");
        assert!(!locked.tables().expect("memory").extents.is_empty());
        drop(locked);
        (0..99 * PIECE).step_by(4 * PIECE).for_each(|at| write(at, 2 + round));
    }
}
