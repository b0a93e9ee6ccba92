//! What helpers take and return.

use core::any::TypeId;

use super::state::Backing;
use crate::function::Null;
use crate::insn::Register;
use crate::map::Kind;

/// The number of the helper that makes tail calls.
pub(crate) const TAIL_CALL: i32 = 12;

/// What a helper does with a map, which says which kinds it takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MapUse {
    /// Finds values, or maps, by key.
    Get,
    /// Finds values by key, or sets them.
    Find,
    /// Finds values of one CPU by key.
    EachCpu,
    /// Removes keys.
    Remove,
    /// Adds values without a key.
    Push,
    /// Takes values out without a key.
    Pop,
    /// Looks at values without a key.
    Peek,
    /// Calls a function for each element.
    Each,
    /// Writes records.
    Records,
    /// Calls a program.
    Programs,
    /// Has a timer in each value.
    Timers,
    /// Takes samples.
    Samples,
}

impl MapUse {
    pub(super) fn takes(self, kind: Kind) -> bool {
        let has_keys = kind.has_keys() && kind != Kind::Programs && !kind.has_maps();
        match self {
            Self::Get => has_keys || kind.has_maps(),
            Self::Find => has_keys,
            Self::EachCpu => kind.is_per_cpu(),
            Self::Remove => has_keys && !matches!(kind, Kind::Array | Kind::PerCpuArray),
            Self::Push | Self::Peek => matches!(kind, Kind::Queue | Kind::Stack | Kind::BloomFilter),
            Self::Pop => matches!(kind, Kind::Queue | Kind::Stack),
            Self::Each => has_keys && kind != Kind::LpmTrie,
            Self::Records => kind == Kind::RingBuffer,
            Self::Programs => kind == Kind::Programs,
            Self::Samples => kind == Kind::UserRingBuffer,
            // Which ones have timers in their values, their definitions say.
            Self::Timers => matches!(kind, Kind::Array | Kind::Hash | Kind::LruHash),
        }
    }
}

/// What an argument of a helper is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Argument {
    /// A number.
    Number,
    /// The address of the context, as the program got it.
    Context,
    /// A map.
    Map(MapUse),
    /// The address of a key of the map before it, to read.
    Key,
    /// The address of a value of the map before it, to read.
    Value,
    /// The address of room for a value of the map before it; a value, if that is a bloom filter.
    ValueOut,
    /// The address of bytes to read; the next argument is how many.
    Bytes,
    /// The address of room for bytes; the next argument is how many.
    BytesOut,
    /// How many bytes the argument before it has.
    Size,
    /// The address of text in a read-only map of one value: constants of an object.
    Text,
    /// The address of room for 8 bytes.
    NumberOut,
    /// A function of the program, called again and again with the number of the call and the next argument.
    Loop,
    /// The same, called with the map before it, a key, a value, and the next argument.
    Each,
    /// What such a function gets unchanged: a number or an address.
    Anything,
    /// How many bytes a record will have: a constant.
    RecordSize,
    /// An object of the host of this type, as one of its functions has given it.
    Object(TypeId),
    /// The same, or 0.
    ObjectOrNull(TypeId),
    /// The same, which the program holds, and then no longer. At most one in a signature.
    Release(TypeId),
    /// A record, which is given back: for Linux's helpers only.
    Record,
    /// The address of bytes of a map's value, to read and to write; the next argument is how many. Only for Linux's
    /// helpers, like all that follow.
    MapBytes,
    /// The address of room for a dynptr on the stack: memory whose accesses are checked when the program runs.
    DynptrOut,
    /// The address of a dynptr.
    Dynptr,
    /// The address of a dynptr of a record, which is given back.
    RecordDynptr,
    /// A function of the program, which is called again and again with the address of a dynptr and the next argument.
    Drain,
    /// A number to print, or a register without a value, which counts as 0; an address, if loads need not be proven.
    /// Only in `r3` to `r5`.
    Printed,
    /// The address of numbers to print, of which some may be addresses as above; the next argument is how many bytes.
    PrintedBytes,
    /// The address of the timer in a value; of the map behind it, if there is one.
    Timer,
    /// The address of the lock in a value, which the program does not hold, and then holds.
    Lock,
    /// The address of the lock in a value, which the program holds, and then no longer.
    Unlock,
    /// A function of the program, which is called later and by another thread, with the map of the timer before it, a
    /// key and the value.
    OnTimer,
}

