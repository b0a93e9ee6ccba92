//! Looks at processes without waiting for one of them for ever.
//!
//! A process can make its readers wait, for memory or the list of mappings: with a file system of its own, or a
//! userfaultfd. So a thread looks at each process, and one that has not answered in time is not asked again before it
//! has. However many such processes there are, only a few threads wait.

use std::collections::{HashMap, HashSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use palimpsest_sys::proc::stat::Incarnation;
use rustix::process::Pid;

use super::process::{Look, Untold};

/// Most threads at a time: those that look, and those that wait.
const MOST_THREADS: usize = 32;

/// A process, told apart from a later one with its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    /// 0 if there is none.
    started: u64,
}

impl Process {
    pub(super) fn of(pid: Pid) -> Self {
        let started = Incarnation::of(pid.as_raw_nonzero().get().unsigned_abs()).map_or(0, |found| found.started);
        Self { pid, started }
    }
}

/// How long others may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// While nobody answers.
    pub(super) silence: Duration,
    /// For all of them.
    pub(super) round: Duration,
}

/// What a thread has found: `None` if there is nothing to tell of the process; or an error of ours.
type Answer = thread::Result<Option<Look>>;

pub(super) struct Looker {
    patience: Patience,
    look: Arc<dyn Fn(Pid) -> Option<Look> + Send + Sync>,
    sender: Sender<(Process, Answer)>,
    answers: Receiver<(Process, Answer)>,
    /// Who was asked and has not answered yet.
    waiting: HashSet<Process>,
    /// Threads that have not answered yet, including those for processes that are gone.
    threads: usize,
    has_seen: bool,
}

impl Looker {
    pub(super) fn new(patience: Patience, look: impl Fn(Pid) -> Option<Look> + Send + Sync + 'static) -> Self {
        let (sender, answers) = channel();
        let waiting = HashSet::new();
        Self { patience, look: Arc::new(look), sender, answers, waiting, threads: 0, has_seen: false }
    }

    /// Returns what can be told of different processes by now, in their order.
    pub(super) fn look(&mut self, processes: &[Process]) -> Vec<Look> {
        self.waiting.retain(|process| processes.contains(process));
        let deadline = Instant::now() + self.patience.round;
        let mut told = HashMap::new();
        let unasked: Vec<Process> =
            processes.iter().copied().filter(|process| !self.waiting.contains(process)).collect();
        let mut unasked = unasked.into_iter().peekable();
        // Only those of this round: the others have had their time.
        let mut asked = HashSet::new();
        loop {
            while self.threads < MOST_THREADS
                && let Some(process) = unasked.next()
            {
                match self.ask(process) {
                    Ok(()) => drop(asked.insert(process)),
                    Err(error) => drop(told.insert(process, Some(unread(process, &error.to_string())))),
                }
            }
            let is_done = asked.is_empty() && unasked.peek().is_none();
            let left = deadline.saturating_duration_since(Instant::now()).min(self.patience.silence);
            let Ok((process, answer)) = self.answers.recv_timeout(if is_done { Duration::ZERO } else { left }) else {
                break;
            };
            self.threads -= 1;
            asked.remove(&process);
            if self.waiting.remove(&process) {
                told.insert(process, self.read(process, answer));
            }
        }
        let look = |&process: &Process| match told.remove(&process) {
            Some(look) => look,
            None if self.waiting.contains(&process) => Some(Look::untold(process.pid, Untold::Silent)),
            None => Some(unread(process, "other processes that do not answer have taken all the time")),
        };
        processes.iter().filter_map(look).collect()
    }

    /// Starts a thread that looks at a process.
    fn ask(&mut self, process: Process) -> io::Result<()> {
        let (look, sender) = (Arc::clone(&self.look), self.sender.clone());
        let ask = move || {
            let found = catch_unwind(AssertUnwindSafe(|| look(process.pid)));
            // Nobody waits for an answer that comes after this program has ended.
            let _unheard = sender.send((process, found));
        };
        thread::Builder::new().spawn(ask)?;
        self.threads += 1;
        self.waiting.insert(process);
        Ok(())
    }

    fn read(&mut self, process: Process, answer: Answer) -> Option<Look> {
        let ours = |_| Some(unread(process, "an error in Palimpsest itself; please report it"));
        let look = answer.unwrap_or_else(ours);
        self.has_seen |= look.as_ref().is_some_and(|look| !matches!(look.untold, Some(Untold::Absent)));
        look
    }

