//! The arena as the global allocator: this whole test binary, its harness and its threads run on it.

use std::collections::BTreeMap;
use std::process::Command;

use palimpsest_fork::arena::Arena;

#[global_allocator]
static HEAP: Arena = Arena::new();

#[test]
fn the_standard_library_runs_on_it() {
    let map: BTreeMap<u32, String> = (0..10_000).map(|key| (key, format!("value {key}"))).collect();
    assert!(HEAP.stats().in_use.blocks > 10_000);
    HEAP.freeze().expect("nobody closed the files");
    assert_eq!(map[&777], "value 777");
    let mut long = vec![0_u8; 1 << 20];
    for _ in 0..6 {
        long.extend_from_within(..);
    }
    assert_eq!(long.len(), 64 << 20);
    let sorted = std::thread::spawn(move || {
        let mut values: Vec<_> = map.into_values().collect();
        values.sort();
        values
    });
    assert_eq!(sorted.join().expect("the thread is fine").len(), 10_000);
}

#[test]
fn children_of_a_program_that_runs_on_it_work() {
    // Through `posix_spawn`, and, because of the closure, through `fork`.
    let sleep = || {
        let mut command = Command::new("sleep");
        command.arg("0");
        command
    };
    assert!(sleep().status().expect("spawned").success());
    let mut command = sleep();
    // SAFETY: the closure only allocates, which is allowed in this child: the arena's locks are free there.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, || {
            let allocated = vec![1_u8; 100_000];
            if allocated.iter().all(|byte| *byte == 1) { Ok(()) } else { Err(std::io::ErrorKind::Other.into()) }
        })
    };
    assert!(command.status().expect("forked").success());
    assert!(HEAP.stats().freezes > 0);
}
