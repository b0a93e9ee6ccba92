//! The promises of a cursor's steps, one per test.

mod common;

use std::cell::Cell;

use common::mutant::{Event, Mutant};
use common::scene;
use common::scene::{BASE, RW, count, finish, number, page, run_on};
use palimpsest_paging::format::{AArch64, Sv39, X86_64};
use palimpsest_paging::sim::{Computer, Config, Hardware, MapNextSimulated, MapSimulated};
use palimpsest_paging::*;

macro_rules! formats {
    ($test:ident: $($name:ident $format:ty),*) => {
        mod $test {
            use super::*;
            $(
                #[test]
                fn $name() {
                    super::$test::<$format>();
                }
            )*
        }
    };
}

formats!(marks_are_told_exactly: x86_64 X86_64, aarch64 AArch64, sv39 Sv39);
formats!(memory_is_kept_until_the_flush: x86_64 X86_64, aarch64 AArch64, sv39 Sv39);
formats!(what_was_taken_is_flushed_before_another_is_mapped: x86_64 X86_64, aarch64 AArch64, sv39 Sv39);
formats!(a_shared_table_is_copied_once_and_only_to_be_changed: x86_64 X86_64, aarch64 AArch64, sv39 Sv39);

/// What is taken has the marks of every node, and no others.
fn marks_are_told_exactly<F: Hardware>() {
    let computer = Computer::new::<F>(Config::default().nodes(2));
    let space: AddressSpace<F, &Computer> = scene::space(&computer, ShareTables::Last, 2);
    scene::fill(&space, 0..8, Rights::READ, PageSize::Small);
    scene::fill(&space, 8..12, RW, PageSize::Small);
    space.replicate(scene::pages(0..8)).unwrap().1.finish();
    for mark in [Mark::Accessed, Mark::Dirty] {
        space.take_marks(scene::pages(0..12), mark, |_| {}).unwrap().finish();
    }
    run_on(&space, 0);
    run_on(&space, 1);
    scene::load(&space, 0, page(1));
    // Only on the second node.
    scene::load(&space, 1, page(2));
    scene::load(&space, 0, page(8));
    scene::store(&space, 0, page(9), 7);
    scene::store(&space, 1, page(10), 7);
    let mut cursor = space.cursor_mut(scene::pages(0..12)).unwrap();
    let mut told = Vec::new();
    while let Some(taken) = cursor.take_next().unwrap() {
        told.push((number(taken.address), taken.leaf.accessed, taken.leaf.dirty));
    }
    cursor.finish().finish();
    let used = |n: u64| [1, 2, 8, 9, 10].contains(&n);
    let expected: Vec<_> = (0..12).map(|n| (n, used(n), n == 9 || n == 10)).collect();
    assert_eq!(told, expected);
    finish(&computer, vec![space]);
}

fn memory_is_kept_until_the_flush<F: Hardware>() {
    let computer = Computer::new::<F>(Config::default());
    let space: AddressSpace<F, &Computer> = scene::space(&computer, ShareTables::Last, 1);
    // In the last two cases each page is separate in memory: of 300, 8 are stored directly, 256 in one full table, and
    // the others in a second; or there is no table.
    for (pages, scattered, tables_between, flushes_between) in
        [(3, false, 0, 0), (300, false, 0, 0), (300, true, 2, 0), (300, true, 0, 300 / 8)]
    {
        if scattered {
            (0..pages).rev().for_each(|n| scene::fill(&space, n..n + 1, RW, PageSize::Small));
        } else {
            scene::fill(&space, 0..pages, RW, PageSize::Small);
        }
        run_on(&space, 0);
        for n in 0..pages {
            scene::load(&space, 0, page(n));
        }
        let (tables, flushes) = (computer.live_tables(), computer.counts().flushes);
        if tables_between == 0 {
            computer.refuse(0..u64::MAX);
        }
        let mut cursor = space.cursor_mut(scene::pages(0..pages)).unwrap();
        let mut last = None;
        while let Some(taken) = cursor.take_next().unwrap() {
            last = Some(taken.leaf.frame);
        }
        computer.refuse(0..0);
        let last = last.unwrap();
        assert_eq!((computer.references(last), computer.live_tables()), (1, tables + tables_between));
        assert_eq!(computer.counts().flushes - flushes, flushes_between);
        // The lock is free from here on.
        let flush = cursor.finish();
        assert!(!flush.is_empty());
        assert_eq!((space.query(page(0)), computer.references(last)), (None, 1));
        flush.finish();
        // The root is left.
        assert_eq!((computer.references(last), computer.live_tables()), (0, 1));
        assert_eq!(computer.take_failures(), []);
    }
    // A cursor that is dropped flushes by itself.
    scene::fill(&space, 0..1, RW, PageSize::Small);
    scene::load(&space, 0, page(0));
    let mut cursor = space.cursor_mut(scene::pages(0..1)).unwrap();
    let taken = cursor.take_next().unwrap().unwrap();
    drop(cursor);
    assert_eq!((computer.references(taken.leaf.frame), computer.live_tables()), (0, 1));
    computer.expect_coherent(space.id());
    finish(&computer, vec![space]);
}

