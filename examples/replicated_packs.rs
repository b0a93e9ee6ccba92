//! A program with a copy on every node, changed everywhere at once.

use palimpsest::numa::{NodeId, Topology};
use palimpsest::text::poke::Batch;
use palimpsest::{Packs, ReplicatedPacks};
use palimpsest_examples::{ONE_OR_TWO, TO_TWO};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // ANCHOR: load
    let topology = Topology::read();
    let packs = ReplicatedPacks::open(topology.homes(), |node| topology.home(node), |_| Packs::builder())?;
    let program = packs.load_named("one or two", ONE_OR_TWO, 16)?;
    // The copy of the node that this thread runs on, or that of another one.
    let (near, first) = (program.entry(), program.entry_on(NodeId(0)));
    // ANCHOR_END: load
    println!("{near:?}, {first:?}");
    // ANCHOR: poke
    let (old, new) = (&ONE_OR_TWO[..TO_TWO.len()], TO_TWO);
    let mut batch = Batch::new();
    // SAFETY: whole instructions, no jumps between their bytes, and both versions are right.
    unsafe { batch.add_to_all(program.replicas(), 0, |_address| (old, new))? };
    let applied = batch.apply()?; // as many core synchronisations as for one copy
    // ANCHOR_END: poke
    assert_eq!((applied.sites, applied.syncs), (topology.homes().len(), 1));
    for &node in topology.homes() {
        // SAFETY: the bytes are a function of that type, and `program` outlives the call.
        let f = unsafe { program.on(node).function::<extern "C" fn() -> u32>() };
        assert_eq!(f(), 2);
    }
    for node in packs.status() {
        println!("{node}"); // node 0: 1 programs in 64 bytes of 2097152; 2048 KiB here
    }
    Ok(())
}
