//! A process freezes itself, and forks in constant time.

use palimpsest::fork::{Forked, Options, fork, freeze};
use rustix::process::{WaitOptions, waitpid};

fn load_everything() -> Vec<u64> {
    (0..4 << 20).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // ANCHOR: freeze
    let table = load_everything();
    // SAFETY: one thread; nothing but the C library manages memory; no device writes to it.
    let report = unsafe { freeze(&Options::new()) }?;
    println!("{report}");
    for request in 0..8_u64 {
        // SAFETY: as above.
        match unsafe { fork() }? {
            // Serves its request from the table, which neither side has copied.
            Forked::Child => std::process::exit(if table.get(request as usize) == Some(&request) { 0 } else { 1 }),
            Forked::Parent(child) => {
                let (_, status) = waitpid(Some(child), WaitOptions::empty())?.expect("it has ended");
                assert_eq!(status.exit_status(), Some(0));
            }
        }
    }
    // ANCHOR_END: freeze
    Ok(())
}
