//! `/proc/self/maps`: no input panics, and what was understood is the same after printing and reading it again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_sys::pages::maps;

fuzz_target!(|text: &[u8]| {
    let Ok(entries) = maps::parse(text) else { return };
    // Names that are not UTF-8 are printed with replacement characters.
    if text.is_ascii() {
        let printed: String = entries.iter().map(|entry| format!("{entry}\n")).collect();
        assert_eq!(maps::parse(printed), Ok(entries));
    }
});
