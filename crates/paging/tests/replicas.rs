//! One test for each objection that reviewers raised against replicated tables, by its number in
//! `docs/src/numbered.md`. More of 5, and 10, are in `replica_life.rs`; 8 needs stage 2, which the crate does not have,
//! and 9 needs no test.

mod common;

use common::scene::*;
use palimpsest_paging::format::{AArch64, AArch64Upper, Sv39, X86_64};
use palimpsest_paging::sim::{Computer, Config, Hardware};
use palimpsest_paging::*;

const RX: Rights = Rights::READ.union(Rights::EXECUTE);

/// Returns a space on two nodes, CPU n on node n, with text in pages 0 to 7 and data in 8 to 15, both below one table.
fn two_nodes<F: Hardware>(computer: &Computer) -> AddressSpace<F, &Computer> {
    let space = space::<F, _>(computer, ShareTables::Last, 2);
    fill(&space, 0..8, RX, PageSize::Small);
    fill(&space, 8..16, RW, PageSize::Small);
    run_on(&space, 0);
    run_on(&space, 1);
    space
}

fn computer<F: Hardware>() -> Computer {
    Computer::new::<F>(Config::default().nodes(2))
}

fn replicate<F: Hardware>(space: &AddressSpace<F, &Computer>, range: std::ops::Range<u64>) -> Replicated {
    let (done, flush) = space.replicate(pages(range)).unwrap();
    flush.finish();
    done
}

/// Returns the node whose memory a CPU reaches.
fn node_of<F: Hardware>(space: &AddressSpace<F, &Computer>, cpu: usize, n: u64) -> Node {
    let _ = load(space, cpu, page(n));
    let computer = space.machine();
    computer.node_of(computer.reach(cpu, page(n), Access::USER_READ).unwrap())
}

#[test]
fn r01_a_writer_reaches_every_copy_of_a_page() {
    let computer = computer::<X86_64>();
    let space = two_nodes::<X86_64>(&computer);
    replicate(&space, 0..8);
    // A writer of text needs the frames of a page on all nodes, as CPUs there see it.
    for cpu in 0..2 {
        let frame = computer.reach(cpu, page(2), Access::USER_EXECUTE).unwrap();
        computer.set_content(frame, 0xcc);
    }
    assert_eq!((load(&space, 0, page(2)), load(&space, 1, page(2))), (0xcc, 0xcc));
    finish(&computer, vec![space]);
}

fn each_node_executes_its_own<F: Hardware>() {
    let computer = computer::<F>();
    let space = two_nodes::<F>(&computer);
    assert_eq!(node_of(&space, 1, 2), Node(0));
    let done = replicate(&space, 0..16);
    // Below the root one table for each level. Writable pages stay single.
    assert_eq!(done, Replicated { tables: F::TOP.number() as usize - 1, pages: 8, single: 8 });
    for n in 0..8 {
        assert_eq!((node_of(&space, 0, n), node_of(&space, 1, n)), (Node(0), Node(1)));
        assert_eq!(load(&space, 1, page(n)), 100 + n);
    }
    store(&space, 1, page(9), 5);
    assert_eq!((load(&space, 0, page(9)), node_of(&space, 1, 9)), (5, Node(0)));
    space.drop_replicas(pages(0..16)).unwrap().finish();
    assert_eq!(node_of(&space, 1, 2), Node(0));
    finish(&computer, vec![space]);
}

#[test]
fn each_node_executes_its_own_memory() {
    each_node_executes_its_own::<X86_64>();
    each_node_executes_its_own::<AArch64>();
    each_node_executes_its_own::<Sv39>();
}

#[test]
fn r02_what_is_mapped_later_appears_on_all_nodes() {
    let computer = computer::<X86_64>();
    let space = two_nodes::<X86_64>(&computer);
    replicate(&space, 0..8);
    // In a ringed table, in another table of level 1, and below another entry of the root.
    for n in [20, 5 * 512, 1 << 28] {
        fill(&space, n..n + 1, RW, PageSize::Small);
        store(&space, 1, page(n), n);
        assert_eq!(load(&space, 0, page(n)), n);
    }
    finish(&computer, vec![space]);
}

#[test]
fn r03_the_halves_of_aarch64_have_roots_of_their_own() {
    let computer = Computer::new::<AArch64>(Config::default());
    let lower = space::<AArch64, _>(&computer, ShareTables::Last, 1);
    fill(&lower, 0..1, RW, PageSize::Small);
    let above = VirtAddr(page(0).0 | 0xffff << 48);
    assert_eq!(lower.query(above), None, "the same entries would translate it");
    assert_eq!(lower.fault(above, Access::USER_READ, Node(0)), Ok(Fault::NotMapped));
    let range = above..VirtAddr(above.0 + PAGE);
    assert!(matches!(lower.unmap(range), Err(ChangeError::Range(RangeError::NotCanonical { .. }))));
    finish(&computer, vec![lower]);
    let upper = space::<AArch64Upper, _>(&computer, ShareTables::Last, 1);
    assert!(matches!(upper.unmap(pages(0..1)), Err(ChangeError::Range(RangeError::NotCanonical { .. }))));
}

