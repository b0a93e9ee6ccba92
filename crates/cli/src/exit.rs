//! Exit codes, the same meaning for every command.

/// Shown below `--help`.
pub(crate) const HELP: &str = "\
Exit codes of doctor:
  0  everything works at its best
  1  everything works, some of it by a fallback
  2  something that is needed is missing
Exit codes of bench:
  0  everything was measured, or skipped with a reason given
  1  a measurement failed, or a result could not be written
  2  the command line is not understood, or selects nothing";

/// A measurement failed, or a result could not be written.
pub(crate) const FAILED: u8 = 1;

/// The command line is not understood, or selects nothing. Also what clap exits with.
pub(crate) const USAGE: u8 = 2;
