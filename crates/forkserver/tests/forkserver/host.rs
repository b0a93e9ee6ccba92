//! The fuzzer's side, started on the only thread of this program.

use std::time::{Duration, Instant};

use palimpsest_forkserver::HostError;
use palimpsest_forkserver::host::{Host, HostOptions, Run};

use crate::target;

const LONG: Duration = Duration::from_secs(600);

fn host(mode: &str) -> Host {
    let options = HostOptions::new(target::mode(mode)).longest_input(4096).map_len(65_500);
    // SAFETY: (1) glibc's allocator, and a target without its own memory management; (2) it starts no thread; (3) the
    // map is not taken.
    unsafe { Host::start(options, target::target) }.expect("a server")
}

fn counts(host: &mut Host) -> Vec<u8> {
    host.counts().expect("not taken").to_vec()
}

pub(crate) fn runs_end_as_they_should() {
    for mode in target::MODES {
        let mut host = host(mode);
        for (input, expected) in [
            (&b"crash"[..], Run::Signalled { signal: libc::SIGABRT }),
            (b"panic", Run::Signalled { signal: libc::SIGABRT }),
            (b"trap", Run::Signalled { signal: libc::SIGILL }),
            (b"exit", Run::Exited { code: 7 }),
            (b"oom", Run::Killed),
        ] {
            assert_eq!(host.run(b"harmless", LONG).unwrap(), Run::Returned, "{mode}");
            let first = counts(&mut host);
            assert_eq!(host.run(input, LONG).unwrap(), expected, "{mode}");
            assert_eq!(host.run(b"harmless", LONG).unwrap(), Run::Returned, "{mode}");
            assert!(first == counts(&mut host), "{mode}: the same input counts the same");
            assert_eq!((first.len(), first[1]), (65_500, 1));
        }
        let start = Instant::now();
        assert_eq!(host.run(b"hang", Duration::from_millis(100)).unwrap(), Run::TimedOut, "{mode}");
        assert!(start.elapsed() < LONG);
        assert_eq!(host.run(b"", LONG).unwrap(), Run::Returned, "{mode}");
        let error = host.run(&[0; 4097], LONG).unwrap_err();
        assert!(matches!(error, HostError::InputTooLong { len: 4097, longest: 4096 }), "{error}");
        assert_eq!(host.run(&[0; 4096], LONG).unwrap(), Run::Returned, "{mode}");
    }
}

pub(crate) fn a_map_that_was_taken_is_the_fuzzers() {
    let mut host = host("plain");
    let map = host.take_map().expect("once");
    assert!(host.take_map().is_none() && host.counts().is_none());
    host.run(b"", LONG).unwrap();
    assert_eq!(map[1], 1);
    host.run(b"", LONG).unwrap();
    assert_eq!(map[1], 2, "only the fuzzer clears it");
    drop(host);
    assert_eq!(map[1], 2, "it outlives the host");
}

pub(crate) fn a_set_up_that_panics_is_told() {
    let options = HostOptions::new(target::mode("plain"));
    let set_up = || -> fn(&[u8]) { panic!("no database") };
    // SAFETY: (1, 2, 3) nothing is ever run.
    let error = unsafe { Host::start(options, set_up) }.unwrap_err();
    assert!(error.to_string().contains("no database"), "{error}");
}

pub(crate) fn a_server_that_is_gone_is_an_error() {
    let mut host = host("plain");
    host.run(b"", LONG).unwrap();
    let children = std::fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).unwrap();
    let server: i32 = children.trim().parse().expect("one child");
    // SAFETY: the server is this process's child.
    unsafe { libc::kill(server, libc::SIGKILL) };
    let errors: Vec<HostError> = (0..3).filter_map(|_| host.run(b"", LONG).err()).collect();
    assert!(errors.iter().any(|error| matches!(error, HostError::ServerGone)), "{errors:?}");
    drop(host);
    // SAFETY: asks for children, of which there should be none.
    let left = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!(left, -1, "no child is left behind");
}

pub(crate) fn a_second_thread_is_refused() {
    let (stop, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || wait.recv());
    // SAFETY: (1, 2, 3) it is refused.
    let error = unsafe { Host::start(HostOptions::new(target::mode("plain")), target::target) }.unwrap_err();
    assert!(matches!(error, HostError::Threads { threads: 2 }), "{error}");
    drop(stop);
    let _ = thread.join();
}
