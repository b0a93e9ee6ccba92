//! What the user asks for, in environment variables that start with `PALIMPSEST_`.

mod size;
mod time;

use std::ffi::{OsStr, OsString, c_int};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use palimpsest_fork::{Answer, ExtentLen, Options, OtherThreads, Pages, Pause, Pays};
use palimpsest_sys::signals::noticeable;

use crate::names;

/// Everything that can be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) moment: Moment,
    pub(crate) action: Action,
    /// How the engine freezes.
    pub(crate) options: Options,
    pub(crate) mapped: Mapped,
    pub(crate) begins: Begins,
    /// How long a slice may take; zero without slices.
    pub(crate) slice: Duration,
    pub(crate) threads: OtherThreads,
    pub(crate) sandbox: Sandbox,
    pub(crate) report: ReportTo,
    pub(crate) refusals: Refusals,
    pub(crate) heirs: Heirs,
    /// The programs to freeze, by name; all if empty.
    pub(crate) only: Vec<OsString>,
}

/// When to freeze.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    Never,
    /// At the first fork of a process with enough memory that freezing can gain anything.
    Worthwhile,
    /// At the n-th fork of this process and its ancestors since the program was started; from 1.
    Fork(u64),
    /// At the first fork after this signal.
    Signal(c_int),
    /// At the first fork with this many bytes of populated private anonymous memory.
    Size(u64),
}

/// What to do then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Freeze,
    /// Only report what a freeze would do.
    Survey,
}

/// Hazards that the user answers for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Trusted {
    answers: Vec<Answer>,
    /// [`Sandbox::Trusted`] if named.
    sandbox: Sandbox,
}

/// What to think of a seccomp filter that the program has installed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Sandbox {
    /// It could end the program for a system call of ours.
    #[default]
    Feared,
    /// The user knows that it does not.
    Trusted,
}

/// What large memory that the program maps is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mapped {
    /// As the program maps it.
    AsItIs,
    /// In huge pages from the first touch.
    Huge,
    /// The same, if the program uses what it maps.
    HugeIfDense,
}

/// What the fork is for which it is time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begins {
    /// The first of frozen memory, or with a slice before it.
    BeforeFork,
    /// The last plain one: the next wait plans, or the next fork.
    AfterFork,
}

/// Where the report goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReportTo {
    Nowhere,
    StandardError,
    File(PathBuf),
    Descriptor(Descriptor),
}

/// A descriptor for the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    pub(crate) number: RawFd,
    /// The device and the inode for which it stood when `palimpsest run` began; [`CLOSED`] if for none, `None` if
    /// nobody has said so.
    pub(crate) file: Option<(u64, u64)>,
}

/// What no descriptor stands for.
pub(crate) const CLOSED: (u64, u64) = (0, 0);

/// Whether to print refusals on standard error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusals {
    Told,
    Silent,
}

/// Whether to serve programs that this one executes, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heirs {
    Served,
    Left,
}

/// A variable has a meaningless value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{variable}={value}: not understood; allowed: {allowed}")]
pub(crate) struct InvalidSetting {
    variable: &'static str,
    value: String,
    allowed: &'static str,
}

