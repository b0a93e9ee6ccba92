//! How replicas are made and dropped: at once or on first use, with a child, when memory is short; and which CPUs find
//! which. Numbers are those of `replicas.rs`.

mod common;

use common::scene::*;
use palimpsest_paging::format::{AArch64, Sv39, X86_64};
use palimpsest_paging::sim::{Computer, Config, Hardware};
use palimpsest_paging::*;

const RX: Rights = Rights::READ.union(Rights::EXECUTE);

/// Makes a computer whose CPU n is on node n.
fn computer<F: Hardware>(nodes: usize) -> Computer {
    Computer::new::<F>(Config::default().nodes(nodes).cpus(nodes.max(2)))
}

/// Maps text in pages 0 to 7 and data in 8 to 15, on as many nodes as the computer has.
fn text_and_data<F: Hardware>(computer: &Computer, nodes: u8) -> AddressSpace<F, &Computer> {
    let space = space::<F, _>(computer, ShareTables::Last, nodes);
    fill(&space, 0..8, RX, PageSize::Small);
    fill(&space, 8..16, RW, PageSize::Small);
    (0..usize::from(nodes)).for_each(|cpu| run_on(&space, cpu));
    space
}

/// Returns the node whose memory a CPU reaches, after resolving all faults.
#[track_caller]
fn reached<F: Hardware>(space: &AddressSpace<F, &Computer>, cpu: usize, n: u64) -> Node {
    let computer = space.machine();
    for _ in 0..4 {
        let Err(trap) = computer.reach(cpu, page(n), Access::USER_READ) else {
            return computer.node_of(computer.reach(cpu, page(n), Access::USER_READ).unwrap());
        };
        assert!(matches!(space.fault(trap.address, trap.access, computer.node(cpu)), Ok(Fault::Resolved(_))));
    }
    panic!("page {n} faults for ever");
}

fn nodes_get_pages_when_they_use_them<F: Hardware>() {
    let computer = computer::<F>(3);
    let space = text_and_data::<F>(&computer, 3);
    (0..3).for_each(|cpu| assert_eq!(reached(&space, cpu, 1), Node(0)));
    let (frames, copied) = (computer.live_frames(), computer.counts().pages_copied);
    let (done, flush) = space.replicate_on_use(pages(0..16)).unwrap();
    flush.finish();
    assert_eq!((done.pages, done.single), (16, 16));
    assert_eq!(computer.live_frames(), frames, "no page is copied before it is used");
    computer.expect_coherent(space.id());
    assert_eq!(space.query_on(page(1), Node(1)), None);
    let resolved = space.fault(page(1), Access::USER_EXECUTE, Node(1)).unwrap();
    assert!(matches!(resolved, Fault::Resolved(Resolution { replicated: true, copied: false, .. })));
    assert_eq!((reached(&space, 1, 1), reached(&space, 2, 3), reached(&space, 0, 3)), (Node(1), Node(2), Node(0)));
    assert_eq!((load(&space, 1, page(1)), load(&space, 2, page(3)), load(&space, 2, page(9))), (101, 103, 109));
    assert_eq!(computer.counts().pages_copied - copied, 2);
    assert_eq!(space.verify(), Ok(()));
    // Waiting pages may be neither written nor split, and can be given at once, dropped, and unmapped.
    let refused = Err(ChangeError::Replicated { address: page(5) });
    assert_eq!(space.protect(pages(5..6), RW).map(|_| ()), refused);
    let (done, flush) = space.replicate(pages(4..5)).unwrap();
    flush.finish();
    assert_eq!((done.pages, reached(&space, 1, 4)), (2, Node(1)));
    space.unmap(pages(6..7)).unwrap().finish();
    let pinned = space.pin(page(7), Node(1)).unwrap();
    assert_eq!(space.query_on(page(7), Node(2)).map(|found| found.leaf.frame), Some(pinned.frame));
    space.unpin(page(7)).unwrap();
    space.drop_replicas(pages(0..16)).unwrap().finish();
    (0..3).for_each(|cpu| assert_eq!((reached(&space, cpu, 5), reached(&space, cpu, 1)), (Node(0), Node(0))));
    space.protect(pages(5..6), RW).unwrap().finish();
    store(&space, 2, page(5), 9);
    assert_eq!(load(&space, 1, page(5)), 9);
    (0..3).for_each(|cpu| computer.switch(cpu, None));
    finish(&computer, vec![space]);
}

#[test]
fn r10_replicas_are_of_a_range_and_may_wait_for_their_first_use() {
    nodes_get_pages_when_they_use_them::<X86_64>();
    nodes_get_pages_when_they_use_them::<AArch64>();
    nodes_get_pages_when_they_use_them::<Sv39>();
}

