//! A key for each level.

use palimpsest_text::key::{Key, Keys, State, SwitchError, Switched};
use palimpsest_text::static_key;
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// The keys, for the macros.
#[doc(hidden)]
pub mod keys {
    use super::static_key;

    static_key! {
        pub static ERROR: "tracing.error" = on;
        pub static WARN: "tracing.warn" = on;
        pub static INFO: "tracing.info" = on;
        pub static DEBUG: "tracing.debug" = on;
        pub static TRACE: "tracing.trace" = on;
    }
}

/// Returns the key that guards events of `level`.
pub fn key_of(level: Level) -> &'static Key {
    match level {
        Level::ERROR => &keys::ERROR,
        Level::WARN => &keys::WARN,
        Level::INFO => &keys::INFO,
        Level::DEBUG => &keys::DEBUG,
        Level::TRACE => &keys::TRACE,
    }
}

/// Turns the levels' keys on or off, as the subscribers currently want ([`LevelFilter::current`]), in one batch.
///
/// Call it after a subscriber was installed, and after its filter was changed: `tracing` does not report changes of the
/// greatest level. Until the call, events of a level that has just become wanted are lost.
///
/// # Errors
///
/// See [`SwitchError`].
pub fn follow() -> Result<Switched, SwitchError> {
    let greatest = LevelFilter::current();
    let wanted = |level| if level <= greatest { State::On } else { State::Off };
    let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
    Keys::apply(levels.map(|level| (key_of(level), wanted(level))))
}