impl Settings {
    /// Reads all variables through `look_up`. An empty one counts as unset. Where none is set, uses no heap.
    ///
    /// # Errors
    ///
    /// The first value that is not understood.
    #[unsafe(link_section = "palimpsest_start")]
    pub(crate) fn read<'a>(look_up: &impl Fn(&str) -> Option<&'a [u8]>) -> Result<Self, InvalidSetting> {
        let variables = Variables { look_up };
        let is_fuzzed = variables.is_set(AFL);
        let extent = variables.read(
            "PALIMPSEST_EXTENT",
            "auto, or a power of two of bytes from 2M, with an optional suffix K, M or G",
            if is_fuzzed { FUZZED } else { ExtentLen::Auto },
            extent,
        )?;
        let huge = variables.read("PALIMPSEST_HUGE", "auto, off, gather, collapse", Huge::Auto, |text| match text {
            "auto" => Some(Huge::Auto),
            "off" => Some(Huge::Off),
            "collapse" => Some(Huge::Collapse),
            "gather" => Some(Huge::Gather),
            _ => None,
        })?;
        let threads =
            variables.read("PALIMPSEST_THREADS", "refuse, stop", OtherThreads::Refuse, |text| match text {
                "refuse" => Some(OtherThreads::Refuse),
                "stop" => Some(OtherThreads::Stop),
                _ => None,
            })?;
        let pays = variables.read(
            "PALIMPSEST_PAYS_AFTER",
            "any, or a number of forks from 1 to 4294967295",
            Pays::Within(FORKS),
            |text| match text {
                "any" => Some(Pays::Anyway),
                number => number.parse().ok().filter(|&forks| forks > 0).map(Pays::Within),
            },
        )?;
        // A fork server waits for nobody, and slices would leave it with many mappings, each of which every run copies.
        let pause = variables.read(
            "PALIMPSEST_PAUSE",
            "none, or a time of up to 1s with a suffix ns, us, ms or s",
            if is_fuzzed { Pause::AtOnce } else { Pause::Within(PAUSE) },
            |text| match text {
                "none" => Some(Pause::AtOnce),
                time => time::duration(time).filter(|&time| time <= LONGEST_PAUSE).map(Pause::Within),
            },
        )?;
        let Trusted { answers, sandbox } = variables.read(
            "PALIMPSEST_TRUST",
            "a list, with commas, of go, aio, io_uring, locked, seccomp",
            Trusted::default(),
            trusted,
        )?;
        let action = variables.read("PALIMPSEST_DRY_RUN", "0, 1", Action::Freeze, |text| match text {
            "0" => Some(Action::Freeze),
            "1" => Some(Action::Survey),
            _ => None,
        })?;
        let (pages, mapped) = huge.of(pays, pause);
        let at = variables.read(
            "PALIMPSEST_FREEZE",
            "off, fork, fork:N with N from 1, signal:NAME or signal:NUMBER of a signal that a program can catch \
             and is not caused by a fault, size:BYTES with an optional suffix K, M or G",
            Moment::Worthwhile,
            moment,
        )?;
        let options = Options::new().extent(extent).pages(pages).other_threads(threads).pays(pays).pause(pause);
        Ok(Self {
            slice: if let Pause::Within(slice) = pause { slice } else { Duration::ZERO },
            threads,
            moment: at,
            action,
            mapped: if action == Action::Freeze { mapped } else { Mapped::AsItIs },
            // Who names the fork means that fork.
            begins: match (action, pages, at) {
                (Action::Freeze, Pages::Gather, Moment::Worthwhile) => Begins::AfterFork,
                _ => Begins::BeforeFork,
            },
            options: answers.into_iter().fold(options, Options::answer_for),
            sandbox,
            report: variables.read(
                "PALIMPSEST_REPORT",
                "stderr, fd:NUMBER, or the path of a file",
                ReportTo::Nowhere,
                report_to,
            )?,
            refusals: variables.read("PALIMPSEST_QUIET", "0, 1", Refusals::Told, |text| match text {
                "0" => Some(Refusals::Told),
                "1" => Some(Refusals::Silent),
                _ => None,
            })?,
            heirs: variables.read("PALIMPSEST_INHERIT", "yes, no", Heirs::Served, |text| match text {
                "yes" => Some(Heirs::Served),
                "no" => Some(Heirs::Left),
                _ => None,
            })?,
            only: variables.read_bytes(
                "PALIMPSEST_ONLY",
                "names of programs' files, without folders, and with a slash between them",
                Vec::new(),
                names::wanted,
            )?,
        })
    }
}

/// Which memory to put into huge pages, as the user says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Huge {
    /// What the engine can gather, and what is mapped by a program that uses what it maps.
    Auto,
    Off,
    Collapse,
    Gather,
}

impl Huge {
    /// Returns what that means to the engine, and to new mappings.
    fn of(self, pays: Pays, pause: Pause) -> (Pages, Mapped) {
        match (self, pays, pause) {
            // Otherwise everything is frozen, and memory that is huge already would be dearer to freeze.
            (Self::Auto, Pays::Within(_), Pause::Within(_)) => (Pages::Gather, Mapped::HugeIfDense),
            (Self::Auto | Self::Off, ..) => (Pages::Base, Mapped::AsItIs),
            (Self::Collapse, ..) => (Pages::Collapse, Mapped::AsItIs),
            (Self::Gather, ..) => (Pages::Gather, Mapped::Huge),
        }
    }
}

struct Variables<'a, F> {
    look_up: &'a F,
}

