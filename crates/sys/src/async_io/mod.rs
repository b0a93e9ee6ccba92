//! Memory that the kernel may hold for asynchronous input and output: rings of io_uring, contexts of Linux AIO.
//!
//! Only asks: nothing here starts, cancels or collects a request. Nothing uses the heap.

pub mod aio;
pub mod uring;
