//! Events that one thread waits for and others signal, through a descriptor that an event loop can watch.
//!
//! A pair of sockets, and no eventfd: who waits may be another process, which need not be trusted. Of an eventfd it
//! would have the whole, and could let the next signal wait for ever (a full count, and `O_NONBLOCK` cleared for all
//! that share it). Of a pair it has its own end, and a signal never waits, whatever becomes of that.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};

/// An event: stays signalled until somebody takes it.
#[derive(Debug)]
pub struct Event {
    /// The end that signals, which is never handed out.
    end: OwnedFd,
    waiter: Waiter,
}

/// The end of an event where it is waited for, here or in another process.
#[derive(Debug)]
pub struct Waiter {
    fd: OwnedFd,
}

/// How a wait has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// The event was signalled, and was taken.
    Signalled,
    /// The time is over.
    TimedOut,
    /// Nobody can signal it any more: the processes that had it have ended, or dropped it.
    Abandoned,
}

impl Event {
    /// Creates an event that is not signalled: two descriptors, which `exec` closes.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn new() -> io::Result<Self> {
        let (end, fd) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Whoever waits cannot fill this end.
        rustix::net::shutdown(&end, Shutdown::Read)?;
        // A few signals that nobody has taken: the kernel's least (`SOCK_MIN_SNDBUF`, include/net/sock.h).
        sockopt::set_socket_send_buffer_size(&end, 1)?;
        Ok(Self { end, waiter: Waiter { fd } })
    }

    /// Signals the event. Never waits. If the kernel has no memory for a byte (`ENOBUFS`), nobody learns of it before
    /// the next signal.
    pub fn signal(&self) {
        // Otherwise it is full, so signalled already; or nobody can wait any more.
        let _ = rustix::net::send(&self.end, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Waits for the event and takes it.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn wait(&self, patience: Duration) -> io::Result<Waited> {
        self.waiter.wait(patience)
    }
}

/// The end to wait at, for an event loop, or for another process, where it becomes a [`Waiter`].
impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiter.as_fd()
    }
}

impl Waiter {
    /// Waits for the event and takes it. Who signals need not be trusted: this never waits longer than `patience`.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn wait(&self, patience: Duration) -> io::Result<Waited> {
        /// More than the signals that fit.
        const ALL: usize = 64;
        let patience = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        match rustix::net::recv(&self.fd, &mut [0; ALL], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Ok(Waited::Abandoned),
            Ok(_) => Ok(Waited::Signalled),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Waited::TimedOut),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The end to wait at of another process's event, as [`AsFd`] of [`Event`] gives it.
impl From<OwnedFd> for Waiter {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for Waiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only bounds a hang.
    const LONG: Duration = Duration::from_secs(600);

    fn event() -> (Event, Waiter) {
        let event = Event::new().expect("a pair of sockets");
        let waiter = event.as_fd().try_clone_to_owned().expect("a descriptor").into();
        (event, waiter)
    }

    #[test]
    fn an_event_is_taken_once() {
        let (event, waiter) = event();
        // As often as nobody takes it.
        (0..1000).for_each(|_| event.signal());
        assert_eq!(waiter.wait(LONG).expect("it works"), Waited::Signalled);
        assert_eq!(event.wait(Duration::ZERO).expect("it works"), Waited::TimedOut);
        event.signal();
        assert_eq!(event.wait(LONG).expect("it works"), Waited::Signalled);
    }

    #[test]
    fn who_waits_learns_that_nobody_is_left() {
        let (event, waiter) = event();
        event.signal();
        drop(event);
        assert_eq!(waiter.wait(LONG).expect("it works"), Waited::Signalled);
        assert_eq!(waiter.wait(LONG).expect("it works"), Waited::Abandoned);
    }

    /// Fails on: an eventfd, where this waits for ever; signals that raise SIGPIPE.
    #[test]
    fn who_waits_cannot_make_a_signal_wait() {
        let (event, waiter) = event();
        rustix::fs::fcntl_setfl(&waiter, rustix::fs::OFlags::empty()).expect("it is theirs");
        let other_way = rustix::net::send(&waiter, &[1], SendFlags::NOSIGNAL);
        assert_eq!(other_way, Err(Errno::PIPE), "nobody reads there");
        (0..1000).for_each(|_| event.signal());
        rustix::net::shutdown(&waiter, Shutdown::Both).expect("it is theirs");
        event.signal();
        event.signal();
    }
}
