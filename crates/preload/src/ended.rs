//! The end of a program without a freeze: says why there was none, if a report was asked for.
//!
//! Only the process that `palimpsest run` has started says so, as named in `PALIMPSEST_STARTED`: a script starts
//! programs by the hundred. A program that is killed, or leaves by `_exit` as some shells do, says nothing.

use crate::cancelling::uncancelled;
use crate::started::{self, End, Started};
use crate::{confined, freezing, moment};

/// Why nothing was done although there was a fork for which it was time.
const PUT_OFF: &str = "since its first fork it has neither forked again nor waited for long enough";

/// Makes the C library call [`end`] when the program returns from `main` or calls `exit`. Only for a process that says
/// so: in any other, and in its children, this would be a page fault more.
pub(crate) fn await_it() {
    // Without memory for it the C library refuses, and nothing is told.
    // SAFETY: a function of this object, which stays loaded.
    let _ = unsafe { libc::atexit(end) };
}

extern "C" fn end() {
    uncancelled(say);
}

fn say() {
    // Asked last: a filter may end the program for asking for its process id.
    let is_told = |started: &&Started| matches!(started.end, End::Told(process) if process == std::process::id());
    // A look, for who has not forked.
    let is_free = |started: &&Started| confined::is_free(started) || !freezing::is_confined(started);
    let served = started::get().filter(is_free).filter(is_told);
    let Some(started) = served else { return };
    if freezing::is_decided() {
        // A panic here would change the exit status.
        let _ = freezing::caught(|| freezing::tell_pending_at_the_end(started));
        return;
    }
    // A panic here would change the exit status.
    let _ = freezing::caught(|| {
        let reason = match &started.left_out {
            Some(left_out) => left_out.clone(),
            None if freezing::is_put_off() => PUT_OFF.to_owned(),
            None => moment::missed(started.settings.moment),
        };
        freezing::tell(started, "froze nothing in", &format!("it was not frozen: {reason}"));
    });
}
