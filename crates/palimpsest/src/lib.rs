//! Rewrite memory while it is in use.
//!
//! Everything of `palimpsest-text` (program packs, live patching, static keys, observers) under one name, and `palimpsest-sys` as
//! [`sys`], and `palimpsest-fork` (fork in constant time, arenas, snapshots) as [`fork`].
//!
//! [`Packs`] is where most users begin:
//!
//! ```
//! # #[cfg(target_arch = "x86_64")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let packs = palimpsest::Packs::new()?;
//! // lea eax, [rdi + rsi]; ret
//! let add = packs.load_named("add", &[0x8D, 0x04, 0x37, 0xC3], 16)?;
//! // SAFETY: the bytes are a function of that type, and `add` outlives the call.
//! let function = unsafe { add.function::<extern "C" fn(i32, i32) -> i32>() };
//! assert_eq!(function(40, 2), 42);
//! # Ok(())
//! # }
//! # #[cfg(not(target_arch = "x86_64"))]
//! # fn main() {}
//! ```

#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "fork")]
pub use palimpsest_fork as fork;
#[cfg(feature = "std")]
pub use palimpsest_sys as sys;
pub use palimpsest_text::*;
