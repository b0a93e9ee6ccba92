//! Asks what `palimpsest doctor` shows, from a program.

use palimpsest::sys::capabilities::{Capabilities, Verdict};

fn main() {
    // ANCHOR: features
    let capabilities = Capabilities::probe();
    for standing in capabilities.features() {
        match standing.verdict {
            Verdict::Works { how } => println!("{}: {how}", standing.feature),
            Verdict::Slower { why, fix } | Verdict::Fails { why, fix } => {
                println!("{}: {why}; {fix}", standing.feature);
            }
        }
    }
    // ANCHOR_END: features
}