#[test]
fn pages_that_wait_are_no_ones_to_drop_but_their_own() {
    let computer = computer::<X86_64>(2);
    let space = text_and_data::<X86_64>(&computer, 2);
    space.replicate_on_use(pages(0..8)).unwrap().1.finish();
    space.drop_replicas(pages(0..1)).unwrap().finish();
    assert_eq!((reached(&space, 1, 0), reached(&space, 1, 2)), (Node(0), Node(1)));
    finish(&computer, vec![space]);
}

#[test]
fn without_memory_the_first_use_gets_the_first_nodes_page() {
    let computer = computer::<X86_64>(2);
    let space = text_and_data::<X86_64>(&computer, 2);
    space.replicate_on_use(pages(0..8)).unwrap().1.finish();
    computer.refuse(0..u64::MAX);
    assert_eq!(reached(&space, 1, 1), Node(0));
    computer.refuse(0..0);
    assert_eq!((reached(&space, 1, 1), reached(&space, 1, 2)), (Node(0), Node(1)));
    finish(&computer, vec![space]);
}

#[test]
fn replicas_are_dropped_when_there_is_no_memory_at_all() {
    let computer = computer::<X86_64>(2);
    let space = text_and_data::<X86_64>(&computer, 2);
    let (tables, frames) = (computer.live_tables(), computer.live_frames());
    space.replicate(pages(0..16)).unwrap().1.finish();
    assert_eq!((computer.live_tables(), computer.live_frames()), (tables + 3, frames + 8));
    computer.refuse(0..u64::MAX);
    space.drop_replicas(pages(2..4)).unwrap().finish();
    assert_eq!((computer.live_tables(), computer.live_frames()), (tables + 3, frames + 6));
    space.drop_replicas(pages(0..8)).unwrap().finish();
    computer.refuse(0..0);
    assert_eq!((computer.live_tables(), computer.live_frames()), (tables, frames));
    assert_eq!((reached(&space, 1, 1), load(&space, 1, page(1))), (Node(0), 101));
    finish(&computer, vec![space]);
}

fn a_child_inherits<F: Hardware>() {
    let computer = computer::<F>(2);
    let parent = text_and_data::<F>(&computer, 2);
    parent.replicate(pages(0..4)).unwrap().1.finish();
    parent.replicate_on_use(pages(4..8)).unwrap().1.finish();
    assert_eq!(reached(&parent, 1, 4), Node(1));
    let frames = computer.live_frames();
    // The child's home is node 1, so that its first root has the parent's pages there.
    let options = ForkOptions::new().nodes(&[Node(1), Node(0)]).replicas(ChildReplicas::Inherited);
    let (child, flush) = parent.fork_with(SpaceId(2), options).unwrap();
    flush.finish();
    assert_eq!((child.home(), computer.live_frames()), (Node(1), frames), "no page is copied");
    assert_eq!((parent.verify(), child.verify()), (Ok(()), Ok(())));
    for cpu in 0..2 {
        run_on(&child, cpu);
        for n in [0, 4] {
            assert_eq!((reached(&child, cpu, n), load(&child, cpu, page(n))), (Node(cpu as u8), 100 + n));
        }
    }
    // The page that waited for node 1 in the parent belongs to the child's first node, and the page of the parent's
    // first node to the child's other node.
    assert_eq!(load(&child, 1, page(6)), 106);
    store(&child, 1, page(9), 7);
    run_on(&parent, 0);
    assert_eq!(load(&parent, 0, page(9)), 109);
    computer.switch(0, None);
    drop(parent);
    assert_eq!((load(&child, 1, page(0)), reached(&child, 1, 0)), (100, Node(1)));
    child.drop_replicas(pages(0..8)).unwrap().finish();
    child.protect(pages(0..4), RW).unwrap().finish();
    store(&child, 1, page(0), 8);
    run_on(&child, 0);
    assert_eq!(load(&child, 0, page(0)), 8);
    finish(&computer, vec![child]);
}

#[test]
fn a_child_can_have_its_parents_replicas() {
    a_child_inherits::<X86_64>();
    a_child_inherits::<AArch64>();
    a_child_inherits::<Sv39>();
}

#[test]
fn a_childs_tables_are_on_its_home_node() {
    let computer = computer::<X86_64>(2);
    let parent = text_and_data::<X86_64>(&computer, 1);
    let options = ForkOptions::new().nodes(&[Node(1)]);
    let (child, flush) = parent.fork_with(SpaceId(2), options).unwrap();
    flush.finish();
    assert_eq!(child.home(), Node(1));
    run_on(&child, 1);
    store(&child, 1, page(8), 5);
    assert_eq!(reached(&child, 1, 8), Node(1), "the page is copied for the node that has faulted");
    finish(&computer, vec![parent, child]);
}

