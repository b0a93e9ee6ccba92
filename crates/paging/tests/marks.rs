//! Marks tell a caller what to write back: a lost mark is lost data. Every way to read marks sees those that CPUs of
//! any node have set, and they survive every operation, although a CPU may store at each of its steps.

mod common;

use std::cell::Cell;

use common::scene::*;
use palimpsest_paging::format::{AArch64, Sv39, X86_64};
use palimpsest_paging::sim::{Computer, Config, Hardware, Marking, interleave};
use palimpsest_paging::*;

const READ_ONLY: Rights = Rights::READ;

fn on_two_nodes<F: Hardware>(marking: Marking) -> Computer {
    Computer::new::<F>(Config::default().nodes(2).marking(marking))
}

/// Clears all marks of the pages.
fn unmark<F: Hardware>(space: &AddressSpace<F, &Computer>, range: std::ops::Range<u64>) {
    for mark in [Mark::Accessed, Mark::Dirty] {
        space.take_marks(pages(range.clone()), mark, |_| ()).unwrap().finish();
    }
}

/// Returns whether page 0 reads as written, in every way of asking.
#[track_caller]
fn reads_as_written<F: Hardware>(space: &AddressSpace<F, &Computer>) -> bool {
    let mut by_walk = false;
    let visit = |mapping: Mapping| {
        by_walk |= mapping.leaf.dirty;
        std::ops::ControlFlow::Continue(())
    };
    space.walk(pages(0..1), visit).unwrap();
    let asked = space.query(page(0));
    let mut cursor = space.cursor(pages(0..1)).unwrap();
    let by_cursor = [cursor.query(), cursor.find(), cursor.next()];
    drop(cursor);
    let mut cursor = space.cursor_mut(pages(0..1)).unwrap();
    let to_change = [cursor.query(), cursor.find(), cursor.skip_next()];
    cursor.finish().finish();
    let mut ways = vec![by_walk, space.count_marked(pages(0..1), Mark::Dirty).unwrap() == 1];
    let pages = [asked].into_iter().chain(by_cursor).chain(to_change);
    ways.extend(pages.map(|page| page.unwrap().leaf.dirty));
    assert!(ways.iter().all(|&way| way == ways[0]), "{ways:?}");
    ways[0]
}

fn a_page_that_another_node_has_written_reads_so<F: Hardware>(marking: Marking) {
    let computer = on_two_nodes::<F>(marking);
    let space = space::<F, _>(&computer, ShareTables::Last, 2);
    fill(&space, 0..1, RW, PageSize::Small);
    fill(&space, 1..2, READ_ONLY, PageSize::Small);
    // The table is node 1's own, but the page is single.
    space.replicate(pages(0..2)).unwrap().1.finish();
    unmark(&space, 0..2);
    assert!(!reads_as_written(&space));
    run_on(&space, 1);
    store(&space, 1, page(0), 7);
    assert!(reads_as_written(&space));
    // Made read-only, so that node 1 gets its own page, and loses it again.
    space.protect(pages(0..1), READ_ONLY).unwrap().finish();
    for on_use in [false, true] {
        let replicate = if on_use { AddressSpace::replicate_on_use } else { AddressSpace::replicate };
        assert_eq!(replicate(&space, pages(0..1)).unwrap().0.pages, 1);
        assert!(reads_as_written(&space), "replicated");
        load_of_replica(&space);
        space.drop_replicas(pages(0..1)).unwrap().finish();
        assert!(reads_as_written(&space), "single again");
        space.replicate(pages(1..2)).unwrap().1.finish();
    }
    finish(&computer, vec![space]);
}

/// Makes node 1 use page 0.
fn load_of_replica<F: Hardware>(space: &AddressSpace<F, &Computer>) {
    while let Err(trap) = space.machine().load(1, page(0), Access::USER_READ) {
        assert!(matches!(space.fault(trap.address, trap.access, Node(1)), Ok(Fault::Resolved(_))));
    }
}

