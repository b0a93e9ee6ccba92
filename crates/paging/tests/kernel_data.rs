//! Pages of the kernel: stores to its data never fault, with or without forks, and global pages are the same in all
//! spaces.

mod common;

use common::scene::*;
use palimpsest_paging::format::{AArch64, Sv39, Sv48, X86_64};
use palimpsest_paging::sim::{Computer, Config, Hardware, interleave};
use palimpsest_paging::*;

const SMALL: PageSizes = PageSizes::UpTo(PageSize::Small);
const SHARES: [ShareTables; 3] =
    [ShareTables::Last, ShareTables::UpTo(Level::new(2)), ShareTables::UpTo(Level::new(3))];

fn map_kernel<F: Hardware>(space: &AddressSpace<F, &Computer>, range: std::ops::Range<u64>, rights: Rights) {
    let frame = space.machine().allocate(Node(0), (range.end - range.start) << 12, PageSize::Small).unwrap();
    space.map_simulated(pages(range), frame, Attributes::kernel(rights), SMALL).unwrap();
}

/// Returns whether a store passes without a fault: to page 0 by user mode, to another page by the kernel.
fn passes<F: Hardware>(space: &AddressSpace<F, &Computer>, n: u64) -> bool {
    run_on(space, 0);
    let from = if n == 0 { Privilege::User } else { Privilege::Kernel };
    space.machine().store_from(from, 0, page(n), 1).is_ok()
}

