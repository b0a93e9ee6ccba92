//! One test for each defect that the random operations, or reading, found.

mod common;

use std::cell::Cell;

use common::mutant::{Event, Mutant};
use common::scene::*;
use palimpsest_paging::format::{AArch64, AArch64Upper, Sv39, X86_64};
use palimpsest_paging::sim::{Computer, Config, Hardware};
use palimpsest_paging::*;

fn computer<F: Hardware>() -> Computer {
    Computer::new::<F>(Config::default())
}

/// If a fault leaves the old translation in the TLB, rights that were granted without a flush would never be seen.
fn new_rights_are_seen<F: Hardware>() {
    let computer = computer::<F>();
    let space = space::<F, _>(&computer, ShareTables::Last, 1);
    fill(&space, 0..1, Rights::READ, PageSize::Small);
    run_on(&space, 0);
    run_on(&space, 1);
    load(&space, 0, page(0));
    load(&space, 1, page(0));
    space.protect(pages(0..1), RW).unwrap().finish();
    store(&space, 0, page(0), 1);
    store(&space, 1, page(0), 2);
    space.protect(pages(0..1), Rights::all()).unwrap().finish();
    for _ in 0..2 {
        if computer.load(1, page(0), Access::USER_EXECUTE).is_err() {
            space.fault(page(0), Access::USER_EXECUTE, Node(0)).unwrap();
        }
    }
    assert_eq!(computer.load(1, page(0), Access::USER_EXECUTE), Ok(2));
    // The last sharer takes a table back, which CPUs remember as one that lets no store pass.
    let child = fork(&space, 2);
    load(&space, 1, page(0));
    drop(child);
    store(&space, 0, page(0), 3);
    store(&space, 1, page(0), 4);
    finish(&computer, vec![space]);
}

#[test]
fn rights_that_grow_without_a_flush_are_seen() {
    new_rights_are_seen::<X86_64>();
    new_rights_are_seen::<AArch64>();
    new_rights_are_seen::<Sv39>();
}

/// CPU 0 may store to a page of the parent until the fork's flush is waited for. If CPU 1 copies that page meanwhile,
/// the store must be in the copy.
fn no_store_is_lost<F: Hardware>() {
    let computer = computer::<F>();
    let stored = Cell::new(109);
    let is_on = Cell::new(false);
    let watch = |event| {
        if is_on.get() && event == Event::Dispatch && computer.store(0, page(0), 7).is_ok() {
            stored.set(7);
        }
    };
    let machine = Mutant { computer: &computer, mistake: None, watch: Some(&watch) };
    let parent = space::<F, _>(machine, ShareTables::Last, 1);
    fill(&parent, 0..1, RW, PageSize::Small);
    run_on(&parent, 0);
    run_on(&parent, 1);
    store(&parent, 0, page(0), 109);
    let (child, flush) = parent.fork(SpaceId(2)).unwrap();
    is_on.set(true);
    parent.fault(page(0), Access::USER_WRITE, Node(0)).unwrap();
    is_on.set(false);
    assert_eq!(load(&parent, 1, page(0)), stored.get());
    assert_eq!(stored.get(), 7, "the store passed, since no flush was waited for");
    flush.finish();
    finish(&computer, vec![parent, child]);
}

#[test]
fn a_store_until_the_flush_of_a_fork_is_not_lost() {
    no_store_is_lost::<X86_64>();
    no_store_is_lost::<AArch64>();
    no_store_is_lost::<Sv39>();
}

/// The source's last pages leave their table, which is removed, and then pages arrive there.
#[test]
fn a_move_brings_back_a_table_that_it_has_emptied() {
    let computer = computer::<X86_64>();
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    fill(&space, 768..1280, RW, PageSize::Small);
    space.remap(pages(768..1280), page(256)).unwrap().finish();
    run_on(&space, 0);
    assert_eq!((load(&space, 0, page(256)), load(&space, 0, page(767))), (868, 1379));
    finish(&computer, vec![space]);
}

/// A move needs tables for what is mapped, not for the length of the range.
#[test]
fn a_move_of_little_in_a_large_range_reserves_little() {
    let computer = computer::<X86_64>();
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 2);
    fill(&space, 512..513, RW, PageSize::Small);
    let before = computer.counts().tables_allocated;
    space.remap(pages(0..1 << 18), page(1 << 18)).unwrap().finish();
    assert!(computer.counts().tables_allocated - before <= 4);
    finish(&computer, vec![space]);
}

