//! What maps are made from, and which sizes are valid.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use super::trie;

/// What a map is. The numbers are those of Linux (`enum bpf_map_type`, `include/uapi/linux/bpf.h`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Values by key.
    Hash = 1,
    /// Values by number.
    Array = 2,
    /// Programs by number, for tail calls.
    Programs = 3,
    /// Values by key; each CPU has its own.
    PerCpuHash = 5,
    /// Values by number; each CPU has its own.
    PerCpuArray = 6,
    /// Values by key; those that nobody uses make room.
    LruHash = 9,
    /// The same; each CPU has its own.
    LruPerCpuHash = 10,
    /// Values by the longest prefix of a key.
    LpmTrie = 11,
    /// Maps by number.
    ArrayOfMaps = 12,
    /// Maps by key.
    HashOfMaps = 13,
    /// Values; the oldest leaves first.
    Queue = 22,
    /// Values; the latest leaves first.
    Stack = 23,
    /// Records from programs to the host.
    RingBuffer = 27,
    /// A set that answers a certain "no" or a probable "yes".
    BloomFilter = 30,
    /// Sends samples from the host to programs.
    UserRingBuffer = 31,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Hash,
        Self::Array,
        Self::Programs,
        Self::PerCpuHash,
        Self::PerCpuArray,
        Self::LruHash,
        Self::LruPerCpuHash,
        Self::LpmTrie,
        Self::ArrayOfMaps,
        Self::HashOfMaps,
        Self::Queue,
        Self::Stack,
        Self::RingBuffer,
        Self::UserRingBuffer,
        Self::BloomFilter,
    ];

    /// Returns the kind with this number of Linux, if it exists here.
    pub fn new(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    /// Whether each CPU has values of its own.
    pub const fn is_per_cpu(self) -> bool {
        matches!(self, Self::PerCpuHash | Self::PerCpuArray | Self::LruPerCpuHash)
    }

    /// Whether its values are maps.
    pub const fn has_maps(self) -> bool {
        matches!(self, Self::ArrayOfMaps | Self::HashOfMaps)
    }

    /// Whether values are found by a key: by their number, in arrays.
    pub const fn has_keys(self) -> bool {
        !matches!(self, Self::Queue | Self::Stack | Self::RingBuffer | Self::UserRingBuffer | Self::BloomFilter)
    }
}

/// Whether programs may write to the values of a map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ValueAccess {
    /// They may.
    #[default]
    Write,
    /// They read them.
    Read,
}

/// What a map is made from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Definition {
    /// Its name, for messages.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Bytes of a key: 4 for arrays, 0 if there are no keys, 4 plus those of the data for tries.
    pub key_len: u32,
    /// Bytes of a value; 0 for ring buffers, 4 for program arrays.
    pub value_len: u32,
    /// How many it can hold; for a ring buffer the bytes, a power of 2.
    pub max_entries: u32,
    /// Whether programs may write to values.
    pub access: ValueAccess,
    /// Values of each key in per-CPU maps. If `None`, one for each number that a CPU may have, as far as the feature
    /// `std` tells. CPUs above share a value with those below.
    pub cpus: Option<u32>,
    /// How many functions a bloom filter has; 0 stands for 5.
    pub functions: u32,
    /// What maps in it are made from: of its kind, its lengths and its access all have to be. The number of entries may
    /// differ.
    pub inner: Option<Box<Definition>>,
    /// The offset of a timer in each value: 16 bytes (`struct bpf_timer`) at a multiple of 8, which programs reach only
    /// through helpers. Arrays and hash maps can have timers, but not per CPU, and not inside other maps.
    pub timer: Option<u32>,
    /// The offset of a lock in each value: 4 bytes (`struct bpf_spin_lock`) at a multiple of 4, which programs reach
    /// only through helpers. Arrays and hash maps can have locks, but not per CPU, not inside other maps, and not if
    /// they drop elements.
    pub lock: Option<u32>,
}

/// Bytes of a timer.
pub(crate) const TIMER: u32 = 16;
/// Bytes of a lock.
pub(crate) const LOCK: u32 = 4;

impl Definition {
    /// A map of these measures.
    pub fn new(name: &str, kind: Kind, key_len: u32, value_len: u32, max_entries: u32) -> Self {
        let name = name.into();
        Self {
            name,
            kind,
            key_len,
            value_len,
            max_entries,
            access: ValueAccess::Write,
            cpus: None,
            functions: 0,
            inner: None,
            timer: None,
            lock: None,
        }
    }

    /// Whether programs that are made for the one can use the other: all is the same but names and the number of CPUs.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let measures = |definition: &Self| {
            let Self { kind, key_len, value_len, max_entries, access, functions, timer, lock, .. } = *definition;
            (kind, key_len, value_len, max_entries, access, functions, timer, lock)
        };
        let is_like_inside = match (&self.inner, &other.inner) {
            (Some(one), Some(other)) => one.is_like(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        measures(self) == measures(other) && is_like_inside
    }
}

