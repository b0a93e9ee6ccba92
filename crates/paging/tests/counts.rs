//! Counts what a fork costs: `-- --nocapture` prints it.

mod common;

use common::mutant::{Mistake, Mutant};
use common::scene::MapSimulated;
use palimpsest_paging::format::X86_64;
use palimpsest_paging::sim::{Computer, Config};
use palimpsest_paging::*;

const GIB: u64 = 1 << 30;
const START: u64 = 0x10_0000_0000;

#[derive(Clone, Copy, Debug)]
struct Cost {
    tables: u64,
    entries: usize,
    parent: i64,
    child: i64,
}

/// Forks `bytes` mapped by pages of 4 KiB. Returns the cost.
fn fork(bytes: u64, share: ShareTables) -> Cost {
    let computer = Computer::new::<X86_64>(Config::default().tables(1 << 15));
    // Uncounted memory, treated as exclusive: pages are no part of the cost.
    let machine = Mutant { computer: &computer, mistake: Some(Mistake::AlwaysExclusive), watch: None };
    let options = SpaceOptions::new().share(share);
    let parent = AddressSpace::<X86_64, _>::new(machine, SpaceId(1), &[Node(0)], options).unwrap();
    let range = VirtAddr(START)..VirtAddr(START + bytes);
    let attributes = Attributes::user(Rights::READ | Rights::WRITE);
    parent.map_simulated(range, Computer::device(0), attributes, PageSizes::Only(PageSize::Small)).unwrap();
    let (before, counts) = (computer.snapshot(), computer.counts());
    let parent_tables = computer.charged(SpaceId(1)).tables;
    let (child, flush) = parent.fork(SpaceId(2)).unwrap();
    flush.finish();
    let cost = Cost {
        tables: computer.counts().tables_allocated - counts.tables_allocated,
        entries: before.entries_written_until(&computer.snapshot()),
        parent: parent_tables * 4,
        child: computer.charged(SpaceId(2)).tables * 4,
    };
    assert_eq!(computer.counts().flushes - counts.flushes, 1);
    drop((child, parent));
    computer.expect_empty();
    assert_eq!(computer.take_failures(), []);
    cost
}

fn ways() -> [(&'static str, ShareTables); 4] {
    [
        ("none", ShareTables::None),
        ("last", ShareTables::Last),
        ("up to 2", ShareTables::UpTo(Level::new(2))),
        ("up to 3", ShareTables::UpTo(Level::new(3))),
    ]
}

#[test]
fn a_fork_of_1_gib_writes_a_hundredth_and_its_child_has_44_kib_of_tables_at_most() {
    let costs = ways().map(|(name, share)| {
        let cost = fork(GIB, share);
        println!("paging.fork.1g, sharing {name}: {cost:?} (KiB of tables)");
        cost
    });
    let [none, last, two, _] = costs;
    assert_eq!(none.child, none.parent);
    assert!(last.entries * 100 <= none.entries, "{last:?} {none:?}");
    assert!(last.child <= 44);
    // Root, level 3, level 2; with level 2 shared, root and level 3.
    assert_eq!((last.tables, two.tables), (3, 2));
    // For a shared table one entry each in parent and child, and the way down in the child.
    assert_eq!((last.entries, two.entries), (512 + 512 + 2, 1 + 1 + 1));
}

#[test]
fn a_fork_costs_what_the_tables_above_the_shared_ones_cost() {
    let costs = ways().map(|(name, share)| {
        let cost = fork(16 * GIB, share);
        println!("paging.fork.16g, sharing {name}: {cost:?} (KiB of tables)");
        cost
    });
    let [none, last, two, three] = costs;
    assert!(last.entries * 100 <= none.entries);
    assert!(two.entries * 100 <= last.entries);
    assert_eq!((last.tables, two.tables, three.tables), (16 + 2, 2, 1));
    assert!(two.child <= 44);
    // As for 1 GiB: one entry in parent and child.
    assert_eq!(three.entries, 2);
}
