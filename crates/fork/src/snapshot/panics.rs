//! Panics that go on after a restore. What they carry lies in memory that is restored.

use std::any::Any;
use std::panic::resume_unwind;

/// Bytes of a message that survive.
const MOST: usize = 1 << 10;

/// The message of a panic, on the stack.
pub(super) struct Message {
    bytes: [u8; MOST],
    len: usize,
}

impl Message {
    /// Copies the message out of what a panic carries.
    pub(super) fn of(carried: &(dyn Any + Send)) -> Self {
        let text = match (carried.downcast_ref::<&'static str>(), carried.downcast_ref::<String>()) {
            (Some(text), _) => text,
            (None, Some(text)) => text.as_str(),
            (None, None) => "a panic that carried something else than a message",
        };
        let len = text.len().min(MOST);
        let mut bytes = [0; MOST];
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self { bytes, len }
    }

    /// Lets the panic go on, without another report of it.
    pub(super) fn go_on(&self) -> ! {
        let text = String::from_utf8_lossy(&self.bytes[..self.len]).into_owned();
        resume_unwind(Box::new(text))
    }
}
