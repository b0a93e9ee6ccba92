//! Tutorial: the page tables of a kernel, on a machine in software.

// ANCHOR: boot
use palimpsest::paging::format::X86_64;
use palimpsest::paging::sim::{Computer, Config, MapSimulated};
use palimpsest::paging::*;

const TEXT: std::ops::Range<VirtAddr> = VirtAddr(0x40_0000)..VirtAddr(0x40_4000);
const HEAP: std::ops::Range<VirtAddr> = VirtAddr(0x4000_0000)..VirtAddr(0x4080_0000);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two CPUs with TLBs that remember; a missing flush is a failing access, as on a real machine.
    let computer = Computer::new::<X86_64>(Config::default());
    let init = AddressSpace::<X86_64, _>::new(&computer, SpaceId(1), &[Node(0)], SpaceOptions::default())?;
    // ANCHOR_END: boot

    // ANCHOR: map
    let text = computer.allocate(Node(0), TEXT.end.0 - TEXT.start.0, PageSize::Small).expect("memory is left");
    init.map_simulated(TEXT, text, Attributes::user(Rights::READ | Rights::EXECUTE), PageSizes::UpTo(PageSize::Small))?;
    let heap = computer.allocate(Node(0), HEAP.end.0 - HEAP.start.0, PageSize::Small).expect("memory is left");
    init.map_simulated(HEAP, heap, Attributes::user(Rights::READ | Rights::WRITE), PageSizes::Only(PageSize::Small))?;
    // ANCHOR_END: map

    // ANCHOR: fork
    let before = computer.snapshot();
    let (child, flush) = init.fork(SpaceId(2))?;
    flush.finish(); // until then the parent's CPUs may still write through what they remember
    let after = computer.snapshot();
    println!("8 MiB and a program forked: {} tables made", after.tables() - before.tables());
    // ANCHOR_END: fork

    // ANCHOR: fault
    // What your page-fault handler does: the child stores to its heap.
    match child.fault(HEAP.start, Access::USER_WRITE, Node(0))? {
        Fault::Resolved(resolution) => println!("one table and one page copied: {resolution:?}"),
        other => panic!("the heap can be written: {other:?}"),
    }
    let frame = |space: &AddressSpace<X86_64, _>, at| space.query(at).map(|page| page.leaf.frame);
    assert_ne!(frame(&child, HEAP.start), frame(&init, HEAP.start));
    assert_eq!(frame(&child, TEXT.start), frame(&init, TEXT.start), "text stays shared");
    // ANCHOR_END: fault

    // ANCHOR: unmap
    // Frames go back to the machine behind the flush, when no CPU can reach them.
    child.unmap(HEAP)?.finish();
    assert!(frame(&child, HEAP.start).is_none() && frame(&init, HEAP.start).is_some());
    // ANCHOR_END: unmap
    Ok(())
}
