//! Loads that are not proven, and are tried when the program runs; and stores that are not, and are checked.
//!
//! A load that finds nothing does no harm; a store must not even reach what exists, if it is not the program's. So a
//! store is only checked where the verifier knows which memory its address was made from: the context, or the values of
//! one of the host's maps. The check compares the address itself with the bounds of that memory, whatever the verifier
//! takes it for. Within a map any value may be reached: programs may write to each of them as it is.

use super::fault::Fault;
use super::state::{Area, Value};
use super::step::Step;
use super::stored::{Region, Stored};
use super::{ContextAccess, Unproven};
use crate::insn::Register;

impl Step<'_> {
    /// Whether an unproven load may be tried at the address in `base`: not on the stack, where the host keeps data of
    /// its own (arguments of functions may point there, too), and only if the register has a value that can be an
    /// address.
    pub(super) fn may_probe(&self, base: Register) -> bool {
        self.shared.contract.unproven == Unproven::Probe
            && match self.state.top().get(base) {
                Value::Scalar(_) | Value::Maybe(..) => true,
                Value::Pointer(area, _) => !matches!(area, Area::Stack(_) | Area::Argument { .. }),
                Value::Unset | Value::Cleared | Value::Map(_) | Value::Function(_) | Value::Sample(_) => false,
            }
    }

    /// The memory by which a store to an area can be checked.
    fn region(&self, area: Area) -> Option<Region> {
        match area {
            Area::Context if matches!(self.shared.contract.context, Some((_, ContextAccess::Write))) => {
                Some(Region::Context)
            }
            Area::MapValue(map) if (map as usize) < self.shared.contract.own_maps => {
                let shape = self.shared.contract.maps[map as usize];
                // A value of a map with locks has this area, too, once nobody knows which lock is its own.
                let is_plain = shape.timer.is_none() && shape.lock.is_none();
                (is_plain && self.may_write(area).is_ok()).then_some(Region::Map(map))
            }
            // Of records, slices and arguments nobody knows the bounds when the program runs; the stack holds what the
            // verifier relies on; locks lie in the values.
            _ => None,
        }
    }

    /// Whether an address of this memory may be anything, since all that it is used for is tried or checked.
    pub(super) fn may_be_far(&self, area: Area) -> bool {
        self.shared.contract.unproven == Unproven::Probe && (area == Area::Context || self.region(area).is_some())
    }

    /// Notes that a store to `area` is proven.
    pub(super) fn note_proven(&self, area: Area) -> Result<(), Fault> {
        let region = self.region(area);
        self.seen.stored.set(match self.seen.stored.get() {
            Stored::Nothing => Stored::Proven(region),
            Stored::Proven(known) => Stored::Proven(known.filter(|_| known == region)),
            Stored::Checked(known) if Some(known) == region => Stored::Checked(known),
            Stored::Checked(_) => return Err(Fault::Elsewhere),
        });
        Ok(())
    }

    /// Notes that a store through `base`, which is not proven for the reason that `fault` tells, is to be checked when
    /// the program runs.
    ///
    /// # Errors
    ///
    /// `fault` if the contract demands proofs, or nobody knows which memory is meant. [`Fault::Elsewhere`] if on
    /// another path the same store is in other memory.
    pub(super) fn check_store(&self, base: Register, fault: Fault) -> Result<(), Fault> {
        let area = match self.state.top().get(base) {
            Value::Pointer(area, _) | Value::Maybe(area, _) if self.shared.contract.unproven == Unproven::Probe => {
                *area
            }
            _ => return Err(fault),
        };
        let Some(region) = self.region(area) else { return Err(fault) };
        // Only the program's own function keeps where the context is.
        let is_own =
            self.state.frames.len() == 1 && self.shared.code.functions().nth(1).is_none_or(|next| self.at < next);
        if region == Region::Context && !is_own {
            return Err(fault);
        }
        let is_same = match self.seen.stored.get() {
            Stored::Nothing => true,
            Stored::Proven(known) => known == Some(region),
            Stored::Checked(known) => known == region,
        };
        if !is_same {
            return Err(Fault::Elsewhere);
        }
        self.seen.stored.set(Stored::Checked(region));
        Ok(())
    }
}
