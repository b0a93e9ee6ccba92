//! Real programs under the object: each does the same with it as without.
//!
//! Every program is started by its test, is reached through a socket in a folder of the test or through pipes, and is
//! ended by its number. What is not installed is skipped and named. Figures that depend on the machine's speed are not
//! looked at; the page tables of children are.

mod allocators;
mod gunicorn;
mod interpreters;
mod redis;
mod support;
mod threaded;
