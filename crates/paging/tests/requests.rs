//! The crate's requests to a machine: how deep a flush goes, and how it treats uncounted memory.

mod common;

use std::cell::Cell;

use common::mutant::{Event, Mutant};
use common::scene::*;
use palimpsest_paging::format::{AArch64, Format, Sv39, X86_64};
use palimpsest_paging::sim::{Computer, Config, Hardware};
use palimpsest_paging::*;

fn computer<F: Hardware>() -> Computer {
    Computer::new::<F>(Config::default().nodes(2))
}

/// Taking marks changes no table: a walk that has reached the last one continues there.
#[test]
fn flushes_of_leaves_leave_the_walk_cache() {
    let computer = computer::<AArch64>();
    let space = space::<AArch64, _>(&computer, ShareTables::Last, 1);
    fill(&space, 0..8, RW, PageSize::Small);
    run_on(&space, 0);
    load(&space, 0, page(0));
    let steps = || {
        computer.begin(0, page(5), Access::USER_READ);
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
    assert!(steps() > 1 || computer.load(0, page(5), Access::USER_READ).is_err(), "the table is gone");
    finish(&computer, vec![space]);
}

/// Returns how many flushes `change` makes if the flush of a removed page of the space was not waited for yet.
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
    // The same after the wait.
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
        cursor.map_simulated(frame, PageSize::Small, Attributes::user(RW)).unwrap();
        // Its own flushes do not count.
        cursor.seek(page(0)).unwrap();
        cursor.take_next().unwrap();
        let frame = space.machine().allocate(Node(0), PAGE, PageSize::Small).unwrap();
        cursor.map_simulated(frame, PageSize::Small, Attributes::user(RW)).unwrap();
        cursor.finish().finish();
    }
    assert_eq!((flushes_before_make::<AArch64>(map), flushes_before_make::<X86_64>(map)), (1, 0));
    // One flush belongs to the move itself, or to what the cursor took.
    assert_eq!((flushes_before_make::<AArch64>(remap), flushes_before_make::<Sv39>(remap)), (2, 1));
    assert_eq!((flushes_before_make::<AArch64>(by_cursor), flushes_before_make::<X86_64>(by_cursor)), (2, 1));
}

