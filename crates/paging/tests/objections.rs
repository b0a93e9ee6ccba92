//! One test for each objection that reviewers raised against copy-on-write tables (Linux COW PTE v1 to v5, mshare,
//! Asterinas), by its number in `docs/src/numbered.md`. Each runs with a format of each kind: marks by the walker,
//! protection by tables, protection by pages.

mod common;

use std::cell::Cell;

use common::mutant::{Event, Mutant};
use common::scene::*;
use palimpsest_paging::format::X86_64;
use palimpsest_paging::sim::{Computer, Config, Hardware, Progress};
use palimpsest_paging::*;

const LAST: ShareTables = ShareTables::Last;

macro_rules! every_format {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn x86_64() {
                super::bodies::$name::<palimpsest_paging::format::X86_64>();
            }
            #[test]
            fn aarch64() {
                super::bodies::$name::<palimpsest_paging::format::AArch64>();
            }
            #[test]
            fn sv39() {
                super::bodies::$name::<palimpsest_paging::format::Sv39>();
            }
        }
    )*};
}

every_format! {
    o01_every_path_that_writes_unshares_first
    o02_without_memory_for_a_copy_nothing_changes
    o03_the_entry_above_is_never_empty_while_a_table_is_copied
    o03_the_last_sharer_takes_the_table_back
    o04_a_table_with_several_regions_is_shared_once
    o04_tables_below_one_that_is_copied_are_shared_then
    o05_accounting_is_exact_or_deferred_as_asked
    o06_pinned_pages_stay_with_the_parent
    o06_a_fork_without_memory_for_a_pinned_page_is_rolled_back
    o06_a_pin_for_reading_unshares
    o07_a_shared_table_is_left_and_not_cleared
    o08_sharing_and_unsharing_flush
    o08_more_ranges_than_an_obligation_holds_are_flushed
    o09_marks_are_kept_through_sharing
    o10_a_walker_in_a_shared_table_outlives_it
    o10_a_table_is_not_written_while_another_space_may_walk_it
    o11_a_table_is_not_shared_through_a_large_page
    o12_protected_tables_translate
    o13_pages_are_freed_behind_the_flush_of_the_last_sharer
}

mod bodies {
    use super::*;

    fn computer<F: Hardware>() -> Computer {
        Computer::new::<F>(Config::default())
    }

