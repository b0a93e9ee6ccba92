//! What the crate asks of a machine: how deep a flush goes, and what it does with memory that nobody counts.

mod common;

use common::scene::*;
use palimpsest_paging::format::{AArch64, Sv39, X86_64};
use palimpsest_paging::sim::{Computer, Config, Hardware};
use palimpsest_paging::*;

fn computer<F: Hardware>() -> Computer {
    Computer::new::<F>(Config { nodes: 2, ..Config::default() })
}

/// Taking marks changes no table: a walk that has got as far as the last one goes on there.
#[test]
fn flushes_of_leaves_leave_the_walk_cache() {
    let computer = computer::<AArch64>();
    let space = space::<AArch64, _>(&computer, ShareTables::Last, 1);
    fill(&space, 0..8, RW, PageSize::Small);
    run_on(&space, 0);
    load(&space, 0, page(0));
    let steps = || {
        computer.begin(0, page(5), Access::Read);
        let mut steps = 1;
        while computer.step(0) == sim::Progress::Walking {
            steps += 1;
        }
        steps
    };
    assert_eq!(steps(), 1, "by the table that the first walk has found");
    space.take_marks(pages(0..1), Mark::Accessed, |_| ()).unwrap().finish();
    assert_eq!(steps(), 1);
    space.unmap(pages(0..8)).unwrap().finish();
    assert!(steps() > 1 || computer.load(0, page(5), Access::Read).is_err(), "the table is gone");
    finish(&computer, vec![space]);
}

/// How many flushes `change` makes that finds a page of the space taken away and not yet waited for.
fn flushes_before_make<F: Hardware>(change: impl Fn(&AddressSpace<F, &Computer>)) -> u64 {
    let computer = computer::<F>();
    let space = space::<F, _>(&computer, ShareTables::Last, 1);
    fill(&space, 0..1, RW, PageSize::Small);
    fill(&space, 8..9, RW, PageSize::Small);
    let taken = space.unmap(pages(0..1)).unwrap();
    let flushes = computer.counts().flushes;
    change(&space);
    let flushes = computer.counts().flushes - flushes;
    taken.finish();
    // And now that it was waited for.
    space.unmap(pages(0..1)).unwrap().finish();
    let quiet = computer.counts().flushes;
    fill(&space, 0..1, RW, PageSize::Small);
    assert_eq!(computer.counts().flushes, quiet);
    finish(&computer, vec![space]);
    flushes
}

#[test]
fn an_entry_is_made_behind_the_flush_of_what_it_held_where_the_architecture_wants_it() {
    fn map<F: Hardware>(space: &AddressSpace<F, &Computer>) {
        fill(space, 0..1, RW, PageSize::Small);
    }
    fn remap<F: Hardware>(space: &AddressSpace<F, &Computer>) {
        space.remap(pages(8..9), page(0)).unwrap().finish();
    }
    fn by_cursor<F: Hardware>(space: &AddressSpace<F, &Computer>) {
        let frame = space.machine().allocate(Node(0), PAGE, PageSize::Small).unwrap();
        let mut cursor = space.cursor_mut(pages(0..4)).unwrap();
        cursor.map(frame, PageSize::Small, Attributes::user(RW)).unwrap();
        // Its own flushes are its own business.
        cursor.seek(page(0)).unwrap();
        cursor.take_next().unwrap();
        let frame = space.machine().allocate(Node(0), PAGE, PageSize::Small).unwrap();
        cursor.map(frame, PageSize::Small, Attributes::user(RW)).unwrap();
        cursor.finish().finish();
    }
    assert_eq!((flushes_before_make::<AArch64>(map), flushes_before_make::<X86_64>(map)), (1, 0));
    // One is of the move, or of what the cursor took, itself.
    assert_eq!((flushes_before_make::<AArch64>(remap), flushes_before_make::<Sv39>(remap)), (2, 1));
    assert_eq!((flushes_before_make::<AArch64>(by_cursor), flushes_before_make::<X86_64>(by_cursor)), (2, 1));
}

fn devices<F: Hardware>() {
    let computer = computer::<F>();
    let parent = space::<F, _>(&computer, ShareTables::Last, 2);
    let registers = Attributes { sharing: Sharing::Shared, memory: MemoryType(1), ..Attributes::user(RW) };
    let firmware = Attributes { scope: Scope::Global, sharing: Sharing::Shared, ..Attributes::user(Rights::READ) };
    let small = PageSizes::UpTo(PageSize::Small);
    parent.map(pages(0..2), Computer::device(0), registers, small).unwrap();
    parent.map(pages(2..4), Computer::device(2 * PAGE), firmware, small).unwrap();
    // A device's registers in a private page: the copy is memory.
    parent.map(pages(4..5), Computer::device(4 * PAGE), Attributes::user(RW), small).unwrap();
    parent.map(pages(512..1024), Computer::device(2 << 20), registers, PageSizes::Only(PageSize::Large)).unwrap();
    run_on(&parent, 0);
    let copied = computer.counts().pages_copied;
    let (done, flush) = parent.replicate(pages(0..1024)).unwrap();
    flush.finish();
    assert_eq!((done.pages, computer.counts().pages_copied), (0, copied), "no replica of a device");
    parent.drop_replicas(pages(0..1024)).unwrap().finish();
    let (child, flush) = parent.fork(SpaceId(2)).unwrap();
    flush.finish();
    run_on(&child, 1);
    for (space, cpu) in [(&parent, 0), (&child, 1)] {
        assert!(!store(space, cpu, page(0), 1).copied);
        assert_eq!(computer.reach(cpu, page(0), Access::Write), Ok(Computer::device(0)));
    }
    assert!(store(&child, 1, page(4), 1).copied);
    assert_eq!((computer.live_frames(), computer.references(child.query(page(4)).unwrap().leaf.frame)), (1, 1));
    child.split(pages(512..1024)).unwrap().finish();
    assert_eq!(child.merge(page(512), PageSize::Large), Ok(true));
    child.pin(page(0), Node(1)).unwrap();
    assert_eq!(child.unpin(page(0)), Err(PinError::NotPinned { address: page(0) }));
    let tables = computer.live_tables();
    let (grandchild, flush) = child.fork(SpaceId(3)).unwrap();
    flush.finish();
    // Two roots, and the tables between them and that of the pages, which is shared as if nothing had been pinned.
    assert_eq!(computer.live_tables() - tables, usize::from(F::TOP.number()));
    drop(grandchild);
    child.unmap(pages(0..1024)).unwrap().finish();
    parent.unmap(pages(0..1)).unwrap().finish();
    finish(&computer, vec![parent, child]);
}

#[test]
fn memory_that_nobody_counts_is_shared_and_never_released() {
    devices::<X86_64>();
    devices::<AArch64>();
    devices::<Sv39>();
}
