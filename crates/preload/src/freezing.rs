//! Freezes once, and reports how it went.

use std::fmt::Display;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use palimpsest_fork::{Errands, FreezeError, NoStack, OtherThreads, Report, Skip, Stage, Verdict, guard, on_own_stack};
use palimpsest_sys::brief_file::BriefFile;
use palimpsest_sys::proc::status::{SeccompMode, Status};
use palimpsest_sys::seccomp::{self, Part};
use palimpsest_sys::threads::child::{self, Child};

use crate::cancelling::uncancelled;
use crate::channel::Noted;
use crate::confined::Feared;
use crate::settings::{Action, Begins, Mapped, Refusals, ReportTo, Sandbox};
use crate::started::Started;
use crate::{channel, confined, core_filter, moment, unwinder};

/// Whether the moment has come and was used, in this process or an ancestor. `Relaxed`: one thread wins, and what the
/// others then do is right without knowing of the winner's work.
static IS_DECIDED: AtomicBool = AtomicBool::new(false);

/// Whether there was a freeze. `Relaxed`: a thread that misses it forks without accounting, which is right too.
static IS_FROZEN: AtomicBool = AtomicBool::new(false);

/// The process in which a fork has come for which it was time, and which begins at its next wait or fork; 0 if there is
/// none. `Relaxed`: as for `IS_DECIDED`, which says whether it has begun.
static BEGINS: AtomicU32 = AtomicU32::new(0);

/// The report of a freeze in slices under way, and the process that it belongs to.
static PENDING: Mutex<Option<(u32, Report)>> = Mutex::new(None);

/// Whether there is one: a process that forks again and again should not write to the mutex, whose page a child shares.
/// `Relaxed`: the thread that reports later sets it; another one looks again at its next call.
static IS_PENDING: AtomicBool = AtomicBool::new(false);

/// Whether panics are silent. `Relaxed`: making them so twice does no harm.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Does `what`, and keeps a panic from the program. Its message, too: it would go to standard error, past every care
/// for the program's descriptors.
pub(crate) fn caught<T>(what: impl FnOnce() -> T) -> thread::Result<T> {
    if !IS_SILENT.load(Ordering::Relaxed) {
        panic::set_hook(Box::new(|_| {}));
        IS_SILENT.store(true, Ordering::Relaxed);
    }
    panic::catch_unwind(AssertUnwindSafe(what))
}

/// Returns when the next slice is due, for a thread about to wait; `None` if none is. Once there is a
/// filter, which may end the program for any system call, makes none; before, only while a deputy is at work, or its
/// answer not taken. From then on waits are left alone even if somebody answers for the filter: that covers a freeze,
/// not calls in place of waits.
pub(crate) fn next_slice() -> Option<Duration> {
    if IS_FROZEN.load(Ordering::Relaxed) || is_put_off() {
        confined::forget_borrower();
    }
    if begins_here() {
        return Some(Duration::ZERO);
    }
    (IS_FROZEN.load(Ordering::Relaxed) && !confined::is_seen() && confined::leaves_waits())
        .then(palimpsest_fork::next_slice)
        .flatten()
}

/// Whether [`next_slice`] may return anything. Makes no system call.
pub(crate) fn may_take_slices() -> bool {
    IS_FROZEN.load(Ordering::Relaxed) || BEGINS.load(Ordering::Relaxed) != 0
}

