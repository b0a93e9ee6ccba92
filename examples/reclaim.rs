//! Frees code safely: a thread calls what it finds in a table, while another one replaces it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use palimpsest::Packs;
use palimpsest_examples::ADD_ONE;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let packs = Packs::new()?;
    let mut program = packs.load(ADD_ONE, 16)?;
    let entry = AtomicUsize::new(program.address().get());
    let done = AtomicBool::new(false);
    let calls = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            // ANCHOR: pin
            let participant = packs.participant(); // once per thread
            while !done.load(Ordering::Relaxed) {
                let pinned = participant.pin(); // two loads, two stores
                let address = entry.load(Ordering::Acquire);
                // SAFETY: whoever replaces the entry drops the old program afterwards, and this thread is pinned.
                let f = unsafe { std::mem::transmute::<usize, extern "C" fn(u64) -> u64>(address) };
                calls.store(f(calls.load(Ordering::Relaxed)), Ordering::Relaxed);
                drop(pinned);
            }
            // ANCHOR_END: pin
        });
        // Replaces it once it is being called.
        while calls.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        for _ in 0..100 {
            let new = packs.load(ADD_ONE, 16)?;
            entry.store(new.address().get(), Ordering::Release);
            drop(std::mem::replace(&mut program, new)); // after the store that hides it
        }
        packs.reclaim_within(Duration::from_secs(60))?;
        done.store(true, Ordering::Relaxed);
        caller.join().expect("it ends");
        println!("{} calls", calls.load(Ordering::Relaxed));
        Ok(())
    })
}
