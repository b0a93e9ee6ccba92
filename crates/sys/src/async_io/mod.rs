//! What the kernel may hold on to for input and output on its own time: rings of io_uring, contexts of Linux AIO.
//!
//! Questions only: nothing here starts, cancels or collects a request. Nothing uses the heap.

pub mod aio;
pub mod uring;
