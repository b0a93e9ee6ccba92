//! Programs with names in profilers, debuggers and backtraces.

use palimpsest::Packs;
use palimpsest_examples::ADD_ONE;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // ANCHOR: observers
    use palimpsest::text::observe::{GdbJit, PerfMap, UnwindRegistry};

    let packs = Packs::builder()
        .observer(PerfMap::new()) // perf report, perf script, and whoever else reads /tmp/perf-PID.map
        .observer(GdbJit::new()) // gdb, lldb
        // SAFETY: the unwind tables that are staged are true: none are.
        .observer(unsafe { UnwindRegistry::new() }) // backtraces and panics through programs
        .open()?;
    // `JitDump::new()` is for `perf record -k mono …; perf inject --jit`.
    // ANCHOR_END: observers
    let program = packs.load_named("add_one", ADD_ONE, 16)?;
    assert_eq!(packs.stats().observer_errors, 0);
    drop(program);
    let map = std::env::temp_dir().join(format!("perf-{}.map", std::process::id()));
    let _none = std::fs::remove_file(map);
    Ok(())
}
