//! Events that one thread waits for and others signal, through a descriptor that an event loop can watch (eventfd).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// An event: stays signalled until somebody takes it.
#[derive(Debug)]
pub struct Event {
    fd: OwnedFd,
}

/// How a wait has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// The event was signalled, and was taken.
    Signalled,
    /// The time is over.
    TimedOut,
}

impl Event {
    /// Creates an event that is not signalled.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Signals the event.
    pub fn signal(&self) {
        // The only possible error: the count is at its limit, so the event is signalled already.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Waits for the event and takes it.
    ///
    /// # Errors
    ///
    /// The kernel's.
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

/// The eventfd of another process, as that one's [`Event::new`] makes it: one that blocks may keep
/// [`wait`](Event::wait) beyond its time.
impl From<OwnedFd> for Event {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
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
