//! `PALIMPSEST_KEYS`: switches keys when the program starts, or when a library with keys of its own is loaded.

use std::io::Write as _;
use std::sync::OnceLock;
use std::{env, io};

use palimpsest_sys::{Causes, in_program, in_secure_execution};

use super::change::{self, Request, Switched};
use super::directive::{self, Directive};
use super::error::EnvironmentError;
use super::keys::{KeyRef, Keys};
use super::note::OWN_NOTE;

/// The variable's name.
const VARIABLE: &str = "PALIMPSEST_KEYS";

/// What the environment variable has done.
#[derive(Debug, Default)]
pub struct EnvironmentReport {
    /// What was switched.
    pub switched: Switched,
    /// What failed. Each error was written to standard error too.
    pub errors: Vec<EnvironmentError>,
}

static REPORT: OnceLock<EnvironmentReport> = OnceLock::new();

impl Keys {
    /// Returns what the environment variable `PALIMPSEST_KEYS` has done when this copy of Palimpsest was loaded; `None`
    /// if it was not set.
    pub fn environment() -> Option<&'static EnvironmentReport> {
        REPORT.get()
    }
}

#[cfg(not(miri))]
#[used]
// SAFETY: the section holds functions of this type, which the C library calls when the object is loaded.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// Runs before `main`, or in `dlopen` with the loader's lock held: switches only keys of this copy's own object, which
/// needs no list of objects.
#[cfg_attr(miri, expect(dead_code, reason = "there are no sections"))]
extern "C" fn at_load() {
    // Callers must not steer a program that has more rights than they.
    let Some(text) = env::var_os(VARIABLE).filter(|_| !in_secure_execution()) else { return };
    let report = match text.to_str() {
        Some(text) => follow(text, &Keys::own()),
        None => {
            let text = text.to_string_lossy().into_owned();
            EnvironmentReport { errors: vec![EnvironmentError::NotText { text }], ..EnvironmentReport::default() }
        }
    };
    for error in &report.errors {
        let line = format!("palimpsest: {VARIABLE}: {}", Causes(error));
        // Without a standard error there is no reader either.
        let _ = writeln!(io::stderr(), "{line}");
    }
    let _ = REPORT.set(report);
}

fn follow(text: &str, keys: &[KeyRef]) -> EnvironmentReport {
    let mut report = EnvironmentReport::default();
    let mut requests = Vec::new();
    for directive in directive::parse(text) {
        let Directive { pattern, state } = match directive {
            Ok(directive) => directive,
            Err(error) => {
                report.errors.push(error.into());
                continue;
            }
        };
        let before = requests.len();
        let matching = keys.iter().filter(|key| pattern.matches(key.name()));
        requests.extend(matching.map(|key| (&**key, Request::Switch(state))));
        // A name meant for the program may be missing in a library.
        if requests.len() == before && in_program(OWN_NOTE.addr()) {
            report.errors.push(EnvironmentError::NoKey { pattern: pattern.to_string() });
        }
    }
    if !requests.is_empty() {
        match change::apply(&requests) {
            Ok(switched) => report.switched = switched,
            Err(error) => report.errors.push(error.into()),
        }
    }
    report
}