/// Whether this process begins at this wait. A child begins at its own next fork.
fn begins_here() -> bool {
    let process = BEGINS.load(Ordering::Relaxed);
    process != 0
        && !IS_DECIDED.load(Ordering::Relaxed)
        && !confined::is_seen()
        && confined::leaves_waits()
        && process == rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// Whether there was a fork for which it was time, and nothing has begun since.
pub(crate) fn is_put_off() -> bool {
    BEGINS.load(Ordering::Relaxed) != 0 && !IS_DECIDED.load(Ordering::Relaxed)
}

/// Takes slices as long as the program has nothing else to do, or begins. Returns false if that was refused.
///
/// # Safety
///
/// 1. `is_idle` makes no system calls that wait, does not use the heap and changes no mappings.
pub(crate) unsafe fn slice(started: &Started, is_idle: &mut dyn FnMut() -> bool) -> bool {
    if begins_here() {
        // A refusal is told at once, and nobody should wait here for its reader.
        let has_room = |told: Option<Noted>| told.is_none_or(Noted::has_room);
        if !has_room(started.report) || !has_room(started.standard_error) {
            return false;
        }
        if !IS_DECIDED.swap(true, Ordering::Relaxed) {
            begin(started);
        }
        return IS_FROZEN.load(Ordering::Relaxed);
    }
    // SAFETY: 1. as for the freeze, see `act`. 2. (1).
    let outcome = caught(|| unsafe { palimpsest_fork::freeze_while(is_idle) });
    matches!(outcome, Ok(Ok(_)))
}

/// Reports a freeze in slices once it is done, in a wait. Nobody should wait there for a reader of the report: if there
/// is no room for it, it comes at the next fork, or at the end. So it does if there is a filter by now.
pub(crate) fn tell_in_wait(started: &Started) {
    if confined::is_seen() {
        return;
    }
    let is_pending = PENDING.try_lock().is_ok_and(|pending| pending.is_some());
    let has_room = || match started.settings.report {
        ReportTo::Nowhere | ReportTo::File(_) => true,
        ReportTo::StandardError | ReportTo::Descriptor(_) => started.report.is_none_or(Noted::has_room),
    };
    if is_pending && palimpsest_fork::progress().stage != Stage::UnderWay && has_room() {
        tell_pending(started);
    }
}

/// Reports a freeze in slices once it is done.
pub(crate) fn after_slice(started: &Started) {
    if palimpsest_fork::progress().stage != Stage::UnderWay {
        tell_pending(started);
    }
}

/// Reports how far a freeze in slices has come, unless that was done; if another thread is at work there, later.
pub(crate) fn tell_pending(started: &Started) {
    if !IS_PENDING.load(Ordering::Relaxed) {
        return;
    }
    // The program's filter need not let through what the other stack takes.
    let message = if confined::is_seen() { Ok(pending(started)) } else { on_own_stack(|| pending(started)) };
    if let Ok(Some(message)) = message {
        message.write(started);
    }
}

/// Does the same at the end of the program, after which there is no later.
pub(crate) fn tell_pending_at_the_end(started: &Started) {
    tell_pending(started);
    if IS_PENDING.load(Ordering::Relaxed)
        && let Some(message) = pending(started)
    {
        message.write(started);
    }
}

/// Returns what is to be told of a freeze in slices. A child does not report what its parent does.
fn pending(started: &Started) -> Option<Message> {
    uncancelled(|| {
        let (_, mut report) = PENDING.try_lock().ok()?.take_if(|(owner, _)| *owner == std::process::id())?;
        IS_PENDING.store(false, Ordering::Relaxed);
        report.update();
        Some(Message::report(started, done(&report), &said(&report)))
    })
}

/// Freezes before a fork, if it is time; who gathers at waits begins at the first of them, so that this fork is a plain
/// one. Returns whether this fork is one of frozen memory.
pub(crate) fn at_fork(started: &Started) -> bool {
    confined::forget_borrower();
    // First: asking whose memory it is takes a system call, for which a filter may end the program.
    if !confined::is_own() {
        confined::before_fork(started);
    }
    if is_confined(started) {
        // A child of another thread's `vfork` is confined for a while, which decides nothing.
        if confined::is_owners() && !confined::is_own() {
            refuse_feared(started);
        }
        return IS_FROZEN.load(Ordering::Relaxed);
    }
    // A child of `vfork` would freeze its parent's memory, without seeing the parent's other threads.
    if guard::is_borrowed() {
        return false;
    }
    let is_time = !IS_DECIDED.load(Ordering::Relaxed)
        && (moment::has_come_at_fork(started.settings.moment) || BEGINS.load(Ordering::Relaxed) != 0);
    // What begins at a wait later, too: a wait may be in a handler, which may have interrupted `malloc`, or one of
    // `pthread_atfork`, for which glibc before 2.36 holds a lock.
    if is_time || IS_FROZEN.load(Ordering::Relaxed) {
        palimpsest_sys::in_children::register();
        // Those that it holds may hold any lock.
        if started.settings.threads == OtherThreads::Stop {
            unwinder::prepare();
        }
    }
    if !is_time {
        return IS_FROZEN.load(Ordering::Relaxed);
    }
    if started.settings.begins == Begins::AfterFork && BEGINS.load(Ordering::Relaxed) == 0 {
        BEGINS.store(std::process::id(), Ordering::Relaxed);
        return false;
    }
    if !IS_DECIDED.swap(true, Ordering::Relaxed) {
        begin(started);
    }
    IS_FROZEN.load(Ordering::Relaxed)
}

/// Freezes, or plans it, and tells what came of it.
fn begin(started: &Started) {
    let message = on_own_stack(|| {
        // A panic must not reach the program; its message is reported like any refusal.
        caught(|| act(started)).unwrap_or_else(|panic| Message::refusal(started, &broken(panic.as_ref())))
    });
    match message {
        Ok(message) => message.write(started),
        // Another thread loads the unwinder: the next fork or wait begins.
        Err(NoStack::Busy) => IS_DECIDED.store(false, Ordering::Relaxed),
        Err(NoStack::NoMemory) => uncancelled(|| Message::refusal(started, NO_STACK)).write(started),
    }
}

/// Tells at a fork for which it was time that a filter of the start forbids a freeze: in a child, which that filter may
/// end instead of the program.
fn refuse_feared(started: &Started) {
    if IS_DECIDED.load(Ordering::Relaxed) || !moment::has_come_at_fork(started.settings.moment) {
        return;
    }
    if IS_DECIDED.swap(true, Ordering::Relaxed) {
        return;
    }
    uncancelled(|| tell_feared(started));
}

fn tell_feared(started: &Started) {
    let line = caught(|| feared(started).map(|why| format!("palimpsest: not frozen: {why}\n")));
    let Ok(Some(line)) = line else { return };
    // SAFETY: 1. looks at descriptors, opens a file with a short name, and writes.
    let child = unsafe { child::spawn(&[libc::SIGSYS], || tell_in_child(started, line.as_bytes())) };
    // If it could not be made, or somebody else has waited for it, nothing more can be done.
    let _ = child.map(Child::wait);
}

/// Tells a refusal where it is asked for, in a child, which has all signals blocked; first what a filter forbids least.
/// Uses no heap, whose lock another thread may hold in the child's copy.
fn tell_in_child(started: &Started, line: &[u8]) -> i32 {
    if started.settings.refusals == Refusals::Told {
        let _ = started.standard_error.map(|descriptor| descriptor.write_with_signals_blocked(line));
    }
    if started.settings.report != ReportTo::StandardError {
        channel::report_in_child(&started.settings.report, started.report, line);
    }
    0
}

/// Returns why a filter of the start forbids a freeze.
fn feared(started: &Started) -> Option<String> {
    Some(match confined::why_feared(started)? {
        Feared::Added(count) => added(count),
        Feared::Untried(untried) => format!(
            "whether a seccomp filter would end the program for a system call of the freeze could not be tried: {}; \
             say PALIMPSEST_TRUST=seccomp if it allows memfd_create, ioctl and pwrite64",
            seccomp::Verdict::Unknown(untried)
        ),
        Feared::Deadly(call) => format!(
            "a seccomp filter would end the program for {call}, without which nothing can be done; \
             allow it, or say PALIMPSEST_TRUST=seccomp if it allows memfd_create, ioctl and pwrite64"
        ),
    })
}

/// Whether the program is confined, so that opening a file could end it.
pub(crate) fn is_confined(started: &Started) -> bool {
    started.settings.sandbox == Sandbox::Feared && confined::is_seen()
}

/// Reports, before the program confines itself, what would otherwise be reported at a later fork: by then even a look
/// at a descriptor could end the program. Allocates nothing.
pub(crate) fn before_filter(started: &Started) {
    const REFUSAL: &str = "palimpsest: not frozen: the program installs a seccomp filter, which could end it for a \
        system call of the freeze; freeze earlier, or say PALIMPSEST_TRUST=seccomp if it allows memfd_create, ioctl \
        and pwrite64\n";
    // Who is confined already would be told at a fork.
    let is_confined = !confined::is_free(started) && confined::is_seen();
    let is_other = started.settings.sandbox == Sandbox::Trusted || is_confined || guard::is_borrowed();
    if is_other || IS_DECIDED.load(Ordering::Relaxed) {
        return;
    }
    // Who has put it off would begin at the next fork, whatever was mapped since.
    if !is_put_off() && !moment::would_come(started.settings.moment) {
        return;
    }
    if IS_DECIDED.swap(true, Ordering::Relaxed) {
        return;
    }
    match &started.settings.report {
        ReportTo::Nowhere | ReportTo::StandardError => {}
        ReportTo::Descriptor(_) => {
            let _ = started.report.map(|descriptor| descriptor.write(REFUSAL.as_bytes()));
        }
        // The last moment at which it can be opened.
        ReportTo::File(path) => {
            let _ = channel::append(path, REFUSAL.as_bytes());
        }
    }
    if started.settings.refusals == Refusals::Told {
        let _ = started.standard_error.map(|descriptor| descriptor.write(REFUSAL.as_bytes()));
    }
}

/// Does what is asked for. Returns what is to be told of it.
fn act(started: &Started) -> Message {
    if let Some(refusal) = sandbox(started) {
        return Message::refusal(started, &refusal);
    }
    let options = &started.settings.options.errands(Errands::Deputy);
    let outcome = match started.settings.action {
        Action::Survey => palimpsest_fork::survey(options),
        // SAFETY: 1. the functions that discard or move memory are ours and ask the guard, and a runtime that bypasses
        // them is refused unless the user answers for it; 2. likewise for buffers that io_uring knows; by loading this
        // object the user answers for others, as the book says; 3. a process that shares memory by `vfork` is not
        // served, see `at_fork`; a debugger's writes are the user's; 4. likewise.
        Action::Freeze => core_filter::watch(|| unsafe { palimpsest_fork::freeze(options) }),
    };
    match outcome {
        Ok(mut report) => {
            let parts: &[Part] = match started.settings.mapped {
                Mapped::AsItIs => &[Part::Waits],
                Mapped::Huge | Mapped::HugeIfDense => &[Part::Waits, Part::Early],
            };
            report.notes.extend(seccomp::found_deadly().losses(parts));
            // If nothing pays yet, something may when the program has grown.
            IS_FROZEN.store(started.settings.action == Action::Freeze, Ordering::Relaxed);
            if report.progress.is_some_and(|progress| progress.stage == Stage::UnderWay) {
                // Reported when it is done. Only a handler that was interrupted by this one could hold the lock.
                if let Ok(mut pending) = PENDING.try_lock() {
                    *pending = Some((std::process::id(), report));
                    IS_PENDING.store(true, Ordering::Relaxed);
                }
                return Message::default();
            }
            let verb = if started.settings.action == Action::Survey { "would freeze" } else { done(&report) };
            Message::report(started, verb, &said(&report))
        }
        Err(error) => Message::refusal(started, &reason(&error)),
    }
}

/// Returns why a filter that was installed since the start forbids a freeze.
fn sandbox(started: &Started) -> Option<String> {
    if started.settings.sandbox == Sandbox::Trusted {
        return None;
    }
    added_since(started.filters?.count, &Status::of_this_thread().ok()?).map(added)
}

/// Returns how many filters were added; 1 if there were none, and the kernel does not count those that there are now.
fn added_since(start: u64, now: &Status) -> Option<u64> {
    let now = match now.seccomp? {
        SeccompMode::Disabled => 0,
        SeccompMode::Strict | SeccompMode::Filter => now.seccomp_filters.unwrap_or(1),
    };
    now.checked_sub(start).filter(|&count| count > 0)
}

fn added(count: u64) -> String {
    format!(
        "the program has installed {count} seccomp filter(s), or a sandbox that has executed it, which could end it \
         for a system call of the freeze; freeze earlier, or say PALIMPSEST_TRUST=seccomp if they allow memfd_create, \
         ioctl and pwrite64"
    )
}

/// Returns a reason and a way out in terms of the variables.
fn reason(error: &FreezeError) -> String {
    match error {
        FreezeError::Threads { count } => format!(
            "the process has {count} threads, whose writes would be lost; \
             freeze before it starts them (PALIMPSEST_FREEZE=fork), or say PALIMPSEST_THREADS=stop"
        ),
        FreezeError::ManyMappings { count, most } => format!(
            "the process has {count} threads and more than {most} mappings, all of which would be listed for each part \
             that is gathered, before Linux 6.11; say PALIMPSEST_PAUSE=10ms or more, or PALIMPSEST_THREADS=stop"
        ),
        FreezeError::RawAllocator { what } => format!(
            "{what} manages memory by system calls that cannot be seen; \
             say PALIMPSEST_TRUST=go if it never discards memory and expects zeros"
        ),
        FreezeError::IoUring { descriptor, hold } => format!(
            "an io_uring{} {hold}, which would go to old pages; say PALIMPSEST_TRUST=io_uring if that is in shared \
             memory",
            descriptor.map_or_else(String::new, |descriptor| format!(" (descriptor {descriptor})"))
        ),
        FreezeError::LinuxAio { .. } => {
            "there is a context of Linux AIO, whose requests under way would go to old pages; \
             say PALIMPSEST_TRUST=aio if there are none in private memory"
                .to_owned()
        }
        FreezeError::FutureLocked => "all memory is locked (mlockall(MCL_FUTURE)), so that it would be held twice and \
             nothing gained; start the program without locking, or say PALIMPSEST_TRUST=locked"
            .to_owned(),
        other => other.causes().to_string(),
    }
}

fn broken(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
    format!("an error in Palimpsest itself: {text}; please report it, and say PALIMPSEST_FREEZE=off meanwhile")
}

/// Returns what was done, for the first line of a report.
fn done(report: &Report) -> &'static str {
    if report.frozen.is_empty() && report.gathered_bytes() > 0 { "gathered memory of" } else { "froze" }
}