// Where nothing is set, this is all that a start runs: so beside the rest of it, and without what reads values.
impl<'v, F: Fn(&str) -> Option<&'v [u8]>> Variables<'_, F> {
    #[unsafe(link_section = "palimpsest_start")]
    fn is_set(&self, variable: &str) -> bool {
        (self.look_up)(variable).is_some_and(|value| !value.is_empty())
    }

    #[unsafe(link_section = "palimpsest_start")]
    fn read<T>(
        &self,
        variable: &'static str,
        allowed: &'static str,
        default: T,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, InvalidSetting> {
        self.read_bytes(variable, allowed, default, |value| str::from_utf8(value).ok().and_then(&parse))
    }

    #[unsafe(link_section = "palimpsest_start")]
    fn read_bytes<T>(
        &self,
        variable: &'static str,
        allowed: &'static str,
        default: T,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, InvalidSetting> {
        let Some(value) = (self.look_up)(variable).filter(|value| !value.is_empty()) else { return Ok(default) };
        given(variable, allowed, value, parse)
    }
}

/// Reads a value that was given.
#[cold]
#[inline(never)]
fn given<T>(
    variable: &'static str,
    allowed: &'static str,
    value: &[u8],
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, InvalidSetting> {
    parse(value).ok_or_else(|| {
        let value = OsStr::from_bytes(value).display().to_string();
        InvalidSetting { variable, value, allowed }
    })
}

fn moment(text: &str) -> Option<Moment> {
    match text.split_once(':') {
        None if text == "off" => Some(Moment::Never),
        None if text == "fork" => Some(Moment::Fork(1)),
        Some(("fork", number)) => number.parse().ok().filter(|&number| number > 0).map(Moment::Fork),
        Some(("signal", name)) => noticeable(name).ok().map(Moment::Signal),
        Some(("size", bytes)) => size::bytes(bytes).map(Moment::Size),
        _ => None,
    }
}

/// Freezing must pay within this many forks, unless the user says otherwise.
const FORKS: u32 = 100;

/// How long the program is held up at a time, unless the user says otherwise.
const PAUSE: Duration = Duration::from_millis(2);
/// AFL++ sets this for its targets: where their coverage map is.
const AFL: &str = "__AFL_SHM_ID";
/// A fork server writes to next to nothing between two runs, and each run copies its mappings: the fewer, the better.
const FUZZED: ExtentLen = ExtentLen::Bytes(1 << 30);
/// Whoever accepts more wants no slices.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The shortest piece whose page table is its own on every supported CPU with 4 KiB pages.
const LEAST_EXTENT: usize = 2 << 20;

fn extent(text: &str) -> Option<ExtentLen> {
    if text == "auto" {
        return Some(ExtentLen::Auto);
    }
    let bytes = usize::try_from(size::bytes(text)?).ok()?;
    (bytes.is_power_of_two() && bytes >= LEAST_EXTENT).then_some(ExtentLen::Bytes(bytes))
}

fn trusted(text: &str) -> Option<Trusted> {
    let mut trusted = Trusted::default();
    for name in text.split(',') {
        match name.trim() {
            "go" => trusted.answers.push(Answer::RawAllocator),
            "aio" => trusted.answers.push(Answer::LinuxAio),
            "io_uring" => trusted.answers.push(Answer::IoUring),
            "locked" => trusted.answers.push(Answer::LockedMemory),
            "seccomp" => trusted.sandbox = Sandbox::Trusted,
            _ => return None,
        }
    }
    Some(trusted)
}

/// Reads where the report goes, also for what happens before all settings are read.
pub(crate) fn report_to(text: &str) -> Option<ReportTo> {
    if text == "stderr" {
        return Some(ReportTo::StandardError);
    }
    match text.strip_prefix("fd:") {
        Some(text) => descriptor(text).map(ReportTo::Descriptor),
        // The program may change its folder before anything is reported.
        None => std::path::absolute(text).ok().map(ReportTo::File),
    }
}

/// Reads `NUMBER`, or `NUMBER:DEVICE:INODE`.
fn descriptor(text: &str) -> Option<Descriptor> {
    let mut parts = text.split(':');
    let number = parts.next()?.parse().ok().filter(|&number: &RawFd| number >= 0)?;
    let file = match (parts.next(), parts.next(), parts.next()) {
        (None, ..) => None,
        (Some(device), Some(inode), None) => Some((device.parse().ok()?, inode.parse().ok()?)),
        _ => return None,
    };
    Some(Descriptor { number, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, InvalidSetting> {
        Settings::read(&|name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.as_bytes())
        })
    }

    /// Fails on: slices in a fork server of AFL++; many small extents there.
    #[test]
    fn a_target_of_aflplusplus_is_frozen_at_once_in_few_extents_unless_the_user_says_otherwise() {
        let map = (AFL, "17");
        for (variables, pause, extent) in [
            (&[map][..], Pause::AtOnce, FUZZED),
            (&[map, ("PALIMPSEST_EXTENT", "auto")], Pause::AtOnce, ExtentLen::Auto),
            (&[map, ("PALIMPSEST_PAUSE", "5ms")], Pause::Within(Duration::from_millis(5)), FUZZED),
            (&[(AFL, "")], Pause::Within(PAUSE), ExtentLen::Auto),
        ] {
            let settings = read(variables).expect("valid");
            let pages = if pause == Pause::AtOnce { Pages::Base } else { Pages::Gather };
            let expected = Options::new().pays(Pays::Within(FORKS)).pause(pause).pages(pages).extent(extent);
            assert_eq!(settings.options, expected, "{variables:?}");
            assert_eq!(settings.slice.is_zero(), pause == Pause::AtOnce);
        }
    }

    #[test]
    fn a_descriptor_may_come_with_the_file_that_it_stands_for() {
        for (text, file) in [("fd:7", None), ("fd:7:26:4711", Some((26, 4711))), ("fd:7:0:0", Some(CLOSED))] {
            assert_eq!(report_to(text), Some(ReportTo::Descriptor(Descriptor { number: 7, file })), "{text}");
        }
    }

    #[test]
    fn nothing_set_means_the_first_fork_that_is_worth_it_and_no_report() {
        let settings = read(&[]).expect("nothing is invalid");
        assert_eq!(settings.moment, Moment::Worthwhile);
        assert_eq!(settings.action, Action::Freeze);
        assert_eq!(
            settings.options,
            Options::new().pays(Pays::Within(100)).pause(Pause::Within(Duration::from_millis(2))).pages(Pages::Gather)
        );
        assert_eq!(settings.mapped, Mapped::HugeIfDense);
        assert_eq!(settings.threads, OtherThreads::Refuse);
        assert_eq!(settings.sandbox, Sandbox::Feared);
        assert_eq!(settings.report, ReportTo::Nowhere);
        assert_eq!(settings.heirs, Heirs::Served);
        assert!(settings.only.is_empty());
        assert_eq!(read(&[("PALIMPSEST_FREEZE", ""), ("PALIMPSEST_HUGE", "")]), Ok(settings));
    }

    #[test]
    fn every_value_that_is_documented_is_understood() {
        for (text, moment) in [
            ("off", Moment::Never),
            ("fork", Moment::Fork(1)),
            ("fork:7", Moment::Fork(7)),
            ("signal:USR1", Moment::Signal(libc::SIGUSR1)),
            ("signal:12", Moment::Signal(12)),
            ("size:64M", Moment::Size(64 << 20)),
        ] {
            assert_eq!(read(&[("PALIMPSEST_FREEZE", text)]).map(|settings| settings.moment), Ok(moment), "{text}");
        }
        let settings = read(&[
            ("PALIMPSEST_EXTENT", "8M"),
            ("PALIMPSEST_HUGE", "collapse"),
            ("PALIMPSEST_THREADS", "stop"),
            ("PALIMPSEST_PAYS_AFTER", "any"),
            ("PALIMPSEST_PAUSE", "none"),
            ("PALIMPSEST_TRUST", "go, io_uring,locked,seccomp"),
            ("PALIMPSEST_REPORT", "fd:7"),
            ("PALIMPSEST_QUIET", "1"),
            ("PALIMPSEST_INHERIT", "no"),
            ("PALIMPSEST_DRY_RUN", "1"),
            ("PALIMPSEST_ONLY", "redis-server/a,b"),
        ]);
        let settings = settings.expect("all are valid");
        let expected = Options::new().extent(ExtentLen::Bytes(8 << 20)).pages(Pages::Collapse);
        let expected = expected.other_threads(OtherThreads::Stop).answer_for(Answer::RawAllocator);
        assert_eq!(settings.options, expected.answer_for(Answer::IoUring).answer_for(Answer::LockedMemory));
        assert_eq!(settings.threads, OtherThreads::Stop);
        assert_eq!(settings.sandbox, Sandbox::Trusted);
        assert_eq!(settings.report, ReportTo::Descriptor(Descriptor { number: 7, file: None }));
        assert_eq!(settings.refusals, Refusals::Silent);
        assert_eq!(settings.heirs, Heirs::Left);
        assert_eq!(settings.action, Action::Survey);
        assert_eq!(settings.only, ["redis-server", "a,b"]);
    }

    #[test]
    fn which_memory_is_to_be_huge_can_be_said() {
        for (text, pages, mapped) in [
            ("off", Pages::Base, Mapped::AsItIs),
            ("collapse", Pages::Collapse, Mapped::AsItIs),
            ("gather", Pages::Gather, Mapped::Huge),
            ("auto", Pages::Gather, Mapped::HugeIfDense),
        ] {
            let settings = read(&[("PALIMPSEST_HUGE", text)]).expect("a valid value");
            let options = read(&[]).expect("nothing is invalid").options.pages(pages);
            assert_eq!((settings.options, settings.mapped), (options, mapped), "{text}");
        }
    }

    /// Fails on: memory that is made huge, and so dear to freeze, where everything is to be frozen.
    #[test]
    fn who_freezes_at_once_or_whether_it_pays_or_not_gets_no_huge_pages_unasked() {
        for variable in [("PALIMPSEST_PAUSE", "none"), ("PALIMPSEST_PAYS_AFTER", "any"), (AFL, "17")] {
            for (text, pages) in [("auto", Pages::Base), ("off", Pages::Base), ("gather", Pages::Gather)] {
                let settings = read(&[variable, ("PALIMPSEST_HUGE", text)]).expect("valid");
                assert_eq!(settings.options, settings.options.pages(pages), "{variable:?} {text}");
                assert_eq!(settings.mapped == Mapped::AsItIs, text != "gather", "{variable:?} {text}");
            }
        }
        let surveyed = read(&[("PALIMPSEST_DRY_RUN", "1")]).expect("valid");
        assert_eq!((surveyed.mapped, surveyed.action), (Mapped::AsItIs, Action::Survey));
    }

    #[test]
    fn after_how_many_forks_it_must_pay_can_be_said() {
        for (text, pays) in [("1", Pays::Within(1)), ("3900", Pays::Within(3900)), ("any", Pays::Anyway)] {
            let settings = read(&[("PALIMPSEST_PAYS_AFTER", text), ("PALIMPSEST_PAUSE", "none")]);
            assert_eq!(settings.expect("a valid value").options, Options::new().pays(pays), "{text}");
        }
    }

    #[test]
    fn how_long_it_may_take_at_a_time_can_be_said() {
        for (text, pause) in [("none", Pause::AtOnce), ("500us", Pause::Within(Duration::from_micros(500)))] {
            let settings = read(&[("PALIMPSEST_PAUSE", text), ("PALIMPSEST_HUGE", "off")]).expect("a valid value");
            assert_eq!(settings.options, Options::new().pays(Pays::Within(100)).pause(pause), "{text}");
        }
    }

    #[test]
    fn a_path_is_made_absolute_at_once() {
        let Ok(Settings { report: ReportTo::File(path), .. }) = read(&[("PALIMPSEST_REPORT", "out.txt")]) else {
            panic!("not a file");
        };
        assert_eq!(path, std::env::current_dir().expect("there is one").join("out.txt"));
    }

    #[test]
    fn what_is_invalid_names_the_variable_the_value_and_what_is_allowed() {
        for (variable, value) in [
            ("PALIMPSEST_FREEZE", "on"),
            ("PALIMPSEST_FREEZE", "fork:0"),
            ("PALIMPSEST_FREEZE", "fork:-1"),
            ("PALIMPSEST_FREEZE", "signal:KILL"),
            ("PALIMPSEST_FREEZE", "size:"),
            ("PALIMPSEST_EXTENT", "3M"),
            ("PALIMPSEST_EXTENT", "1M"),
            ("PALIMPSEST_HUGE", "yes"),
            ("PALIMPSEST_THREADS", "2"),
            ("PALIMPSEST_PAYS_AFTER", "0"),
            ("PALIMPSEST_PAYS_AFTER", "-1"),
            ("PALIMPSEST_PAYS_AFTER", "1e3"),
            ("PALIMPSEST_PAYS_AFTER", "4294967296"),
            ("PALIMPSEST_PAUSE", "2"),
            ("PALIMPSEST_PAUSE", "-2ms"),
            ("PALIMPSEST_PAUSE", "2s"),
            ("PALIMPSEST_TRUST", "go,"),
            ("PALIMPSEST_TRUST", "rust"),
            ("PALIMPSEST_REPORT", "fd:-2"),
            ("PALIMPSEST_REPORT", "fd:x"),
            ("PALIMPSEST_REPORT", "fd:7:1"),
            ("PALIMPSEST_REPORT", "fd:7:1:x"),
            ("PALIMPSEST_REPORT", "fd:7:1:2:3"),
            ("PALIMPSEST_QUIET", "yes"),
            ("PALIMPSEST_INHERIT", "1"),
            ("PALIMPSEST_DRY_RUN", "true"),
            ("PALIMPSEST_ONLY", "/"),
        ] {
            let error = read(&[(variable, value)]).expect_err(value).to_string();
            assert!(error.starts_with(&format!("{variable}={value}: not understood; allowed: ")), "{error}");
            assert!(!error.contains('\n'));
        }
    }
}
