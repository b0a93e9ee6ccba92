//! What the [map](super::frozen_map) says of memory, in one word.

use palimpsest_sys::memory::traits::Traits;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::VmaFlags;

/// Rights, one bit each, from this bit on.
const RIGHTS: [(u64, Permissions); 3] =
    [(1 << 24, Permissions::READ), (1 << 25, Permissions::WRITE), (1 << 26, Permissions::EXECUTE)];
const FLAGS: u64 = ((1 << 24) - 1) & !KEYS;
const SNAPSHOT: u64 = 1 << 27;
/// The flags or the protection key are not known: this memory must stay where it is.
const CHANGED: u64 = 1 << 28;
pub(super) const UNSURE: u64 = 1 << 29;
/// Whoever has set it changes the slot.
pub(super) const BUSY: u64 = 1 << 30;
/// The program has erased something that the extent still holds.
const ERASED: u64 = 1 << 63;
/// First bit of the extent's number; the number 0 means none.
const SERIAL: u32 = 32;
/// The highest extent number that fits.
pub(super) const MOST_SERIAL: u32 = (1 << 31) - 1;
/// First bit of the protection key, in place of flags that replaceable memory never has ([`VmaFlags::USERFAULT`],
/// [`VmaFlags::SHADOW_STACK`]).
const KEY: u32 = 12;
const KEYS: u64 = 15 << KEY;

/// What the map says of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry(pub(super) u64);

impl Entry {
    /// Describes memory with these rights. Without `flags`, its flags are unknown.
    pub(crate) fn new(permissions: Permissions, flags: Option<VmaFlags>, extent: u32) -> Self {
        let flags = flags.map_or(CHANGED, |flags| u64::from(flags.bits()) & FLAGS);
        Self(flags | u64::from(extent) << SERIAL & !ERASED).with_rights(permissions)
    }

    /// Describes memory of a snapshot, which must stay where it is.
    pub(crate) fn of_snapshot(permissions: Permissions) -> Self {
        Self(SNAPSHOT | CHANGED).with_rights(permissions)
    }

    /// Describes memory that may be frozen, with unknown rights.
    pub(crate) const fn unknown() -> Self {
        Self(CHANGED | UNSURE)
    }

    /// Returns the entry with other rights.
    #[must_use]
    pub(crate) fn with_rights(self, permissions: Permissions) -> Self {
        RIGHTS.iter().fold(self, |Self(all), (bit, right)| {
            Self(if permissions.contains(*right) { all | bit } else { all & !bit })
        })
    }

    /// Returns the entry with unknown flags.
    #[must_use]
    pub(crate) const fn changed(self) -> Self {
        Self(self.0 | CHANGED)
    }

    /// Returns the entry as unsure: its rights are unknown too.
    #[must_use]
    pub(crate) const fn unsure(self) -> Self {
        Self(self.0 | CHANGED | UNSURE)
    }

    /// Returns the entry with a mark that something its extent holds was erased.
    #[must_use]
    pub(crate) const fn erased(self) -> Self {
        Self(self.0 | ERASED)
    }

    /// Returns the entry as anonymous memory, without an extent.
    #[must_use]
    pub(crate) const fn thawed(self) -> Self {
        Self(self.0 & ((1 << SERIAL) - 1))
    }

    /// Returns the entry with these flags set and cleared.
    #[must_use]
    pub(crate) const fn with_flags(self, set: VmaFlags, cleared: VmaFlags) -> Self {
        Self(self.0 & !(cleared.bits() as u64 & FLAGS) | set.bits() as u64 & FLAGS)
    }

    /// Returns the entry with a protection key; with unknown flags if there is no such key.
    #[must_use]
    pub(crate) const fn with_key(self, key: u32) -> Self {
        let rest = Self(self.0 & !KEYS);
        if key < 16 { Self(rest.0 | (key as u64) << KEY) } else { rest.changed() }
    }

    /// Returns the protection key.
    pub(crate) const fn key(self) -> u32 {
        ((self.0 & KEYS) >> KEY) as u32
    }

    /// Returns the traits that a replacement must have, if they are known.
    pub(crate) fn traits(self) -> Option<Traits> {
        let (permissions, protection_key) = (self.permissions(), self.key());
        self.flags().map(|flags| Traits { permissions, flags, protection_key })
    }

    /// Returns the flags, if they are known.
    pub(crate) const fn flags(self) -> Option<VmaFlags> {
        if self.0 & (CHANGED | UNSURE) != 0 { None } else { Some(VmaFlags::from_bits((self.0 & FLAGS) as u32)) }
    }

    /// Returns the rights.
    pub(crate) fn permissions(self) -> Permissions {
        let has = RIGHTS.iter().filter(|(bit, _)| self.0 & bit != 0);
        has.fold(Permissions::default(), |all, (_, right)| all.union(*right))
    }

    pub(crate) const fn is_sure(self) -> bool {
        self.0 & UNSURE == 0
    }

    pub(crate) const fn is_of_snapshot(self) -> bool {
        self.0 & SNAPSHOT != 0
    }

    /// Whether the memory was frozen, and is certainly anonymous now.
    pub(crate) const fn is_thawed(self) -> bool {
        self.is_sure() && !self.is_of_snapshot() && self.extent().is_none()
    }

    pub(crate) const fn is_erased(self) -> bool {
        self.0 & ERASED != 0
    }

    /// Returns the extent's serial number; `None` for a snapshot and for thawed memory.
    pub(crate) const fn extent(self) -> Option<u32> {
        let serial = ((self.0 & !ERASED) >> SERIAL) as u32;
        if serial == 0 { None } else { Some(serial) }
    }
}
