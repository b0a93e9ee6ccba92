//! What the verifier has seen of stores, and what it tells compilers of those that are to be checked.

/// Memory within which a store is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Region {
    /// The bytes of the context that the contract names.
    Context,
    /// All values of the host's map with this index.
    Map(u32),
}

/// What the verifier has seen of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Stored {
    #[default]
    Nothing,
    /// It is proven, and is in this memory, where a check would not harm; `None` in other memory, or in several.
    Proven(Option<Region>),
    /// It is not proven, and is checked.
    Checked(Region),
}
