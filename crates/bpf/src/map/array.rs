//! Values by number.

use super::cells::Cells;
use super::value::Value;
use super::{Definition, Element, MapError, OpError, Update};

/// Where the values of an array lie, one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArrayPlace {
    /// Address of the first.
    pub(crate) values: u64,
    /// How many there are.
    pub(crate) count: u32,
    /// Bytes from one to the next.
    pub(crate) stride: u32,
}

/// An array. All elements are always there.
#[derive(Debug)]
pub(super) struct Array {
    /// Of each CPU in turn.
    values: Cells,
    /// The numbers of the elements, for callbacks that want their addresses.
    keys: Cells,
    count: usize,
}

impl Array {
    /// Bytes that it takes.
    pub(super) fn bytes(definition: &Definition, cpus: u32) -> u64 {
        let count = u64::from(definition.max_entries);
        Cells::bytes(count * u64::from(cpus), definition.value_len).saturating_add(Cells::bytes(count, 4))
    }

    pub(super) fn new(definition: &Definition, cpus: u32) -> Result<Self, MapError> {
        let count = definition.max_entries;
        let values = Cells::new(definition, u64::from(count) * u64::from(cpus), definition.value_len)?
            .with_lock(definition.lock);
        let keys = Cells::new(definition, count.into(), 4)?;
        for index in 0..count {
            keys.write(index as usize, Value::Near(&index.to_ne_bytes()));
        }
        Ok(Self { values, keys, count: count as usize })
    }

    /// Returns where the values of the first CPU lie.
    pub(super) fn place(&self) -> ArrayPlace {
        let stride = self.values.stride() as u32;
        ArrayPlace { values: self.values.address(0), count: self.count as u32, stride }
    }

    pub(super) const fn values(&self) -> &Cells {
        &self.values
    }

    pub(super) const fn keys(&self) -> &Cells {
        &self.keys
    }

    fn index(&self, key: &[u8], cpu: u32) -> Option<usize> {
        let index = u32::from_ne_bytes(key.try_into().ok()?) as usize;
        (index < self.count).then_some(cpu as usize * self.count + index)
    }

    pub(super) fn read(&self, key: &[u8], cpu: u32, value: &mut [u8]) -> Result<(), OpError> {
        let index = self.index(key, cpu).ok_or(OpError::NotFound)?;
        self.values.read(index, value);
        Ok(())
    }

    /// Sets a value, for all CPUs if none is named. `renew` gets the address of each value before it is set.
    pub(super) fn update(
        &self,
        key: &[u8],
        cpu: Option<u32>,
        value: Value<'_>,
        update: Update,
        renew: &dyn Fn(u64),
    ) -> Result<(), OpError> {
        let first = self.index(key, cpu.unwrap_or(0)).ok_or(OpError::Full)?;
        if update == Update::Insert {
            return Err(OpError::Exists);
        }
        let all = self.values.count();
        let step = if cpu.is_some() { all } else { self.count };
        for index in (first..all).step_by(step) {
            renew(self.values.address(index));
            self.values.write(index, value);
        }
        Ok(())
    }

    pub(super) fn address(&self, key: &[u8], cpu: u32) -> Option<u64> {
        Some(self.values.address(self.index(key, cpu)?))
    }

    pub(super) fn element(&self, index: usize, cpu: u32) -> Option<Element> {
        (index < self.count).then(|| Element {
            index,
            key: self.keys.address(index),
            value: self.values.address(cpu as usize * self.count + index),
        })
    }
}
