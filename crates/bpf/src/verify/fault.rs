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
    /// Whether fuel would help.
    pub(super) const fn may_be_fuelled(&self) -> bool {
        matches!(self, Self::Endless | Self::Budget { .. } | Self::Values { .. })
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
    #[error("{register} is an address here, and only sums and differences with numbers may be made of one")]
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
    #[error("the context is read-only")]
    ReadOnly,
    /// An access leaves the stack.
    #[error("this may reach bytes {min} to {end} from r10, and the stack is -512 to 0")]
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
    #[error("{register} is an address, which can only be stored as 8 aligned bytes of the stack that it may outlive")]
    StoredAddress {
        /// The register.
        register: Register,
    },
    /// An atomic operation on memory that may not be aligned.
    #[error("an atomic operation needs {align} aligned bytes")]
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
    #[error("the contract has no helper {id}")]
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
    #[error("the host has no map with index {index}")]
    Map {
        /// The index.
        index: i32,
    },
    /// A map is needed.
    #[error("{register} must be a map here, as a load of 64 bits gives it")]
    NoMap {
        /// The register.
        register: Register,
    },
    /// A map of another kind is needed.
    #[error("{register} is a map of the kind {kind:?}, and the helper cannot do this with one")]
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
    #[error("keys, and values of read-only maps, must not be written; copy the bytes to the stack")]
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
    #[error("{register} is the length of a record, which must be a constant")]
    VariableSize {
        /// The register.
        register: Register,
    },
    /// The context is needed.
    #[error("{register} must be the context here, as the program got it in r1")]
    NotContext {
        /// The register.
        register: Register,
    },
    /// A function is needed.
    #[error("{register} must be a function of the program here")]
    NoFunction {
        /// The register.
        register: Register,
    },
    /// Constant text is needed.
    #[error("{register} must be constant text here, in a read-only section")]
    NoText {
        /// The register.
        register: Register,
    },
    /// A record is needed.
    #[error("{register} must be a record here, as it was reserved")]
    NoRecord {
        /// The register.
        register: Register,
    },
    /// An object of the host is needed.
    #[error("{register} must be an object of the type that the function takes, as another one has given it")]
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
    #[error("{register} must be the address of a dynptr here, of a record if it is given back; make one by a helper")]
    NoDynptr {
        /// The register.
        register: Register,
    },
    /// A place for a dynptr is needed.
    #[error("{register} must be the address of 16 bytes of the stack here, aligned to 8: the place of a dynptr")]
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
    #[error("bytes {min} to {end} of the value could be meant, and its timer at byte {at} is reached by helpers alone")]
    TimerBytes {
        /// First byte, at the least.
        min: i64,
        /// Behind the last byte, at the most.
        end: i64,
        /// Where the timer is.
        at: u32,
    },
    /// A timer is wanted.
    #[error("{register} must be the address of the timer in a value here (`struct bpf_timer`, of a map of the host)")]
    NoTimer {
        /// The register.
        register: Register,
    },
    /// A timer is of another map.
    #[error("{register} must be the map that the timer is in")]
    TimerMap {
        /// The register.
        register: Register,
    },
    /// What a timer calls returns another number than 0.
    #[error("what a timer calls must return 0, and r0 could be another number here")]
    TimerResult,
    /// Bytes of a value are touched that are a lock.
    #[error("bytes {min} to {end} of the value could be meant, and its lock at byte {at} is reached by helpers alone")]
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
        "{register} must be the address of the lock in a value here (`struct bpf_spin_lock`, of a map of the host), as \
         the latest look-up in this place has found the value"
    )]
    NoLock {
        /// The register.
        register: Register,
    },
    /// Something is called under a lock.
    #[error("under the lock that was taken in slot {slot} only functions of the program are called, and its release")]
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
    #[error("no lock is held here")]
    NotLocked,
    /// A lock is held where the host or a helper goes on.
    #[error("the lock that was taken in slot {slot} is not given back on this way")]
    StillLocked {
        /// Where it was taken.
        slot: usize,
    },
    /// Memory of a map is wanted.
    #[error("{register} must be the address of bytes of a map's value here")]
    NoMapBytes {
        /// The register.
        register: Register,
    },
    /// The program ends while it holds a record.
    #[error(
        "the record that was reserved in slot {slot} is neither submitted nor discarded on this way, or the object of \
         that slot not given back"
    )]
    Unreleased {
        /// Where it was reserved.
        slot: usize,
    },
    /// A tail call in a function, or with a record.
    #[error(
        "tail calls are made by the program's own function, not by what timers call, and with no record that is to be \
         given back"
    )]
    TailCall,
    /// Functions call each other too deeply, those that helpers call among them.
    #[error("{MOST_FRAMES} functions are active here already, and no more can be")]
    Depth,
    /// Something that cannot be verified.
    #[error("the verifier does not know what this does; run the program interpreted")]
    Unknown,
    /// A loop that does not end.
    #[error(
        "everything is as it was the last time, so that the loop never ends; change the condition, put `may_goto` into \
         it, or have the contract give fuel"
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
    /// There is too much to look at.
    #[error(
        "after {budget} instructions on all ways through the program no end is in sight; bound its loops more tightly, \
         put `may_goto` into them, or have the contract give fuel"
    )]
    Budget {
        /// Instructions.
        budget: usize,
    },
}
