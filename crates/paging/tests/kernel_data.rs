//! Pages of the kernel's: stores to its data never fault, forks or not, and what is global is the same in all spaces.

mod common;

use common::scene::*;
use palimpsest_paging::format::{AArch64, Sv39, X86_64};
use palimpsest_paging::sim::{Computer, Config, Hardware};
use palimpsest_paging::*;

const SMALL: PageSizes = PageSizes::UpTo(PageSize::Small);
const SHARES: [ShareTables; 3] =
    [ShareTables::Last, ShareTables::UpTo(Level::new(2)), ShareTables::UpTo(Level::new(3))];

fn map_kernel<F: Hardware>(space: &AddressSpace<F, &Computer>, range: std::ops::Range<u64>, rights: Rights) {
    let frame = space.machine().allocate(Node(0), (range.end - range.start) << 12, PageSize::Small).unwrap();
    space.map(pages(range), frame, Attributes::kernel(rights), SMALL).unwrap();
}

/// Whether a store passes without a fault.
fn passes<F: Hardware>(space: &AddressSpace<F, &Computer>, n: u64) -> bool {
    run_on(space, 0);
    space.machine().store(0, page(n), 1).is_ok()
}

fn never_faults<F: Hardware>() {
    // What comes to the data's table, in which a page of user mode's is as well.
    type Way<F> = (&'static str, fn(&AddressSpace<F, &Computer>));
    let ways: [Way<F>; 5] = [
        ("mapped", |space| map_kernel(space, 3..4, RW)),
        ("mapped by a cursor", |space| {
            let frame = space.machine().allocate(Node(0), PAGE, PageSize::Small).unwrap();
            let mut cursor = space.cursor_mut(pages(3..4)).unwrap();
            cursor.map(frame, PageSize::Small, Attributes::kernel(RW)).unwrap();
            cursor.finish().finish();
        }),
        ("made writable", |space| {
            map_kernel(space, 2..5, Rights::READ);
            space.protect(pages(3..4), RW).unwrap().finish();
        }),
        ("made writable by a cursor", |space| {
            map_kernel(space, 3..4, Rights::READ);
            let mut cursor = space.cursor_mut(pages(3..4)).unwrap();
            cursor.protect_next(RW).unwrap();
            cursor.finish().finish();
        }),
        ("moved", |space| {
            map_kernel(space, 5000..5001, RW);
            space.remap(pages(5000..5001), page(3)).unwrap().finish();
        }),
    ];
    for share in SHARES {
        for (name, way) in ways {
            let computer = Computer::new::<F>(Config::default());
            let parent = space::<F, _>(&computer, share, 1);
            fill(&parent, 0..1, RW, PageSize::Small);
            way(&parent);
            let (child, flush) = parent.fork(SpaceId(2)).unwrap();
            flush.finish();
            let (grandchild, flush) = child.fork(SpaceId(3)).unwrap();
            flush.finish();
            for one in [&parent, &child, &grandchild] {
                assert!(passes(one, 3), "{name}, {share:?}");
                // User mode's are copied as ever.
                assert!(!passes(one, 0), "{name}, {share:?}");
                assert!(store(one, 0, page(0), 7).copied || one.id() == SpaceId(3), "{name}, {share:?}");
            }
            finish(&computer, vec![parent, child, grandchild]);
        }
    }
}

#[test]
fn stores_to_kernel_data_never_fault() {
    never_faults::<X86_64>();
    never_faults::<AArch64>();
    never_faults::<Sv39>();
}

#[test]
fn tables_of_kernel_text_are_shared() {
    let computer = Computer::new::<X86_64>(Config::default());
    let parent = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    map_kernel(&parent, 0..8, Rights::READ | Rights::EXECUTE);
    map_kernel(&parent, 512..513, RW);
    let tables = computer.live_tables();
    let (child, flush) = parent.fork(SpaceId(2)).unwrap();
    flush.finish();
    assert_eq!(computer.live_tables() - tables, 4, "root, level 3, level 2, and that of the data");
    finish(&computer, vec![parent, child]);
}

#[test]
fn parts_of_a_large_page_of_the_kernels_never_fault() {
    let computer = Computer::new::<X86_64>(Config::default());
    let parent = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    let frame = computer.allocate(Node(0), LARGE, PageSize::Large).unwrap();
    parent.map(pages(0..512), frame, Attributes::kernel(RW), PageSizes::Only(PageSize::Large)).unwrap();
    parent.split(pages(0..512)).unwrap().finish();
    let (child, flush) = parent.fork(SpaceId(2)).unwrap();
    flush.finish();
    assert!(passes(&parent, 3) && passes(&child, 3));
    finish(&computer, vec![parent, child]);
}

#[test]
fn global_pages_are_not_private() {
    let computer = Computer::new::<X86_64>(Config::default());
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    let attributes = Attributes { sharing: Sharing::Private, ..Attributes::kernel(RW) };
    let (first, before) = (Computer::device(0), computer.snapshot());
    let error = MapError::PrivateGlobal { first };
    assert_eq!(space.map(pages(0..1), first, attributes, SMALL), Err(error.clone()));
    let mut cursor = space.cursor_mut(pages(0..1)).unwrap();
    assert_eq!(cursor.map(first, PageSize::Small, attributes), Err(error.clone().into()));
    cursor.finish().finish();
    assert!(error.to_string().contains(&first.to_string()));
    assert_eq!(computer.snapshot(), before);
    finish(&computer, vec![space]);
}
