//! Contexts of Linux AIO, whose requests write to memory whenever the kernel likes.
//!
//! Only the kernel knows how many requests are under way: a context's ring counts completions that nobody has fetched,
//! and an empty ring may have thousands of requests. So a process with a context is refused. The mapping of a ring
//! alone is harmless: a child inherits it without its parent's context.

use std::ops::ControlFlow;

use palimpsest_sys::async_io::aio;
use palimpsest_sys::pages::vmas::each_mapping;

use crate::error::FreezeError;

/// Refuses a process that has a context.
pub(super) fn refuse() -> Result<(), FreezeError> {
    let mut refused = Ok(());
    each_mapping(&mut |mapping, name| {
        refused = refuse_mapping(mapping.start, name);
        if refused.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    refused
}

/// Refuses a mapping of a ring that has a context.
pub(super) fn refuse_mapping(start: usize, name: &[u8]) -> Result<(), FreezeError> {
    // If the kernel does not tell, it counts as a context.
    if name.starts_with(aio::RING_NAME) && aio::is_context(start).unwrap_or(true) {
        return Err(FreezeError::LinuxAio { context: start });
    }
    Ok(())
}