fn what_was_taken_is_flushed_before_another_is_mapped<F: Hardware>() {
    let computer = Computer::new::<F>(Config::default());
    let space: AddressSpace<F, &Computer> = scene::space(&computer, ShareTables::Last, 1);
    scene::fill(&space, 0..2, RW, PageSize::Small);
    run_on(&space, 0);
    scene::load(&space, 0, page(0));
    let frame = computer.allocate(Node(0), PAGE, PageSize::Small).unwrap();
    computer.set_content(frame, 77);
    let mut cursor = space.cursor_mut(scene::pages(0..512)).unwrap();
    cursor.take_next().unwrap();
    cursor.seek(page(0)).unwrap();
    let flushes = computer.counts().flushes;
    cursor.map_simulated(frame, PageSize::Small, Attributes::user(RW)).unwrap();
    assert_eq!(computer.counts().flushes, flushes + 1);
    // Before the cursor ends.
    assert_eq!(computer.load(0, page(0), Access::USER_READ), Ok(77));
    // Where nothing was taken, there is nothing to flush.
    cursor.take_next().unwrap();
    let other = computer.allocate(Node(0), PAGE, PageSize::Small).unwrap();
    cursor.map_simulated(other, PageSize::Small, Attributes::user(RW)).unwrap();
    assert_eq!(computer.counts().flushes, flushes + 1);
    // CPUs may have a table that has become empty in their caches, with everything that it translates.
    let mut taken = 0;
    cursor.seek(page(0)).unwrap();
    while cursor.take_next().unwrap().is_some() {
        taken += 1;
    }
    assert_eq!(taken, 2);
    cursor.seek(page(400)).unwrap();
    let other = computer.allocate(Node(0), PAGE, PageSize::Small).unwrap();
    cursor.map_simulated(other, PageSize::Small, Attributes::user(RW)).unwrap();
    assert_eq!(computer.counts().flushes, flushes + 2);
    assert!(cursor.finish().is_empty());
    finish(&computer, vec![space]);
}

fn a_shared_table_is_copied_once_and_only_to_be_changed<F: Hardware>() {
    let computer = Computer::new::<F>(Config::default());
    let parent: AddressSpace<F, &Computer> = scene::space(&computer, ShareTables::UpTo(Level::new(2)), 1);
    scene::fill(&parent, 0..600, RW, PageSize::Small);
    let child = scene::fork(&parent, 2);
    let before = scene::view(&parent);
    let allocated = || computer.counts().tables_allocated;
    let start = allocated();
    let mut reader = child.cursor(scene::pages(0..600)).unwrap();
    assert_eq!(reader.by_ref().count(), 600);
    assert_eq!((reader.next(), reader.address()), (None, page(600)));
    drop(reader);
    let mut cursor = child.cursor_mut(scene::pages(0..600)).unwrap();
    assert_eq!(cursor.skip_next().map(|mapping| mapping.address), Some(page(0)));
    assert_eq!(cursor.query().map(|mapping| mapping.address), Some(page(1)));
    assert_eq!(allocated(), start);
    // Copies of level 2 and the first table of pages; then of the second.
    let mut copies = Vec::new();
    while cursor.protect_next(Rights::READ).unwrap().is_some() {
        copies.push(allocated() - start);
    }
    assert_eq!(copies.len(), 599);
    assert!(copies[..511].iter().all(|&tables| tables == 2), "{copies:?}");
    assert!(copies[511..].iter().all(|&tables| tables == 3), "{copies:?}");
    cursor.finish().finish();
    assert_eq!(scene::view(&parent), before);
    finish(&computer, vec![parent, child]);
}

