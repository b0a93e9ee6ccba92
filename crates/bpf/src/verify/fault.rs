//! Why a program is refused.

use crate::code::MOST_FRAMES;
use crate::insn::{Instruction, Register};
use crate::map::Kind;

/// Why a program is refused. Slots are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("slot {slot}, `{instruction}`: {fault}")]
pub struct VerifyError {
    /// Where.
    pub slot: usize,
    /// The instruction there.
    pub instruction: Instruction,
    /// Why.
    pub fault: Fault,
}

impl Fault {
    /// The register that it is about.
    pub(super) const fn register(&self) -> Option<Register> {
        match *self {
            Self::Unset { register }
            | Self::Address { register }
            | Self::NoAddress { register }
            | Self::Far { register, .. }
            | Self::StoredAddress { register }
            | Self::VariableCall { register }
            | Self::NoMap { register }
            | Self::MapKind { register, .. }
            | Self::MaybeNull { register }
            | Self::Size { register, .. }
            | Self::VariableSize { register }
            | Self::NotContext { register }
            | Self::NoFunction { register }
            | Self::NoText { register }
            | Self::NoRecord { register }
            | Self::NoObject { register }
            | Self::NoDynptr { register }
            | Self::DynptrPlace { register }
            | Self::NoTimer { register }
            | Self::TimerMap { register }
            | Self::NoLock { register }
            | Self::NoMapBytes { register } => Some(register),
            _ => None,
        }
    }

    /// Whether fuel would help.
    pub(super) const fn may_be_fuelled(&self) -> bool {
        matches!(self, Self::Endless | Self::Budget { .. } | Self::Values { .. } | Self::Effort { .. })
    }
}

/// Why a function that a program knows by name cannot be called.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MissingFunction {
    /// The host was given no function of that name.
    NotGiven,
    /// The host's signature is not what the program was compiled for.
    Prototype,
}

