//! Holds threads that block all signals, while memory is moved, calls sleep, threads come and go, and processes are
//! killed.
//!
//! Each scenario has its own process: this test binary starts itself again and tells the child which one to play.

mod memory;
mod quiet;
mod refusals;
mod sleepers;
mod support;
mod violence;