fn devices<F: Hardware>() {
    let computer = computer::<F>();
    let parent = space::<F, _>(&computer, ShareTables::Last, 2);
    let registers = Attributes { sharing: Sharing::Shared, memory: MemoryType(1), ..Attributes::user(RW) };
    let firmware = Attributes { scope: Scope::Global, sharing: Sharing::Shared, ..Attributes::user(Rights::READ) };
    let small = PageSizes::UpTo(PageSize::Small);
    parent.map_simulated(pages(0..2), Computer::device(0), registers, small).unwrap();
    parent.map_simulated(pages(2..4), Computer::device(2 * PAGE), firmware, small).unwrap();
    // A device's registers in a private page: the copy is memory.
    parent.map_simulated(pages(4..5), Computer::device(4 * PAGE), Attributes::user(RW), small).unwrap();
    parent
        .map_simulated(pages(512..1024), Computer::device(2 << 20), registers, PageSizes::Only(PageSize::Large))
        .unwrap();
    run_on(&parent, 0);
    let copied = computer.counts().pages_copied;
    let (done, flush) = parent.replicate(pages(0..1024)).unwrap();
    flush.finish();
    assert_eq!((done.pages, computer.counts().pages_copied), (0, copied), "no replica of a device");
    parent.drop_replicas(pages(0..1024)).unwrap().finish();
    let child = fork(&parent, 2);
    run_on(&child, 1);
    for (space, cpu) in [(&parent, 0), (&child, 1)] {
        assert!(!store(space, cpu, page(0), 1).copied);
        assert_eq!(computer.reach(cpu, page(0), Access::USER_WRITE), Ok(Computer::device(0)));
    }
    assert!(store(&child, 1, page(4), 1).copied);
    assert_eq!((computer.live_frames(), computer.references(child.query(page(4)).unwrap().leaf.frame)), (1, 1));
    child.split(pages(512..1024)).unwrap().finish();
    assert_eq!(child.merge(page(512), PageSize::Large), Ok(true));
    child.pin(page(0), Node(1)).unwrap();
    assert_eq!(child.unpin(page(0)), Err(PinError::NotPinned { address: page(0) }));
    let tables = computer.live_tables();
    let grandchild = fork(&child, 3);
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

/// CPU 1 gives a page its right back; CPU 0 faults because of its old translation, and only it flushes.
fn a_minor_fault_concerns_one_cpu<F: Hardware>() {
    let computer = computer::<F>();
    let space = space::<F, _>(&computer, ShareTables::Last, 1);
    fill(&space, 0..1, Rights::READ, PageSize::Small);
    run_on(&space, 0);
    run_on(&space, 1);
    load(&space, 0, page(0));
    space.protect(pages(0..1), RW).unwrap().finish();
    let before = computer.counts();
    store(&space, 0, page(0), 1);
    // The last sharer takes its table back, which CPUs remember as shared.
    drop(fork(&space, 2));
    load(&space, 0, page(0));
    let forked = computer.counts();
    store(&space, 0, page(0), 2);
    let after = computer.counts();
    assert_eq!(after.flushes - forked.flushes, 0, "{after:?}");
    assert_eq!(
        (forked.flushes - before.flushes, forked.interrupts - before.interrupts),
        (3, 2),
        "the fork's, and two of its child's end"
    );
    assert_eq!(after.local_flushes > before.local_flushes, !F::FAULT_EVICTS);
    finish(&computer, vec![space]);
}

/// A RISC-V CPU may remember that a table above the page was missing, or refused stores elsewhere: a flush of the last
/// entry alone would let the access fault for ever.
#[test]
fn a_minor_fault_flushes_the_whole_walk() {
    fn depth<F: Hardware>() -> Option<FlushDepth> {
        let computer = computer::<F>();
        let seen = Cell::new(None);
        let watch = |event| {
            if let Event::FlushHere(depth) = event {
                seen.set(Some(depth));
            }
        };
        let machine = Mutant { computer: &computer, mistake: None, watch: Some(&watch) };
        let space = space::<F, _>(machine, ShareTables::Last, 1);
        fill(&space, 0..1, RW, PageSize::Small);
        space.fault(page(0), Access::USER_READ, Node(0)).unwrap();
        finish(&computer, vec![space]);
        seen.get()
    }
    assert_eq!(depth::<Sv39>(), Some(FlushDepth::Tables));
    assert_eq!(depth::<AArch64>(), Some(FlushDepth::Tables));
    assert_eq!(depth::<X86_64>(), None);
}

#[test]
fn a_minor_fault_interrupts_nobody() {
    a_minor_fault_concerns_one_cpu::<X86_64>();
    a_minor_fault_concerns_one_cpu::<AArch64>();
    a_minor_fault_concerns_one_cpu::<Sv39>();
}

/// Everything that makes an entry valid tells the machine so, once the entry is there.
#[test]
fn the_machine_is_told_that_entries_were_made() {
    /// What happens before, and what makes page 3 readable.
    type Way = (&'static str, fn(&Watched<'_>), fn(&Watched<'_>));
    type Watched<'c> = AddressSpace<AArch64, Mutant<'c>>;
    fn wait_for_first_use(space: &Watched<'_>) {
        fill(space, 3..4, Rights::READ, PageSize::Small);
        space.replicate_on_use(pages(3..4)).unwrap().1.finish();
    }
    let ways: [Way; 14] = [
        ("map", |_| (), |space| fill(space, 3..4, RW, PageSize::Small)),
        (
            "map beside another",
            |space| fill(space, 2..3, RW, PageSize::Small),
            |space| fill(space, 3..4, RW, PageSize::Small),
        ),
        (
            "a cursor's map",
            |_| (),
            |space| {
                let frame = space.machine().computer.allocate(Node(0), PAGE, PageSize::Small).unwrap();
                let mut cursor = space.cursor_mut(pages(3..4)).unwrap();
                cursor.map_simulated(frame, PageSize::Small, Attributes::user(RW)).unwrap();
                cursor.finish().finish();
            },
        ),
        (
            "protect",
            |space| fill(space, 3..4, Rights::empty(), PageSize::Small),
            |space| space.protect(pages(3..4), RW).unwrap().finish(),
        ),
        (
            "a cursor's protect",
            |space| fill(space, 3..4, Rights::empty(), PageSize::Small),
            |space| {
                let mut cursor = space.cursor_mut(pages(3..4)).unwrap();
                cursor.protect_next(RW).unwrap();
                drop(cursor);
            },
        ),
        (
            "remap",
            |space| fill(space, 8..9, RW, PageSize::Small),
            |space| drop(space.remap(pages(8..9), page(3)).unwrap()),
        ),
        (
            "split",
            |space| fill(space, 0..512, RW, PageSize::Large),
            |space| space.split(pages(0..512)).unwrap().finish(),
        ),
        (
            "merge",
            |space| {
                fill(space, 0..512, RW, PageSize::Large);
                space.split(pages(0..512)).unwrap().finish();
            },
            |space| assert_eq!(space.merge(page(0), PageSize::Large), Ok(true)),
        ),
        (
            "pin",
            |space| fill(space, 3..4, RW, PageSize::Small),
            |space| {
                space.pin(page(3), Node(0)).unwrap();
                space.unpin(page(3)).unwrap();
            },
        ),
        (
            "fault",
            |space| {
                fill(space, 3..4, RW, PageSize::Small);
                space.take_marks(pages(3..4), Mark::Accessed, |_| ()).unwrap().finish();
            },
            |space| {
                space.fault(page(3), Access::USER_READ, Node(0)).unwrap();
            },
        ),
        ("replicate what waits", wait_for_first_use, |space| space.replicate(pages(3..4)).unwrap().1.finish()),
        ("drop_replicas of what waits", wait_for_first_use, |space| space.drop_replicas(pages(3..4)).unwrap().finish()),
        (
            "unmap a part of a large page",
            |space| fill(space, 0..512, RW, PageSize::Large),
            |space| space.unmap(pages(0..1)).unwrap().finish(),
        ),
        (
            "a fault without memory for the copy",
            |space| {
                // Somebody else has the page, too.
                let computer = space.machine().computer;
                let frame = computer.allocate(Node(0), PAGE, PageSize::Small).unwrap();
                computer.retain(Page { frame, size: PageSize::Small });
                let small = PageSizes::UpTo(PageSize::Small);
                space.map_simulated(pages(3..4), frame, Attributes::user(RW), small).unwrap();
            },
            |space| {
                let computer = space.machine().computer;
                computer.refuse(0..1);
                let no_page = FaultError::NoPage { address: page(3) };
                assert_eq!(space.fault(page(3), Access::USER_WRITE, Node(0)), Err(no_page));
                computer.refuse(0..0);
                computer.give_back(space.query(page(3)).unwrap().leaf.frame, PAGE);
            },
        ),
    ];
    for (name, before, way) in ways {
        let computer = computer::<AArch64>();
        let (root, seen) = (Cell::new(None), Cell::new(false));
        let watch = |event| {
            if let (Event::Made, Some(root)) = (event, root.get()) {
                computer.switch(1, Some((SpaceId(9), root)));
                seen.set(seen.get() | computer.load(1, page(3), Access::USER_READ).is_ok());
                computer.switch(1, None);
            }
        };
        let machine = Mutant { computer: &computer, mistake: None, watch: Some(&watch) };
        let space = space::<AArch64, _>(machine, ShareTables::Last, 2);
        before(&space);
        root.set(Some(space.root(Node(1))));
        way(&space);
        assert!(seen.get(), "{name}");
        root.set(None);
        finish(&computer, vec![space]);
    }
}

/// How pages are mapped: by one operation for each, of which the second finds its table, by one operation for both, or
/// by a cursor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MapWay {
    Each,
    Both,
    Cursor,
}

/// A page with another reference, for example of a file, and a private, writable mapping of it.
fn a_mapped_page_with_another_reference<F: Hardware>(way: MapWay) {
    let computer = computer::<F>();
    let space = space::<F, _>(&computer, ShareTables::Last, 2);
    let frames = computer.allocate(Node(0), 2 * PAGE, PageSize::Small).unwrap();
    let others = Page { frame: frames, size: PageSize::Small };
    (&computer).retain(others);
    computer.set_content(frames, 5);
    let small = PageSizes::UpTo(PageSize::Small);
    match way {
        MapWay::Cursor => {
            let mut cursor = space.cursor_mut(pages(0..2)).unwrap();
            for n in 0..2 {
                cursor.map_simulated(frames.offset(n * PAGE), PageSize::Small, Attributes::user(RW)).unwrap();
            }
            cursor.finish().finish();
        }
        MapWay::Both => space.map_simulated(pages(0..2), frames, Attributes::user(RW), small).unwrap(),
        MapWay::Each => [1, 0].into_iter().for_each(|n| {
            space.map_simulated(pages(n..n + 1), frames.offset(n * PAGE), Attributes::user(RW), small).unwrap();
        }),
    }
    run_on(&space, 0);
    assert!(store(&space, 0, page(0), 6).copied);
    assert!(!store(&space, 0, page(1), 7).copied, "nobody else has it");
    assert_eq!((computer.content(frames), load(&space, 0, page(0)), load(&space, 0, page(1))), (5, 6, 7));
    assert_eq!(computer.content(frames.offset(PAGE)), 7);
    (&computer).release(others);
    finish(&computer, vec![space]);
}

#[test]
fn a_private_mapping_does_not_write_through() {
    for way in [MapWay::Each, MapWay::Both, MapWay::Cursor] {
        a_mapped_page_with_another_reference::<X86_64>(way);
        a_mapped_page_with_another_reference::<AArch64>(way);
        a_mapped_page_with_another_reference::<Sv39>(way);
    }
}

/// The CPU has fewer address bits than entries could hold.
#[test]
fn frames_that_the_machine_does_not_have_are_refused() {
    let computer = Computer::new::<X86_64>(Config::default().physical_bits(48));
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    let first = Frame::new((1 << 48) - PAGE).unwrap();
    let error = MapError::Physical { first, bytes: 2 * PAGE, end: 1 << 48, format: X86_64::NAME };
    let small = PageSizes::UpTo(PageSize::Small);
    assert_eq!(space.map_simulated(pages(0..2), first, Attributes::user(RW), small), Err(error.clone()));
    assert!(error.to_string().contains("0x1000000000000"));
    let mut cursor = space.cursor_mut(pages(0..2)).unwrap();
    let beyond = Frame::new(1 << 48).unwrap();
    assert!(cursor.map_simulated(beyond, PageSize::Small, Attributes::user(RW)).is_err());
    drop(cursor);
    finish(&computer, vec![space]);
}

/// A mapping that cannot succeed takes no memory from others before it fails.
#[test]
fn a_mapping_that_is_too_large_takes_no_frame() {
    let computer = Computer::new::<X86_64>(Config::default().tables(1 << 10));
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    let before = computer.counts().tables_allocated;
    let range = VirtAddr(1 << 40)..VirtAddr(2 << 40);
    let only = PageSizes::Only(PageSize::Small);
    let mapped = space.map_simulated(range, Computer::device(0), Attributes::user(RW), only);
    let Err(MapError::NoMemory(NoTables { needed, got })) = mapped else { panic!("{mapped:?}") };
    assert!(needed > 1 << 19 && got < 1 << 10);
    assert_eq!(computer.counts().tables_allocated, before);
    finish(&computer, vec![space]);
}
