//! Where a program continues after a fault.

/// What to do about a fault in a program: continue at another of its instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fault {
    /// The instruction that may fault, in bytes from the program's start.
    pub offset: u32,
    /// The instruction to continue at, in bytes from the program's start.
    pub landing: u32,
}
