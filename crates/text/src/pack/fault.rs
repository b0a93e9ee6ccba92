//! Where to go on after a fault.

/// What to do about a fault inside a program: go on at another of its instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fault {
    /// The instruction that may fault, in bytes from the program's start.
    pub offset: u32,
    /// Where to go on, in bytes from the program's start.
    pub landing: u32,
}