/// Counts of pins cover all pages below, which may be very many.
#[test]
fn many_pins_are_counted() {
    let computer = computer::<X86_64>();
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    fill(&space, 0..2, RW, PageSize::Small);
    for n in 0..1 << 16 {
        space.pin(page(n % 2), Node(0)).unwrap();
    }
    assert_eq!(space.unmap(pages(0..1)).map(|_| ()), Err(ChangeError::Pinned { address: page(0) }));
    let frame = space.query(page(0)).unwrap().leaf.frame;
    let child = fork(&space, 2);
    assert_ne!(child.query(page(0)).unwrap().leaf.frame, frame);
    for n in 0..1 << 16 {
        space.unpin(page(n % 2)).unwrap();
    }
    finish(&computer, vec![space, child]);
}

/// Splitting large pages elsewhere need not copy tables of pages.
#[test]
fn a_split_copies_no_table_of_pages() {
    let computer = computer::<X86_64>();
    let parent = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    fill(&parent, 0..8, RW, PageSize::Small);
    fill(&parent, 512..1024, RW, PageSize::Large);
    let child = fork(&parent, 2);
    let before = computer.live_tables();
    child.split(pages(0..1024)).unwrap().finish();
    assert_eq!(computer.live_tables(), before + 1);
    assert_eq!(child.query(page(600)).unwrap().size, PageSize::Small);
    finish(&computer, vec![parent, child]);
}

/// 2 MiB of large pages need no table for small ones, and a giant page none at all.
#[test]
fn large_pages_reserve_no_tables_below() {
    let computer = Computer::new::<X86_64>(Config::default().frames(1 << 20));
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    let before = computer.counts().tables_allocated;
    fill(&space, 0..1 << 18, RW, PageSize::Giant);
    assert_eq!(computer.counts().tables_allocated - before, 1);
    let child = fork(&space, 2);
    run_on(&child, 0);
    computer.refuse(0..1);
    store(&child, 0, page(5), 3);
    computer.refuse(0..0);
    run_on(&space, 1);
    assert_eq!((load(&space, 1, page(5)), load(&child, 0, page(5)), load(&child, 0, page(6))), (105, 3, 106));
    finish(&computer, vec![space, child]);
}

/// An entry whose page gets another size or frame is empty, and flushed, in between: required by Arm ARM D8.16.1, and
/// done on every format.
fn breaks_before_making<F: Hardware>() {
    let computer = computer::<F>();
    let root = Cell::new(None);
    let broken = Cell::new(0);
    let watch = |event| {
        if let (Event::Dispatch, Some(root)) = (event, root.get()) {
            // A CPU that remembers nothing.
            computer.switch(1, Some((SpaceId(9), root)));
            broken.set(broken.get() + u32::from(computer.load(1, page(5), Access::USER_READ).is_err()));
            computer.switch(1, None);
        }
    };
    let machine = Mutant { computer: &computer, mistake: None, watch: Some(&watch) };
    let space = space::<F, _>(machine, ShareTables::Last, 1);
    fill(&space, 0..512, RW, PageSize::Large);
    root.set(Some(space.root(Node(0))));
    space.split(pages(0..512)).unwrap().finish();
    assert_eq!(broken.replace(0), 1, "split");
    assert_eq!(space.merge(page(0), PageSize::Large), Ok(true));
    assert_eq!(broken.replace(0), 1, "merge");
    let child = fork(&space, 2);
    run_on(&space, 0);
    broken.set(0);
    assert!(store(&space, 0, page(5), 1).copied);
    assert_eq!(broken.replace(0), 1, "copy");
    root.set(None);
    finish(&computer, vec![space, child]);
}

#[test]
fn entries_are_broken_before_they_are_made() {
    breaks_before_making::<AArch64>();
    breaks_before_making::<X86_64>();
    breaks_before_making::<Sv39>();
}

/// A table is protected page by page when it is first shared. Then its last sharer maps another page there, and shares
/// it again.
fn a_page_that_came_after_a_fork<F: Hardware>() {
    let computer = computer::<F>();
    let parent = space::<F, _>(&computer, ShareTables::Last, 1);
    fill(&parent, 0..1, RW, PageSize::Small);
    drop(fork(&parent, 2));
    fill(&parent, 1..2, RW, PageSize::Small);
    let child = fork(&parent, 3);
    run_on(&parent, 0);
    run_on(&child, 1);
    store(&parent, 0, page(1), 7);
    assert_eq!((load(&parent, 0, page(1)), load(&child, 1, page(1))), (7, 101));
    finish(&computer, vec![parent, child]);
}

#[test]
fn a_page_that_is_mapped_between_two_forks_is_private() {
    a_page_that_came_after_a_fork::<X86_64>();
    a_page_that_came_after_a_fork::<AArch64>();
    a_page_that_came_after_a_fork::<Sv39>();
}