fn rights_change_on_all_nodes<F: Hardware>() {
    let computer = computer::<F>();
    let space = two_nodes::<F>(&computer);
    replicate(&space, 0..8);
    load(&space, 0, page(1));
    load(&space, 1, page(1));
    space.protect(pages(0..2), Rights::empty()).unwrap().finish();
    for cpu in 0..2 {
        assert!(computer.load(cpu, page(1), Access::USER_READ).is_err());
        assert_eq!(space.fault(page(1), Access::USER_READ, Node(cpu as u8)), Ok(Fault::Denied));
    }
    space.protect(pages(0..2), Rights::READ).unwrap().finish();
    assert_eq!(
        (load(&space, 1, page(1)), node_of(&space, 1, 1)),
        (101, Node(1)),
        "pages without rights keep their memory"
    );
    assert!(computer.load(1, page(1), Access::USER_EXECUTE).is_err());
    space.unmap(pages(0..2)).unwrap().finish();
    for cpu in 0..2 {
        assert!(computer.load(cpu, page(1), Access::USER_READ).is_err());
    }
    finish(&computer, vec![space]);
}

#[test]
fn r04_rights_change_on_all_nodes() {
    rights_change_on_all_nodes::<X86_64>();
    rights_change_on_all_nodes::<AArch64>();
    rights_change_on_all_nodes::<Sv39>();
}

#[test]
fn r05_a_node_without_memory_uses_another() {
    let computer = Computer::new::<X86_64>(Config::default().nodes(3).cpus(3).frames(32));
    let space = two_nodes::<X86_64>(&computer);
    // Node 1 has nothing left; the machine returns the nearest memory.
    let taken = computer.allocate(Node(1), 32 * PAGE, PageSize::Small).unwrap();
    assert_eq!(replicate(&space, 0..8).pages, 8);
    assert_eq!(node_of(&space, 1, 0), Node(2));
    space.drop_replicas(pages(0..8)).unwrap().finish();
    // No node has memory: pages stay single, and everything works.
    computer.refuse(F_TABLES..u64::MAX);
    let done = replicate(&space, 0..8);
    computer.refuse(0..0);
    assert_eq!((done.pages, done.single), (0, 8));
    assert_eq!(node_of(&space, 1, 0), Node(0));
    computer.give_back(taken, 32 * PAGE);
    finish(&computer, vec![space]);
}

/// Tables that a replica of one range needs.
const F_TABLES: u64 = 3;

fn marks_of_all_nodes_count<F: Hardware>() {
    let computer = computer::<F>();
    let space = two_nodes::<F>(&computer);
    replicate(&space, 0..16);
    for mark in [Mark::Accessed, Mark::Dirty] {
        space.take_marks(pages(0..16), mark, |_| ()).unwrap().finish();
    }
    load(&space, 1, page(1));
    store(&space, 1, page(9), 1);
    let counted = || [Mark::Accessed, Mark::Dirty].map(|mark| space.count_marked(pages(0..16), mark).unwrap());
    assert_eq!(counted(), [2, 1]);
    space.drop_replicas(pages(0..16)).unwrap().finish();
    assert_eq!(counted(), [2, 1], "those that only a copy had are not lost with it");
    let mut taken = Vec::new();
    space.take_marks(pages(0..16), Mark::Dirty, |address| taken.push(address)).unwrap().finish();
    assert_eq!(taken, [page(9)]);
    finish(&computer, vec![space]);
}

#[test]
fn r06_marks_of_all_nodes_count() {
    marks_of_all_nodes_count::<X86_64>();
    marks_of_all_nodes_count::<AArch64>();
    marks_of_all_nodes_count::<Sv39>();
}

#[test]
fn r07_a_replicated_page_is_not_moved_and_not_split() {
    let computer = computer::<X86_64>();
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 2);
    fill(&space, 0..512, RX, PageSize::Large);
    replicate(&space, 0..512);
    let before = computer.snapshot();
    let refused = Err(ChangeError::Replicated { address: page(0) });
    assert_eq!(space.remap(pages(0..512), page(1024)).map(|_| ()), refused);
    assert_eq!(space.split(pages(0..512)).map(|_| ()), refused);
    assert_eq!(space.protect(pages(1..2), Rights::READ).map(|_| ()), refused);
    assert_eq!(space.protect(pages(0..512), RW).map(|_| ()), refused);
    assert_eq!(space.unmap(pages(1..2)).map(|_| ()), refused);
    assert_eq!(computer.snapshot(), before);
    finish(&computer, vec![space]);
}

