//! The command line of `palimpsest run`.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use palimpsest_sys::signals::{UnfitSignal, noticeable};

/// What to run, and how.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Arguments {
    /// Leave its memory as it is; only with `--local-text`. Otherwise it is gathered into huge pages while the program
    /// waits, or frozen if it forks without waiting.
    #[arg(long, requires = "local_text")]
    pub(crate) no_freeze: bool,
    /// Freeze only programs with this file name, among all that are executed. May be repeated.
    #[arg(long, value_name = "NAME", conflicts_with = "no_freeze",
          value_parser = OsStringValueParser::new().try_map(file_name))]
    pub(crate) only: Vec<OsString>,
    /// Run its text, and that of its libraries, from huge pages on one NUMA node. With `huge` only whole huge pages of
    /// it, as on machines with one node; with `all` also heads, tails and parts below 2 MiB, as on those with several.
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    pub(crate) local_text: Option<LocalText>,
    /// The node, if not that of the main thread. It must be there and have memory.
    #[arg(long, value_name = "N", requires = "local_text")]
    pub(crate) node: Option<u16>,
    /// Do the same with the text of the programs that it executes.
    #[arg(long, requires = "local_text")]
    pub(crate) heirs: bool,
    /// Make copies even if the kernel has huge pages of the file itself, on a machine with one node.
    #[arg(long, requires = "local_text")]
    pub(crate) copies: bool,
    /// Have the kernel read files again that it has cached in small pages, into huge pages, on a machine with one node.
    #[arg(long, requires = "local_text", conflicts_with = "copies")]
    pub(crate) reread: bool,
    /// Use copies that all processes of the user share. Each keeps a descriptor of them, which forked children inherit.
    #[arg(long, requires = "local_text")]
    pub(crate) shared: bool,
    /// When to begin, if not at the first fork that is worth it, or the wait after it: `fork` (the first), `fork:N`,
    /// `signal:NAME` (at the fork after it) or `size:BYTES` (the first fork with that much memory; suffixes K, M, G).
    #[arg(long, value_name = "WHEN", conflicts_with = "no_freeze")]
    pub(crate) at: Option<At>,
    /// Report what was gathered or frozen and what that gains, and how much text is local: on standard error, or to
    /// `fd:N`, or appended to a file, which is named behind a `=`.
    #[arg(long, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "stderr")]
    pub(crate) report: Option<OsString>,
    /// Which memory to put into huge pages: with `auto`, the default, all that can be, where it is, if the program
    /// waits between its forks, and from the first touch what a program maps that uses what it maps; with `gather`,
    /// every large mapping from the first touch; with `off`, only what is written to again and again, while the rest is
    /// frozen; with `collapse`, what is frozen. With `--pause none` or `--pays-after any`, `auto` is `off`. The value
    /// is behind a `=`; without one, `--huge` is `--huge=collapse`, and the next word is the program.
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "collapse",
          conflicts_with = "no_freeze")]
    pub(crate) huge: Option<Huge>,
    /// What to do if the program has other threads when it is time: with `refuse`, the default, memory is gathered, for
    /// which nobody is held, and nothing frozen; with `stop`, they are held still while memory is frozen.
    #[arg(long, value_name = "WHAT", conflicts_with = "no_freeze")]
    pub(crate) threads: Option<Threads>,
    /// Within how many forks freezing part of the memory is expected to pay, or it stays unfrozen; `any` freezes all of
    /// it. Default: 100.
    #[arg(long, value_name = "FORKS", conflicts_with = "no_freeze")]
    pub(crate) pays_after: Option<PaysAfter>,
    /// How long the program is held up at a time while its memory is gathered or frozen, such as `500us`; `none`
    /// freezes in one go. Default: 2ms.
    #[arg(long, value_name = "TIME", conflicts_with = "no_freeze")]
    pub(crate) pause: Option<Pause>,
    /// Hazards that you answer for.
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "no_freeze")]
    pub(crate) trust: Vec<Trusted>,
    /// Change nothing, neither memory nor text; only report what a freeze would do.
    #[arg(long, conflicts_with = "no_freeze")]
    pub(crate) dry_run: bool,
    /// Do not say why a program was not frozen.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// The program, searched for in PATH.
    #[arg(value_name = "CMD")]
    pub(crate) program: OsString,
    /// Its arguments.
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

