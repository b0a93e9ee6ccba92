//! What a process has opened, by small numbers.

use alloc::vec::Vec;

/// What can be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// Nothing comes from it, and what goes to it is gone.
    Null,
}

impl Device {
    /// The device with that name.
    pub(super) fn named(name: u64) -> Option<Self> {
        (name == super::user::NULL).then_some(Self::Null)
    }
}

/// What each number stands for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handles(Vec<Option<Device>>);

impl Handles {
    /// Opens a device. The result is the first number that is free.
    pub(super) fn open(&mut self, device: Device) -> u64 {
        let free = self.0.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[number] = Some(device);
        number as u64
    }

    /// Closes what `number` stands for, and says what that was.
    pub(super) fn close(&mut self, number: u64) -> Option<Device> {
        self.0.get_mut(number as usize)?.take()
    }
}