#[test]
fn what_another_node_has_written_reads_as_written() {
    a_page_that_another_node_has_written_reads_so::<X86_64>(Marking::ByFormat);
    a_page_that_another_node_has_written_reads_so::<AArch64>(Marking::ByFormat);
    a_page_that_another_node_has_written_reads_so::<Sv39>(Marking::ByFormat);
    a_page_that_another_node_has_written_reads_so::<Sv39>(Marking::ByWalker);
}

/// A device's page is copied for the child, with what node 1 has written to it.
#[test]
fn a_copy_of_a_pinned_page_is_as_written_as_the_page() {
    let computer = on_two_nodes::<X86_64>(Marking::ByFormat);
    let parent = space::<X86_64, _>(&computer, ShareTables::Last, 2);
    fill(&parent, 0..1, RW, PageSize::Small);
    fill(&parent, 1..2, READ_ONLY, PageSize::Small);
    parent.replicate(pages(0..2)).unwrap().1.finish();
    parent.pin(page(0), Node(0)).unwrap();
    unmark(&parent, 0..2);
    run_on(&parent, 1);
    store(&parent, 1, page(0), 7);
    let child = fork(&parent, 2);
    assert!(reads_as_written(&child));
    parent.unpin(page(0)).unwrap();
    finish(&computer, vec![parent, child]);
}