/// The last sharer of a table that another space made is charged for it as soon as it changes something there.
#[test]
fn the_last_sharer_is_charged_for_the_table() {
    let computer = computer::<X86_64>();
    let options = SpaceOptions::new().share(ShareTables::UpTo(Level::new(2)));
    let parent = AddressSpace::<X86_64, _>::new(&computer, SpaceId(1), &[Node(0)], options).unwrap();
    fill(&parent, 0..8, RW, PageSize::Small);
    let child = fork(&parent, 2);
    drop(parent);
    run_on(&child, 0);
    assert!(!store(&child, 0, page(0), 1).copied);
    let charged = Charge { pages: 8, tables: computer.live_tables() as i64 };
    assert_eq!((computer.charged(SpaceId(1)), computer.charged(SpaceId(2))), (Charge::default(), charged));
    finish(&computer, vec![child]);
}

/// A fork walks tables with addresses that are not sign-extended; its error has the extended address.
fn an_address_of_the_upper_half<F: Hardware>() {
    let computer = computer::<F>();
    let parent = space::<F, _>(&computer, ShareTables::Last, 1);
    let address = VirtAddr(0_u64.wrapping_sub(2 << 30));
    assert!(F::is_valid(address));
    let frame = computer.allocate(Node(0), PAGE, PageSize::Small).unwrap();
    let small = PageSizes::UpTo(PageSize::Small);
    parent.map_simulated(address..VirtAddr(address.0 + PAGE), frame, Attributes::user(RW), small).unwrap();
    parent.pin(address, Node(0)).unwrap();
    let error = (1..).find_map(|request| {
        computer.refuse(request..u64::MAX);
        let error = parent.fork(SpaceId(2)).map(|_| ()).unwrap_err();
        computer.refuse(0..0);
        matches!(error, ForkError::NoPage { .. }).then_some(error)
    });
    assert_eq!(error, Some(ForkError::NoPage { address }));
    parent.unpin(address).unwrap();
    finish(&computer, vec![parent]);
}

#[test]
fn errors_name_addresses_of_the_upper_half() {
    an_address_of_the_upper_half::<X86_64>();
    an_address_of_the_upper_half::<AArch64Upper>();
    an_address_of_the_upper_half::<Sv39>();
}

/// A CPU may store to a page until the flush that took its right is waited for. Nodes would read different bytes ever
/// after if one got its copy before.
fn nodes_agree_on_what_was_stored_before<F: Hardware>() {
    for on_use in [false, true] {
        let computer = Computer::new::<F>(Config::default().nodes(2));
        let space = space::<F, _>(&computer, ShareTables::Last, 2);
        fill(&space, 0..1, RW, PageSize::Small);
        (0..2).for_each(|cpu| run_on(&space, cpu));
        store(&space, 0, page(0), 1);
        let protected = space.protect(pages(0..1), Rights::READ).unwrap();
        let replicate = if on_use { AddressSpace::replicate_on_use } else { AddressSpace::replicate };
        let (done, replicated) = replicate(&space, pages(0..1)).unwrap();
        assert_eq!(done.pages, 1);
        if on_use {
            let fetched = space.fault(page(0), Access::USER_READ, Node(1)).unwrap();
            assert!(matches!(fetched, Fault::Resolved(Resolution { replicated: true, .. })));
        }
        // By what it remembers.
        let _ = computer.store(0, page(0), 2);
        protected.finish();
        replicated.finish();
        assert_eq!(load(&space, 0, page(0)), load(&space, 1, page(0)), "{}, on use: {on_use}", F::NAME);
        finish(&computer, vec![space]);
    }
}

#[test]
fn replicas_have_all_stores_that_an_earlier_flush_ends() {
    nodes_agree_on_what_was_stored_before::<X86_64>();
    nodes_agree_on_what_was_stored_before::<AArch64>();
    nodes_agree_on_what_was_stored_before::<Sv39>();
}

/// A page is single in a table with copies, and a CPU of the second node has written it: the first's entry has no mark.
#[test]
fn a_child_with_replicas_keeps_marks_of_all_nodes() {
    let computer = Computer::new::<X86_64>(Config::default().nodes(2));
    let parent = space::<X86_64, _>(&computer, ShareTables::Last, 2);
    fill(&parent, 0..1, RW, PageSize::Small);
    fill(&parent, 1..2, Rights::READ, PageSize::Small);
    parent.replicate(pages(0..2)).unwrap().1.finish();
    parent.take_marks(pages(0..2), Mark::Dirty, |_| ()).unwrap().finish();
    run_on(&parent, 1);
    store(&parent, 1, page(0), 1);
    let options = ForkOptions::new().replicas(ChildReplicas::Inherited);
    let (child, flush) = parent.fork_with(SpaceId(2), options).unwrap();
    flush.finish();
    assert_eq!(child.count_marked(pages(0..2), Mark::Dirty), Ok(1));
    finish(&computer, vec![parent, child]);
}
