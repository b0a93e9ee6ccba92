//! Puts code of assemblers that want to know where it will run into packs: of dynasm-rs and iced-x86, say.
//!
//! To take a place in the packs, the length of the code must be known; but code that refers to other places has other
//! bytes at each place. So the code is assembled twice: first for a place nearby, to learn its length, then for its
//! own.
//!
//! ```
//! use palimpsest_assemblers::place;
//! use palimpsest_text::Packs;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let packs = Packs::new()?;
//! // An assembler's `assemble(address)`: the bytes of the code that is to run there.
//! let assemble = |address: usize| Ok::<_, std::io::Error>(address.to_le_bytes().to_vec());
//! let program = place(&packs, "where", 16, assemble)?.finalize()?;
//! assert_eq!(program.len(), 8);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

use palimpsest_text::{Packs, StageError, Staged};

/// Why code has no place. Nothing is taken then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError<E: std::error::Error + 'static> {
    /// The packs have no place for it.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The assembler has refused.
    #[error("the code cannot be assembled to run at {address:#x}")]
    Assemble {
        /// Where it was to run.
        address: usize,
        /// Why.
        #[source]
        source: E,
    },
    /// The code has another length at its place than nearby.
    #[error(
        "the code has {there} bytes at {address:#x} and {nearby} nearby; have the assembler take encodings whose \
         length does not depend on distances"
    )]
    Length {
        /// Its place.
        address: usize,
        /// Bytes there.
        there: usize,
        /// Bytes at the place that it was assembled for first.
        nearby: usize,
    },
}

/// Takes a place at a multiple of `align` for the code that `assemble` makes for an address, and puts the code into the
/// image. Calls `assemble` twice; it should do the same each time. `name` is for observers.
///
/// # Errors
///
/// See [`PlaceError`].
pub fn place<E: std::error::Error + 'static>(
    packs: &Packs,
    name: &str,
    align: usize,
    mut assemble: impl FnMut(usize) -> Result<Vec<u8>, E>,
) -> Result<Staged, PlaceError<E>> {
    let mut assembled = |address: usize| assemble(address).map_err(|source| PlaceError::Assemble { address, source });
    let nearby = packs.stage(1, align)?;
    let first = assembled(nearby.address().get())?;
    drop(nearby);
    let mut staged = packs.stage(first.len(), align)?;
    let address = staged.address().get();
    let code = assembled(address)?;
    if code.len() != first.len() {
        return Err(PlaceError::Length { address, there: code.len(), nearby: first.len() });
    }
    staged.image().copy_from_slice(&code);
    staged.set_name(name);
    Ok(staged)
}
