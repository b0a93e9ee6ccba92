//! Events that one thread waits for and others signal, by a descriptor that a loop can watch (eventfd).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// An event: signalled until somebody takes it.
#[derive(Debug)]
pub struct Event {
    fd: OwnedFd,
}

/// How a wait has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// The event was signalled, and is taken.
    Signalled,
    /// The time is over.
    TimedOut,
}

impl Event {
    /// An event that is not signalled.
    ///
    /// # Errors
    ///
    /// The kernel's answer.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Signals it.
    pub fn signal(&self) {
        // The one error there could be: the count is at its limit, and the event signalled therefore.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Waits for it and takes it.
    ///
    /// # Errors
    ///
    /// The kernel's answer.
    pub fn wait(&self, patience: Duration) -> io::Result<Waited> {
        let patience = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut count = [0; 8];
        match rustix::io::read(&self.fd, &mut count) {
            Ok(_) => Ok(Waited::Signalled),
            Err(Errno::AGAIN) => Ok(Waited::TimedOut),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_taken_once() {
        let event = Event::new().expect("an eventfd");
        event.signal();
        event.signal();
        assert_eq!(event.wait(Duration::from_secs(600)).expect("it works"), Waited::Signalled);
        assert_eq!(event.wait(Duration::ZERO).expect("it works"), Waited::TimedOut);
    }
}