/// Returns a report, and why it says nothing of frozen memory.
fn said(report: &Report) -> String {
    let is_unprofitable = report.skipped.iter().any(|skipped| skipped.reason == Skip::Unprofitable);
    let is_under_way = report.progress.is_some_and(|progress| progress.stage == Stage::UnderWay);
    let reason = match () {
        // Was frozen, or says by itself that it is thawed.
        () if !report.frozen.is_empty() || report.verdict == Verdict::Thawed => return report.to_string(),
        () if report.gathered_bytes() > 0 => return report.to_string(),
        () if is_under_way => "so far no slice has come to any of its memory",
        () if is_unprofitable => {
            "what could be would not pay soon enough; --pays-after any (PALIMPSEST_PAYS_AFTER) freezes it all the same"
        }
        () => "none of its memory can be, for the reasons above",
    };
    format!("{report}it was not frozen: {reason}\n")
}

/// Why nothing begins if [`on_own_stack`] has none.
const NO_STACK: &str = "there is no memory for the stack on which it would begin: limits (RLIMIT_AS, RLIMIT_MEMLOCK \
                        with mlockall), or the most mappings that a process may have";

/// What is to be told: made on the stack of the freeze, and written on the program's, with its signals as they are,
/// since a reader may be slow.
#[derive(Debug, Default)]
struct Message {
    report: Option<String>,
    /// For standard error.
    line: Option<String>,
}

