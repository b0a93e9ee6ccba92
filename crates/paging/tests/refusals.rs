//! Bad input gets an error that names it, and no bit of a table changes. One test for each kind of input that the
//! project's issue 5 lists.

mod common;

use std::ops::Range;

use common::scene::*;
use palimpsest_paging::format::{AArch64, Sv39, X86_64, X86_64La57};
use palimpsest_paging::sim::{Computer, Config, Failure, Hardware};
use palimpsest_paging::*;

const SMALL: PageSizes = PageSizes::UpTo(PageSize::Small);

/// A parent with small pages 0 to 7, of which 7 is pinned, and a pinned large page from 512 on; and its child.
struct Scene<'c, F: Hardware> {
    parent: AddressSpace<F, &'c Computer>,
    child: AddressSpace<F, &'c Computer>,
    /// Four frames that are mapped nowhere.
    spare: Frame,
}

/// Runs `check`, after which all tables must be as they were.
fn refusing<F: Hardware>(check: impl Fn(&Scene<'_, F>)) {
    let computer = Computer::new::<F>(Config::default());
    let parent = space::<F, _>(&computer, ShareTables::Last, 1);
    fill(&parent, 0..8, RW, PageSize::Small);
    fill(&parent, 512..1024, RW, PageSize::Large);
    let pinned = parent.pin(page(7), Node(0)).unwrap();
    assert_eq!(parent.pin(page(600), Node(0)).unwrap().size, PageSize::Large);
    let child = fork(&parent, 2);
    let spare = computer.allocate(Node(0), 4 * PAGE, PageSize::Small).unwrap();
    let scene = Scene { parent, child, spare };
    let before = computer.snapshot();
    check(&scene);
    assert_eq!(computer.snapshot(), before, "{}: nothing was changed", F::NAME);
    let Scene { parent, child, spare } = scene;
    assert_eq!(pinned.frame, parent.query(page(7)).unwrap().leaf.frame);
    parent.unpin(page(7)).unwrap();
    parent.unpin(page(600)).unwrap();
    computer.give_back(spare, 4 * PAGE);
    finish(&computer, vec![parent, child]);
}

/// Checks that every operation on a range refuses `range` with `error`, whose text has all of `named`.
fn refuse_range<F: Hardware>(scene: &Scene<'_, F>, range: &Range<VirtAddr>, error: &RangeError, named: &[&str]) {
    let space = &scene.child;
    let change = Err(ChangeError::Range(error.clone()));
    assert_eq!(space.map_simulated(range.clone(), scene.spare, Attributes::user(RW), SMALL), Err(error.clone().into()));
    assert_eq!(space.unmap(range.clone()).map(|_| ()), change);
    assert_eq!(space.protect(range.clone(), RW).map(|_| ()), change);
    assert_eq!(space.remap(range.clone(), page(4096)).map(|_| ()), change);
    assert_eq!(space.split(range.clone()).map(|_| ()), change);
    assert_eq!(space.replicate(range.clone()).map(|_| ()), change);
    assert_eq!(space.replicate_on_use(range.clone()).map(|_| ()), change);
    assert_eq!(space.drop_replicas(range.clone()).map(|_| ()), change);
    assert_eq!(space.take_marks(range.clone(), Mark::Dirty, |_| ()).map(|_| ()), change);
    assert_eq!(space.count_marked(range.clone(), Mark::Dirty), Err(error.clone()));
    assert_eq!(space.walk(range.clone(), |_| std::ops::ControlFlow::Continue(())), Err(error.clone()));
    expect_named(&error.to_string(), named);
}

fn expect_named(text: &str, named: &[&str]) {
    for value in named {
        assert!(text.contains(value), "\"{text}\" does not name {value}");
    }
}

macro_rules! refused {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            refusing::<X86_64>(of::$name);
            refusing::<X86_64La57>(of::$name);
            refusing::<AArch64>(of::$name);
            refusing::<Sv39>(of::$name);
        }
    )*};
}

