//! Where a rule does not hold, and why.

use super::Rule;

/// A file or folder that may break a rule.
pub(super) struct Exception {
    pub(super) rule: Rule,
    /// From the root; a folder ends with a slash.
    pub(super) path: &'static str,
    /// How many times.
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

/// Why lines are longer: breaking them would change what they are.
const UNBROKEN: &str = "messages, tables, diagrams and listings";

/// Every exception. The step says which has become too wide.
pub(super) const ALL: &[Exception] = &[
    except(
        Rule::RawCall,
        "crates/capi/src/guards.rs",
        2,
        "the C library's functions, which a preloaded object may serve",
    ),
    except(Rule::RawCall, "crates/fork/src/fork.rs", 1, "forks the process: what the crate is for"),
    except(Rule::RawCall, "crates/fork/src/guard/mirror.rs", 2, "plays against the kernel, for a fuzz target"),
    except(Rule::RawCall, "crates/forkserver/src/fuzzing.rs", 2, "a server and workers, for a fuzz target"),
    except(Rule::RawCall, "crates/forkserver/src/host.rs", 1, "forks the process: what the crate is for"),
    except(Rule::RawCall, "crates/forkserver/src/serve.rs", 1, "forks the process: what the crate is for"),
    except(Rule::RawCall, "crates/text/src/observe/", 1, "perf finds a jitdump by a mapping of its file"),
    except(Rule::RawCall, "crates/text/src/pack/", 1, "a test forks"),
    except(Rule::RawCall, "crates/text/src/poke/", 1, "a test forks"),
    except(
        Rule::Condition,
        "crates/fork/tests/snapshot/memory.rs",
        1,
        "red zone: the stack below the pointer that x86-64 leaves to functions",
    ),
    except(Rule::Condition, "crates/preload/tests/programs/main.rs", 1, "runs Linux programs"),
    except(Rule::Condition, "crates/text/tests/poke/basics.rs", 1, "tests of what only one architecture has"),
    except(Rule::Condition, "crates/text/tests/poke/main.rs", 2, "tests of what only one architecture has"),
    except(Rule::LongLine, "adapters/libafl/", 4, UNBROKEN),
    except(Rule::LongLine, "crates/bpf/", 5, UNBROKEN),
    except(Rule::LongLine, "crates/cli/", 12, UNBROKEN),
    except(Rule::LongLine, "crates/cranelift/", 2, UNBROKEN),
    except(Rule::LongLine, "crates/fork/", 6, UNBROKEN),
    except(Rule::LongLine, "crates/forkserver/", 4, UNBROKEN),
    except(Rule::LongLine, "crates/paging/", 9, UNBROKEN),
    except(Rule::LongLine, "crates/sys/", 7, UNBROKEN),
    except(Rule::LongLine, "crates/text/", 14, UNBROKEN),
    except(Rule::LongLine, "guests/paging/", 1, UNBROKEN),
    except(Rule::LongLine, "xtask/", 3, UNBROKEN),
];
