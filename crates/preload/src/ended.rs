//! The end of a program without a freeze: says why there was none, if a report was asked for.
//!
//! Only the process that `palimpsest run` has started says so, as named in `PALIMPSEST_STARTED`: a script starts
//! programs by the hundred. A program that is killed, or leaves by `_exit` as some shells do, says nothing.

use palimpsest_sys::seccomp::{self, Part};

use crate::cancelling::uncancelled;
use crate::started::{self, End, Started};
use crate::{confined, freezing, moment};

/// Makes the C library call [`end`] when the program returns from `main` or calls `exit`. Only for a process that says
/// so: in any other, and in its children, this would be a page fault more.
pub(crate) fn await_it() {
    // Without memory for it the C library refuses, and nothing is told.
    // SAFETY: a function of this object, which stays loaded.
    let _ = unsafe { libc::atexit(end) };
}

/// A child of the program's, which inherits the wish, finds beside `fork` in the object what tells it that it is one,
/// and writes nothing: for a shell with many subshells each page more is a page fault more in each of them.
#[unsafe(link_section = "palimpsest_start")]
extern "C" fn end() {
    let Some(started) = started::get() else { return };
    // A filter may end the program for asking for its process id.
    if confined::is_known_to_be_free(started) && !is_told(started) {
        return;
    }
    uncancelled(|| say(started));
}

#[inline]
fn is_told(started: &Started) -> bool {
    let own = || rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
    matches!(started.end, End::Told(process) if process == own())
}

/// Says why nothing was done although there was a fork for which it was time.
fn put_off() -> String {
    match seccomp::found_deadly().losses(&[Part::Waits]) {
        Some(left_out) => format!("since its first fork it has not forked again, and {left_out}"),
        None => "since its first fork it has neither forked again nor waited for long enough".to_owned(),
    }
}

fn say(started: &Started) {
    // A look, for who has not forked. What asks for the process id comes last.
    let is_free = confined::is_free(started) || !freezing::is_confined(started);
    if !is_free || !is_told(started) {
        return;
    }
    if freezing::is_decided() {
        // A panic here would change the exit status.
        let _ = freezing::caught(|| freezing::tell_pending_at_the_end(started));
        return;
    }
    // A panic here would change the exit status.
    let _ = freezing::caught(|| {
        let reason = match &started.left_out {
            Some(left_out) => left_out.clone(),
            None if freezing::is_put_off() => put_off(),
            None => moment::missed(started.settings.moment),
        };
        freezing::tell(started, "froze nothing in", &format!("it was not frozen: {reason}"));
    });
}
