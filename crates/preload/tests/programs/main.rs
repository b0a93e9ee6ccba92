//! Real programs under the object: each does the same with it as without.
//!
//! Each test starts its program, reaches it through pipes or a socket in a folder of the test, and ends it by its
//! number. What is not installed is skipped and named. Figures that depend on the machine's speed do not count; the
//! page tables of children do.

mod allocators;
mod gunicorn;
mod interpreters;
mod loaded;
mod redis;
mod support;
mod threaded;
