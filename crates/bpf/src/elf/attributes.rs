//! Attributes of maps beyond their measures: each is honoured or refused, and none is ignored.
//!
//! The numbers are those of Linux (`include/uapi/linux/bpf.h`, "flags for BPF_MAP_CREATE command"), and of libbpf for
//! `pinning` (`enum libbpf_pin_type`). Which kinds take which flags is as in the `map_alloc_check` of each kind, in
//! `kernel/bpf`.

use alloc::string::ToString;

use super::ObjectError;
use crate::map::{Definition, Kind, ValueAccess};

/// Whether objects share a map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pinning {
    /// Each host of an object has its own.
    #[default]
    None,
    /// All objects with a map of this name mean the same one (libbpf's `LIBBPF_PIN_BY_NAME`):
    /// [`Object::host_sharing`](super::Object::host_sharing) takes it.
    ByName,
}

/// What a structure or an old definition says of a map beyond its measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Attributes {
    pub(super) flags: u32,
    pub(super) extra: u32,
    pub(super) pinning: u32,
    pub(super) numa_node: Option<u32>,
}

/// What becomes of a flag.
enum Meaning {
    /// Programs do not write.
    ReadOnly,
    /// It asks for what is the case anyway.
    Already,
    /// It asks for what is not done; why, and the way out.
    Refused(&'static str),
}

/// What is wrong with a flag that other kinds may have.
const OTHER_KIND: &str = "maps of this kind do not take it; leave it out";
/// What is wrong with flags of kinds that do not exist here.
const NO_SUCH_KIND: &str = "it is for kinds of maps that do not exist here; leave it out";
/// What is wrong with flags that are about descriptors.
const DESCRIPTORS: &str = "it is for descriptors of the kernel, which maps here do not have; leave it out";

/// Returns what a flag means for a map of this kind, and its name.
fn meaning(flag: u32, kind: Kind) -> (&'static str, Meaning) {
    let if_kind = |is_right| if is_right { Meaning::Already } else { Meaning::Refused(OTHER_KIND) };
    match flag {
        // All memory of a map is allocated when it is made.
        0x1 => (
            "BPF_F_NO_PREALLOC",
            if_kind(matches!(kind, Kind::Hash | Kind::PerCpuHash | Kind::LpmTrie | Kind::HashOfMaps)),
        ),
        // Which entry makes room is a guess with and without it.
        0x2 => ("BPF_F_NO_COMMON_LRU", if_kind(matches!(kind, Kind::LruHash | Kind::LruPerCpuHash))),
        0x4 => ("BPF_F_NUMA_NODE", Meaning::Refused(NODE)),
        0x8 => (
            "BPF_F_RDONLY",
            Meaning::Refused(
                "what the host does with a map is not restricted; leave it out, and let the host only read",
            ),
        ),
        0x10 => (
            "BPF_F_WRONLY",
            Meaning::Refused(
                "what the host does with a map is not restricted; leave it out, and let the host only write",
            ),
        ),
        0x20 => ("BPF_F_STACK_BUILD_ID", Meaning::Refused(NO_SUCH_KIND)),
        0x40 => (
            "BPF_F_ZERO_SEED",
            Meaning::Refused("every map has a random seed, against keys that are chosen to collide; leave it out"),
        ),
        0x80 => (
            "BPF_F_RDONLY_PROG",
            match kind {
                Kind::Programs | Kind::ArrayOfMaps | Kind::HashOfMaps | Kind::RingBuffer | Kind::UserRingBuffer => {
                    Meaning::Refused(OTHER_KIND)
                }
                _ => Meaning::ReadOnly,
            },
        ),
        0x100 => ("BPF_F_WRONLY_PROG", Meaning::Refused("programs that may write may also read; leave it out")),
        0x200 => ("BPF_F_CLONE", Meaning::Refused(NO_SUCH_KIND)),
        // The host has the values in its own memory.
        0x400 => ("BPF_F_MMAPABLE", if_kind(kind == Kind::Array)),
        0x800 => ("BPF_F_PRESERVE_ELEMS", Meaning::Refused(NO_SUCH_KIND)),
        // Maps in maps may have any number of entries.
        0x1000 => ("BPF_F_INNER_MAP", if_kind(kind == Kind::Array)),
        0x2000 => ("BPF_F_LINK", Meaning::Refused(NO_SUCH_KIND)),
        0x4000 => ("BPF_F_PATH_FD", Meaning::Refused(DESCRIPTORS)),
        0x8000 => ("BPF_F_VTYPE_BTF_OBJ_FD", Meaning::Refused(DESCRIPTORS)),
        0x1_0000 => ("BPF_F_TOKEN_FD", Meaning::Refused(DESCRIPTORS)),
        0x2_0000 => ("BPF_F_SEGV_ON_FAULT", Meaning::Refused(NO_SUCH_KIND)),
        0x4_0000 => ("BPF_F_NO_USER_CONV", Meaning::Refused(NO_SUCH_KIND)),
        0x8_0000 => (
            "BPF_F_RB_OVERWRITE",
            Meaning::Refused("a full ring buffer takes no record, and overwrites none; leave it out"),
        ),
        _ => ("a flag of map_flags", Meaning::Refused("it is not known; leave it out")),
    }
}

/// What is wrong with asking for a node.
const NODE: &str =
    "where the memory of a map lies is not chosen; leave it out, and make the map on a thread of that node";
/// Most functions of a bloom filter (`kernel/bpf/bloom_filter.c`: the lower 4 bits of `map_extra`).
const MOST_FUNCTIONS: u32 = 15;

impl Attributes {
    /// Applies them to a map.
    pub(super) fn apply(self, definition: &mut Definition) -> Result<Pinning, ObjectError> {
        let refuse = |attribute, value, reason| {
            Err(ObjectError::Attribute { map: definition.name.to_string(), attribute, value, reason })
        };
        for flag in (0..u32::BITS).map(|bit| 1 << bit).filter(|flag| self.flags & flag != 0) {
            match meaning(flag, definition.kind) {
                (_, Meaning::ReadOnly) => definition.access = ValueAccess::Read,
                (_, Meaning::Already) => {}
                (name, Meaning::Refused(reason)) => return refuse(name, flag, reason),
            }
        }
        if let Some(node) = self.numa_node {
            return refuse("numa_node", node, NODE);
        }
        match (definition.kind, self.extra) {
            (Kind::BloomFilter, 0..=MOST_FUNCTIONS) => definition.functions = self.extra,
            (Kind::BloomFilter, extra) => {
                return refuse("map_extra", extra, "a bloom filter has 1 to 15 functions, or 0 for as many as usual");
            }
            (_, 0) => {}
            (_, extra) => {
                return refuse("map_extra", extra, "only bloom filters have it, for their functions; leave it out");
            }
        }
        match self.pinning {
            0 => Ok(Pinning::None),
            1 => Ok(Pinning::ByName),
            pinning => refuse("pinning", pinning, "it is 0, or 1 (LIBBPF_PIN_BY_NAME)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// The flags that a map of this kind takes.
    fn taken(kind: Kind) -> u32 {
        let takes = |flags: &u32| {
            let mut definition = Definition::new("m", kind, 4, 4, 1);
            Attributes { flags: *flags, ..Attributes::default() }.apply(&mut definition).is_ok()
        };
        (0..32).map(|bit| 1 << bit).filter(takes).sum()
    }

    #[test]
    fn each_kind_takes_few_flags() {
        let taken: Vec<_> = Kind::ALL.into_iter().map(|kind| (kind, taken(kind))).collect();
        let expected = [
            (Kind::Hash, 0x81),
            (Kind::Array, 0x1480),
            (Kind::Programs, 0),
            (Kind::PerCpuHash, 0x81),
            (Kind::PerCpuArray, 0x80),
            (Kind::LruHash, 0x82),
            (Kind::LruPerCpuHash, 0x82),
            (Kind::LpmTrie, 0x81),
            (Kind::ArrayOfMaps, 0),
            (Kind::HashOfMaps, 1),
            (Kind::Queue, 0x80),
            (Kind::Stack, 0x80),
            (Kind::RingBuffer, 0),
            (Kind::UserRingBuffer, 0),
            (Kind::BloomFilter, 0x80),
        ];
        assert_eq!(taken, expected);
    }

    #[test]
    fn a_bloom_filter_has_up_to_15_functions() {
        let functions = |kind, extra| {
            let mut definition = Definition::new("m", kind, 0, 4, 1);
            let applied = Attributes { extra, ..Attributes::default() }.apply(&mut definition);
            applied.map(|_| definition.functions).ok()
        };
        assert_eq!([0, 1, 15, 16].map(|extra| functions(Kind::BloomFilter, extra)), [Some(0), Some(1), Some(15), None]);
        assert_eq!([0, 1].map(|extra| functions(Kind::Queue, extra)), [Some(0), None]);
    }

    #[test]
    fn a_map_is_pinned_by_name_or_not() {
        let pinning = |pinning| {
            let mut definition = Definition::new("m", Kind::Array, 4, 4, 1);
            Attributes { pinning, ..Attributes::default() }.apply(&mut definition).ok()
        };
        assert_eq!([0, 1, 2].map(pinning), [Some(Pinning::None), Some(Pinning::ByName), None]);
    }
}
