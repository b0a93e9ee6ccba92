//! The exceptions to the rules, and their reasons.

use super::Rule;

/// A file or folder that may break a rule.
pub(super) struct Exception {
    pub(super) rule: Rule,
    /// Path from the root; a folder's ends with a slash.
    pub(super) path: &'static str,
    /// How many breaches it may have.
    pub(super) most: usize,
    #[expect(dead_code, reason = "for readers")]
    pub(super) reason: &'static str,
}

impl Exception {
    pub(super) fn covers(&self, rule: Rule, file: &str) -> bool {
        let place = if self.path.ends_with('/') { file.starts_with(self.path) } else { file == self.path };
        self.rule == rule && place
    }
}

const fn except(rule: Rule, path: &'static str, most: usize, reason: &'static str) -> Exception {
    Exception { rule, path, most, reason }
}

/// Every exception. The step reports those that have become too wide.
pub(super) const ALL: &[Exception] = &[
    except(
        Rule::RawCall,
        "crates/capi/src/fuzzing/memory.rs",
        4,
        "maps memory as the program does that calls us, for a fuzz target",
    ),
    except(
        Rule::RawCall,
        "crates/capi/src/guards.rs",
        6,
        "the C library's functions, which a preloaded object may serve",
    ),
    except(Rule::RawCall, "crates/fork/src/fork.rs", 1, "forks the process: what the crate is for"),
    except(Rule::RawCall, "crates/fork/src/guard/mirror.rs", 1, "plays against the kernel, for a fuzz target"),
    except(Rule::RawCall, "crates/forkserver/src/fuzzing.rs", 2, "a server and workers, for a fuzz target"),
    except(Rule::RawCall, "crates/forkserver/src/host.rs", 1, "forks the process: what the crate is for"),
    except(Rule::RawCall, "crates/forkserver/src/serve.rs", 1, "forks the process: what the crate is for"),
];
