//! Exit codes, the same meaning for every command.

/// Shown below `--help`.
pub(crate) const HELP: &str = "\
Exit codes of doctor:
  0  every feature works at its best
  1  every feature works, some slower
  2  the command line is not understood
  3  some feature does not work
  4  the report could not be written
Exit codes of tour and bench:
  0  everything was measured, or left out with a reason given
  1  a measurement failed, or a result could not be written
  2  the command line is not understood, or selects nothing
Exit codes of run:
  the program's own; or, if it was not started:
  2    the command line is not understood
  125  the program cannot be frozen, would not load the object, or --node is not there
  126  the program cannot be executed
  127  the program was not found
Exit codes of top:
  0  figures were shown
  1  with --once, a process could not be shown; without, none of the named processes existed
  2  the command line is not understood
Exit codes of bpf:
  0  done
  1  the program is wrong, was refused or ended, or a file could not be read
  2  the command line is not understood
Exit codes of numa:
  0  shown
  1  there is no such process, or its memory may not be looked at
  2  the command line is not understood";

/// Every feature works, some slower.
pub(crate) const SLOWER: u8 = 1;

/// Some feature does not work.
pub(crate) const FAILS: u8 = 3;

/// The report could not be written.
pub(crate) const UNWRITTEN: u8 = 4;

/// A measurement failed, a result could not be written, or an eBPF program is refused.
pub(crate) const FAILED: u8 = 1;

/// The command line is not understood, or selects nothing. Also what clap exits with.
pub(crate) const USAGE: u8 = 2;

/// A program was not started because it could not be served. With the next two, the numbers of `env(1)`: programs
/// rarely end with them.
pub(crate) const REFUSED: u8 = 125;

/// A program exists but cannot be executed.
pub(crate) const NOT_STARTED: u8 = 126;

/// The program does not exist.
pub(crate) const NOT_FOUND: u8 = 127;
