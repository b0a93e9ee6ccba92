//! What helpers answer: a number, or that a function of the program must be called first.

use alloc::sync::Arc;

use crate::map::{Element, Map, Next, Seated, Wake};

/// What a helper answers.
#[derive(Debug)]
pub enum Answer {
    /// The value for `r0`.
    Value(u64),
    /// Calls of a function of the program, before there is a value.
    Iterate(Iteration),
}

/// Repeated calls of a function of the program.
#[derive(Debug)]
pub struct Iteration {
    function: u64,
    context: u64,
    /// Calls made.
    made: u64,
    over: Over,
}

#[derive(Debug)]
enum Over {
    /// This many times.
    Times(u64),
    /// For the elements of a map from this one on, with the values of a CPU; programs know the map by the handle.
    Elements { map: Arc<Map>, from: usize, cpu: u32, handle: u64 },
    /// Once for each sample of a user ring buffer.
    Samples(Draining),
}

/// A user ring buffer that is being drained.
#[derive(Debug)]
struct Draining {
    map: Arc<Map>,
    seated: Seated,
    wake: Wake,
    /// How many samples were looked at, including skipped ones.
    seen: u32,
    /// Linux's number of the error that has ended it.
    error: Option<i64>,
    taken: bool,
}

/// How many samples one call looks at, at most (Linux's `BPF_MAX_USER_RINGBUF_SAMPLES`, `kernel/bpf/ringbuf.c`).
const MOST_SAMPLES: u32 = 128 * 1024;

impl Draining {
    /// Copies the next sample that is not to be skipped; returns its dynptr's address.
    fn next(&mut self) -> Option<u64> {
        let ring = self.map.user_ring().filter(|_| self.error.is_none())?;
        while self.seen < MOST_SAMPLES {
            self.seen += 1;
            match ring.take() {
                Ok(Next::Sample(sample)) => {
                    self.taken = true;
                    return Some(sample);
                }
                Ok(Next::Skipped) => self.taken = true,
                Ok(Next::Nothing) => return None,
                Err(wrong) => {
                    self.error = Some(wrong.errno());
                    return None;
                }
            }
        }
        None
    }
}

impl Drop for Draining {
    /// Ends the draining, also when the program was ended.
    fn drop(&mut self) {
        let wakes = match self.wake {
            Wake::IfWaiting => self.taken,
            Wake::Never => false,
            Wake::Always => true,
        };
        if let Some(ring) = self.map.user_ring() {
            ring.end(&self.seated, wakes);
        }
    }
}

impl Iteration {
    pub(crate) const fn times(function: u64, context: u64, times: u64) -> Self {
        Self { function, context, made: 0, over: Over::Times(times) }
    }

    pub(crate) const fn elements((function, context): (u64, u64), map: Arc<Map>, cpu: u32, handle: u64) -> Self {
        Self { function, context, made: 0, over: Over::Elements { map, from: 0, cpu, handle } }
    }

    /// An iteration over samples. The caller has begun to drain the ring.
    pub(crate) fn samples((function, context): (u64, u64), (map, seated): (Arc<Map>, Seated), wake: Wake) -> Self {
        let draining = Draining { map, seated, wake, seen: 0, error: None, taken: false };
        Self { function, context, made: 0, over: Over::Samples(draining) }
    }

    /// Returns the function, as the program knows it.
    pub const fn function(&self) -> u64 {
        self.function
    }

    /// Returns the arguments of the next call. `last` is what the previous one returned; a number other than 0 ends the
    /// calls. After the last one, [`made`](Self::made) is the answer.
    pub fn next(&mut self, last: Option<u64>) -> Option<[u64; 5]> {
        if last.is_some_and(|last| last != 0) {
            return None;
        }
        let arguments = match &mut self.over {
            Over::Times(times) if self.made == *times => return None,
            Over::Times(_) => [self.made, self.context, 0, 0, 0],
            Over::Elements { map, from, cpu, handle } => {
                let Element { index, key, value } = map.element_of(*from, *cpu)?;
                *from = index + 1;
                [*handle, key, value, self.context, 0]
            }
            Over::Samples(draining) => [draining.next()?, self.context, 0, 0, 0],
        };
        self.made += 1;
        Some(arguments)
    }

    /// Returns how many calls were made, or, if an error has ended them, its negative number.
    pub const fn made(&self) -> u64 {
        match &self.over {
            Over::Samples(Draining { error: Some(error), .. }) => -*error as u64,
            _ => self.made,
        }
    }
}
