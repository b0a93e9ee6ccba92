//! Programs with the preload object, compared with the same programs without it.

mod allocators;
mod calls;
mod common;
mod languages;
mod options;
mod sanitized;
mod scenarios;
mod text;
mod waits;
