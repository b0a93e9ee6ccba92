//! Fills in addresses.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{collections::BTreeMap, vec};
use core::ops::Range;

use palimpsest_text::link::{self, Misfit, Role};

use crate::error::{LinkError, ReadError};
use crate::read::{Loaded, Meant, Module, Relocation};
use crate::{Part, relocation};

/// Where the parts will lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// The text's first byte.
    pub text: u64,
    /// The constants' first byte.
    pub constants: u64,
    /// The data's first byte.
    pub data: u64,
}

impl Addresses {
    /// Returns where a part begins.
    pub fn of(&self, part: Part) -> u64 {
        match part {
            Part::Text => self.text,
            Part::Constants => self.constants,
            Part::Data => self.data,
        }
    }
}

/// A module as it is to be stored, and what it exports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Linked {
    parts: [Vec<u8>; 3],
    exports: BTreeMap<String, u64>,
}

impl Linked {
    /// Returns the bytes of a part.
    pub fn bytes(&self, part: Part) -> &[u8] {
        &self.parts[part as usize]
    }

    /// Returns what others can use, by name.
    pub fn exports(&self) -> &BTreeMap<String, u64> {
        &self.exports
    }
}

impl Module<'_> {
    /// Links the module for these addresses. `resolve` returns the addresses of what it needs.
    ///
    /// # Errors
    ///
    /// See [`LinkError`].
    pub fn link(&self, at: &Addresses, mut resolve: impl FnMut(&str) -> Option<u64>) -> Result<Linked, LinkError> {
        for part in Part::ALL {
            let (address, align) = (at.of(part), self.extent(part).align);
            if !address.is_multiple_of(align as u64) {
                return Err(LinkError::Alignment { part, address, align });
            }
        }
        let mut parts = Part::ALL.map(|part| vec![0; self.extent(part).len]);
        let trap = relocation::trap(self.architecture);
        parts[Part::Text as usize].iter_mut().zip(trap.iter().cycle()).for_each(|(to, byte)| *to = *byte);
        for section in self.sections.iter().flatten() {
            if let Some(bytes) = section.bytes {
                parts[section.part as usize][section.offset..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        let mut addresses = Vec::with_capacity(self.symbols.len());
        for symbol in &self.symbols {
            addresses.push(match *symbol {
                Meant::Here(part, offset) => at.of(part).wrapping_add(offset as u64),
                Meant::Absolute(value) => value,
                Meant::There(name) => resolve(name).ok_or_else(|| LinkError::Undefined(name.to_owned()))?,
                // No relocation refers to it.
                Meant::NotLoaded => 0,
            });
        }
        for (&symbol, &offset) in &self.slots {
            parts[Part::Constants as usize][offset..][..8].copy_from_slice(&addresses[symbol].to_le_bytes());
        }
        for (&(symbol, addend), &offset) in &self.veneers {
            let callee = addresses[symbol].wrapping_add_signed(addend).wrapping_add_signed(self.encoder.call_bias());
            let veneer = &mut parts[Part::Text as usize][offset..][..self.encoder.veneer_len()];
            self.encoder.write_veneer(veneer, callee);
        }
        for relocation in &self.relocations {
            let &Relocation { part, offset, .. } = relocation;
            let site = &mut parts[part as usize][offset..];
            self.fill(relocation, site, at, &addresses).map_err(|misfit| LinkError::Misfit { part, offset, misfit })?;
        }
        let exports = self.exports.iter().map(|(name, symbol)| ((*name).to_owned(), addresses[*symbol])).collect();
        Ok(Linked { parts, exports })
    }

    fn fill(&self, relocation: &Relocation, site: &mut [u8], at: &Addresses, addresses: &[u64]) -> Result<(), Misfit> {
        let &Relocation { part, offset, field, role, symbol, addend } = relocation;
        let here = at.of(part).wrapping_add(offset as u64);
        let to = match role {
            Role::Slot => at.constants.wrapping_add(self.slots[&symbol] as u64),
            _ => addresses[symbol],
        };
        let to = to.wrapping_add_signed(addend);
        match link::patch(self.encoder, field, site, here, to) {
            Err(far @ Misfit::Distance { .. }) => {
                let veneer = self.veneers.get(&(symbol, addend)).filter(|_| role == Role::Call).ok_or(far)?;
                let veneer = at.text.wrapping_add(*veneer as u64).wrapping_add_signed(-self.encoder.call_bias());
                link::patch(self.encoder, field, site, here, veneer)
            }
            done => done,
        }
    }

    /// Returns the part and the place there of the section with this name, if there is one and it is loaded: a table
    /// with entries of `entry` bytes.
    ///
    /// # Errors
    ///
    /// [`ReadError::Twice`], and [`ReadError::Entries`] if the last entry is not whole.
    pub fn table(&self, name: &str, entry: usize) -> Result<Option<(Part, Range<usize>)>, ReadError> {
        let is_wanted = |section: &Loaded<'_>| section.name == name.as_bytes();
        let sections = self.sections.iter().enumerate();
        let mut found = sections.filter_map(|(index, section)| Some((index, section.filter(is_wanted)?)));
        let Some((index, section)) = found.next() else { return Ok(None) };
        if let Some((second, _)) = found.next() {
            return Err(ReadError::Twice { name: name.to_owned(), first: index, second });
        }
        if !section.len.is_multiple_of(entry) {
            return Err(ReadError::Entries { index, len: section.len, entry });
        }
        Ok(Some((section.part, section.offset..section.offset + section.len)))
    }
}
