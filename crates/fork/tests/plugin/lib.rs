//! A library with a copy of Palimpsest of its own. `tests/hazards_threads` loads and closes it.

use palimpsest_fork::{Measure, Options, OtherThreads};

/// Freezes the process, and holds its other threads meanwhile. Returns zero if that worked.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_freeze() -> u32 {
    let options = Options::new().measure(Measure::Nothing).other_threads(OtherThreads::Stop);
    // SAFETY: 1. to 4. the process is a scenario's, which manages no memory afterwards and is alone in it.
    unsafe { palimpsest_fork::freeze(&options) }.is_err().into()
}
