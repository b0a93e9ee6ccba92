//! Signals as users write them: those whose handler in a program may simply take note.

use std::ffi::c_int;

/// Signals that a program can catch and that no fault causes.
const FIT: [(&str, c_int); 19] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
];

/// Signals that no program can catch (`signal(7)`).
const UNCATCHABLE: [(&str, c_int); 2] = [("KILL", libc::SIGKILL), ("STOP", libc::SIGSTOP)];

/// Signals after which a program cannot continue where it was.
const FATAL: [(&str, c_int); 7] = [
    ("SEGV", libc::SIGSEGV),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("SYS", libc::SIGSYS),
    ("ABRT", libc::SIGABRT),
];

/// The numbers of these. A thread that blocks one of them, and causes it, ends its process without reaching a handler.
pub(crate) const IMMEDIATE: [c_int; FATAL.len()] = {
    let (mut numbers, mut index) = ([0; FATAL.len()], 0);
    while index < FATAL.len() {
        numbers[index] = FATAL[index].1;
        index += 1;
    }
    numbers
};

/// The first real-time signal of the kernel; glibc keeps those below its own SIGRTMIN for itself.
const FIRST_REAL_TIME: c_int = 32;

/// Why a signal cannot be waited for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnfitSignal {
    /// No signal has this name or number.
    #[error("there is no signal {text}; name one as `kill -l` does, such as USR1, or give its number")]
    Unknown {
        /// The text as written.
        text: String,
    },
    /// The kernel does not allow catching it.
    #[error("no program can catch {name}; name another signal, such as USR1")]
    Uncatchable {
        /// Its name.
        name: &'static str,
    },
    /// A fault causes it.
    #[error("{name} tells of a fault, after which the program cannot go on; name another signal, such as USR1")]
    Fatal {
        /// Its name.
        name: &'static str,
    },
    /// The C library's threads use it.
    #[error(
        "the C library uses signal {number} for its threads; real-time signals from {} to {} are free",
        libc::SIGRTMIN(),
        libc::SIGRTMAX()
    )]
    OfLibrary {
        /// Its number.
        number: c_int,
    },
}

/// Returns the number of the signal `text`: a name with or without `SIG`, or a number.
///
/// # Errors
///
/// There is no such signal, or a handler for it must do more than take note.
pub fn noticeable(text: &str) -> Result<c_int, UnfitSignal> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    // `parse` would accept a sign.
    let number = || text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<c_int>().ok()).flatten();
    let number = number();
    let among = |known: &[(&'static str, c_int)]| {
        known.iter().copied().find(|(known, value)| *known == name || Some(*value) == number)
    };
    if let Some((_, number)) = among(&FIT) {
        return Ok(number);
    }
    if let Some((name, _)) = among(&UNCATCHABLE) {
        return Err(UnfitSignal::Uncatchable { name });
    }
    if let Some((name, _)) = among(&FATAL) {
        return Err(UnfitSignal::Fatal { name });
    }
    match number {
        Some(number) if (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&number) => Ok(number),
        Some(number) if (FIRST_REAL_TIME..libc::SIGRTMIN()).contains(&number) => Err(UnfitSignal::OfLibrary { number }),
        _ => Err(UnfitSignal::Unknown { text: text.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_understood() {
        assert_eq!(noticeable("USR1"), Ok(libc::SIGUSR1));
        assert_eq!(noticeable("SIGWINCH"), Ok(libc::SIGWINCH));
        assert_eq!(noticeable("15"), Ok(libc::SIGTERM));
        for number in [libc::SIGRTMIN(), libc::SIGRTMAX()] {
            assert_eq!(noticeable(&number.to_string()), Ok(number));
        }
    }

    #[test]
    fn others_are_refused_with_the_reason() {
        for text in ["KILL", "SIGSTOP", "9", "19"] {
            assert!(matches!(noticeable(text), Err(UnfitSignal::Uncatchable { .. })), "{text}");
        }
        for text in ["SEGV", "SIGBUS", "11", "ABRT", "TRAP"] {
            assert!(matches!(noticeable(text), Err(UnfitSignal::Fatal { .. })), "{text}");
        }
        for number in [32, 33] {
            assert_eq!(noticeable(&number.to_string()), Err(UnfitSignal::OfLibrary { number }));
        }
        for text in ["FOO", "0", "-1", "+10", "65", "usr1", "SIG", "", "99999999999"] {
            assert_eq!(noticeable(text), Err(UnfitSignal::Unknown { text: text.to_owned() }));
        }
    }
}