/// Why a map cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// A size is not valid for its kind.
    #[error("map `{name}`: {what} is {value}, and must be {wanted} for {kind:?}")]
    Measure {
        /// Its name.
        name: String,
        /// What it is to be.
        kind: Kind,
        /// Which measure.
        what: &'static str,
        /// What it is.
        value: u32,
        /// What it can be.
        wanted: &'static str,
    },
    /// It is larger than maps can be.
    #[error("map `{name}`: {bytes} bytes are more than the {MOST_BYTES} that a map can have; ask for fewer entries")]
    Large {
        /// Its name.
        name: String,
        /// Bytes.
        bytes: u64,
    },
    /// A map cannot be put into it.
    #[error("map `{name}`: what it begins with at {number}")]
    Inner {
        /// Its name.
        name: String,
        /// Where.
        number: u32,
        /// Why.
        #[source]
        source: Box<super::NestError>,
    },
    /// There is no room for it beside the others.
    #[error(
        "map `{name}`: it takes {bytes} bytes, and the maps before it have left {left} of the {most} that are allowed \
         for all; allow more, or ask for fewer entries"
    )]
    Room {
        /// Its name.
        name: String,
        /// Bytes.
        bytes: u64,
        /// Bytes.
        left: u64,
        /// Bytes.
        most: u64,
    },
    /// Its values cannot have a timer there.
    #[error(
        "map `{name}`: there is no room for a timer at byte {offset} of values of {value_len} in maps of the kind \
         {kind:?}; arrays and hash maps have timers, not per CPU and not inside others, at multiples of 8"
    )]
    Timer {
        /// Its name.
        name: String,
        /// Its kind.
        kind: Kind,
        /// Where.
        offset: u32,
        /// Bytes of a value.
        value_len: u32,
    },
    /// Its values cannot have a lock there.
    #[error(
        "map `{name}`: there is no room for a lock at byte {offset} of values of {value_len} in maps of the kind \
         {kind:?}; arrays and hash maps have locks, not per CPU and not inside others, at multiples of 4 and not in \
         timers"
    )]
    Lock {
        /// Its name.
        name: String,
        /// Its kind.
        kind: Kind,
        /// Where.
        offset: u32,
        /// Bytes of a value.
        value_len: u32,
    },
    /// It is shared by its name, and nobody has given it.
    #[error(
        "map `{name}` is pinned by name (LIBBPF_PIN_BY_NAME): give a map of this name to Object::host_sharing, or \
         leave `pinning` out"
    )]
    Pinned {
        /// Its name.
        name: String,
    },
    /// The map that was given for it is another.
    #[error(
        "map `{name}`: {} was given for {}; give one with the same kind, lengths, entries, access and parts",
        show(given),
        show(wanted)
    )]
    Unlike {
        /// Its name.
        name: String,
        /// What was given.
        given: Box<Definition>,
        /// What the object defines.
        wanted: Box<Definition>,
    },
    /// There is no memory for it.
    #[error("map `{name}`: there is no memory for {bytes} bytes")]
    Memory {
        /// Its name.
        name: String,
        /// Bytes.
        bytes: u64,
    },
}

/// Shows what maps must have in common.
fn show(definition: &Definition) -> String {
    let Definition { kind, key_len, value_len, max_entries, access, functions, timer, lock, ref inner, .. } =
        *definition;
    let parts = [("timer", timer), ("lock", lock), ("functions", (functions > 0).then_some(functions))];
    let mut text = format!("{kind:?} of {max_entries} with keys of {key_len} bytes, values of {value_len}");
    if access == ValueAccess::Read {
        text.push_str(" that programs only read");
    }
    for (name, value) in parts {
        text.extend(value.map(|value| format!(", {name} {value}")));
    }
    if let Some(inner) = inner {
        text.push_str(&format!(", of maps ({})", show(inner)));
    }
    text
}

/// Most bytes of a map.
pub const MOST_BYTES: u64 = 1 << 32;

/// Bytes that maps may take together.
#[derive(Debug)]
pub(crate) struct Room {
    left: u64,
    most: u64,
}

impl Room {
    pub(crate) const fn new(most: u64) -> Self {
        Self { left: most, most }
    }

    /// Takes `bytes` for a map.
    pub(super) fn take(&mut self, definition: &Definition, bytes: u64) -> Result<(), MapError> {
        let name = || definition.name.clone();
        if bytes > MOST_BYTES {
            return Err(MapError::Large { name: name(), bytes });
        }
        let (left, most) = (self.left, self.most);
        self.left = left.checked_sub(bytes).ok_or_else(|| MapError::Room { name: name(), bytes, left, most })?;
        Ok(())
    }
}
/// Most bytes of a key (`MAX_BPF_STACK` of Linux: programs build keys on their stack).
pub(crate) const MOST_KEY: u32 = 512;
/// Most bytes of a value.
const MOST_VALUE: u32 = 1 << 26;

