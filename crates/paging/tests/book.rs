//! Compiles and runs the examples of the book's page `docs/src/paging.md`, and compares them with the page if it is
//! there (it is not in the published package).

#[test]
#[rustfmt::skip] // As in the book.
fn forks_share_tables() -> Result<(), Box<dyn std::error::Error>> {
    use palimpsest_paging::format::X86_64;
    use palimpsest_paging::sim::{Computer, Config, MapSimulated};
    use palimpsest_paging::*;

    let computer = Computer::new::<X86_64>(Config::default());
    let parent = AddressSpace::<X86_64, _>::new(&computer, SpaceId(1), &[Node(0)], SpaceOptions::default())?;
    let range = VirtAddr(0x4000_0000)..VirtAddr(0x8000_0000);
    let writable = Attributes::user(Rights::READ | Rights::WRITE);
    // 1 GiB that nobody counts, by pages of 4 KiB.
    parent.map_simulated(range.clone(), Computer::device(0), writable, PageSizes::Only(PageSize::Small))?;

    let before = computer.snapshot();
    let (child, flush) = parent.fork(SpaceId(2))?;
    flush.finish();
    let after = computer.snapshot();
    // The child's root, level 3 and level 2; an entry for each of the 512 shared tables in parent and child, and two on
    // the way.
    assert_eq!(after.tables() - before.tables(), 3);
    assert_eq!(before.entries_written_until(&after), 512 + 512 + 2);

    // A store faults, and copies one table and one page.
    let found = child.fault(range.start, Access::USER_WRITE, Node(0))?;
    assert!(matches!(found, Fault::Resolved(Resolution { unshared: 1, copied: true, .. })));
    let [childs, parents] = [&child, &parent].map(|space| space.query(range.start).map(|page| page.leaf.frame));
    assert_ne!(childs, parents);
    Ok(())
}

#[test]
#[rustfmt::skip] // As in the book.
fn replicas_come_by_faults() -> Result<(), Box<dyn std::error::Error>> {
    use palimpsest_paging::format::X86_64;
    use palimpsest_paging::sim::{Computer, Config, MapSimulated};
    use palimpsest_paging::*;

    let computer = Computer::new::<X86_64>(Config::default().nodes(2).cpus(2));
    let space = AddressSpace::<X86_64, _>::new(&computer, SpaceId(1), &[Node(0), Node(1)], SpaceOptions::default())?;
    let text = VirtAddr(0x40_0000)..VirtAddr(0x40_2000);
    let memory = computer.allocate(Node(0), 2 * PAGE, PageSize::Small).expect("memory is left");
    let code = Attributes::user(Rights::READ | Rights::EXECUTE);
    space.map_simulated(text.clone(), memory, code, PageSizes::UpTo(PageSize::Small))?;

    // Node 1 gets each page by the fault of its first use; `replicate` would copy all now.
    space.replicate_on_use(text.clone())?.1.finish();
    assert_eq!(space.query_on(text.start, Node(1)), None);
    space.fault(text.start, Access::USER_EXECUTE, Node(1))?;
    // To change code, write all that are there.
    let mut frames = Vec::new();
    space.query_copies(text.start, |node, page| frames.push((node, computer.node_of(page.leaf.frame))));
    assert_eq!(frames, [(Node(0), Node(0)), (Node(1), Node(1))]);
    // Under pressure: needs no memory.
    space.drop_replicas(text)?.finish();
    Ok(())
}

#[test]
fn the_book_has_these_examples() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/paging.md");
    let Ok(book) = std::fs::read_to_string(path) else {
        println!("skipped: {path} is not here");
        return;
    };
    let lines: Vec<&str> = include_str!("book.rs").lines().map(str::trim).collect();
    let mut is_code = false;
    for line in book.lines() {
        if line.starts_with("```") {
            is_code = line == "```rust";
        } else if is_code && !line.starts_with("# ") {
            assert!(lines.contains(&line.trim()), "an example has a line that is not tested here: {line}");
        }
    }
}
