//! What a process has opened, by small numbers.

use alloc::vec::Vec;

/// What can be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// A device that yields nothing and discards what it gets.
    Null,
}

impl Device {
    /// Returns the device with that name.
    pub(super) fn named(name: u64) -> Option<Self> {
        (name == super::user::NULL).then_some(Self::Null)
    }
}

/// The device of each number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handles(Vec<Option<Device>>);

impl Handles {
    /// Opens a device, and returns the first free number.
    pub(super) fn open(&mut self, device: Device) -> u64 {
        let free = self.0.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[number] = Some(device);
        number as u64
    }

    /// Closes `number`, and returns the device that it had.
    pub(super) fn close(&mut self, number: u64) -> Option<Device> {
        self.0.get_mut(number as usize)?.take()
    }
}
