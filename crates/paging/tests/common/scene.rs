//! Short names for tests of one thing each.

use std::ops::Range;

use palimpsest_paging::sim::trial::Host;
use palimpsest_paging::sim::{Computer, Hardware};
pub(crate) use palimpsest_paging::sim::{MapNextSimulated, MapSimulated};
use palimpsest_paging::*;

pub(crate) const RW: Rights = Rights::READ.union(Rights::WRITE);
/// The start of a table of pages, of one of level 2 and, except for Sv39, in the first of level 3.
pub(crate) const BASE: u64 = 1 << 30;
pub(crate) const LARGE: u64 = 2 << 20;

/// Returns the address of page `n` from `BASE` on.
pub(crate) fn page(n: u64) -> VirtAddr {
    VirtAddr(BASE + (n << 12))
}

pub(crate) fn pages(range: Range<u64>) -> Range<VirtAddr> {
    page(range.start)..page(range.end)
}

pub(crate) fn options(share: ShareTables) -> SpaceOptions {
    SpaceOptions::new().share(share).accounting(Accounting::Exact)
}

pub(crate) fn space<F: Hardware, M: Host>(machine: M, share: ShareTables, nodes: u8) -> AddressSpace<F, M> {
    let nodes: Vec<_> = (0..nodes).map(Node).collect();
    AddressSpace::new(machine, SpaceId(1), &nodes, options(share)).unwrap()
}

/// Maps private pages, small ones unless `align` is larger; page n holds 100 + n.
pub(crate) fn fill<F: Hardware, M: Host>(
    space: &AddressSpace<F, M>,
    range: Range<u64>,
    rights: Rights,
    align: PageSize,
) {
    let computer = space.machine().computer();
    let frame = computer.allocate(Node(0), (range.end - range.start) << 12, align).unwrap();
    for (index, n) in range.clone().enumerate() {
        computer.set_content(frame.offset((index as u64) << 12), 100 + n);
    }
    space.map_simulated(pages(range), frame, Attributes::user(rights), PageSizes::UpTo(align)).unwrap();
}

/// Forks a child. When this returns, no CPU can store past the fork any more.
#[track_caller]
pub(crate) fn fork<F: Hardware, M: Host>(space: &AddressSpace<F, M>, id: u64) -> AddressSpace<F, M> {
    let (child, flush) = space.fork(SpaceId(id)).unwrap();
    flush.finish();
    child
}

/// Lets a CPU run a space.
pub(crate) fn run_on<F: Hardware, M: Host>(space: &AddressSpace<F, M>, cpu: usize) {
    let computer = space.machine().computer();
    computer.switch(cpu, Some((space.id(), space.root(computer.node(cpu)))));
}

/// Stores, and resolves all faults. Returns how the last one was resolved.
#[track_caller]
pub(crate) fn store<F: Hardware, M: Host>(
    space: &AddressSpace<F, M>,
    cpu: usize,
    address: VirtAddr,
    value: u64,
) -> Resolution {
    let computer = space.machine().computer();
    let mut last = Resolution::default();
    for _ in 0..4 {
        let Err(trap) = computer.store(cpu, address, value) else { return last };
        match space.fault(trap.address, trap.access, computer.node(cpu)).unwrap() {
            Fault::Resolved(resolution) => last = resolution,
            other => panic!("store to {address}: {other:?}"),
        }
    }
    panic!("store to {address} faults for ever");
}

/// Loads, and resolves all faults.
#[track_caller]
pub(crate) fn load<F: Hardware, M: Host>(space: &AddressSpace<F, M>, cpu: usize, address: VirtAddr) -> u64 {
    let computer = space.machine().computer();
    for _ in 0..4 {
        let Err(trap) = computer.load(cpu, address, Access::USER_READ) else {
            return computer.load(cpu, address, Access::USER_READ).unwrap();
        };
        assert_eq!(
            space.fault(trap.address, trap.access, computer.node(cpu)),
            Ok(Fault::Resolved(Resolution::default()))
        );
    }
    panic!("load of {address} faults for ever");
}

/// Returns what a space translates, without what a fork may remove for a time.
pub(crate) fn view<F: Hardware, M: Host>(space: &AddressSpace<F, M>) -> Vec<(VirtAddr, PageSize, Frame, Rights)> {
    let mut seen = Vec::new();
    let visit = |mapping: Mapping| {
        seen.push((mapping.address, mapping.size, mapping.leaf.frame, mapping.leaf.attributes.rights));
        std::ops::ControlFlow::Continue(())
    };
    space.walk(VirtAddr(0)..VirtAddr(1 << 37), visit).unwrap();
    seen
}

/// Checks that nothing is wrong, while the spaces exist and after they are gone.
#[track_caller]
pub(crate) fn finish<F: Hardware, M: Host>(computer: &Computer, spaces: Vec<AddressSpace<F, M>>) {
    let roots: Vec<_> = spaces.iter().map(|space| space.root(space.home())).collect();
    computer.expect_counted(&roots);
    for space in &spaces {
        assert_eq!(space.verify(), Ok(()));
        computer.expect_coherent(space.id());
    }
    for cpu in 0..2 {
        computer.switch(cpu, None);
    }
    drop(spaces);
    computer.expect_empty();
    assert_eq!(computer.take_failures(), []);
}

/// Returns the number of the page, from `BASE` on, that contains `address`.
pub(crate) fn number(address: VirtAddr) -> u64 {
    (address.0 - BASE) >> 12
}

/// Returns how many pages of 4 KiB a page of this size contains.
pub(crate) fn count(size: PageSize) -> u64 {
    size.bytes() >> 12
}
