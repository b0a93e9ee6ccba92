//! Static keys: conditions that cost one instruction without effect while they are off.

// ANCHOR: keys
use palimpsest_text::key::{Keys, State};
use palimpsest_text::{branch, static_key};

static_key! {
    static NET_TRACE: "net.trace" = off;
    static CHECKS: "db.checks" = on;
}

fn send(packet: &[u8]) -> usize {
    if branch!(unlikely NET_TRACE) {
        return trace(packet); // out of line
    }
    packet.len()
}

fn trace(packet: &[u8]) -> usize {
    println!("{packet:?}");
    0
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    assert_eq!(send(b"one"), 3);
    NET_TRACE.enable()?; // all of its branches, everywhere, while they run
    assert_eq!(send(b"two"), 0);
    Keys::apply([(&NET_TRACE, State::Off), (&CHECKS, State::Off)])?; // one core synchronisation for all
    Keys::set("net.*", State::On)?; // by name
    assert!(NET_TRACE.is_on() && !CHECKS.is_on());
    Ok(())
}
// ANCHOR_END: keys