impl Message {
    fn report(started: &Started, verb: &str, report: &dyn Display) -> Self {
        let is_wanted = !matches!(started.settings.report, ReportTo::Nowhere);
        Self { report: is_wanted.then(|| headed(verb, report)), line: None }
    }

    fn refusal(started: &Started, refusal: &str) -> Self {
        // Whoever has asked for a report looks for the reason there.
        let is_wanted = !matches!(started.settings.report, ReportTo::Nowhere | ReportTo::StandardError);
        let report = || headed("froze nothing in", &format!("it was not frozen: {refusal}"));
        // One line, whatever an error says.
        let line = || format!("palimpsest: not frozen: {}\n", refusal.replace('\n', " "));
        Self { report: is_wanted.then(report), line: (started.settings.refusals == Refusals::Told).then(line) }
    }

    /// Writes it. Without standard error, a refusal cannot be reported.
    fn write(self, started: &Started) {
        uncancelled(|| {
            if let Some(text) = self.report {
                channel::report(&started.settings.report, started.report, started.standard_error, || text);
            }
            if let Some(line) = self.line {
                let _ = started.standard_error.map(|descriptor| descriptor.write(line.as_bytes()));
            }
        });
    }
}

/// Whether the moment has come.
pub(crate) fn is_decided() -> bool {
    IS_DECIDED.load(Ordering::Relaxed)
}

