//! Tutorial: a fuzzing campaign without a fuzzer, to see each part. Every input starts from the same state of 64 MiB,
//! and costs microseconds.

use std::panic::{self, AssertUnwindSafe};

use palimpsest_fork::snapshot::{Ended, Scope, SignalMask, Snapshot, SnapshotOptions};

// ANCHOR: target
/// The program under test: a table that takes long to fill, and a bug.
struct Target {
    table: Vec<u64>,
    lines: Vec<Vec<u8>>,
}

impl Target {
    fn fill() -> Self {
        Self { table: (0..8 << 20).collect(), lines: Vec::new() }
    }

    /// Keeps the line, which a later input would find if nobody put it back.
    fn run(&mut self, input: &[u8]) -> usize {
        assert!(self.lines.is_empty(), "an input before this one is still here");
        self.lines.push(input.to_vec());
        let place = input.iter().fold(0, |sum: usize, &byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
        assert!(!input.starts_with(b"bug"), "the planted bug");
        self.table[place % self.table.len()] as usize
    }
}
// ANCHOR_END: target

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // ANCHOR: campaign
    // What changes from input to input is made before, or is on the stack, which goes on.
    let inputs: Vec<Vec<u8>> = (0..1000_u32).map(|number| number.to_le_bytes().to_vec()).collect();
    let bug = b"bugs".to_vec();
    let mut crashes = 0;
    panic::set_hook(Box::new(|_| {}));

    // In the heap, which is put back; a target on the stack would keep what an input did to it.
    let mut target = Box::new(Target::fill());
    // SAFETY: one thread, no asynchronous I/O into memory, glibc's allocator.
    let mut snapshot = unsafe { Snapshot::take(&SnapshotOptions::new(Scope::Whole)) }?;
    for input in inputs.iter().chain([&bug]) {
        let mut crashed = false;
        let run = || crashed = panic::catch_unwind(AssertUnwindSafe(|| target.run(input))).is_err();
        // SAFETY: as above; nothing that the target allocates is used afterwards.
        let (ended, _) = unsafe { snapshot.run(SignalMask::Restore, run) }?;
        assert!(matches!(ended, Ended::Returned(())));
        crashes += u32::from(crashed);
    }
    // ANCHOR_END: campaign
    let _default = panic::take_hook();
    assert_eq!(crashes, 1);
    println!("{} inputs, {crashes} crash", inputs.len() + 1);
    Ok(())
}
