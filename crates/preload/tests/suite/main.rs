//! Programs with the preload object, compared with the same programs without it.

mod allocators;
mod calls;
mod common;
mod executed;
mod huge;
mod languages;
mod left_alone;
mod meanwhile;
mod options;
mod sanitized;
mod scenarios;
mod shared_text;
mod text;
mod waits;
