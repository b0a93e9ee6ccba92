//! Fills in the fields of one definition, once its address and its targets' addresses are known.

use palimpsest_text::link::{Encoder, Islands, Misfit, Role};

use crate::definition::{Fixup, Target};
use crate::error::LinkError;
use crate::fields;

/// Provides addresses and, for errors, names.
pub(super) trait Resolve {
    /// Returns the address of `target`, for a field in `referrer`.
    fn address(&self, target: Target, referrer: &str) -> Result<u64, LinkError>;

    /// Returns the name of `target`.
    fn name(&self, target: Target) -> String;
}

/// A definition that is being linked.
pub(super) struct Patcher<'a, R> {
    pub(super) encoder: &'a dyn Encoder,
    pub(super) resolve: &'a R,
    /// Name of the definition.
    pub(super) referrer: &'a str,
    /// Final address of its first byte.
    pub(super) base: u64,
    /// Bytes that relocations may touch: the definition without its islands.
    pub(super) len: usize,
    pub(super) fixups: &'a [Fixup],
    pub(super) islands: &'a Islands<Target>,
}

impl<R: Resolve> Patcher<'_, R> {
    /// Fills in every field of `image`.
    pub(super) fn patch_all(&self, image: &mut [u8]) -> Result<(), LinkError> {
        self.fixups.iter().try_for_each(|fixup| self.patch(fixup, image))
    }

    fn patch(&self, fixup: &Fixup, image: &mut [u8]) -> Result<(), LinkError> {
        let at = self.base + u64::from(fixup.offset);
        match fixup.role {
            Role::LowHalf => {
                let high = self.high_half(fixup)?;
                let to = self.destination(high, image)?;
                let at = self.base + u64::from(high.offset);
                self.write(fixup, image, at, to)
            }
            Role::Call => {
                let to = self.destination(fixup, image)?;
                match (self.write(fixup, image, at, to), self.islands.veneer(self.encoder, &fixup.reference())) {
                    (Err(LinkError::OutOfRange { .. }), Some(veneer)) => {
                        let bias = self.encoder.call_bias();
                        self.encoder.write_veneer(&mut image[veneer..], to.wrapping_add_signed(bias));
                        let veneer = self.base + veneer as u64;
                        self.write(fixup, image, at, veneer.wrapping_add_signed(-bias))
                    }
                    (written, _) => written,
                }
            }
            Role::Value | Role::Slot | Role::Unsupported => {
                let to = self.destination(fixup, image)?;
                self.write(fixup, image, at, to)
            }
        }
    }

    /// Returns the address that `fixup`'s field must refer to. Fills in the slot, if it refers to one.
    fn destination(&self, fixup: &Fixup, image: &mut [u8]) -> Result<u64, LinkError> {
        let symbol = self.resolve.address(fixup.target, self.referrer)?;
        let place = match self.islands.slot(fixup.target) {
            Some(slot) if fixup.role == Role::Slot => {
                image[slot..slot + 8].copy_from_slice(&symbol.to_le_bytes());
                self.base + slot as u64
            }
            _ => symbol,
        };
        Ok(place.wrapping_add_signed(fixup.addend))
    }

    /// Returns the relocation of the high half that `low` refers to.
    fn high_half(&self, low: &Fixup) -> Result<&Fixup, LinkError> {
        let Target::Inside(_, offset) = low.target else {
            return Err(self.unpaired(low));
        };
        self.fixups
            .iter()
            .find(|fixup| fixup.offset == offset && fixup.role != Role::LowHalf)
            .ok_or_else(|| self.unpaired(low))
    }

    fn unpaired(&self, low: &Fixup) -> LinkError {
        LinkError::Unpaired { referrer: self.referrer.to_owned(), offset: low.offset }
    }

    fn write(&self, fixup: &Fixup, image: &mut [u8], at: u64, to: u64) -> Result<(), LinkError> {
        let site = image[..self.len].get_mut(fixup.offset as usize..).unwrap_or_default();
        fields::patch(self.encoder, fixup.kind, site, at, to).map_err(|misfit| self.explain(misfit, fixup, at, to))
    }

    fn explain(&self, misfit: Misfit, fixup: &Fixup, from: u64, to: u64) -> LinkError {
        let referrer = self.referrer.to_owned();
        let symbol = self.resolve.name(fixup.target);
        let kind = fixup.kind;
        match misfit {
            Misfit::Distance { reach } => LinkError::OutOfRange {
                symbol,
                referrer,
                kind,
                from,
                to,
                distance: to.wrapping_sub(from).cast_signed(),
                reach,
            },
            Misfit::Absolute32 => LinkError::Absolute32 { symbol, referrer, to },
            Misfit::Alignment(align) => LinkError::Misaligned { symbol, referrer, kind, to, align },
            Misfit::Truncated { needed } => {
                LinkError::OutsideDefinition { referrer, kind, offset: fixup.offset, needed, len: self.len }
            }
            Misfit::Unsupported => LinkError::Unsupported { referrer, kind, offset: fixup.offset },
        }
    }
}
