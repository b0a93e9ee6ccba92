//! Handles for ring buffers: records from programs, and samples for them.

use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;

use super::super::{Consumer, Definition, Kind, Map, Producer, ReserveError, Wake};
use super::{Handle, Lengths, Plain, TypeError, check};

handle! {
    /// A ring buffer whose records are of one type.
    RingHandle<R: Plain>, 0, 0, [RingBuffer]
}
handle! {
    /// A user ring buffer whose samples are of one type.
    UserRingHandle<S: Plain>, 0, 0, [UserRingBuffer]
}

/// A record has another length than its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a record has {len} bytes, and its type has {wanted}")]
pub struct RecordLength {
    /// Bytes of the record.
    pub len: usize,
    /// Bytes of the type.
    pub wanted: usize,
}

impl RecordLength {
    /// Returns the record that consists of `bytes`: also for who reads them in another process
    /// ([`RingReader`](crate::map::RingReader)).
    ///
    /// # Errors
    ///
    /// This.
    pub fn check<R: Plain>(bytes: &[u8]) -> Result<R, Self> {
        R::read_from_bytes(bytes).map_err(|_| Self { len: bytes.len(), wanted: size_of::<R>() })
    }
}

impl<R: Plain> RingHandle<R> {
    /// Returns the one who reads records; `None` while there is one.
    pub fn take_consumer(&self) -> Option<RecordConsumer<'_, R>> {
        let consumer = self.map.ring()?.take_consumer()?;
        Some(RecordConsumer { consumer, record: PhantomData })
    }

    /// Puts in a record of the host's; false if there is no room.
    pub fn output(&self, record: &R, wake: Wake) -> bool {
        self.map.ring().is_some_and(|ring| ring.output(record.as_bytes(), wake))
    }
}

/// The one who reads the records of a ring buffer.
#[derive(Debug)]
pub struct RecordConsumer<'a, R> {
    consumer: Consumer<'a>,
    record: PhantomData<fn() -> R>,
}

impl<R: Plain> RecordConsumer<'_, R> {
    /// Passes each finished record to `take`, as [`Consumer::drain`] does; an error for one that has another length.
    /// Returns how many there were, with those.
    pub fn drain(&mut self, mut take: impl FnMut(Result<R, RecordLength>)) -> usize {
        self.consumer.drain(|bytes| take(RecordLength::check(bytes)))
    }
}

impl<S: Plain> UserRingHandle<S> {
    /// Returns the one who puts samples in; `None` while there is one.
    pub fn take_producer(&self) -> Option<SampleProducer<'_, S>> {
        let producer = self.map.user_ring()?.take_producer()?;
        Some(SampleProducer { producer, sample: PhantomData })
    }
}

/// The one who puts samples into a user ring buffer.
#[derive(Debug)]
pub struct SampleProducer<'a, S> {
    producer: Producer<'a>,
    sample: PhantomData<fn(S)>,
}

impl<S: Plain> SampleProducer<'_, S> {
    /// Sends a sample to programs.
    ///
    /// # Errors
    ///
    /// [`ReserveError`].
    pub fn send(&mut self, sample: &S) -> Result<(), ReserveError> {
        self.producer.put(sample.as_bytes())
    }

    /// Bytes that programs have yet to take, with the headers of samples.
    pub fn pending(&self) -> u64 {
        self.producer.pending()
    }
}
