//! The settings of the preload object: no value panics, an invalid one is reported in one line with its variable, and a
//! valid one reads the same again.
#![no_main]

// The object itself must not be linked: it defines `fork` and `mmap`.
#[allow(dead_code, unreachable_pub, unsafe_code, reason = "as above, and it reads what the kernel hands a program")]
#[path = "../../crates/preload/src/names.rs"]
mod names;
#[allow(dead_code, unreachable_pub, unsafe_code, reason = "a module of another crate, which names sections of code")]
#[path = "../../crates/preload/src/settings/mod.rs"]
mod settings;

use libfuzzer_sys::fuzz_target;
use settings::Settings;

const VARIABLES: [&str; 13] = [
    "PALIMPSEST_FREEZE",
    "PALIMPSEST_EXTENT",
    "PALIMPSEST_HUGE",
    "PALIMPSEST_THREADS",
    "PALIMPSEST_PAYS_AFTER",
    "PALIMPSEST_TRUST",
    "PALIMPSEST_REPORT",
    "PALIMPSEST_QUIET",
    "PALIMPSEST_INHERIT",
    "PALIMPSEST_DRY_RUN",
    "PALIMPSEST_ONLY",
    "PALIMPSEST_PAUSE",
    "__AFL_SHM_ID",
];

fuzz_target!(|bytes: &[u8]| {
    // Lines are the values, in the order of the list.
    let values: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let look_up = |name: &str| {
        let place = VARIABLES.iter().position(|variable| *variable == name).expect("every variable is in the list");
        values.get(place).copied()
    };
    match Settings::read(&look_up) {
        Ok(settings) => assert_eq!(Settings::read(&look_up), Ok(settings)),
        Err(error) => {
            let text = error.to_string();
            assert!(VARIABLES.iter().any(|variable| text.starts_with(&format!("{variable}="))), "{text}");
            assert!(text.contains(": not understood; allowed: "), "{text}");
        }
    }
});