impl Argument {
    /// Whether only Linux's helpers can handle it.
    pub(crate) const fn is_for_linux(self) -> bool {
        matches!(
            self,
            Self::Record
                | Self::MapBytes
                | Self::DynptrOut
                | Self::Dynptr
                | Self::RecordDynptr
                | Self::Drain
                | Self::Printed
                | Self::PrintedBytes
                | Self::Timer
                | Self::OnTimer
                | Self::Lock
                | Self::Unlock
        )
    }
}

/// What a helper returns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Returns {
    /// A number.
    Number,
    /// A number, after reading memory at an unproven address.
    Probed,
    /// The address of a value of the map, or 0.
    ValueOrNull,
    /// The address of a record that is to be given back, or 0.
    RecordOrNull,
    /// The address of bytes of a dynptr, or 0.
    SliceOrNull,
    /// A number, after making a dynptr.
    Dynptr(Backing),
    /// An object of the host of this type, which is to be given back.
    #[cfg_attr(not(feature = "std"), expect(dead_code, reason = "without `std` a host has no objects"))]
    Object(TypeId, Null),
}

/// What a helper takes and returns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Signature {
    arguments: [Argument; 5],
    count: u8,
    pub(crate) returns: Returns,
}

impl Signature {
    /// Makes the signature of a helper that takes `arguments` and returns a number.
    ///
    /// # Panics
    ///
    /// If bytes are not followed by their size; if keys, values or functions for elements do not come behind a map; if
    /// there are two maps: nobody would know how many bytes there are; or if there are two objects to be given back.
    pub const fn new<const COUNT: usize>(arguments: [Argument; COUNT]) -> Self {
        const { assert!(COUNT <= 5, "helpers have five arguments at most") };
        Self::of(&arguments)
    }

    /// Makes the same of a list.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new), and for more than five arguments.
    pub const fn of(arguments: &[Argument]) -> Self {
        let count = arguments.len();
        assert!(count <= 5, "helpers have five arguments at most");
        let mut all = [Argument::Number; 5];
        let (mut has_map, mut has_release) = (false, false);
        let mut index = 0;
        while index < count {
            all[index] = arguments[index];
            match arguments[index] {
                Argument::Bytes | Argument::BytesOut | Argument::MapBytes | Argument::PrintedBytes => {
                    let has_size = index + 1 < count && matches!(arguments[index + 1], Argument::Size);
                    assert!(has_size, "bytes are followed by their size");
                }
                Argument::Map(_) => {
                    assert!(!has_map, "a helper takes one map at most");
                    has_map = true;
                }
                Argument::Key | Argument::Value | Argument::ValueOut | Argument::Each => {
                    assert!(has_map, "keys, values and functions for elements stand behind their map");
                }
                Argument::Release(_) => {
                    assert!(!has_release, "a function takes one object at most that is given back");
                    has_release = true;
                }
                _ => {}
            }
            index += 1;
        }
        Self { arguments: all, count: count as u8, returns: Returns::Number }
    }

    pub(crate) const fn returning(self, returns: Returns) -> Self {
        Self { returns, ..self }
    }

    /// A helper that takes `count` numbers.
    pub(super) fn of_numbers(count: u8) -> Self {
        Self { arguments: [Argument::Number; 5], count: count.min(5), returns: Returns::Number }
    }

    /// Its arguments.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments[..usize::from(self.count)]
    }

    /// Whether it takes numbers to print that the program need not set.
    pub(super) fn prints(&self) -> bool {
        self.arguments().contains(&Argument::Printed)
    }

    /// The types of objects in it.
    pub(super) fn objects(&self) -> impl Iterator<Item = TypeId> {
        let returned = match self.returns {
            Returns::Object(of, _) => Some(of),
            _ => None,
        };
        let taken = self.arguments().iter().filter_map(|argument| match argument {
            Argument::Object(of) | Argument::ObjectOrNull(of) | Argument::Release(of) => Some(*of),
            _ => None,
        });
        taken.chain(returned)
    }

    /// Its arguments with their registers.
    pub(super) fn registers(&self) -> impl Iterator<Item = (Register, Argument)> {
        Register::ALL[1..].iter().copied().zip(self.arguments).take(self.count.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "bytes are followed by their size")]
    fn bytes_without_a_size_are_refused() {
        let _ = Signature::new([Argument::Bytes, Argument::Number]);
    }

    #[test]
    #[should_panic(expected = "a helper takes one map at most")]
    fn two_maps_are_refused() {
        let map = Argument::Map(MapUse::Find);
        let _ = Signature::new([map, map, Argument::Key]);
    }

    #[test]
    #[should_panic(expected = "stand behind their map")]
    fn a_key_before_its_map_is_refused() {
        let _ = Signature::new([Argument::Key, Argument::Map(MapUse::Find)]);
    }
}