/// A file name has no slash, which is why [`separated`](super::NAMES_APART) names are.
fn file_name(name: OsString) -> Result<OsString, NoFileName> {
    let is_one = !name.is_empty() && !name.as_bytes().contains(&b'/');
    if is_one { Ok(name) } else { Err(NoFileName) }
}

/// Something other than a file name.
#[derive(Debug, thiserror::Error)]
#[error("allowed: the name of a program's file without its folder, such as redis-server")]
struct NoFileName;

/// How much of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum LocalText {
    /// By the number of nodes.
    Auto,
    /// Whole huge pages.
    Huge,
    /// Also what is smaller.
    All,
}

/// Which memory to put into huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Huge {
    /// All memory that can be, where it is, while the program waits; what a program maps that uses what it maps, from
    /// the first touch; the rest is frozen.
    Auto,
    /// Memory that is frozen.
    Collapse,
    /// As `auto`, and every large mapping from the first touch.
    Gather,
    /// Only what is written to again and again.
    Off,
}

/// What to do about other threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Threads {
    /// Leave the program unfrozen.
    Refuse,
    /// Hold them still for that time.
    Stop,
}

/// A hazard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Trusted {
    /// A runtime manages memory by system calls of its own, but never discards any.
    Go,
    /// No request of Linux AIO is under way in private memory.
    Aio,
    /// io_uring holds on to nothing in private memory.
    #[value(name = "io_uring")]
    IoUring,
    /// All memory is locked, and may be held twice.
    Locked,
    /// The program's seccomp filters allow what a freeze needs.
    Seccomp,
}

impl Trusted {
    /// Returns its name, on the command line as in the variable.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Go => "go",
            Self::Aio => "aio",
            Self::IoUring => "io_uring",
            Self::Locked => "locked",
            Self::Seccomp => "seccomp",
        }
    }
}

/// A number of forks, or `any`, in the words of the preload object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PaysAfter(pub(crate) String);

/// Not a number of forks.
#[derive(Debug, thiserror::Error)]
#[error("allowed: a number of forks from 1 to {}, or any", u32::MAX)]
pub(crate) struct NoForks;

impl FromStr for PaysAfter {
    type Err = NoForks;

    fn from_str(text: &str) -> Result<Self, NoForks> {
        let is_known = text == "any" || text.parse::<NonZeroU32>().is_ok();
        if is_known { Ok(Self(text.to_owned())) } else { Err(NoForks) }
    }
}

/// A time, or `none`, in the words of the preload object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pause(pub(crate) String);

/// Not a time.
#[derive(Debug, thiserror::Error)]
#[error("allowed: none, or a time of up to 1s with a suffix ns, us, ms or s")]
pub(crate) struct NoPause;

impl FromStr for Pause {
    type Err = NoPause;

    fn from_str(text: &str) -> Result<Self, NoPause> {
        let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
        let most: u64 = match &text[digits.len()..] {
            "ns" => 1_000_000_000,
            "us" => 1_000_000,
            "ms" => 1000,
            "s" => 1,
            _ => 0,
        };
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let is_time = is_number && digits.parse::<u64>().is_ok_and(|number| number <= most);
        if is_time && most > 0 || text == "none" { Ok(Self(text.to_owned())) } else { Err(NoPause) }
    }
}

/// A moment, in the words of the preload object, which reads it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct At(pub(crate) String);

/// A moment that the preload object would not understand.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoMoment {
    #[error("allowed: fork, fork:N with N from 1, signal:NAME, size:BYTES with an optional suffix K, M or G")]
    Form,
    #[error(transparent)]
    Signal(#[from] UnfitSignal),
}

impl FromStr for At {
    type Err = NoMoment;

    fn from_str(text: &str) -> Result<Self, NoMoment> {
        let is_known = match text.split_once(':') {
            None => text == "fork",
            Some(("fork", count)) => number(count).is_some_and(|count| count > 0),
            Some(("signal", name)) => noticeable(name).map(|_| true)?,
            Some(("size", bytes)) => is_size(bytes),
            Some(_) => false,
        };
        if is_known { Ok(Self(text.to_owned())) } else { Err(NoMoment::Form) }
    }
}

/// Reads a number without a sign, which `parse` would allow.
fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// Whether this is a number of bytes below 2⁶⁴, with an optional suffix.
fn is_size(text: &str) -> bool {
    let (digits, unit) = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)]
        .into_iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))
        .unwrap_or((text, 1));
    number(digits).is_some_and(|number: u64| number.checked_mul(unit).is_some())
}
