//! Static keys: conditions that are compiled into branches, and rewritten when they change.
//!
//! ```
//! use palimpsest_text::key::{Keys, State};
//! use palimpsest_text::{branch, static_key};
//!
//! static_key!(static NET_TRACE: "net.trace" = off);
//!
//! fn traced() -> bool {
//!     branch!(unlikely NET_TRACE)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! assert!(!traced());
//! NET_TRACE.enable()?;
//! assert!(traced());
//! NET_TRACE.disable()?;
//! Keys::apply([(&NET_TRACE, State::On)])?;
//! assert!(traced());
//! # Ok(())
//! # }
//! ```
//!
//! # Switching by name
//!
//! When the program starts, before `main`, it follows the environment variable `PALIMPSEST_KEYS`:
//!
//! ```text
//! PALIMPSEST_KEYS='net.*=on,db.slow=off' program
//! ```
//!
//! Clauses are separated by commas, later ones win, and `*` and `?` stand for any characters and any one. What is not
//! understood is written to standard error and kept in [`Keys::environment`]. Libraries follow it for their own keys
//! when they are loaded. Programs with more rights than their caller (set-user-id) do not. [`Keys::set`] does
//! the same later.
//!
//! # The sections
//!
//! | section of each object | flags | what it holds |
//! |---|---|---|
//! | `palimpsest_keys` | `aw` | the [`Key`]s themselves, 64 bytes each |
//! | `palimpsest_sites` | `ao`, tied to the text of the site | 16 bytes a site: distances to the site, its target and its key; the state in which it falls through |
//! | `.note.palimpsest` | `a` | distances to the bounds of both; its type is the version of the layouts |
//!
//! All but the names of keys are distances within the object: no relocations, and the sites stay in shared read-only
//! pages. A linker with `--gc-sections` drops a site with its function, and a key that nobody refers to. (GNU ld drops
//! less: it keeps every site as soon as the bounds are asked for, unless given `-z start-stop-gc`.)
//!
//! An object's keys are found through its note, which is in its program headers (`PT_NOTE`). So a constructor that
//! registers is not needed, nor a destructor that must not be forgotten: the list of keys *is* the dynamic linker's
//! list of objects, and what `dlclose` unloads is not in it. Every copy of this library (one is linked into each
//! program and each `cdylib`) sees the keys of all others, if the versions agree. Registering by `.init_array` would
//! show each copy its own keys only.
//!
//! A key points to its object's note, so that switching a key that one has needs no search at all. Keys that are found
//! by name hold their library (`dlopen` with `RTLD_NOLOAD`); they cannot be switched while it is being unloaded.
//!
//! # One key, many who switch it
//!
//! A key's lock lies in the key, as its count and state do, and copies of the library agree on them. Locks are
//! taken in the order of addresses. No loader lock is taken while one is held: a constructor that switches keys
//! (under the loader's lock) may wait for one. [`Batch`](crate::poke::Batch) has its own lock below all of these.
//!
//! Where cores are synchronised by signals, the first switch installs a handler in the copy of the library that does
//! it. So that copy's object stays loaded for good from then on, `dlclose` or not. A plugin whose keys are only
//! switched by its host can be unloaded.
//!
//! In a forked child a key may have been in the middle of a switch: its lock says so by naming the parent. The child's
//! first switch of that key looks at what each site is.
//!
//! # Soundness of the macros
//!
//! Users write no `unsafe`, as the macros leave them no way to get it wrong:
//!
//! * [`branch!`](crate::branch): the assembly is an instruction without effect or a jump to a label of its own `asm!`
//!   block; both continue in code that the compiler has made, with nothing lost but the flags. Rewriting chooses
//!   between those two. Its entry
//!   is computed from its own labels. `sym` demands that the key is a static, and its type is that of [`Key`], which
//!   only
//!   `static_key!` makes.
//! * [`static_key!`](crate::static_key): the section holds nothing but `Key`s, of fixed size and alignment, so that it
//!   can be read as a slice of them. To put something else there takes `unsafe` of the user's own.
//! * [`static_call!`](crate::static_call): `set` takes functions of exactly the type that `call!` calls. The entry is a
//!   jump, which fits every convention: arguments, results and return address are where the callee expects them.
//!
//! What a hidden item needs to be right is in its own `# Safety`.
//!
//! # Machines without patching
//!
//! Under Miri, with `--cfg palimpsest_atomic_keys`, and on other architectures, [`branch!`](crate::branch) is a relaxed
//! load and
//! [`call!`](crate::call) an indirect call. All else is the same.

mod arch;
mod call;
mod change;
mod directive;
mod environment;
mod error;
#[doc(hidden)]
pub mod hidden;
#[expect(clippy::module_inception, reason = "one key of the module's keys")]
mod key;
mod keys;
mod lock;
mod macros;
mod note;
mod pattern;
mod section;
mod state;

pub use call::StaticCall;
pub use change::Switched;
pub use directive::DirectiveError;
pub use environment::EnvironmentReport;
pub use error::{CallError, EnvironmentError, SetError, SwitchError};
pub use key::Key;
pub use keys::{KeyRef, Keys};
pub use pattern::{Pattern, PatternError};
pub use state::State;
