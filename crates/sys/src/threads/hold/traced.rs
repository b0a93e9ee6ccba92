//! Holds deaf threads: the requests to the tracer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::error::{Refusal, StopError};
use super::{Seat, Stopped, Way};
use crate::threads::list::{GRACE, PATIENCE, Wait, nap};
use crate::threads::own::own_process;
use crate::threads::task::{ThreadName, blocks, has_ended, own_filters, task_stat, tracer_of};
use crate::threads::tracer::{self, Answer, BATCH, Request, Tracer};

/// How long a sleeping thread that cannot be traced may be deaf.
const DEAF_SLEEP: Duration = Duration::from_millis(50);

impl Stopped<'_> {
    /// Makes the tracer seize the deaf threads, which do not notice it.
    pub(super) fn seize(&mut self, from: usize) -> Result<(), StopError> {
        if !self.are_any(from, Way::Deaf) {
            return Ok(());
        }
        if self.tracer.is_none() {
            match tracer::is_possible(own_filters()).and_then(|()| Tracer::start(&self.world.table.desk)) {
                Ok(tracer) => self.tracer = Some(tracer),
                Err(refusal) => {
                    for seat in self.seats(from).filter(|seat| seat.is(Way::Deaf)) {
                        seat.becomes(self.without_tracer(seat, refusal)?);
                    }
                    return Ok(());
                }
            }
        }
        self.ask_to_seize(from)?;
        if self.are_any(from, Way::Deaf) {
            // Yama allows the tracer that the process has named.
            self.tracer.iter_mut().for_each(Tracer::allow);
            self.ask_to_seize(from)?;
        }
        Ok(())
    }

    fn ask_to_seize(&mut self, from: usize) -> Result<(), StopError> {
        self.ask(from, Way::Deaf, &|_| Request::Seize, &mut |stopped, seat, answer| match answer.result {
            Ok(_) => Ok(Way::Seized),
            Err(_) if has_ended(seat.tid()) => Ok(Way::Gone),
            Err(errno) => {
                let refusal = diagnose(seat.tid(), errno);
                let is_named = stopped.tracer.as_ref().is_some_and(Tracer::is_allowed);
                // Tries once more.
                let is_first = refusal == (Refusal::Yama { scope: 1 }) && !is_named;
                if is_first { Ok(Way::Deaf) } else { stopped.without_tracer(seat, refusal) }
            }
        })
    }

    /// Stops the seized threads, and waits until they have stopped.
    pub(super) fn stop_seized(&mut self, from: usize) -> Result<(), StopError> {
        // A thread that cannot be interrupted is ending. It stays listed until the tracer has heard of its end.
        self.ask(from, Way::Seized, &|_| Request::Interrupt, &mut |_, _, _| Ok(Way::Seized))?;
        let mut wait = Wait::begin();
        while self.are_any(from, Way::Seized) {
            let waited = wait.look();
            self.ask(from, Way::Seized, &|_| Request::Wait, &mut |_, seat, answer| match answer.result {
                Ok(0) if waited > PATIENCE => gone_or(seat, waited),
                // The kernel does not report the end of a process's first thread while there are others.
                Ok(0) if seat.tid() == own_process() && waited > GRACE && has_ended(seat.tid()) => Ok(Way::Gone),
                Ok(0) => Ok(Way::Seized),
                Ok(_) if libc::WIFSTOPPED(answer.status) => {
                    // Bits above the signal name an event, if the thread did not stop to take a signal.
                    let signal = if answer.status >> 16 == 0 { libc::WSTOPSIG(answer.status) } else { 0 };
                    seat.taking.store(signal, Ordering::Relaxed);
                    Ok(Way::Stopped)
                }
                Ok(_) => Ok(Way::Gone),
                Err(_) => gone_or(seat, waited),
            })?;
            if self.are_any(from, Way::Seized) {
                nap();
            }
        }
        let waited = wait.look();
        self.ask(from, Way::Stopped, &|_| Request::KillOnExit, &mut |_, seat, answer| match answer.result {
            Ok(_) => Ok(Way::Held),
            Err(_) => gone_or(seat, waited),
        })
    }

    /// Releases all threads that the tracer holds, then the tracer.
    pub(super) fn let_traced_go(&mut self) {
        let detach = |seat: &Seat| Request::Detach(seat.taking.load(Ordering::Relaxed));
        for way in [Way::Stopped, Way::Held] {
            // If the tracer is gone, the process is about to be killed, or no thread was held yet.
            let _ = self.ask(0, way, &detach, &mut |_, _, _| Ok(Way::Gone));
        }
        // Threads that are only seized continue undisturbed.
        self.tracer = None;
    }

    /// Waits for a thread that cannot be traced: it may be deaf only for a moment. A thread in `sigwait` may take the
    /// signal after all.
    fn without_tracer(&self, seat: &Seat, refusal: Refusal) -> Result<Way, StopError> {
        let tid = seat.tid();
        let Some(signal) = self.signal else {
            return Err(StopError::NoFreeSignal { thread: ThreadName::of(tid), refusal });
        };
        let mut wait = Wait::begin();
        loop {
            let Some(stat) = task_stat(tid).filter(|stat| !stat.has_ended()) else { return Ok(Way::Gone) };
            if !blocks(tid, signal) {
                return Ok(Way::Hearing);
            }
            let limit = if stat.state == b'S' { DEAF_SLEEP } else { PATIENCE };
            if wait.look() > limit {
                return Err(StopError::Blocked { thread: ThreadName::of(tid), signal, refusal });
            }
            nap();
        }
    }

    fn are_any(&self, from: usize, way: Way) -> bool {
        self.seats(from).any(|seat| seat.is(way))
    }

    /// Sends the tracer a request for each thread that is in `way`; `tell` turns the answer into the thread's next way.
    fn ask(
        &mut self,
        from: usize,
        way: Way,
        request: &dyn Fn(&Seat) -> Request,
        tell: &mut dyn FnMut(&Self, &Seat, Answer) -> Result<Way, StopError>,
    ) -> Result<(), StopError> {
        let mut seats = self.seats(from).filter(|seat| seat.is(way));
        loop {
            let mut asked = [None; BATCH];
            let mut requests = [(0, Request::Wait); BATCH];
            let mut count = 0;
            for (place, seat) in asked.iter_mut().zip(&mut seats) {
                *place = Some(seat);
                requests[count] = (seat.tid(), request(seat));
                count += 1;
            }
            let Some(tracer) = self.tracer.as_mut().filter(|_| count > 0) else { return Ok(()) };
            let answers = tracer.ask(&requests[..count]).map_err(StopError::TracerLost)?;
            // All of them, also behind an error: an answer may hold a signal of the program's.
            let mut told = Ok(());
            for (seat, answer) in asked.iter().flatten().zip(answers) {
                match tell(self, seat, answer) {
                    Ok(way) => seat.becomes(way),
                    Err(error) => told = told.and(Err(error)),
                }
            }
            told?;
        }
    }
}

/// Returns that a thread that does not do what it should has ended; otherwise it is an error.
fn gone_or(seat: &Seat, waited: Duration) -> Result<Way, StopError> {
    if has_ended(seat.tid()) {
        return Ok(Way::Gone);
    }
    Err(StopError::Unstopped { thread: ThreadName::of(seat.tid()), waited_ms: waited.as_millis() as u64 })
}

/// Returns why a thread could not be seized.
fn diagnose(tid: i32, errno: rustix::io::Errno) -> Refusal {
    tracer_of(tid).map_or_else(|| tracer::diagnose(errno), |by| Refusal::Traced { by })
}