/// A part of a giant page is split off level by level, with the tables that this needs.
#[test]
fn a_giant_page_is_split_where_it_is_taken() {
    const GIANT: u64 = 1 << 18;
    let computer = Computer::new::<X86_64>(Config::default());
    let space: AddressSpace<X86_64, &Computer> = scene::space(&computer, ShareTables::Last, 1);
    let range = scene::pages(0..GIANT);
    space.map_simulated(range, Computer::device(0), Attributes::user(RW), PageSizes::Only(PageSize::Giant)).unwrap();
    let tables = computer.live_tables();
    let mut cursor = space.cursor_mut(scene::pages(511..GIANT)).unwrap();
    // To the end of the first large part page by page; then a whole large part.
    computer.refuse(1..u64::MAX);
    let refused = cursor.take_next();
    assert_eq!(refused, Err(ChangeError::NoMemory(NoTables { needed: 2, got: 1 })));
    computer.refuse(0..0);
    assert_eq!((cursor.address(), computer.live_tables()), (page(511), tables));
    let taken = cursor.take_next().unwrap().unwrap();
    assert_eq!((taken.address, taken.size), (page(511), PageSize::Small));
    assert_eq!((computer.live_tables(), cursor.address()), (tables + 2, page(512)));
    let taken = cursor.take_next().unwrap().unwrap();
    assert_eq!((taken.address, taken.size, taken.leaf.frame), (page(512), PageSize::Large, Computer::device(2 << 20)));
    assert_eq!(computer.live_tables(), tables + 2);
    assert_eq!(cursor.query().map(|mapping| mapping.size), Some(PageSize::Large));
    cursor.finish().finish();
    let left: usize = space.cursor(scene::pages(0..GIANT)).unwrap().map(|one| count(one.size) as usize).sum();
    assert_eq!(left, GIANT as usize - 1 - 512);
    finish(&computer, vec![space]);
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let computer = Computer::new::<X86_64>(Config::default());
    let space: AddressSpace<X86_64, &Computer> = scene::space(&computer, ShareTables::Last, 1);
    scene::fill(&space, 0..4, RW, PageSize::Small);
    scene::fill(&space, 1031..1033, RW, PageSize::Small);
    let before = scene::view(&space);
    assert_eq!(space.cursor(page(1)..page(1)).err(), Some(RangeError::Empty(page(1)..page(1))));
    let odd = page(0)..VirtAddr(BASE + 1);
    assert_eq!(space.cursor_mut(odd.clone()).err(), Some(RangeError::Unaligned(odd).into()));
    let mut cursor = space.cursor_mut(scene::pages(1..4)).unwrap();
    let range = scene::pages(1..4);
    for address in [page(0), page(5)] {
        assert_eq!(cursor.seek(address), Err(SeekError::Outside { address, range: range.clone() }));
    }
    assert_eq!(cursor.seek(VirtAddr(BASE + 4097)), Err(SeekError::Unaligned(VirtAddr(BASE + 4097))));
    assert_eq!(cursor.seek(page(4)), Ok(()));
    assert_eq!((cursor.query(), cursor.find(), cursor.skip_next()), (None, None, None));
    assert_eq!((cursor.take_next(), cursor.protect_next(RW)), (Ok(None), Ok(None)));
    let user = Attributes::user(RW);
    let small = |cursor: &mut CursorMut<'_, X86_64, &Computer>, frame, attributes| {
        cursor.map_simulated(frame, PageSize::Small, attributes).unwrap_err()
    };
    let error = small(&mut cursor, Frame::default(), user);
    assert_eq!(error, SeekError::Outside { address: page(5), range }.into());
    cursor.seek(page(2)).unwrap();
    let error = small(&mut cursor, Frame::default(), user);
    assert_eq!(error, MapError::Mapped { address: page(2), size: PageSize::Small }.into());
    let error = cursor.map_simulated(Frame::default(), PageSize::Large, user).unwrap_err();
    assert_eq!(error, MapError::Size { address: page(2), frame: Frame::default(), size: PageSize::Large }.into());
    let error = small(&mut cursor, Frame::containing(1 << 60), user);
    assert!(matches!(error, CursorMapError::Map(MapError::Physical { .. })), "{error:?}");
    let error = small(&mut cursor, Frame::default(), Attributes::user(Rights::WRITE));
    assert_eq!(error, MapError::Rights(Rights::WRITE).into());
    assert_eq!(cursor.protect_next(Rights::WRITE), Err(ChangeError::Rights(Rights::WRITE)));
    assert_eq!(cursor.address(), page(2));
    assert!(cursor.finish().is_empty());
    // Small pages lie where the large page should be, but not at its start.
    let mut cursor = space.cursor_mut(scene::pages(1024..2048)).unwrap();
    let error = cursor.map_simulated(Frame::default(), PageSize::Large, user).unwrap_err();
    assert_eq!(error, MapError::Mapped { address: page(1031), size: PageSize::Small }.into());
    drop(cursor);
    assert_eq!(scene::view(&space), before);
    finish(&computer, vec![space]);
}