/// What an operation reports of page 0: whether it was written until it, or its mark, was taken.
type Told = Cell<bool>;
type Operation<F> = (&'static str, fn(&AddressSpace<F, &Computer>, &Told));

/// Runs each of `operations` on page 0, and lets CPU 1 store to that page once: before the first access of an entry,
/// then, from the start, before the second, and so on. A store that passes must be in the page, and reported.
fn no_store_goes_unnoticed<F: Hardware>(marking: Marking, size: PageSize, operations: &[Operation<F>]) {
    for (name, operation) in operations {
        let (mut passed, mut points) = (0, 0);
        // If there are many accesses, they are alike: those of 512 parts.
        let turns = (0..48).chain((48..).step_by(97));
        for turn in turns {
            let computer = on_two_nodes::<F>(marking);
            let space = space::<F, _>(&computer, ShareTables::Last, 2);
            fill(&space, 0..count(size), RW, size);
            unmark(&space, 0..count(size));
            run_on(&space, 0);
            run_on(&space, 1);
            let (point, stored, told) = (Cell::new(0), Cell::new(false), Told::new(false));
            let store_once = || {
                if point.replace(point.get() + 1) == turn {
                    stored.set(computer.store(1, page(0), 7).is_ok());
                }
            };
            interleave(&store_once, || operation(&space, &told));
            if stored.get() {
                passed += 1;
                let now = space.query(page(0));
                let known = told.get() || now.is_some_and(|now| now.leaf.dirty);
                assert!(known, "{} {marking:?}, {name}, access {turn}: the page reads as clean", F::NAME);
                if let Some(now) = now {
                    let content = computer.content(now.leaf.frame);
                    assert_eq!(content, 7, "{} {marking:?}, {name}, access {turn}", F::NAME);
                }
            }
            assert_eq!(space.verify(), Ok(()), "{name}, access {turn}");
            points = point.get();
            finish(&computer, vec![space]);
            if points <= turn {
                break;
            }
        }
        assert!(points > 1, "{name} touches no entry");
        assert!(passed > 0, "{} {marking:?}, {name}: no store ever passed", F::NAME);
    }
}

fn on_a_small_page<F: Hardware>(marking: Marking) {
    let operations: [Operation<F>; 14] = [
        ("take_marks", |space, told| {
            space.take_marks(pages(0..1), Mark::Dirty, |_| told.set(true)).unwrap().finish();
        }),
        ("take_marks of the other kind", |space, _| {
            space.take_marks(pages(0..1), Mark::Accessed, |_| ()).unwrap().finish();
        }),
        ("protect", |space, _| space.protect(pages(0..1), READ_ONLY).unwrap().finish()),
        ("protect as it is", |space, _| space.protect(pages(0..1), RW).unwrap().finish()),
        ("protect from all", |space, _| space.protect(pages(0..1), Rights::empty()).unwrap().finish()),
        ("remap there and back", |space, _| {
            space.remap(pages(0..1), page(9)).unwrap().finish();
            space.remap(pages(9..10), page(0)).unwrap().finish();
        }),
        ("take_next", |space, told| {
            let mut cursor = space.cursor_mut(pages(0..1)).unwrap();
            told.set(cursor.take_next().unwrap().unwrap().leaf.dirty);
            cursor.finish().finish();
        }),
        ("protect_next", |space, _| {
            let mut cursor = space.cursor_mut(pages(0..1)).unwrap();
            cursor.protect_next(READ_ONLY).unwrap();
            cursor.finish().finish();
        }),
        ("fork and end", |space, _| drop(fork(space, 2))),
        ("replicate", |space, _| space.replicate(pages(0..1)).unwrap().1.finish()),
        ("replicate and drop", |space, _| {
            space.replicate(pages(0..1)).unwrap().1.finish();
            space.drop_replicas(pages(0..1)).unwrap().finish();
        }),
        ("read-only, a page for each node, and one again", |space, _| {
            space.protect(pages(0..1), READ_ONLY).unwrap().finish();
            space.replicate(pages(0..1)).unwrap().1.finish();
            space.drop_replicas(pages(0..1)).unwrap().finish();
        }),
        ("replicate, and take_next", |space, told| {
            space.replicate(pages(0..1)).unwrap().1.finish();
            let mut cursor = space.cursor_mut(pages(0..1)).unwrap();
            told.set(cursor.take_next().unwrap().unwrap().leaf.dirty);
            cursor.finish().finish();
        }),
        ("pin", |space, _| {
            space.pin(page(0), Node(0)).unwrap();
            space.unpin(page(0)).unwrap();
        }),
    ];
    no_store_goes_unnoticed(marking, PageSize::Small, &operations);
}

fn on_a_large_page<F: Hardware>(marking: Marking) {
    let operations: [Operation<F>; 5] = [
        ("split", |space, _| space.split(pages(0..512)).unwrap().finish()),
        ("split in a table with copies", |space, _| {
            space.replicate(pages(0..512)).unwrap().1.finish();
            space.split(pages(0..512)).unwrap().finish();
        }),
        ("protect a part", |space, _| space.protect(pages(0..1), READ_ONLY).unwrap().finish()),
        ("split and merge", |space, _| {
            space.split(pages(0..512)).unwrap().finish();
            assert_eq!(space.merge(page(0), PageSize::Large), Ok(true));
        }),
        ("take a part", |space, told| {
            let mut cursor = space.cursor_mut(pages(0..1)).unwrap();
            told.set(cursor.take_next().unwrap().unwrap().leaf.dirty);
            cursor.finish().finish();
        }),
    ];
    no_store_goes_unnoticed(marking, PageSize::Large, &operations);
}

#[test]
fn no_operation_loses_the_mark_of_a_store() {
    on_a_small_page::<X86_64>(Marking::ByFormat);
    on_a_small_page::<Sv39>(Marking::ByWalker);
}

#[test]
fn no_split_or_merge_loses_the_mark_of_a_store() {
    on_a_large_page::<X86_64>(Marking::ByFormat);
    on_a_large_page::<Sv39>(Marking::ByWalker);
}

/// The merged page counts as written if one of its parts was.
#[test]
fn a_merge_keeps_the_marks_of_all_parts() {
    let computer = Computer::new::<X86_64>(Config::default());
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    for written in [None, Some(0), Some(77), Some(511)] {
        fill(&space, 0..512, RW, PageSize::Large);
        space.split(pages(0..512)).unwrap().finish();
        unmark(&space, 0..512);
        run_on(&space, 0);
        if let Some(n) = written {
            store(&space, 0, page(n), 1);
        }
        assert_eq!(space.merge(page(0), PageSize::Large), Ok(true));
        let leaf = space.query(page(0)).unwrap().leaf;
        assert_eq!((leaf.accessed, leaf.dirty), (written.is_some(), written.is_some()), "{written:?}");
        space.unmap(pages(0..512)).unwrap().finish();
    }
    finish(&computer, vec![space]);
}
