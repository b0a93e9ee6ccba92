//! Values that change under their locks.

use core::ops::Range;

use super::lock::{Held, Lock, Owner};
use super::value::{Copied, Value};
use super::{Map, OpError, Store, TIMER, Update};

impl Map {
    /// Changes the value of `key` under its lock (`struct bpf_spin_lock`), so programs and threads of the host that
    /// take the lock come before or after. `change` sees zeros in place of the lock's bytes, and cannot change them. If
    /// `change` panics, nothing is written, and the lock is given back.
    ///
    /// Removing a key takes no lock. If the key of a hash map is removed during `change`, nothing is written, whoever's
    /// the element is by then ([`OpError::NotFound`]). If it is put in again meanwhile, and gets the same element, its
    /// new value is written over.
    ///
    /// # Errors
    ///
    /// [`OpError`]; [`OpError::Deadlock`] in `change`, and in a signal handler that has interrupted `change` or a
    /// program.
    #[cfg(feature = "std")]
    pub fn change_locked<T>(&self, key: &[u8], change: impl FnOnce(&mut [u8]) -> T) -> Result<T, OpError> {
        self.change_by(Owner::here(super::this_cpu), key, change)
    }

    /// Changes the value of `key` under its lock (`struct bpf_spin_lock`), for the CPU `cpu`, on which this runs until
    /// it has returned: the number that [`Runner::cpu`](crate::host::Runner::cpu) returns there. `change` sees zeros in
    /// place of the lock's bytes, and cannot change them.
    ///
    /// Removing a key takes no lock. If the key of a hash map is removed during `change`, nothing is written, whoever's
    /// the element is by then ([`OpError::NotFound`]). If it is put in again meanwhile, and gets the same element, its
    /// new value is written over.
    ///
    /// # Errors
    ///
    /// [`OpError`]; [`OpError::Deadlock`] in `change`, and in what has interrupted `change` or a program on this CPU.
    #[cfg(not(feature = "std"))]
    pub fn change_locked_on<T>(&self, cpu: u32, key: &[u8], change: impl FnOnce(&mut [u8]) -> T) -> Result<T, OpError> {
        self.change_by(Owner::here(|| cpu), key, change)
    }

    fn change_by<T>(&self, owner: Owner, key: &[u8], change: impl FnOnce(&mut [u8]) -> T) -> Result<T, OpError> {
        self.under_lock(owner, key, |address| {
            let mut value = Copied::zeros(self.definition.value_len as usize);
            self.read(key, 0, &mut value)?;
            let answer = change(&mut value);
            self.write_at(key, address, Value::Near(&value), 0..0)?;
            Ok(answer)
        })
    }

    /// Does something under the lock of the value of `key`, which lies at the address that `act` gets.
    fn under_lock<T>(
        &self,
        owner: Owner,
        key: &[u8],
        act: impl FnOnce(u64) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        self.check_key(key)?;
        let offset = self.definition.lock.ok_or(OpError::NoLock)?;
        loop {
            let address = self.address_of(key, 0).ok_or(OpError::NotFound)?;
            let lock = self.lock_at(address + u64::from(offset)).ok_or(OpError::NotFound)?;
            lock.take(owner).map_err(|_| OpError::Deadlock)?;
            let _held = Held(lock, owner);
            // The element may have become another key's before the lock was free.
            if self.address_of(key, 0) == Some(address) {
                return act(address);
            }
        }
    }

    /// Sets the value of `key` under its lock, if the key exists (`BPF_F_LOCK`). The bytes of a timer stay as they are.
    pub(crate) fn update_locked(
        &self,
        key: &[u8],
        value: Value<'_>,
        update: Update,
        owner: Owner,
    ) -> Result<(), OpError> {
        self.check_value(value.len())?;
        if self.definition.lock.is_none() {
            return Err(OpError::NoLock);
        }
        let timer = self.definition.timer.map_or(0..0, |at| at as usize..(at + TIMER) as usize);
        loop {
            if update != Update::Insert {
                match self.under_lock(owner, key, |address| self.write_at(key, address, value, timer.clone())) {
                    Err(OpError::NotFound) if update == Update::Always => {}
                    done => return done,
                }
            }
            match self.update_of(key, value, Update::Insert, None) {
                // Another thread was faster.
                Err(OpError::Exists) if update == Update::Always => {}
                done => return done,
            }
        }
    }

    /// Writes the value of `key`, if it still lies at `address`; without these bytes of it.
    fn write_at(&self, key: &[u8], address: u64, value: Value<'_>, kept: Range<usize>) -> Result<(), OpError> {
        match &self.store {
            Store::Hash(hash) => hash.write_at(key, address, value, kept),
            _ => {
                let values = self.store.values().ok_or(OpError::NotFound)?;
                values.write_without(values.index_of(address, 0).ok_or(OpError::NotFound)?, value, kept);
                Ok(())
            }
        }
    }

    /// Returns the lock at this address, in one of its values.
    pub(crate) fn lock_at(&self, address: u64) -> Option<Lock<'_>> {
        let offset = self.definition.lock?;
        let values = self.store.values()?;
        values.lock_of(values.index_of(address, offset)?)
    }
}
