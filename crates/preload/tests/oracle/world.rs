//! With which settings the object is preloaded, and what calls answer.

use std::env;

use crate::calls::THREADS;

/// How the program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum World {
    /// Without the object.
    Plain,
    /// With it; it freezes at the first fork.
    Frozen,
    /// In slices of so many microseconds, in waits and before forks.
    Sliced(u32),
    /// In slices, and by deputies, which put whole pieces into huge pages where they are.
    Deputed(u32),
    /// As frozen, with calls that go past the object, to show that the oracle notices.
    Mutant,
}

impl World {
    /// All of them, those in slices with this many microseconds.
    pub(crate) fn all(number: u32) -> impl IntoIterator<Item = Self> {
        [Self::Plain, Self::Frozen, Self::Sliced(number), Self::Deputed(number), Self::Mutant]
    }

    /// Returns the object, and its settings.
    pub(crate) fn environment(self) -> impl Iterator<Item = (&'static str, String)> {
        // So many that gathering a piece pays, and so few that freezing a huge page does not.
        let (pause, pays, huge) = match self {
            Self::Plain => return None.into_iter().flatten(),
            Self::Frozen | Self::Mutant => ("none".to_owned(), "any", "off"),
            Self::Sliced(microseconds) => (format!("{microseconds}us"), "any", "off"),
            Self::Deputed(microseconds) => (format!("{microseconds}us"), "1500", "gather"),
        };
        let settings = [
            (PRELOAD, object()),
            ("PALIMPSEST_PAUSE", pause),
            ("PALIMPSEST_PAYS_AFTER", pays.to_owned()),
            ("PALIMPSEST_HUGE", huge.to_owned()),
            ("PALIMPSEST_THREADS", THREADS.to_owned()),
            // Programs that map little are as good as others here.
            ("PALIMPSEST_FREEZE", "fork".to_owned()),
        ];
        Some(settings).into_iter().flatten()
    }

    /// Whether the object is there.
    pub(crate) fn is_served(self) -> bool {
        self != Self::Plain
    }
}

/// Returns the object, which Cargo has built beside this test: what a program was given, for what it executes, since it
/// may have left the folder.
fn object() -> String {
    if let Ok(given) = env::var(PRELOAD) {
        return given;
    }
    let own = env::current_exe().expect("a test has a path");
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join("libpalimpsest_preload.so"));
    let found = found.into_iter().find(|path| path.is_file()).expect("Cargo builds the cdylib for its tests");
    found.into_os_string().into_string().expect("a path in UTF-8")
}

const PRELOAD: &str = "LD_PRELOAD";

/// What a call returned: 0 or more, or the negative error number.
pub(crate) type Answer = isize;

/// The answer of a C function.
pub(crate) fn answer(returned: isize) -> Answer {
    match returned {
        -1 => -(std::io::Error::last_os_error().raw_os_error().unwrap_or(0) as Answer),
        _ => returned,
    }
}