/// The address behind the page would be beyond the last number.
#[test]
fn a_cursor_reaches_the_last_page_that_a_range_can_hold() {
    let computer = Computer::new::<X86_64>(Config::default());
    let space: AddressSpace<X86_64, &Computer> = scene::space(&computer, ShareTables::Last, 1);
    let top = VirtAddr(!0xfff);
    let upper = VirtAddr(0xffff_8000_0000_0000)..top;
    assert_eq!(space.cursor(upper.clone()).unwrap().count(), 0);
    let last = VirtAddr(top.0 - PAGE);
    let mut cursor = space.cursor_mut(upper.clone()).unwrap();
    cursor.seek(last).unwrap();
    cursor.map_simulated(Computer::device(0), PageSize::Small, Attributes::user(RW)).unwrap();
    assert_eq!(cursor.address(), top);
    let error = cursor.map_simulated(Computer::device(0), PageSize::Small, Attributes::user(RW)).unwrap_err();
    assert!(matches!(error, CursorMapError::Seek(SeekError::Outside { .. })), "{error:?}");
    cursor.seek(upper.start).unwrap();
    assert_eq!(cursor.find().map(|mapping| mapping.address), Some(last));
    drop(cursor);
    assert_eq!(space.cursor(upper).unwrap().map(|mapping| mapping.address).collect::<Vec<_>>(), [last]);
    finish(&computer, vec![space]);
}

/// The other nodes' pages would be left over, or a device would lose the page.
#[test]
fn a_large_page_that_is_replicated_or_pinned_is_not_split() {
    let computer = Computer::new::<X86_64>(Config::default().nodes(2));
    let space: AddressSpace<X86_64, &Computer> = scene::space(&computer, ShareTables::Last, 2);
    scene::fill(&space, 0..512, Rights::READ, PageSize::Large);
    scene::fill(&space, 1 << 18..(1 << 18) + 512, RW, PageSize::Large);
    space.replicate(scene::pages(0..512)).unwrap().1.finish();
    space.pin(page(1 << 18), Node(0)).unwrap();
    let mut cursor = space.cursor_mut(scene::pages(8..(1 << 18) + 8)).unwrap();
    let replicated = ChangeError::Replicated { address: page(0) };
    assert_eq!(cursor.take_next(), Err(replicated.clone()));
    assert_eq!(cursor.protect_next(Rights::empty()), Err(replicated));
    cursor.seek(page(1 << 18)).unwrap();
    let pinned = ChangeError::Pinned { address: page(1 << 18) };
    assert_eq!(cursor.take_next(), Err(pinned.clone()));
    assert_eq!(cursor.protect_next(Rights::empty()), Err(pinned));
    assert_eq!(cursor.address(), page(1 << 18));
    assert!(cursor.finish().is_empty());
    space.unpin(page(1 << 18)).unwrap();
    finish(&computer, vec![space]);
}

#[test]
fn a_pinned_page_is_passed_over_or_waited_for() {
    let computer = Computer::new::<X86_64>(Config::default());
    let space: AddressSpace<X86_64, &Computer> = scene::space(&computer, ShareTables::Last, 1);
    scene::fill(&space, 0..4, RW, PageSize::Small);
    space.pin(page(2), Node(0)).unwrap();
    let mut cursor = space.cursor_mut(scene::pages(0..4)).unwrap();
    let taken = [cursor.take_next(), cursor.take_next()].map(|taken| taken.unwrap().map(|page| number(page.address)));
    assert_eq!(taken, [Some(0), Some(1)]);
    // In the table that was changed just now.
    assert_eq!(cursor.take_next(), Err(ChangeError::Pinned { address: page(2) }));
    assert_eq!(cursor.skip_next().map(|mapping| mapping.address), Some(page(2)));
    assert_eq!(cursor.take_next().unwrap().map(|mapping| mapping.address), Some(page(3)));
    cursor.finish().finish();
    assert_eq!(space.query(page(2)).map(|mapping| mapping.address), Some(page(2)));
    space.unpin(page(2)).unwrap();
    finish(&computer, vec![space]);
}