#[test]
fn a_child_starts_without_replicas() {
    let computer = computer::<X86_64>();
    let parent = two_nodes::<X86_64>(&computer);
    replicate(&parent, 0..8);
    let child = fork(&parent, 2);
    assert_eq!(node_of(&parent, 1, 0), Node(1));
    run_on(&child, 1);
    assert_eq!(node_of(&child, 1, 0), Node(0));
    store(&child, 1, page(9), 4);
    assert_eq!(load(&parent, 0, page(9)), 109);
    finish(&computer, vec![parent, child]);
}

/// More pages than one obligation holds, in pairs, between whose parts a flush may come.
#[test]
fn pages_of_all_nodes_are_freed_behind_their_flush() {
    let computer = computer::<X86_64>();
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 2);
    fill(&space, 0..101, RX, PageSize::Small);
    fill(&space, 101..102, RW, PageSize::Small);
    run_on(&space, 0);
    run_on(&space, 1);
    replicate(&space, 0..101);
    // The one single page makes the number of frames before it odd.
    for n in 20..40 {
        load(&space, 1, page(n));
    }
    space.unmap(pages(0..1)).unwrap().finish();
    let single = computer.allocate(Node(0), PAGE, PageSize::Small).unwrap();
    space.map_simulated(pages(0..1), single, Attributes::user(RX), PageSizes::UpTo(PageSize::Small)).unwrap();
    for n in 30..40 {
        load(&space, 1, page(n));
    }
    space.unmap(pages(0..102)).unwrap().finish();
    finish(&computer, vec![space]);
}

/// The table above replicated pages keeps its copies when the pages are gone, and must not move with them.
#[test]
fn a_table_that_was_replicated_moves_page_by_page() {
    let computer = computer::<X86_64>();
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 2);
    fill(&space, 0..8, RX, PageSize::Small);
    fill(&space, 512..520, RW, PageSize::Small);
    replicate(&space, 0..8);
    space.unmap(pages(0..8)).unwrap().finish();
    space.remap(pages(0..1 << 18), page(1 << 18)).unwrap().finish();
    assert_eq!(space.verify(), Ok(()));
    run_on(&space, 1);
    store(&space, 1, page((1 << 18) + 512), 3);
    assert_eq!(load(&space, 1, page((1 << 18) + 513)), 613);
    finish(&computer, vec![space]);
}

/// Another space may write to a shared page, which all nodes must see.
#[test]
fn a_shared_page_is_single_unless_it_is_global() {
    let computer = computer::<X86_64>();
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 2);
    let frame = computer.allocate(Node(0), 2 * PAGE, PageSize::Small).unwrap();
    let shared = Attributes { sharing: Sharing::Shared, ..Attributes::user(RX) };
    space.map_simulated(pages(0..1), frame, shared, PageSizes::UpTo(PageSize::Small)).unwrap();
    space
        .map_simulated(pages(1..2), frame.offset(PAGE), Attributes::kernel(RX), PageSizes::UpTo(PageSize::Small))
        .unwrap();
    assert_eq!(replicate(&space, 0..2), Replicated { tables: 3, pages: 1, single: 1 });
    let child = fork(&space, 2);
    child.protect(pages(0..1), RW).unwrap().finish();
    run_on(&child, 0);
    store(&child, 0, page(0), 5);
    run_on(&space, 1);
    assert_eq!(load(&space, 1, page(0)), 5);
    finish(&computer, vec![space, child]);
}

/// The second page is replicated when the tables already are.
#[test]
fn a_page_that_is_replicated_later_is_flushed() {
    let computer = computer::<X86_64>();
    let space = two_nodes::<X86_64>(&computer);
    replicate(&space, 0..1);
    assert_eq!(node_of(&space, 1, 2), Node(0));
    replicate(&space, 2..3);
    computer.expect_coherent(space.id());
    assert_eq!(node_of(&space, 1, 2), Node(1));
    finish(&computer, vec![space]);
}

/// A device writes to one page, which all nodes must see.
#[test]
fn a_pinned_page_is_single() {
    let computer = computer::<X86_64>();
    let space = two_nodes::<X86_64>(&computer);
    replicate(&space, 0..8);
    let pinned = space.pin(page(1), Node(0)).unwrap();
    computer.set_content(pinned.frame, 7);
    assert_eq!((load(&space, 0, page(1)), load(&space, 1, page(1))), (7, 7));
    assert_eq!(replicate(&space, 0..8), Replicated { tables: 0, pages: 0, single: 1 });
    space.unpin(page(1)).unwrap();
    finish(&computer, vec![space]);
}
