//! Threads that block all signals are held, while memory is moved, calls sleep, threads come and go, and processes are
//! killed.
//!
//! Each scenario has a process of its own: this test binary is started again and told which one to play.

mod memory;
mod quiet;
mod refusals;
mod sleepers;
mod support;
mod violence;
