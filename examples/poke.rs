//! Changing code that runs: one site, while a thread calls it.

use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest::Packs;
use palimpsest::text::poke::Batch;
use palimpsest_examples::{ONE_OR_TWO, TO_TWO};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let packs = Packs::new()?;
    let program = packs.load(ONE_OR_TWO, 16)?;
    // SAFETY: the bytes are a function of that type before and after, and `program` outlives the calls.
    let f = unsafe { program.function::<extern "C" fn() -> u32>() };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(matches!(f(), 1 | 2));
            }
        });
        // ANCHOR: batch
        let (old, new) = (&ONE_OR_TWO[..TO_TWO.len()], TO_TWO); // differ in one byte on x86-64, in one word on AArch64
        let mut batch = Batch::new();
        // SAFETY: whole instructions, no jumps between their bytes, and both versions are right.
        unsafe { batch.add(&program, 0, old, new)? };
        let applied = batch.apply()?; // returns when every core runs the new code
        assert_eq!(f(), 2);
        // ANCHOR_END: batch
        println!("{:?}, {} core synchronisations", applied.mode, applied.syncs);
        done.store(true, Ordering::Relaxed);
        caller.join().expect("it saw one or the other");
        Ok(())
    })
}
