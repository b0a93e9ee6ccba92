//! Maps that programs know by descriptors: `lddw` with the sources 1 and 2 (RFC 9669, section 5.4).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Host, HostBuilder};
use crate::code::{Code, MOST_SLOTS, StructureError};
use crate::insn::{Instruction, SLOT, Wide, decode, encode};
use crate::map::Map;

/// Indexes of maps, by descriptor.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Descriptors(BTreeMap<i32, i32>);

impl Descriptors {
    /// Returns what an instruction stands for, by the map's index.
    fn bound(&self, instruction: Instruction) -> Option<Instruction> {
        let Instruction::LoadWide { dst, value } = instruction else { return None };
        let index = |descriptor| self.0.get(&descriptor).copied();
        let value = match value {
            Wide::MapByDescriptor(map) => Wide::MapByIndex(index(map)?),
            Wide::MapValueByDescriptor { map, offset } => Wide::MapValueByIndex { map: index(map)?, offset },
            _ => return None,
        };
        Some(Instruction::LoadWide { dst, value })
    }
}

impl HostBuilder {
    /// Gives programs a map as [`map`](Self::map) does, which those of [`Host::code`] know by `descriptor`, too: any
    /// number that the host and its programs have agreed on. The last map of a descriptor counts.
    pub fn map_at(mut self, descriptor: i32, map: Arc<Map>) -> Self {
        // An index beyond those of instructions is none of a map, as everywhere.
        self.descriptors.0.insert(descriptor, i32::try_from(self.maps.len()).unwrap_or(i32::MAX));
        self.map(map)
    }
}

impl Host {
    /// Checks the slots of a program that may know maps by their descriptors ([`HostBuilder::map_at`]): in what is
    /// returned, they are known by their indexes.
    ///
    /// # Errors
    ///
    /// [`StructureError`]; [`Unresolved`](StructureError::Unresolved) if there is no map of a descriptor.
    pub fn code(&self, bytes: &[u8]) -> Result<Code, StructureError> {
        if self.descriptors.0.is_empty() || bytes.len() > MOST_SLOTS * SLOT {
            return Code::new(bytes);
        }
        let mut bound = Vec::from(bytes);
        let mut slot = 0;
        // What is no instruction is an error of the code.
        while let Ok(instruction) = decode(bytes, slot) {
            let mut at = slot * SLOT;
            slot += instruction.slots();
            if let Some(instruction) = self.descriptors.bound(instruction) {
                encode(&instruction, &mut |encoded| {
                    bound[at..at + SLOT].copy_from_slice(&encoded);
                    at += SLOT;
                });
            }
        }
        Code::new(&bound)
    }
}
