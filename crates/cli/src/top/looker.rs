//! Looking at a process without waiting for it for ever.
//!
//! Who reads memory waits where the process has put it: on a file system of its own, or behind a userfaultfd. So each
//! process is looked at by a thread, and one that has not answered in time is not asked again before it has.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::process::Pid;

use super::process::{Look, Untold};

pub(super) struct Looker {
    patience: Duration,
    look: Arc<dyn Fn(Pid) -> Look + Send + Sync>,
    /// The threads that have not answered yet.
    waiting: HashMap<Pid, Receiver<Look>>,
    has_seen: bool,
}

impl Looker {
    pub(super) fn new(patience: Duration, look: impl Fn(Pid) -> Look + Send + Sync + 'static) -> Self {
        Self { patience, look: Arc::new(look), waiting: HashMap::new(), has_seen: false }
    }

    /// What is to be told of a process by now.
    pub(super) fn look(&mut self, pid: Pid) -> Look {
        let (answer, patience) = match self.waiting.remove(&pid) {
            Some(answer) => (answer, Duration::ZERO),
            None => {
                let (sender, answer) = channel();
                let look = Arc::clone(&self.look);
                // Nobody waits for an answer that comes when this program has ended.
                let started = thread::Builder::new().spawn(move || drop(sender.send(look(pid))));
                if let Err(error) = started {
                    return Look::untold(pid, Untold::Unread { reason: error.to_string() });
                }
                (answer, self.patience)
            }
        };
        match answer.recv_timeout(patience) {
            Ok(look) => {
                self.has_seen |= !matches!(look.untold, Some(Untold::Absent));
                look
            }
            Err(RecvTimeoutError::Timeout) => {
                self.waiting.insert(pid, answer);
                Look::untold(pid, Untold::Silent)
            }
            Err(RecvTimeoutError::Disconnected) => {
                Look::untold(pid, Untold::Unread { reason: "an error in Palimpsest itself; please report it".into() })
            }
        }
    }

    /// Whether there was a process at all.
    pub(super) const fn has_seen(&self) -> bool {
        self.has_seen
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_process_that_does_not_answer_holds_nobody_up_and_is_asked_once() {
        let (release, released) = channel::<()>();
        let (released, asked) = (Mutex::new(released), Arc::new(Mutex::new(0)));
        let count = Arc::clone(&asked);
        let own = rustix::process::getpid();
        let mut looker = Looker::new(Duration::from_millis(1), move |pid| {
            *count.lock().expect("no panic") += 1;
            let _ = released.lock().expect("no panic").recv();
            Look::untold(pid, Untold::NotThere)
        });
        for _ in 0..3 {
            assert!(matches!(looker.look(own).untold, Some(Untold::Silent)));
        }
        release.send(()).expect("it waits");
        while matches!(looker.look(own).untold, Some(Untold::Silent)) {
            thread::yield_now();
        }
        assert_eq!(*asked.lock().expect("no panic"), 1);
    }

    #[test]
    fn an_error_of_ours_is_told() {
        let mut looker = Looker::new(Duration::from_secs(60), |_| panic!("meant"));
        let look = looker.look(rustix::process::getpid());
        assert!(matches!(look.untold, Some(Untold::Unread { .. })));
    }
}