/// A machine may count a large page once, and small pages one by one.
#[test]
fn pages_are_given_back_in_the_sizes_that_they_were_mapped_in() {
    let computer = Computer::new::<X86_64>(Config::default());
    let released = Cell::new(0);
    let watch = |event| released.set(released.get() + u32::from(event == Event::Release));
    let machine = Mutant { computer: &computer, mistake: None, watch: Some(&watch) };
    let space: AddressSpace<X86_64, Mutant<'_>> = scene::space(machine, ShareTables::Last, 1);
    // The small page's memory ends where the large one's begins.
    let memory = computer.allocate(Node(0), 2 * PageSize::Large.bytes(), PageSize::Large).unwrap();
    let (small, large) = (memory.offset(PageSize::Large.bytes() - PAGE), memory.offset(PageSize::Large.bytes()));
    let map = |range, frame| {
        space.map_simulated(scene::pages(range), frame, Attributes::user(RW), PageSizes::UpTo(PageSize::Large))
    };
    map(511..512, small).unwrap();
    map(512..1024, large).unwrap();
    let mut cursor = space.cursor_mut(scene::pages(0..1024)).unwrap();
    while cursor.take_next().unwrap().is_some() {}
    cursor.finish().finish();
    assert_eq!(released.get(), 2);
    computer.give_back(memory, PageSize::Large.bytes() - PAGE);
    finish(&computer, vec![space]);
}

/// Scattered pages are listed in at most eight tables: 8 runs stored directly and 2048 in tables wait for one flush.
#[test]
fn the_list_of_what_waits_is_bounded() {
    const PAGES: u64 = 8 + 8 * 256 + 1;
    let computer = Computer::new::<X86_64>(Config::default());
    let space: AddressSpace<X86_64, &Computer> = scene::space(&computer, ShareTables::Last, 1);
    (0..PAGES).rev().for_each(|n| scene::fill(&space, n..n + 1, RW, PageSize::Small));
    for (last, flushes) in [(PAGES - 1, 0), (PAGES, 1)] {
        let before = computer.counts().flushes;
        let mut cursor = space.cursor_mut(scene::pages(0..last)).unwrap();
        while cursor.take_next().unwrap().is_some() {}
        assert_eq!(computer.counts().flushes - before, flushes);
        cursor.finish().finish();
        (0..last).rev().for_each(|n| scene::fill(&space, n..n + 1, RW, PageSize::Small));
    }
    assert_eq!(computer.take_failures(), []);
    finish(&computer, vec![space]);
}

/// A table that was removed may be the memory that the next step needs.
#[test]
fn a_step_without_memory_waits_for_what_the_cursor_has_taken() {
    let computer = Computer::new::<X86_64>(Config::default());
    let space: AddressSpace<X86_64, &Computer> = scene::space(&computer, ShareTables::Last, 1);
    for n in [0, 512] {
        scene::fill(&space, n..n + 1, RW, PageSize::Small);
    }
    let frame = computer.allocate(Node(0), PAGE, PageSize::Small).unwrap();
    let tables = computer.live_tables();
    let mut cursor = space.cursor_mut(scene::pages(0..2048)).unwrap();
    for (taken, mapped) in [(true, true), (false, false)] {
        cursor.seek(page(if taken { 0 } else { 1536 })).unwrap();
        if taken {
            cursor.take_next().unwrap();
            cursor.seek(page(1024)).unwrap();
        }
        computer.refuse(0..1);
        let answer = cursor.map_simulated(frame, PageSize::Small, Attributes::user(RW));
        assert_eq!(answer.is_ok(), mapped, "{answer:?}");
        assert!(computer.live_tables() <= tables);
    }
    cursor.finish().finish();
    finish(&computer, vec![space]);
}

#[test]
#[should_panic(expected = "drop the cursor first")]
fn who_has_a_cursor_does_not_wait_for_itself() {
    let computer = Computer::new::<X86_64>(Config::default());
    let space: AddressSpace<X86_64, _> = scene::space(&computer, ShareTables::Last, 1);
    let range = scene::pages(0..8);
    // The cursor lives until the end of the statement.
    let _ = (space.cursor(range.clone()).unwrap().next(), space.count_marked(range, Mark::Dirty));
}