#[test]
fn r05_a_cpu_of_a_node_without_a_root_uses_the_nearest() {
    let computer = computer::<X86_64>(4);
    let nodes = [Node(0), Node(2)];
    let options = options(ShareTables::Last);
    let space = AddressSpace::<X86_64, _>::new(&computer, SpaceId(1), &nodes, options).unwrap();
    fill(&space, 0..8, RX, PageSize::Small);
    space.replicate_on_use(pages(0..8)).unwrap().1.finish();
    // Each node of the computer is nearest to the next.
    assert_eq!([1, 2, 3, 0].map(|node| space.root(Node(node))), [2, 2, 0, 0].map(|node| space.root(Node(node))));
    for (cpu, node) in [(1, Node(2)), (3, Node(0))] {
        run_on(&space, cpu);
        assert_eq!(reached(&space, cpu, 1), node);
        let found = space.query_on(page(1), computer.node(cpu)).unwrap();
        assert_eq!(computer.node_of(found.leaf.frame), node);
        computer.switch(cpu, None);
    }
    finish(&computer, vec![space]);
}

#[test]
fn who_changes_a_page_is_shown_each_copy_once() {
    let computer = computer::<X86_64>(3);
    let space = text_and_data::<X86_64>(&computer, 3);
    space.replicate(pages(0..1)).unwrap().1.finish();
    let copies = |n| {
        let mut seen = Vec::new();
        space.query_copies(page(n), |node, mapping| seen.push((node, computer.node_of(mapping.leaf.frame))));
        seen
    };
    assert_eq!(copies(0), [0, 1, 2].map(|node| (Node(node), Node(node))));
    assert_eq!(copies(1), [(Node(0), Node(0))]);
    assert_eq!((copies(99), copies(1 << 40)), (vec![], vec![]));
    assert_eq!(space.query_on(VirtAddr(1 << 60), Node(0)), None);
    (0..3).for_each(|cpu| computer.switch(cpu, None));
    finish(&computer, vec![space]);
}

/// Data beside replicated text, in a table of which every node has its own copy.
fn single_pages_change<F: Hardware>() {
    let computer = computer::<F>(2);
    let space = text_and_data::<F>(&computer, 2);
    space.replicate(pages(0..8)).unwrap().1.finish();
    space.protect(pages(8..9), Rights::READ).unwrap().finish();
    assert_eq!(load(&space, 1, page(8)), 108);
    space.protect(pages(8..9), RW).unwrap().finish();
    store(&space, 1, page(8), 3);
    assert_eq!(load(&space, 0, page(8)), 3);
    let refused = |address| Err(ChangeError::Replicated { address });
    assert_eq!(space.protect(pages(7..9), RW).map(|_| ()), refused(page(7)));
    // A page that moves away would leave the other node's marks behind.
    assert_eq!(space.remap(pages(8..9), page(600)).map(|_| ()), refused(page(8)));
    space.drop_replicas(pages(0..8)).unwrap().finish();
    space.remap(pages(8..9), page(600)).unwrap().finish();
    assert_eq!(load(&space, 1, page(600)), 3);
    finish(&computer, vec![space]);
}

#[test]
fn single_pages_in_replicated_tables_can_be_written_again() {
    single_pages_change::<X86_64>();
    single_pages_change::<AArch64>();
    single_pages_change::<Sv39>();
}

/// The data's entry is in the same table of level 2 as the text's.
fn large_data_beside_text<F: Hardware>() {
    let computer = computer::<F>(2);
    let space = space::<F, _>(&computer, ShareTables::Last, 2);
    fill(&space, 0..512, RX, PageSize::Large);
    fill(&space, 512..1024, RW, PageSize::Large);
    (0..2).for_each(|cpu| run_on(&space, cpu));
    space.replicate(pages(0..512)).unwrap().1.finish();
    assert_eq!(space.split(pages(0..512)).map(|_| ()), Err(ChangeError::Replicated { address: page(0) }));
    store(&space, 1, page(700), 5);
    space.unmap(pages(512..513)).unwrap().finish();
    space.protect(pages(513..514), Rights::READ).unwrap().finish();
    assert_eq!((load(&space, 0, page(700)), load(&space, 1, page(513)), reached(&space, 1, 3)), (5, 613, Node(1)));
    assert_eq!(space.query(page(700)).unwrap().size, PageSize::Small);
    finish(&computer, vec![space]);
}

#[test]
fn large_data_beside_replicated_text_is_split() {
    large_data_beside_text::<X86_64>();
    large_data_beside_text::<AArch64>();
    large_data_beside_text::<Sv39>();
}
