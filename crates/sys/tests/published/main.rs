//! Published values: what a read keeps, and what becomes of reads that threads, forks and handlers leave behind.
//!
//! Every read of a process shares its seats. So each scenario has its own process: this test binary starts itself again
//! and tells the child which one to play; once with `membarrier`, and once behind a filter that refuses it.

mod forks;
mod reads;
mod support;
mod threads;