refused! {
    unaligned_ranges
    empty_ranges
    addresses_that_are_not_canonical
    ranges_that_overflow
    the_last_page_of_all
    frames_that_no_entry_can_hold
    overlapping_pages
    pages_onto_a_large_page
    sizes_to_which_nothing_is_aligned
    rights_that_cannot_be_expressed
    memory_types_that_no_entry_can_name
    moves_onto_themselves
    pinned_pages
    pins_of_what_is_not_there
}

mod of {
    use super::*;

    pub(super) fn unaligned_ranges<F: Hardware>(scene: &Scene<'_, F>) {
        for range in [VirtAddr(BASE + 1)..page(9), page(8)..VirtAddr(BASE + 0x9800)] {
            let named = [range.start.to_string(), range.end.to_string(), "4096".into()];
            refuse_range(scene, &range, &RangeError::Unaligned(range.clone()), &named.each_ref().map(String::as_str));
        }
    }

    pub(super) fn empty_ranges<F: Hardware>(scene: &Scene<'_, F>) {
        refuse_range(scene, &(page(9)..page(9)), &RangeError::Empty(page(9)..page(9)), &["0x40009000..0x40009000"]);
        let backwards = page(9)..page(8);
        refuse_range(scene, &backwards, &RangeError::Empty(backwards.clone()), &["0x40009000..0x40008000"]);
    }

    pub(super) fn addresses_that_are_not_canonical<F: Hardware>(scene: &Scene<'_, F>) {
        let end = VirtAddr(F::TOP.table_bytes());
        for range in [end..VirtAddr(end.0 + PAGE), page(0)..VirtAddr(end.0 + PAGE)] {
            let error = RangeError::NotCanonical { range: range.clone(), format: F::NAME };
            refuse_range(scene, &range, &error, &[F::NAME, &range.end.to_string()]);
        }
        assert_eq!(scene.child.query(end), None);
        assert_eq!(scene.child.fault(end, Access::USER_READ, Node(0)), Ok(Fault::NotMapped));
        assert_eq!(scene.child.pin(end, Node(0)), Err(PinError::NotMapped { address: end }));
    }

    pub(super) fn ranges_that_overflow<F: Hardware>(scene: &Scene<'_, F>) {
        // From one half of all addresses into the other.
        let across = page(0)..VirtAddr(!0xfff);
        let error = RangeError::NotCanonical { range: across.clone(), format: F::NAME };
        refuse_range(scene, &across, &error, &[F::NAME, "0xfffffffffffff000"]);
        let error = Err(ChangeError::Range(RangeError::LastPage { start: LAST_PAGE }));
        assert_eq!(scene.child.remap(pages(0..2), LAST_PAGE).map(|_| ()), error);
        assert_eq!(scene.child.merge(LAST_PAGE, PageSize::Giant).map(|_| ()), error);
    }

    /// Fails for `check_range` without its first check (the error says empty), and for `remap` and `merge` with
    /// saturating ends (the error says unaligned).
    pub(super) fn the_last_page_of_all<F: Hardware>(scene: &Scene<'_, F>) {
        for start in [LAST_PAGE, VirtAddr(LAST_PAGE.0 - PAGE), VirtAddr(0_u64.wrapping_sub(1 << 30))] {
            let error = RangeError::LastPage { start };
            refuse_range(scene, &(start..VirtAddr(0)), &error, &[&start.to_string(), "0xfffffffffffff000", "2^64"]);
            assert_eq!(scene.child.cursor(start..VirtAddr(0)).err(), Some(error.clone()));
            assert_eq!(scene.child.cursor_mut(start..VirtAddr(0)).err(), Some(error.into()));
        }
        let start = VirtAddr(LAST_PAGE.0 - PAGE);
        let error = Err(ChangeError::Range(RangeError::LastPage { start }));
        assert_eq!(scene.child.remap(pages(0..2), start).map(|_| ()), error);
        let last = VirtAddr(0_u64.wrapping_sub(LARGE));
        let error = Err(ChangeError::Range(RangeError::LastPage { start: last }));
        assert_eq!(scene.child.merge(last, PageSize::Large).map(|_| ()), error);
        // Operations on one address find nothing mapped there.
        for address in [LAST_PAGE, VirtAddr(u64::MAX)] {
            assert_eq!(scene.child.query(address), None);
            assert_eq!(scene.child.fault(address, Access::USER_WRITE, Node(0)), Ok(Fault::NotMapped));
            assert!(scene.child.pin(address, Node(0)).is_err());
        }
    }

