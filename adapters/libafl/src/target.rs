//! What both executors have in common: a host, how long a run may take, and what counts as a crash.

use std::time::Duration;

use libafl::Error;
use libafl::executors::ExitKind;
use palimpsest_forkserver::host::{Host, Run};

/// A target and how to judge its runs.
#[derive(Debug)]
pub(crate) struct Target {
    host: Host,
    pub(crate) timeout: Duration,
    pub(crate) crash_exit_code: Option<i32>,
}

impl Target {
    pub(crate) fn new(host: Host, timeout: Duration) -> Self {
        Self { host, timeout, crash_exit_code: None }
    }

    /// Runs the target on `input`; of an input that is too long, on its beginning.
    pub(crate) fn run(&mut self, input: &[u8]) -> Result<ExitKind, Error> {
        let input = &input[..input.len().min(self.host.longest_input())];
        let run = self.host.run(input, self.timeout).map_err(|error| Error::illegal_state(error.to_string()))?;
        Ok(kind(run, self.crash_exit_code))
    }
}

fn kind(run: Run, crash_exit_code: Option<i32>) -> ExitKind {
    match run {
        Run::Exited { code } if Some(code) == crash_exit_code => ExitKind::Crash,
        Run::Returned | Run::Exited { .. } => ExitKind::Ok,
        Run::Signalled { .. } => ExitKind::Crash,
        Run::TimedOut => ExitKind::Timeout,
        Run::Killed => ExitKind::Oom,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ending_has_its_kind() {
        assert_eq!(kind(Run::Returned, None), ExitKind::Ok);
        assert_eq!(kind(Run::Exited { code: 77 }, None), ExitKind::Ok);
        assert_eq!(kind(Run::Exited { code: 77 }, Some(77)), ExitKind::Crash);
        assert_eq!(kind(Run::Signalled { signal: 11 }, None), ExitKind::Crash);
        assert_eq!(kind(Run::TimedOut, None), ExitKind::Timeout);
        assert_eq!(kind(Run::Killed, None), ExitKind::Oom);
    }
}
