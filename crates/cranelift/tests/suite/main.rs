//! Modules in packs, from outside: one executable, so that tests share their builders of functions.

mod common;
mod freeing;
mod library_calls;
#[cfg(feature = "unwind")]
mod observing;
mod one_changed_line;
mod relocations;
mod sharing;