    pub(super) fn frames_that_no_entry_can_hold<F: Hardware>(scene: &Scene<'_, F>) {
        for first in [F::PHYSICAL_END - PAGE, 0_u64.wrapping_sub(PAGE)].map(|address| Frame::new(address).unwrap()) {
            let error = MapError::Physical { first, bytes: 2 * PAGE, end: F::PHYSICAL_END, format: F::NAME };
            assert_eq!(
                scene.child.map_simulated(pages(20..22), first, Attributes::user(RW), SMALL),
                Err(error.clone())
            );
            expect_named(&error.to_string(), &[&first.to_string(), "0x2000", F::NAME]);
        }
    }

    pub(super) fn overlapping_pages<F: Hardware>(scene: &Scene<'_, F>) {
        let error = MapError::Mapped { address: page(7), size: PageSize::Small };
        assert_eq!(
            scene.child.map_simulated(pages(7..9), scene.spare, Attributes::user(RW), SMALL),
            Err(error.clone())
        );
        expect_named(&error.to_string(), &["0x40007000", "Small"]);
        assert_eq!(scene.child.remap(pages(0..2), page(6)).map(|_| ()), Err(ChangeError::Mapped { address: page(6) }));
    }

    pub(super) fn pages_onto_a_large_page<F: Hardware>(scene: &Scene<'_, F>) {
        let error = MapError::Mapped { address: page(600), size: PageSize::Large };
        assert_eq!(
            scene.child.map_simulated(pages(600..601), scene.spare, Attributes::user(RW), SMALL),
            Err(error.clone())
        );
        expect_named(&error.to_string(), &["0x40258000", "Large"]);
    }

    pub(super) fn sizes_to_which_nothing_is_aligned<F: Hardware>(scene: &Scene<'_, F>) {
        let (frame, size) = (scene.spare, PageSize::Large);
        let error = MapError::Size { address: page(2049), frame, size };
        let map = |range| scene.child.map_simulated(range, frame, Attributes::user(RW), PageSizes::Only(size));
        assert_eq!(map(pages(2049..2560)), Err(error.clone()));
        assert_eq!(map(pages(2048..2049)), Err(MapError::Size { address: page(2048), frame, size }));
        expect_named(&error.to_string(), &["0x40801000", &frame.to_string(), "Large"]);
        let moved = scene.child.remap(pages(100..1024), page(4097)).map(|_| ());
        assert_eq!(moved, Err(ChangeError::Misaligned { address: page(512), to: page(4097 + 412) }));
        assert_eq!(scene.child.merge(page(1), PageSize::Large), Ok(false));
    }

    pub(super) fn rights_that_cannot_be_expressed<F: Hardware>(scene: &Scene<'_, F>) {
        let rights = Rights::WRITE;
        let error = MapError::Rights(rights);
        let mapped = scene.child.map_simulated(pages(20..21), scene.spare, Attributes::user(rights), SMALL);
        assert_eq!(mapped, Err(error.clone()));
        expect_named(&error.to_string(), &["WRITE"]);
        assert_eq!(scene.child.protect(pages(0..1), rights).map(|_| ()), Err(ChangeError::Rights(rights)));
    }

    pub(super) fn memory_types_that_no_entry_can_name<F: Hardware>(scene: &Scene<'_, F>) {
        let (memory, types) = (F::MEMORY_TYPES, F::MEMORY_TYPES);
        let attributes = Attributes { memory: MemoryType(memory), ..Attributes::user(RW) };
        let error = MapError::MemoryType { memory, types, format: F::NAME };
        assert_eq!(scene.child.map_simulated(pages(20..21), scene.spare, attributes, SMALL), Err(error.clone()));
        expect_named(&error.to_string(), &[F::NAME, &memory.to_string()]);
    }

