//! With an operating system: Rust's standard library has the handler of panics. None crosses into C, since functions
//! of the C ABI abort.

extern crate std;