    /// Whether there was any process.
    pub(super) const fn has_seen(&self) -> bool {
        self.has_seen
    }
}

fn unread(process: Process, reason: &str) -> Look {
    Look::untold(process.pid, Untold::Unread { reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const SHORT: Patience = Patience { silence: Duration::from_millis(1), round: Duration::from_secs(60) };
    const LONG: Patience = Patience { silence: Duration::from_secs(60), round: Duration::from_secs(60) };

    fn process(number: i32) -> Process {
        Process { pid: Pid::from_raw(number).expect("not zero"), started: 1 }
    }

    fn is_silent(look: &Look) -> bool {
        matches!(look.untold, Some(Untold::Silent))
    }

    #[test]
    fn a_process_that_does_not_answer_holds_nobody_up_and_is_asked_once() {
        let (release, released) = channel::<()>();
        let (released, asked) = (Mutex::new(released), Arc::new(Mutex::new(0)));
        let count = Arc::clone(&asked);
        let mut looker = Looker::new(SHORT, move |pid| {
            *count.lock().expect("no panic") += 1;
            let _ = released.lock().expect("no panic").recv();
            Some(Look::untold(pid, Untold::NotThere))
        });
        for _ in 0..3 {
            assert!(looker.look(&[process(7)]).iter().all(is_silent));
        }
        release.send(()).expect("it waits");
        while looker.look(&[process(7)]).iter().all(is_silent) {
            thread::yield_now();
        }
        assert_eq!(*asked.lock().expect("no panic"), 1);
    }

    #[test]
    fn a_later_process_with_the_number_of_one_that_does_not_answer_is_asked() {
        let asked = Arc::new(Mutex::new(0));
        let count = Arc::clone(&asked);
        let mut looker = Looker::new(SHORT, move |_| {
            let mut count = count.lock().expect("no panic");
            *count += 1;
            if *count == 1 {
                drop(count);
                loop {
                    thread::park();
                }
            }
            None
        });
        assert!(is_silent(&looker.look(&[process(7)])[0]));
        while *asked.lock().expect("no panic") == 0 {
            thread::yield_now();
        }
        let later = Process { started: 2, ..process(7) };
        while !looker.look(&[later]).is_empty() {
            thread::yield_now();
        }
        assert!(looker.waiting.is_empty(), "the first is gone");
    }

    #[test]
    fn others_are_told_of_in_their_order_beside_those_that_do_not_answer() {
        let mut looker = Looker::new(SHORT, move |pid| {
            while pid.as_raw_nonzero().get() % 2 == 1 {
                thread::park();
            }
            Some(Look::untold(pid, Untold::NotThere))
        });
        let processes = [1, 2, 3, 4].map(process);
        let mut looks = looker.look(&processes);
        // A busy machine may take longer than this test waits.
        while looks.iter().filter(|look| is_silent(look)).count() > 2 {
            looks = looker.look(&processes);
        }
        assert_eq!(looks.iter().map(|look| look.process).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(looks.iter().map(is_silent).collect::<Vec<_>>(), [true, false, true, false]);
    }

    #[test]
    fn no_more_than_a_few_threads_wait() {
        let mut looker = Looker::new(SHORT, |_| {
            loop {
                thread::park();
            }
        });
        let most = i32::try_from(MOST_THREADS).expect("few");
        let processes: Vec<Process> = (1..=most + 2).map(process).collect();
        for _ in 0..2 {
            let looks = looker.look(&processes);
            assert_eq!(looks.iter().filter(|look| is_silent(look)).count(), MOST_THREADS);
            assert!(matches!(looks[MOST_THREADS].untold, Some(Untold::Unread { .. })));
        }
        // Threads for processes that are gone count.
        assert!(matches!(looker.look(&[process(most + 9)])[0].untold, Some(Untold::Unread { .. })));
    }

    #[test]
    fn an_error_of_ours_is_told() {
        let mut looker = Looker::new(LONG, |_| panic!("meant"));
        let looks = looker.look(&[Process::of(rustix::process::getpid())]);
        assert!(matches!(looks[0].untold, Some(Untold::Unread { .. })));
    }
}