/// Why an instruction is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A register without a value is read.
    #[error("{register} has no value here; set it on every way to this place (calls take r1 to r5 away)")]
    Unset {
        /// The register.
        register: Register,
    },
    /// An address is used as a number.
    #[error(
        "{register} is an address here, where a number is needed; load the number from there, or only add numbers to \
         the address and subtract them, in 64 bits"
    )]
    Address {
        /// The register.
        register: Register,
    },
    /// A number is used as an address.
    #[error("{register} is a number here, and not an address; begin with r1 or r10")]
    NoAddress {
        /// The register.
        register: Register,
    },
    /// An address moves too far away.
    #[error("{register} could be {min} to {max} bytes into its memory; bound the number that is added")]
    Far {
        /// The register.
        register: Register,
        /// Least distance, in bytes.
        min: i64,
        /// Greatest distance, in bytes.
        max: i64,
    },
    /// An access leaves the context.
    #[error("this may reach bytes {min} to {end} of the context, which has {len}; compare the offset first")]
    Context {
        /// First byte, at least.
        min: i64,
        /// Behind the last byte, at the most.
        end: i64,
        /// Bytes that the program may rely on.
        len: u32,
    },
    /// A read-only context is written to.
    #[error(
        "the context is read-only; copy the bytes to the stack, or have the contract allow it (`ContextAccess::Write`)"
    )]
    ReadOnly,
    /// An access leaves the stack.
    #[error(
        "this may reach bytes {min} to {end} from r10, and the stack is -512 to 0; bound the distance, or keep more \
         than that in a map"
    )]
    Stack {
        /// Behind the last byte, at most.
        min: i64,
        /// Behind the last byte, at the most.
        end: i64,
    },
    /// An address, or a dynptr, on the stack at an unknown place.
    #[error(
        "this is {min} to {max} bytes from r10, where only numbers may be; an address or a dynptr needs a constant \
         distance"
    )]
    VariableStack {
        /// Least distance.
        min: i64,
        /// Greatest distance.
        max: i64,
    },
    /// Unwritten bytes of the stack are read.
    #[error("some of the {len} bytes at {offset} from r10 were not written; write them first")]
    StackUnset {
        /// Bytes from `r10`.
        offset: i64,
        /// Bytes.
        len: usize,
    },
    /// Part of an address is read.
    #[error("some of the {len} bytes at {offset} from r10 are part of an address; read all 8 of it")]
    PartOfAddress {
        /// Bytes from `r10`.
        offset: i64,
        /// Bytes.
        len: usize,
    },
    /// An address is stored where it could leak or dangle.
    #[error(
        "{register} is an address, which can only be stored as 8 aligned bytes of a stack that does not outlive it; \
         store it through r10, at a multiple of 8"
    )]
    StoredAddress {
        /// The register.
        register: Register,
    },
    /// An atomic operation on memory that may not be aligned.
    #[error(
        "an atomic operation needs {align} aligned bytes; use an offset that is certainly a multiple of that, in \
         memory that begins at one"
    )]
    Unaligned {
        /// Bytes.
        align: usize,
    },
    /// A store that is to be checked when the program runs has other memory on another path.
    #[error(
        "on one path the store is not proven, and on another it is in other memory, so that it cannot be checked; \
         compare the index first, or store in two places"
    )]
    Elsewhere,
    /// The result is an address.
    #[error(
        "r0 is an address where the function returns; return a number (a function of the program may return one to \
         another, but not of its own stack)"
    )]
    ReturnedAddress,
    /// The contract does not know the helper that is called.
    #[error("the contract has no helper {id}; call another one, or give the host this one")]
    Helper {
        /// Its number.
        id: i32,
    },
    /// The host does not have the function that is called.
    #[error(
        "the host has no function with index {index}{}",
        match reason {
            MissingFunction::NotGiven => "; give it one of that name",
            MissingFunction::Prototype => " that the program was compiled for; change the signature or the declaration",
        }
    )]
    Function {
        /// Its index.
        index: i32,
        /// Why.
        reason: MissingFunction,
    },
    /// A helper reads memory at any address.
    #[error(
        "this helper reads whatever the process can; read what is proven by loads, or have the contract allow loads \
         that are not (`Unproven::Probe`)"
    )]
    Probes,
    /// The number of the helper that is called is not known.
    #[error("{register} names the helper, and could be several numbers; set it to a constant")]
    VariableCall {
        /// The register.
        register: Register,
    },
    /// A map is used that the host does not have.
    #[error("the host has no map with index {index}; give it one, or use one that it has")]
    Map {
        /// The index.
        index: i32,
    },
    /// A map is needed.
    #[error("{register} must be a map here; set it by a load of 64 bits that names the map")]
    NoMap {
        /// The register.
        register: Register,
    },
    /// A map of another kind is needed.
    #[error(
        "{register} is a map of the kind {kind:?}, and the helper cannot do this with one; call the helper for that \
         kind, or pass another map"
    )]
    MapKind {
        /// The register.
        register: Register,
        /// The kind.
        kind: Kind,
    },
    /// A value is referred to of a map whose values have no fixed places.
    #[error("the map is of the kind {kind:?}, and only arrays have a first value; look it up")]
    NoFirstValue {
        /// The kind.
        kind: Kind,
    },
    /// An address that may be 0 is used.
    #[error("{register} may be 0 here; compare it with 0 first")]
    MaybeNull {
        /// The register.
        register: Register,
    },
    /// An access leaves what a map or a ring buffer has returned.
    #[error("this may reach bytes {min} to {end} of {what}, which has {len}; compare the offset first")]
    Outside {
        /// What it is.
        what: &'static str,
        /// First byte, at the least.
        min: i64,
        /// Behind the last byte, at the most.
        end: i64,
        /// Its bytes.
        len: u32,
    },
    /// A key, or a value of a read-only map, is written to.
    #[error("keys, and values of read-only maps, must not be written; copy the bytes to the stack, and change those")]
    ReadOnlyMap,
    /// A length may be out of range.
    #[error("{register} is a number of bytes, and could be {min} to {max}; bound it")]
    Size {
        /// The register.
        register: Register,
        /// Least.
        min: i64,
        /// Greatest.
        max: i64,
    },
    /// A length must be known.
    #[error(
        "{register} is the length of a record, which must be a constant; set it to one, or reserve by \
         `bpf_ringbuf_reserve_dynptr`"
    )]
    VariableSize {
        /// The register.
        register: Register,
    },
    /// The context is needed.
    #[error("{register} must be the context here, as the program got it in r1; keep that in r6 to r9, and add nothing")]
    NotContext {
        /// The register.
        register: Register,
    },
    /// A function is needed.
    #[error("{register} must be a function of the program here; set it by a load of 64 bits that names the function")]
    NoFunction {
        /// The register.
        register: Register,
    },
    /// Constant text is needed.
    #[error("{register} must be constant text here, in a read-only section; declare it `static const char []`")]
    NoText {
        /// The register.
        register: Register,
    },
    /// A record is needed.
    #[error("{register} must be a record here; pass the address that reserving it gave, and add nothing")]
    NoRecord {
        /// The register.
        register: Register,
    },
    /// An object of the host is needed.
    #[error(
        "{register} must be an object of the type that the function takes; pass the address that another function \
         gave, before it is given back"
    )]
    NoObject {
        /// The register.
        register: Register,
    },
    /// A record is reserved while one of the same call is still held.
    #[error(
        "the record that was reserved here before was neither submitted nor discarded, or the object not given back; \
         do that first"
    )]
    Reserved,
    /// A dynptr is needed.
    #[error("{register} must be a dynptr here, of a record if it is given back; make one on the stack by a helper")]
    NoDynptr {
        /// The register.
        register: Register,
    },
    /// A place for a dynptr is needed.
    #[error(
        "{register} must be the place of a dynptr here; pass the address of 16 bytes of the stack, at a multiple of 8"
    )]
    DynptrPlace {
        /// The register.
        register: Register,
    },
    /// A dynptr is overwritten whose record must be given back.
    #[error("this overwrites the dynptr of the record that was reserved in slot {slot}; submit or discard it first")]
    DynptrLost {
        /// Where it was reserved.
        slot: usize,
    },
    /// Bytes of a value are touched that are a timer.
    #[error(
        "bytes {min} to {end} of the value could be meant, and its timer at byte {at} is reached by helpers alone; use \
         the bytes before or behind its 16"
    )]
    TimerBytes {
        /// First byte, at the least.
        min: i64,
        /// Behind the last byte, at the most.
        end: i64,
        /// Where the timer is.
        at: u32,
    },
    /// A timer is wanted.
    #[error(
        "{register} must be a timer here; pass the address of the `struct bpf_timer` in a value of a map of the host"
    )]
    NoTimer {
        /// The register.
        register: Register,
    },
    /// A timer is of another map.
    #[error("{register} must be the map that the timer is in; pass the one in whose value it was found")]
    TimerMap {
        /// The register.
        register: Register,
    },
    /// What a timer calls returns another number than 0.
    #[error("what a timer calls must return 0, and r0 could be another number here; set it to 0")]
    TimerResult,
    /// Bytes of a value are touched that are a lock.
    #[error(
        "bytes {min} to {end} of the value could be meant, and its lock at byte {at} is reached by helpers alone; use \
         the bytes before or behind its 4"
    )]
    LockBytes {
        /// First byte, at the least.
        min: i64,
        /// Behind the last byte, at the most.
        end: i64,
        /// Where the lock is.
        at: u32,
    },
    /// A lock is wanted.
    #[error(
        "{register} must be a lock here; pass the address of the `struct bpf_spin_lock` in a value of a map of the \
         host, as the latest look-up in its place has found the value"
    )]
    NoLock {
        /// The register.
        register: Register,
    },
    /// Something is called under a lock.
    #[error(
        "under the lock that was taken in slot {slot} only functions of the program are called, and its release; give \
         it back first"
    )]
    CallLocked {
        /// Where it was taken.
        slot: usize,
    },
    /// Only a count would end a loop under a lock.
    #[error(
        "under the lock that was taken in slot {slot} a `may_goto` may go round 65535 times, and as often again where \
         they are nested; have the contract give fuel, bound the loop by a constant, or give the lock back first"
    )]
    CountsLocked {
        /// Where it was taken.
        slot: usize,
    },
    /// Another lock is given back than the one that is held.
    #[error("this is not, or not certainly, the lock that was taken in slot {slot}; keep the address of that value")]
    OtherLock {
        /// Where it was taken.
        slot: usize,
    },
    /// A lock is given back that is not held.
    #[error("no lock is held here; take it on every way to this place, or do not give it back")]
    NotLocked,
    /// A lock is held where the host or a helper goes on.
    #[error("the lock that was taken in slot {slot} is still held here; give it back on every way to this place")]
    StillLocked {
        /// Where it was taken.
        slot: usize,
    },
    /// Memory of a map is wanted.
    #[error("{register} must be bytes of a map's value here; pass an address that a look-up gave")]
    NoMapBytes {
        /// The register.
        register: Register,
    },
    /// The program ends while it holds a record.
    #[error(
        "the record that was reserved in slot {slot} is neither submitted nor discarded on this way, or the object of \
         that slot not given back; do that on every way to this place"
    )]
    Unreleased {
        /// Where it was reserved.
        slot: usize,
    },
    /// A tail call in a function, or with a record.
    #[error(
        "tail calls are made by the program's own function, and with nothing that is to be given back; move this one \
         there, and give back first what is held"
    )]
    TailCall,
    /// Functions call each other too deeply, those that helpers call among them.
    #[error("{MOST_FRAMES} functions are active here already, and no more can be; inline some of them")]
    Depth,
    /// Something that cannot be verified.
    #[error("the verifier does not know what this does; run the program interpreted")]
    Unknown,
    /// A loop that does not end.
    #[error(
        "everything is as it was the last time, so that the loop never ends; change what it compares, put `may_goto` \
         into it, or have the contract give fuel"
    )]
    Endless,
    /// There is too much to remember.
    #[error(
        "the verifier would have to keep more than {most} values of registers and stack; use less stack where ways part"
    )]
    Values {
        /// Values.
        most: usize,
    },
    /// There is too much to compare and to copy.
    #[error(
        "the verifier would have to compare and copy more than {most} values of registers and stack; use less stack \
         where ways part and meet"
    )]
    Effort {
        /// Values.
        most: usize,
    },
    /// There is too much to look at.
    #[error(
        "after {budget} instructions on all ways through the program, and through global functions each time that they \
         are called, no end is in sight; bound its loops more tightly, put `may_goto` into them, have the contract \
         give fuel, or call such functions less often"
    )]
    Budget {
        /// Instructions.
        budget: usize,
    },
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use super::*;

    /// Makes a list of faults; does not compile if a kind is missing.
    macro_rules! all {
        ($($name:ident $({ $($field:ident: $value:expr),* })?),* $(,)?) => {{
            let every: Vec<Fault> = Vec::from([$(Fault::$name $({ $($field: $value),* })?),*]);
            for fault in &every {
                match fault {
                    $(Fault::$name { .. } => {})*
                }
            }
            every
        }};
    }

    #[test]
    fn each_says_what_to_change() {
        let register = Register::R3;
        let (min, max, end, len, at, slot) = (-1, 9, 8, 7, 4, 3);
        let every = all![
            Unset { register: register },
            Address { register: register },
            NoAddress { register: register },
            Far { register: register, min: min, max: max },
            Context { min: min, end: end, len: len },
            ReadOnly,
            Stack { min: min, end: end },
            VariableStack { min: min, max: max },
            StackUnset { offset: -8, len: 8 },
            PartOfAddress { offset: -8, len: 4 },
            StoredAddress { register: register },
            Unaligned { align: 8 },
            Elsewhere,
            ReturnedAddress,
            Helper { id: 7 },
            Function { index: 7, reason: MissingFunction::Prototype },
            Probes,
            VariableCall { register: register },
            Map { index: 7 },
            NoMap { register: register },
            MapKind { register: register, kind: Kind::Queue },
            NoFirstValue { kind: Kind::Hash },
            MaybeNull { register: register },
            Outside { what: "the value", min: min, end: end, len: len },
            ReadOnlyMap,
            Size { register: register, min: min, max: max },
            VariableSize { register: register },
            NotContext { register: register },
            NoFunction { register: register },
            NoText { register: register },
            NoRecord { register: register },
            NoObject { register: register },
            Reserved,
            NoDynptr { register: register },
            DynptrPlace { register: register },
            DynptrLost { slot: slot },
            TimerBytes { min: min, end: end, at: at },
            NoTimer { register: register },
            TimerMap { register: register },
            TimerResult,
            LockBytes { min: min, end: end, at: at },
            NoLock { register: register },
            CallLocked { slot: slot },
            CountsLocked { slot: slot },
            OtherLock { slot: slot },
            NotLocked,
            StillLocked { slot: slot },
            NoMapBytes { register: register },
            Unreleased { slot: slot },
            TailCall,
            Depth,
            Unknown,
            Endless,
            Values { most: 5 },
            Effort { most: 5 },
            Budget { budget: 5 },
        ];
        for fault in every {
            let text = fault.to_string();
            let (wrong, change) = text.split_once("; ").unwrap_or_else(|| panic!("{text}: and what to change?"));
            assert!(!wrong.is_empty() && change.contains(' ') && !text.contains('\n'), "{text}");
            // What is about a register names it.
            assert_eq!(fault.register().is_some(), text.contains("r3"), "{text}");
        }
    }
}