    pub(super) fn o01_every_path_that_writes_unshares_first<F: Hardware>() {
        type Way<F> = (&'static str, fn(&AddressSpace<F, &Computer>));
        let ways: [Way<F>; 9] = [
            ("store", |space| {
                store(space, 0, page(3), 7);
            }),
            ("protect", |space| space.protect(pages(3..5), Rights::READ).unwrap().finish()),
            ("unmap", |space| space.unmap(pages(3..5)).unwrap().finish()),
            ("remap away", |space| space.remap(pages(3..5), page(600)).unwrap().finish()),
            ("remap within", |space| space.remap(pages(3..5), page(100)).unwrap().finish()),
            ("map", |space| fill(space, 50..51, RW, PageSize::Small)),
            ("take_marks", |space| space.take_marks(pages(0..8), Mark::Dirty, |_| ()).unwrap().finish()),
            ("pin", |space| {
                space.pin(page(3), Node(0)).unwrap();
                space.unpin(page(3)).unwrap();
            }),
            ("replicate", |space| space.replicate(pages(3..5)).unwrap().1.finish()),
        ];
        for (name, way) in ways {
            let computer = computer::<F>();
            let parent = space::<F, _>(&computer, LAST, 1);
            fill(&parent, 0..8, RW, PageSize::Small);
            let child = fork(&parent, 2);
            run_on(&child, 0);
            run_on(&parent, 1);
            let before = (view(&parent), parent.count_marked(pages(0..512), Mark::Dirty).unwrap());
            way(&child);
            assert_eq!((view(&parent), parent.count_marked(pages(0..512), Mark::Dirty).unwrap()), before, "{name}");
            for n in 0..8 {
                assert_eq!(load(&parent, 1, page(n)), 100 + n, "{name}");
            }
            finish(&computer, vec![parent, child]);
        }
    }

    pub(super) fn o02_without_memory_for_a_copy_nothing_changes<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..8, RW, PageSize::Small);
        let child = fork(&parent, 2);
        let (before, bits) = (view(&child), computer.snapshot());
        computer.refuse(0..u64::MAX);
        assert_eq!(child.fault(page(0), Access::USER_WRITE, Node(0)), Err(NoTables { needed: 1, got: 0 }.into()));
        let no_tables = Err(ChangeError::NoMemory(NoTables { needed: 1, got: 0 }));
        assert_eq!(child.protect(pages(0..1), Rights::READ).map(|_| ()), no_tables);
        assert_eq!(child.unmap(pages(0..1)).map(|_| ()), no_tables);
        assert!(matches!(
            child.remap(pages(0..1), page(9)),
            Err(ChangeError::NoMemory(NoTables { needed: 2.., got: 0 }))
        ));
        assert_eq!(child.take_marks(pages(0..1), Mark::Dirty, |_| ()).map(|_| ()), no_tables);
        assert_eq!(computer.snapshot(), bits);
        // A table but no page.
        computer.refuse(1..u64::MAX);
        assert_eq!(child.fault(page(0), Access::USER_WRITE, Node(0)), Err(FaultError::NoPage { address: page(0) }));
        computer.refuse(0..0);
        assert_eq!(view(&child), before);
        finish(&computer, vec![parent, child]);
    }

    pub(super) fn o03_the_entry_above_is_never_empty_while_a_table_is_copied<F: Hardware>() {
        let computer = computer::<F>();
        let seen = Cell::new(0);
        let watch = |event| {
            if event == Event::Retain {
                computer.switch(1, computer.running(1).zip(Some(ROOT.get())));
                seen.set(seen.get() + u64::from(computer.load(1, page(5), Access::USER_READ) == Ok(105)));
            }
        };
        thread_local!(static ROOT: Cell<Frame> = const { Cell::new(Frame::containing(0)) });
        let machine = Mutant { computer: &computer, mistake: None, watch: Some(&watch) };
        let parent = space::<F, _>(machine, LAST, 1);
        fill(&parent, 0..8, RW, PageSize::Small);
        let child = fork(&parent, 2);
        ROOT.set(child.root(Node(0)));
        run_on(&child, 0);
        run_on(&child, 1);
        let resolution = store(&child, 0, page(0), 7);
        assert!(resolution.unshared == 1 && resolution.copied);
        assert_eq!(seen.get(), 8, "a walker finds its page after each entry that is copied");
        finish(&computer, vec![parent, child]);
    }

    pub(super) fn o03_the_last_sharer_takes_the_table_back<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..8, RW, PageSize::Small);
        let child = fork(&parent, 2);
        drop(child);
        run_on(&parent, 0);
        // Needs no memory at all.
        computer.refuse(0..u64::MAX);
        let resolution = store(&parent, 0, page(0), 7);
        computer.refuse(0..0);
        assert_eq!((resolution.unshared, resolution.copied), (0, false));
        assert_eq!(load(&parent, 0, page(0)), 7);
        finish(&computer, vec![parent]);
    }

    pub(super) fn o04_a_table_with_several_regions_is_shared_once<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..4, RW, PageSize::Small);
        fill(&parent, 10..14, Rights::READ, PageSize::Small);
        fill(&parent, 510..514, RW, PageSize::Small);
        let child = fork(&parent, 2);
        // Counts one reference for each of the two spaces and tables.
        computer.expect_counted(&[parent.root(Node(0)), child.root(Node(0))]);
        let tables = computer.live_tables();
        child.protect(pages(0..4), Rights::READ).unwrap().finish();
        child.unmap(pages(10..14)).unwrap().finish();
        assert_eq!(computer.live_tables(), tables + 1, "one copy for both");
        run_on(&child, 0);
        run_on(&parent, 1);
        assert_eq!((load(&child, 0, page(3)), load(&child, 0, page(511)), load(&parent, 1, page(12))), (103, 611, 112));
        store(&parent, 1, page(3), 8);
        assert_eq!(load(&child, 0, page(3)), 103);
        finish(&computer, vec![parent, child]);
    }

    pub(super) fn o04_tables_below_one_that_is_copied_are_shared_then<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, ShareTables::UpTo(Level::new(2)), 1);
        fill(&parent, 0..8, RW, PageSize::Small);
        fill(&parent, 512..520, RW, PageSize::Small);
        let child = fork(&parent, 2);
        run_on(&child, 0);
        assert_eq!(store(&child, 0, page(0), 7).unshared, 2);
        computer.expect_counted(&[parent.root(Node(0)), child.root(Node(0))]);
        assert_eq!((parent.verify(), child.verify()), (Ok(()), Ok(())));
        assert_eq!(store(&child, 0, page(512), 8).unshared, 1);
        run_on(&parent, 1);
        assert_eq!((load(&parent, 1, page(0)), load(&parent, 1, page(512))), (100, 612));
        finish(&computer, vec![child, parent]);
    }

    pub(super) fn o05_accounting_is_exact_or_deferred_as_asked<F: Hardware>() {
        for (accounting, at_fork, after) in [(Accounting::Exact, 8, 8), (Accounting::Deferred, 0, 8)] {
            let computer = computer::<F>();
            let options = SpaceOptions::new().share(LAST).accounting(accounting);
            let parent = AddressSpace::<F, _>::new(&computer, SpaceId(1), &[Node(0)], options).unwrap();
            fill(&parent, 0..8, RW, PageSize::Small);
            let child = fork(&parent, 2);
            let pages = || (computer.charged(SpaceId(1)).pages, computer.charged(SpaceId(2)).pages);
            assert_eq!(pages(), (8, at_fork), "{accounting:?}");
            run_on(&child, 0);
            store(&child, 0, page(0), 1);
            assert_eq!(pages(), (8, after), "{accounting:?}");
            let tables = computer.charged(SpaceId(1)).tables + computer.charged(SpaceId(2)).tables;
            assert_eq!(tables as usize, computer.live_tables(), "each table is charged to one");
            finish(&computer, vec![parent, child]);
        }
    }

    pub(super) fn o06_pinned_pages_stay_with_the_parent<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..8, RW, PageSize::Small);
        let pinned = parent.pin(page(3), Node(0)).unwrap();
        let child = fork(&parent, 2);
        computer.set_content(pinned.frame, 77);
        run_on(&parent, 0);
        run_on(&child, 1);
        assert_eq!((load(&parent, 0, page(3)), load(&child, 1, page(3))), (77, 103));
        store(&parent, 0, page(3), 78);
        assert_eq!(computer.content(pinned.frame), 78, "the device sees what the parent stores");
        parent.unpin(page(3)).unwrap();
        finish(&computer, vec![parent, child]);
    }

    pub(super) fn o06_a_fork_without_memory_for_a_pinned_page_is_rolled_back<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..8, RW, PageSize::Small);
        let pinned = parent.pin(page(3), Node(0)).unwrap();
        let before = (view(&parent), computer.live_tables(), computer.live_frames());
        for request in 0.. {
            computer.refuse(request..u64::MAX);
            let error = parent.fork(SpaceId(2)).map(|_| ()).err();
            computer.refuse(0..0);
            assert_eq!((view(&parent), computer.live_tables(), computer.live_frames()), before);
            assert_eq!(computer.references(pinned.frame), 1);
            match error {
                Some(ForkError::NoMemory(_)) => {}
                Some(ForkError::NoPage { address }) => {
                    assert_eq!(address, page(3));
                    break;
                }
                None => unreachable!("the page comes last"),
            }
        }
        parent.unpin(page(3)).unwrap();
        finish(&computer, vec![parent]);
    }

    pub(super) fn o06_a_pin_for_reading_unshares<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..8, Rights::READ, PageSize::Small);
        let child = fork(&parent, 2);
        let pinned = child.pin(page(3), Node(0)).unwrap();
        assert_eq!(computer.references(pinned.frame), 1, "a page of its own");
        computer.set_content(pinned.frame, 77);
        run_on(&parent, 0);
        run_on(&child, 1);
        assert_eq!((load(&parent, 0, page(3)), load(&child, 1, page(3))), (103, 77));
        child.unpin(page(3)).unwrap();
        finish(&computer, vec![parent, child]);
    }

    pub(super) fn o07_a_shared_table_is_left_and_not_cleared<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..512, RW, PageSize::Small);
        let child = fork(&parent, 2);
        run_on(&child, 0);
        load(&child, 0, page(3));
        let (before, allocated) = (computer.snapshot(), computer.counts().tables_allocated);
        let flush = child.unmap(pages(0..512)).unwrap();
        // One entry of the table above, and those of tables that become empty.
        assert!(before.entries_written_until(&computer.snapshot()) <= 3);
        assert_eq!(computer.counts().tables_allocated, allocated);
        assert_eq!(
            computer.load(0, page(3), Access::USER_READ),
            Ok(103),
            "until the flush is waited for, the page is there"
        );
        flush.finish();
        assert!(computer.load(0, page(3), Access::USER_READ).is_err());
        finish(&computer, vec![parent, child]);
    }

    pub(super) fn o08_sharing_and_unsharing_flush<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..8, RW, PageSize::Small);
        run_on(&parent, 0);
        run_on(&parent, 1);
        store(&parent, 0, page(0), 1);
        store(&parent, 1, page(0), 2);
        let flushes = || (computer.counts().flushes, computer.counts().interrupts);
        let before = flushes();
        let child = fork(&parent, 2);
        assert_eq!(flushes(), (before.0 + 1, before.1 + 2), "one for a fork, on both CPUs");
        assert!(computer.store(1, page(0), 3).is_err(), "no CPU stores past a fork");
        let before = flushes();
        store(&parent, 0, page(0), 4);
        assert_eq!(flushes().0, before.0 + 1, "one flush for the table and the page");
        computer.expect_coherent(parent.id());
        assert_eq!((load(&parent, 1, page(0)), computer.references(child.query(page(0)).unwrap().leaf.frame)), (4, 1));
        finish(&computer, vec![parent, child]);
    }

    pub(super) fn o08_more_ranges_than_an_obligation_holds_are_flushed<F: Hardware>() {
        let computer = computer::<F>();
        let space = space::<F, _>(&computer, LAST, 1);
        for n in 0..40 {
            fill(&space, 2 * n..2 * n + 1, RW, PageSize::Small);
        }
        run_on(&space, 0);
        load(&space, 0, page(70));
        space.protect(pages(0..80), Rights::empty()).unwrap().finish();
        assert!(computer.load(0, page(70), Access::USER_READ).is_err());
        finish(&computer, vec![space]);
    }

    pub(super) fn o09_marks_are_kept_through_sharing<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..8, RW, PageSize::Small);
        let everything = pages(0..512);
        parent.take_marks(everything.clone(), Mark::Accessed, |_| ()).unwrap().finish();
        parent.take_marks(everything.clone(), Mark::Dirty, |_| ()).unwrap().finish();
        let child = fork(&parent, 2);
        run_on(&parent, 0);
        run_on(&child, 1);
        let tables = computer.live_tables();
        // A mark in the shared table, without a copy.
        assert_eq!(load(&parent, 0, page(2)), 102);
        assert_eq!(computer.live_tables(), tables);
        let marked = |space: &AddressSpace<F, _>, mark| space.count_marked(everything.clone(), mark).unwrap();
        assert_eq!((marked(&parent, Mark::Accessed), marked(&child, Mark::Accessed)), (1, 1));
        // The child clears its own marks, not the parent's.
        let mut taken = Vec::new();
        child.take_marks(everything.clone(), Mark::Accessed, |address| taken.push(address)).unwrap().finish();
        assert_eq!(taken, [page(2)]);
        assert_eq!((marked(&parent, Mark::Accessed), marked(&child, Mark::Accessed)), (1, 0));
        store(&parent, 0, page(4), 1);
        assert_eq!((marked(&parent, Mark::Dirty), marked(&child, Mark::Dirty)), (1, 0));
        finish(&computer, vec![parent, child]);
    }

    pub(super) fn o10_a_walker_in_a_shared_table_outlives_it<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..8, RW, PageSize::Small);
        let child = fork(&parent, 2);
        run_on(&child, 0);
        run_on(&child, 1);
        // CPU 1 has read all entries except the page's, which is in the shared table.
        computer.begin(1, page(0), Access::USER_READ);
        for _ in 1..F::TOP.number() {
            assert_eq!(computer.step(1), Progress::Walking);
        }
        store(&child, 0, page(0), 7);
        drop(parent);
        // The parent's table is gone now, and the walk starts again.
        assert_eq!(computer.take_failures(), []);
        while computer.step(1) == Progress::Walking {}
        assert_eq!(load(&child, 1, page(0)), 7);
        finish(&computer, vec![child]);
    }

    pub(super) fn o10_a_table_is_not_written_while_another_space_may_walk_it<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..8, RW, PageSize::Small);
        let child = fork(&parent, 2);
        run_on(&child, 0);
        run_on(&parent, 1);
        // CPU 0 remembers the shared table, but not page 5.
        load(&child, 0, page(4));
        let flush = child.protect(pages(0..1), Rights::READ).unwrap();
        // The child has its own table, and CPU 0 does not know.
        store(&parent, 1, page(5), 7);
        assert_eq!(computer.load(0, page(5), Access::USER_READ), Ok(105));
        flush.finish();
        assert_eq!((load(&child, 0, page(5)), load(&parent, 1, page(5))), (105, 7));
        finish(&computer, vec![parent, child]);
    }

    pub(super) fn o11_a_table_is_not_shared_through_a_large_page<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..512, RW, PageSize::Large);
        let child = fork(&parent, 2);
        run_on(&parent, 0);
        run_on(&child, 1);
        assert!(store(&child, 1, page(3), 7).copied);
        assert_eq!(child.query(page(3)).unwrap().size, PageSize::Large);
        assert_eq!((load(&child, 1, page(3)), load(&child, 1, page(4)), load(&parent, 0, page(3))), (7, 104, 103));
        let second = fork(&parent, 3);
        run_on(&second, 1);
        // There is no large page: one small page is copied, and the rest is split.
        computer.refuse(0..1);
        let resolution = second.fault(page(3), Access::USER_WRITE, Node(0)).unwrap();
        computer.refuse(0..0);
        assert!(matches!(resolution, Fault::Resolved(Resolution { copied: true, .. })));
        store(&second, 1, page(3), 9);
        assert_eq!((load(&second, 1, page(3)), load(&second, 1, page(4)), load(&parent, 0, page(3))), (9, 104, 103));
        assert_eq!(second.query(page(3)).unwrap().size, PageSize::Small);
        finish(&computer, vec![parent, child, second]);
    }

    pub(super) fn o12_protected_tables_translate<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, ShareTables::UpTo(Level::new(2)), 1);
        fill(&parent, 0..8, RW, PageSize::Small);
        let before = view(&parent);
        let child = fork(&parent, 2);
        assert_eq!((view(&parent), view(&child)), (before.clone(), before));
        assert_eq!(child.query(page(3)).unwrap().leaf.attributes.rights, RW);
        let error = child.map_simulated(
            pages(3..4),
            Computer::device(0),
            Attributes::user(RW),
            PageSizes::UpTo(PageSize::Small),
        );
        assert_eq!(error, Err(MapError::Mapped { address: page(3), size: PageSize::Small }));
        finish(&computer, vec![parent, child]);
    }

    pub(super) fn o13_pages_are_freed_behind_the_flush_of_the_last_sharer<F: Hardware>() {
        let computer = computer::<F>();
        let parent = space::<F, _>(&computer, LAST, 1);
        fill(&parent, 0..8, RW, PageSize::Small);
        let child = fork(&parent, 2);
        run_on(&parent, 0);
        run_on(&child, 1);
        load(&parent, 0, page(0));
        load(&child, 1, page(0));
        parent.unmap(pages(0..512)).unwrap().finish();
        assert_eq!(computer.live_frames(), 8, "the child has them");
        let flushing = child.unmap(pages(0..512)).unwrap().dispatch();
        assert_eq!(computer.live_frames(), 8, "CPU 1 may have them");
        assert_eq!(computer.load(1, page(0), Access::USER_READ), Ok(100));
        flushing.wait();
        assert_eq!(computer.live_frames(), 0);
        finish(&computer, vec![parent, child]);
    }
}

/// Objection 9: the walker marks a page through an entry that lets no store pass.
#[test]
fn o09_the_walker_marks_pages_in_shared_tables() {
    let computer = Computer::new::<X86_64>(Config::default());
    let parent = space::<X86_64, _>(&computer, LAST, 1);
    fill(&parent, 0..8, RW, PageSize::Small);
    parent.take_marks(pages(0..8), Mark::Accessed, |_| ()).unwrap().finish();
    let child = fork(&parent, 2);
    run_on(&child, 0);
    let faults = computer.counts().faults;
    assert_eq!(computer.load(0, page(1), Access::USER_READ), Ok(101));
    assert_eq!(computer.counts().faults, faults);
    assert_eq!(parent.count_marked(pages(0..8), Mark::Accessed), Ok(1));
    finish(&computer, vec![parent, child]);
}