pub(super) fn measure(definition: &Definition, what: &'static str, wanted: &'static str) -> MapError {
    let value = match what {
        "the length of keys" => definition.key_len,
        "the length of values" => definition.value_len,
        "the kind" => definition.kind as u32,
        _ => definition.max_entries,
    };
    MapError::Measure { name: definition.name.clone(), kind: definition.kind, what, value, wanted }
}

/// Checks whether sizes are valid for the kind.
pub(super) fn check(definition: &Definition) -> Result<(), MapError> {
    let refuse = |what, wanted| Err(measure(definition, what, wanted));
    let (key, value) = (definition.key_len, definition.value_len);
    match definition.kind {
        Kind::Array | Kind::PerCpuArray | Kind::Programs | Kind::ArrayOfMaps if key != 4 => {
            return refuse("the length of keys", "4");
        }
        Kind::Queue | Kind::Stack | Kind::RingBuffer | Kind::UserRingBuffer | Kind::BloomFilter if key != 0 => {
            return refuse("the length of keys", "0");
        }
        Kind::LpmTrie if !(5..=4 + trie::MOST_DATA).contains(&key) => {
            return refuse("the length of keys", "4 and 1 to 256 bytes of data");
        }
        kind if kind.has_keys() && !(1..=MOST_KEY).contains(&key) => {
            return refuse("the length of keys", "1 to 512");
        }
        _ => {}
    }
    match definition.kind {
        Kind::Programs | Kind::ArrayOfMaps | Kind::HashOfMaps if value != 4 => {
            return refuse("the length of values", "4");
        }
        Kind::RingBuffer | Kind::UserRingBuffer if value != 0 => return refuse("the length of values", "0"),
        Kind::RingBuffer | Kind::UserRingBuffer => {
            let len = definition.max_entries;
            if !len.is_power_of_two() || !(4096..=1 << 30).contains(&len) {
                return refuse("the number of bytes", "a power of 2 from 4096 to 1 GiB");
            }
        }
        _ if !(1..=MOST_VALUE).contains(&value) => return refuse("the length of values", "1 to 64 MiB"),
        _ => {}
    }
    let inner = definition.inner.as_ref().filter(|inner| definition.kind.has_maps() || inner.inner.is_some());
    if let Some(inner) = inner {
        let is_none =
            inner.kind.has_maps() || matches!(inner.kind, Kind::Programs | Kind::RingBuffer | Kind::UserRingBuffer);
        if is_none || !definition.kind.has_maps() {
            return Err(measure(inner, "the kind", "one of values, inside an array or hash map of maps"));
        }
        check(inner)?;
    }
    check_timer(definition)?;
    check_lock(definition)?;
    if let Some(inner) = inner.filter(|inner| inner.timer.is_some()) {
        return Err(no_timer(inner));
    }
    if let Some(inner) = inner.filter(|inner| inner.lock.is_some()) {
        return Err(no_lock(inner));
    }
    if definition.max_entries == 0 || definition.max_entries > 1 << 31 {
        return refuse("the number of entries", "1 to 2^31");
    }
    Ok(())
}

fn no_timer(definition: &Definition) -> MapError {
    let Definition { kind, value_len, timer, .. } = *definition;
    MapError::Timer { name: definition.name.clone(), kind, offset: timer.unwrap_or(0), value_len }
}

fn check_timer(definition: &Definition) -> Result<(), MapError> {
    let Some(offset) = definition.timer else { return Ok(()) };
    let has_timers = matches!(definition.kind, Kind::Array | Kind::Hash | Kind::LruHash);
    let is_inside =
        offset.is_multiple_of(8) && offset.checked_add(TIMER).is_some_and(|end| end <= definition.value_len);
    let is_written = definition.access == ValueAccess::Write;
    if has_timers && is_inside && is_written { Ok(()) } else { Err(no_timer(definition)) }
}

fn no_lock(definition: &Definition) -> MapError {
    let Definition { kind, value_len, lock, .. } = *definition;
    MapError::Lock { name: definition.name.clone(), kind, offset: lock.unwrap_or(0), value_len }
}

fn check_lock(definition: &Definition) -> Result<(), MapError> {
    let Some(offset) = definition.lock else { return Ok(()) };
    let has_locks = matches!(definition.kind, Kind::Array | Kind::Hash);
    let is_inside =
        offset.is_multiple_of(LOCK) && offset.checked_add(LOCK).is_some_and(|end| end <= definition.value_len);
    // Nothing overflows: `check_timer` has found the timer inside, too.
    let is_free = is_inside && definition.timer.is_none_or(|timer| offset + LOCK <= timer || timer + TIMER <= offset);
    let is_written = definition.access == ValueAccess::Write;
    if has_locks && is_free && is_written { Ok(()) } else { Err(no_lock(definition)) }
}
