//! Contexts of Linux AIO, whose requests write to memory on the kernel's time.
//!
//! How many requests are under way is known to the kernel alone: a context's ring counts completions that nobody has
//! fetched, and an empty one may have thousands of requests. So a process with a context is refused. The mapping of a
//! ring alone is harmless: a child inherits it without its parent's context.

use std::ops::ControlFlow;

use palimpsest_sys::async_io::aio;
use palimpsest_sys::pages::vmas::each_mapping;

use crate::error::FreezeError;

/// Refuses a process that has a context.
pub(super) fn refuse() -> Result<(), FreezeError> {
    let mut refused = Ok(());
    each_mapping(&mut |mapping| {
        // What cannot be told counts as a context.
        if mapping.name.starts_with(aio::RING_NAME) && aio::is_context(mapping.start).unwrap_or(true) {
            refused = Err(FreezeError::LinuxAio { context: mapping.start });
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    refused
}
