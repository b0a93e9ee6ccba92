//! A table that all threads read and one thread replaces now and then.

use palimpsest_numa::{Folder, ReplicateOptions, Replicated, Sharing, When};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Every node has a copy from the start, and all processes of this user with the same table share them.
    let options = ReplicateOptions::new().when(When::Eager).sharing(Sharing::User(Folder::usual()));
    let squares: Vec<u64> = (0..1 << 18).map(|number| number * number).collect();
    let table = Replicated::<[u64]>::new(&squares, options)?;

    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for number in 0..1000 {
                    let found = table.get()[number];
                    assert!(found == (number * number) as u64 || found == (number * number * number) as u64);
                }
            });
        }
        // Readers continue meanwhile; each `get` returns either the old table or the new one.
        let cubes: Vec<u64> = (0..1 << 18).map(|number| number * number * number).collect();
        table.update(&cubes)
    })?;

    for node in table.status() {
        println!("{node}");
    }
    Ok(())
}