fn never_faults<F: Hardware>() {
    // A change of the data's table, which also contains a page of user mode.
    type Way<F> = (&'static str, fn(&AddressSpace<F, &Computer>));
    let ways: [Way<F>; 5] = [
        ("mapped", |space| map_kernel(space, 3..4, RW)),
        ("mapped by a cursor", |space| {
            let frame = space.machine().allocate(Node(0), PAGE, PageSize::Small).unwrap();
            let mut cursor = space.cursor_mut(pages(3..4)).unwrap();
            cursor.map_simulated(frame, PageSize::Small, Attributes::kernel(RW)).unwrap();
            cursor.finish().finish();
        }),
        ("made writable", |space| {
            map_kernel(space, 2..5, Rights::READ);
            // SAFETY: 1. no program runs by a software machine's tables.
            unsafe { space.protect_kernel(pages(3..4), RW) }.unwrap().finish();
        }),
        ("made writable by a cursor", |space| {
            map_kernel(space, 3..4, Rights::READ);
            // SAFETY: 1. no program runs by a software machine's tables.
            let mut cursor = unsafe { space.cursor_mut_kernel(pages(3..4)) }.unwrap();
            cursor.protect_next(RW).unwrap();
            cursor.finish().finish();
        }),
        ("moved", |space| {
            map_kernel(space, 5000..5001, RW);
            // SAFETY: 1. no program runs by a software machine's tables.
            unsafe { space.remap_kernel(pages(5000..5001), page(3)) }.unwrap().finish();
        }),
    ];
    for share in SHARES {
        for (name, way) in ways {
            let computer = Computer::new::<F>(Config::default());
            let parent = space::<F, _>(&computer, share, 1);
            fill(&parent, 0..1, RW, PageSize::Small);
            way(&parent);
            let child = fork(&parent, 2);
            let grandchild = fork(&child, 3);
            for one in [&parent, &child, &grandchild] {
                assert!(passes(one, 3), "{name}, {share:?}");
                // User mode's pages are copied as always.
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
    let child = fork(&parent, 2);
    assert_eq!(computer.live_tables() - tables, 4, "root, level 3, level 2, and that of the data");
    finish(&computer, vec![parent, child]);
}

#[test]
fn parts_of_a_large_page_of_the_kernels_never_fault() {
    let computer = Computer::new::<X86_64>(Config::default());
    let parent = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    let frame = computer.allocate(Node(0), LARGE, PageSize::Large).unwrap();
    parent.map_simulated(pages(0..512), frame, Attributes::kernel(RW), PageSizes::Only(PageSize::Large)).unwrap();
    parent.split(pages(0..512)).unwrap().finish();
    let child = fork(&parent, 2);
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
    assert_eq!(space.map_simulated(pages(0..1), first, attributes, SMALL), Err(error.clone()));
    let mut cursor = space.cursor_mut(pages(0..1)).unwrap();
    assert_eq!(cursor.map_simulated(first, PageSize::Small, attributes), Err(error.clone().into()));
    cursor.finish().finish();
    assert!(error.to_string().contains(&first.to_string()));
    assert_eq!(computer.snapshot(), before);
    finish(&computer, vec![space]);
}

/// A fault of user mode at a page of the kernel is not resolved: the access would fault again for ever.
fn modes_are_told_apart<F: Hardware>() {
    let computer = Computer::new::<F>(Config::default());
    let space = space::<F, _>(&computer, ShareTables::Last, 1);
    map_kernel(&space, 0..1, Rights::all());
    fill(&space, 1..2, Rights::all(), PageSize::Small);
    run_on(&space, 0);
    use AccessKind::{Execute, Read, Write};
    for (n, kind, from, passes) in [
        (0, Read, Privilege::User, false),
        (0, Write, Privilege::User, false),
        (0, Execute, Privilege::User, false),
        (0, Read, Privilege::Kernel, true),
        (0, Write, Privilege::Kernel, true),
        (0, Execute, Privilege::Kernel, true),
        (1, Read, Privilege::User, true),
        (1, Write, Privilege::User, true),
        (1, Execute, Privilege::User, true),
        (1, Read, Privilege::Kernel, true),
        (1, Write, Privilege::Kernel, true),
        (1, Execute, Privilege::Kernel, false),
    ] {
        let access = Access { kind, from };
        let fault = space.fault(page(n), access, Node(0)).unwrap();
        assert_eq!(matches!(fault, Fault::Resolved(_)), passes, "{access:?} of page {n}: {fault:?}");
        assert_eq!(fault == Fault::Denied, !passes);
        // Accesses whose faults count as resolved pass.
        assert_eq!(computer.reach(0, page(n), access).is_ok(), passes, "{access:?} of page {n}");
    }
    finish(&computer, vec![space]);
}

#[test]
fn a_fault_of_user_mode_at_a_kernel_page_is_denied() {
    modes_are_told_apart::<X86_64>();
    modes_are_told_apart::<AArch64>();
    modes_are_told_apart::<Sv39>();
}

/// The caller may run through these pages: safe operations leave them alone, wherever in the range they are.
fn safe_code_leaves_kernel_pages_alone<F: Hardware>() {
    let computer = Computer::new::<F>(Config::default());
    let parent = space::<F, _>(&computer, ShareTables::Last, 1);
    fill(&parent, 0..4, RW, PageSize::Small);
    map_kernel(&parent, 600..601, Rights::READ | Rights::EXECUTE);
    map_kernel(&parent, 1 << 19..(1 << 19) + 1, RW);
    fill(&parent, 4096..4608, RW, PageSize::Large);
    // In tables that a child has copied, shares, and has moved.
    let child = fork(&parent, 2);
    let other = fork(&parent, 3);
    fill(&other, 601..602, RW, PageSize::Small);
    for one in [&parent, &child, &other] {
        for (range, first) in [(0..1024, 600), (600..601, 600), (512..1 << 20, 600), (1024..1 << 20, 1 << 19)] {
            let range = pages(range);
            let refused = ChangeError::Kernel { address: page(first) };
            let before = computer.snapshot();
            assert_eq!(one.unmap(range.clone()).map(|_| ()), Err(refused.clone()));
            assert_eq!(one.protect(range.clone(), Rights::READ).map(|_| ()), Err(refused.clone()));
            assert_eq!(one.remap(range.clone(), page(1 << 20)).map(|_| ()), Err(refused.clone()));
            assert_eq!(one.cursor_mut(range).map(|_| ()).err(), Some(refused.clone()));
            assert_eq!(computer.snapshot(), before);
            assert!(refused.to_string().contains(&page(first).to_string()));
        }
        one.unmap(pages(0..600)).unwrap().finish();
        one.protect(pages(4097..4099), Rights::READ).unwrap().finish();
    }
    // SAFETY: 1. no program runs by a software machine's tables.
    let flush = unsafe { child.unmap_kernel(pages(0..1 << 20)) }.unwrap();
    flush.finish();
    assert!(child.query(page(600)).is_none() && parent.query(page(600)).is_some());
    finish(&computer, vec![parent, child, other]);
}

#[test]
fn safe_operations_refuse_kernel_pages() {
    safe_code_leaves_kernel_pages_alone::<X86_64>();
    safe_code_leaves_kernel_pages_alone::<AArch64>();
    safe_code_leaves_kernel_pages_alone::<Sv48>();
}

/// A large page through which the kernel runs is never unmapped: it is split accordingly, or the split is refused.
#[test]
fn a_page_of_the_kernels_is_never_broken() {
    fn map_large<F: Hardware>(space: &AddressSpace<F, &Computer>) {
        let frame = space.machine().allocate(Node(0), LARGE, PageSize::Large).unwrap();
        let kernel = Attributes::kernel(RW);
        space.map_simulated(pages(0..512), frame, kernel, PageSizes::Only(PageSize::Large)).unwrap();
    }
    let computer = Computer::new::<AArch64>(Config::default());
    let arm = space::<AArch64, _>(&computer, ShareTables::Last, 1);
    map_large(&arm);
    assert_eq!(arm.split(pages(3..4)).map(|_| ()), Err(ChangeError::Kernel { address: page(3) }));
    finish(&computer, vec![arm]);
    let computer = Computer::new::<X86_64>(Config::default());
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    map_large(&space);
    let root = space.root(Node(0));
    let stores = || {
        // A CPU that remembers nothing.
        computer.switch(0, Some((space.id(), root)));
        assert!(computer.store_from(Privilege::Kernel, 0, page(5), 1).is_ok());
    };
    interleave(&stores, || space.split(pages(0..512)).unwrap().finish());
    assert_eq!(space.query(page(5)).unwrap().size, PageSize::Small);
    assert_eq!(space.merge(page(0), PageSize::Large), Ok(false));
    finish(&computer, vec![space]);
}
