//! A program whose memory comes from an arena.

// ANCHOR: arena
use palimpsest_fork::arena::Arena;

#[global_allocator]
static HEAP: Arena = Arena::new();

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let database: Vec<String> = (0..100_000).map(|number| format!("line {number}")).collect();
    HEAP.freeze()?; // optional: the first fork does it, and nothing is copied
    // From here on the child of a fork is ready as fast as that of an empty process.
    assert_eq!(database[7], "line 7");
    println!("{} freezes", HEAP.stats().freezes);
    Ok(())
}
// ANCHOR_END: arena