/// Reports what was done to this process.
pub(crate) fn tell(started: &Started, verb: &str, report: &dyn Display) {
    let text = || headed(verb, report);
    channel::report(&started.settings.report, started.report, started.standard_error, text);
}

/// Returns a report with the line that names this process.
fn headed(verb: &str, report: &dyn Display) -> String {
    let mut name = [0; 64];
    let name = BriefFile::read_short(c"/proc/self/comm", &mut name).unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    format!("palimpsest: {verb} process {} ({})\n{report}\n", std::process::id(), name.trim_end())
}

#[cfg(test)]
mod tests {
    use palimpsest_fork::{RawAllocator, RingHold};
    use palimpsest_sys::proc::status;

    use super::*;

    #[test]
    fn reasons_name_variables_and_no_types() {
        for error in [
            FreezeError::Threads { count: 3 },
            FreezeError::ManyMappings { count: 3, most: 2000 },
            FreezeError::RawAllocator { what: RawAllocator::Musl },
            FreezeError::IoUring { descriptor: Some(5), hold: RingHold::Buffers(1) },
            FreezeError::LinuxAio { context: 0x1000 },
            FreezeError::FutureLocked,
        ] {
            let text = reason(&error);
            assert!(text.contains("PALIMPSEST_"), "{text}");
            assert!(text.contains("; "), "a way out: {text}");
            assert!(!text.contains("::"), "{text}");
        }
    }

    /// Fails on: a filter that Linux before 5.9 does not count, and that is overlooked.
    #[test]
    fn filters_that_were_added_are_seen_by_kernels_that_do_not_count_them() {
        for (start, now, added) in [
            (0, "Seccomp:\t2\n", Some(1)),
            (0, "Seccomp:\t0\n", None),
            (0, "NoNewPrivs:\t0\n", None),
            (1, "Seccomp:\t2\nSeccomp_filters:\t3\n", Some(2)),
            (3, "Seccomp:\t2\nSeccomp_filters:\t3\n", None),
        ] {
            assert_eq!(added_since(start, &status::parse(now).expect("a valid text")), added, "{start} {now}");
        }
    }

    #[test]
    fn a_panic_is_told_with_its_text() {
        let panic = panic::catch_unwind(|| panic!("value {}", 5)).expect_err("it panics");
        assert!(broken(panic.as_ref()).contains("value 5"));
    }
}
