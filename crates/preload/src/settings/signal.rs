//! Signals as users write them.

use std::ffi::c_int;

/// Those that a program can catch and that no fault causes.
const NAMES: [(&str, c_int); 19] = [
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

/// The number of the signal `text`: a name with or without `SIG`, or a number.
pub(super) fn number(text: &str) -> Option<c_int> {
    if let Ok(number) = text.parse::<c_int>() {
        // glibc keeps the real-time signals below SIGRTMIN for itself.
        let is_real_time = (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&number);
        return (is_real_time || NAMES.iter().any(|(_, known)| *known == number)).then_some(number);
    }
    let name = text.strip_prefix("SIG").unwrap_or(text);
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_understood() {
        assert_eq!(number("USR1"), Some(libc::SIGUSR1));
        assert_eq!(number("SIGWINCH"), Some(libc::SIGWINCH));
        assert_eq!(number("15"), Some(libc::SIGTERM));
        assert_eq!(number(&libc::SIGRTMIN().to_string()), Some(libc::SIGRTMIN()));
    }

    #[test]
    fn signals_that_cannot_be_caught_or_tell_of_faults_are_refused() {
        for text in ["KILL", "STOP", "SEGV", "SIGBUS", "9", "11", "0", "-1", "32", "33", "65", "usr1", "SIG", ""] {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
