//! The context of translated filters: a header, and the packet's bytes.

use alloc::boxed::Box;

use crate::verify::{ContextAccess, Contract};

/// Most bytes of a packet that a filter sees: `MAXIMUM_SNAPLEN` of tcpdump.
pub const LIMIT: u32 = 262_144;

/// Offset of the length on the wire.
pub(super) const WIRE: i16 = 0;
/// Offset of the number of captured bytes.
pub(super) const CAPTURED: i16 = 4;
/// Offset of the fields of [`Ancillary`], 4 bytes each.
pub(super) const BESIDE: i16 = 8;
/// Bytes before those of the packet.
pub(super) const HEADER: i16 = 56;

/// What Linux knows of a packet beside its bytes (`SKF_AD_…`, `include/uapi/linux/filter.h`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ancillary {
    /// Its protocol, as in an Ethernet header.
    pub protocol: u32,
    /// Whether it was for this host, for all, or by this host.
    pub packet_type: u32,
    /// The interface.
    pub interface: u32,
    /// Its mark.
    pub mark: u32,
    /// The queue it came by.
    pub queue: u32,
    /// Hardware type of the interface.
    pub hardware: u32,
    /// The hash that it was spread by.
    pub hash: u32,
    /// The CPU.
    pub cpu: u32,
    /// The tag of its VLAN.
    pub vlan_tag: u32,
    /// 1 if there is such a tag.
    pub vlan_present: u32,
    /// The protocol of that tag.
    pub vlan_protocol: u32,
}

impl Ancillary {
    /// Returns the fields in the order of the numbers that `step` gives them.
    const fn fields(&self) -> [u32; 11] {
        [
            self.protocol,
            self.packet_type,
            self.interface,
            self.mark,
            self.queue,
            self.hardware,
            self.hash,
            self.cpu,
            self.vlan_tag,
            self.vlan_present,
            self.vlan_protocol,
        ]
    }
}

/// Returns the contract that a translated filter is verified for, and that [`Packets`] keeps.
pub fn contract() -> Contract {
    Contract::new().context(HEADER.unsigned_abs() as u32 + LIMIT, ContextAccess::Read)
}

/// A buffer for one packet after the other.
#[derive(Debug)]
pub struct Packets {
    bytes: Box<[u8]>,
}

impl Default for Packets {
    fn default() -> Self {
        Self::new()
    }
}

impl Packets {
    /// Makes a buffer.
    pub fn new() -> Self {
        let len = HEADER.unsigned_abs() as usize + LIMIT as usize;
        Self { bytes: alloc::vec![0; len].into_boxed_slice() }
    }

    /// Returns the context of a packet: its captured bytes, of which a filter sees [`LIMIT`], its length on the wire,
    /// and what is known beside it.
    pub fn context(&mut self, captured: &[u8], wire: u32, ancillary: Option<&Ancillary>) -> &[u8] {
        let seen = &captured[..captured.len().min(LIMIT as usize)];
        let numbers = [wire, seen.len() as u32].into_iter().chain(ancillary.copied().unwrap_or_default().fields());
        for (place, number) in self.bytes.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        // Bytes of the previous packet stay behind this one's: no filter reaches them.
        self.bytes[HEADER.unsigned_abs().into()..][..seen.len()].copy_from_slice(seen);
        &self.bytes
    }
}