    pub(super) fn moves_onto_themselves<F: Hardware>(scene: &Scene<'_, F>) {
        let error = ChangeError::Overlap { from: pages(0..4), to: page(2) };
        assert_eq!(scene.child.remap(pages(0..4), page(2)).map(|_| ()), Err(error.clone()));
        expect_named(&error.to_string(), &["0x40000000..0x40004000", "0x40002000"]);
    }

    pub(super) fn pinned_pages<F: Hardware>(scene: &Scene<'_, F>) {
        let parent = &scene.parent;
        let refused = |n| Err(ChangeError::Pinned { address: page(n) });
        assert_eq!(parent.unmap(pages(0..8)).map(|_| ()), refused(7));
        assert_eq!(parent.remap(pages(0..8), page(20)).map(|_| ()), refused(7));
        // The large page would have to be split.
        assert_eq!(parent.unmap(pages(600..601)).map(|_| ()), refused(512));
        assert_eq!(parent.protect(pages(600..601), Rights::READ).map(|_| ()), refused(512));
        assert_eq!(parent.split(pages(512..1024)).map(|_| ()), refused(512));
        assert_eq!(parent.merge(page(0), PageSize::Large), Ok(false));
        expect_named(&ChangeError::Pinned { address: page(7) }.to_string(), &["0x40007000", "unpin"]);
    }

    pub(super) fn pins_of_what_is_not_there<F: Hardware>(scene: &Scene<'_, F>) {
        assert_eq!(scene.parent.pin(page(9), Node(0)), Err(PinError::NotMapped { address: page(9) }));
        assert_eq!(scene.parent.unpin(page(9)), Err(PinError::NotMapped { address: page(9) }));
        // The parent has it pinned, and the child has a copy.
        assert_eq!(scene.child.unpin(page(7)), Err(PinError::NotPinned { address: page(7) }));
        expect_named(&PinError::NotPinned { address: page(7) }.to_string(), &["0x40007000"]);
    }
}

/// A fork copies pinned pages, and names the page if there is no memory for that.
#[test]
fn a_fork_while_pinned_without_memory() {
    refusing::<X86_64>(|scene| {
        let computer = scene.parent.machine();
        // First three tables on the way to the pinned page; then pages.
        for request in 0.. {
            computer.refuse(request..u64::MAX);
            let forked = scene.parent.fork(SpaceId(3)).map(|_| ());
            computer.refuse(0..0);
            let Err(error) = forked else { panic!("there is no memory") };
            if let ForkError::NoPage { address } = error {
                assert_eq!(address, page(7));
                expect_named(&error.to_string(), &["0x40007000"]);
                break;
            }
            assert!(matches!(error, ForkError::NoMemory(NoTables { needed: 1.., .. })));
        }
    });
}

/// A space gives pages back only once: when they are unmapped or unpinned, or when it ends. A host that gives a frame
/// back twice is told which.
#[test]
fn a_frame_that_is_freed_twice() {
    let computer = Computer::new::<X86_64>(Config::default());
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    fill(&space, 0..1, RW, PageSize::Small);
    let frame = space.query(page(0)).unwrap().leaf.frame;
    space.pin(page(0), Node(0)).unwrap();
    space.unpin(page(0)).unwrap();
    assert_eq!(space.unpin(page(0)), Err(PinError::NotPinned { address: page(0) }));
    space.unmap(pages(0..1)).unwrap().finish();
    space.unmap(pages(0..1)).unwrap().finish();
    assert_eq!(computer.take_failures(), []);
    let before = computer.snapshot();
    computer.give_back(frame, PAGE);
    assert_eq!(computer.take_failures(), [Failure::FreeFrame { frame }]);
    expect_named(&Failure::FreeFrame { frame }.to_string(), &[&frame.to_string()]);
    let machine = &computer;
    let table = machine.allocate_table(Node(0)).unwrap();
    for _ in 0..2 {
        // SAFETY: 1. nobody refers to it; the second time it is free already, which the computer detects.
        unsafe { machine.free_table(table) };
    }
    assert_eq!(computer.take_failures(), [Failure::FreeTable { table }]);
    assert_eq!(computer.snapshot(), before);
    finish(&computer, vec![space]);
}
