//! What interpreted programs have of their host.

use super::{Host, panics};
use crate::interp::{Answer, HelperError, Helpers, Memory};
use crate::verify::{TAIL_CALL, Unproven};

/// A run of an interpreted program. What it holds at its end is given back, also if a helper panics.
pub(super) struct Interpretation<'a> {
    pub(super) host: &'a Host,
    pub(super) memory: Memory<'a>,
}

impl Drop for Interpretation<'_> {
    fn drop(&mut self) {
        panics::without_a_second(|| self.host.discard(self.memory.held()));
    }
}

/// A host, for interpreted programs with these rights to unproven addresses.
pub(super) struct Interpreted<'a> {
    pub(super) host: &'a Host,
    pub(super) unproven: Unproven,
}

impl Helpers for Interpreted<'_> {
    fn call(&mut self, _id: i32, _arguments: [u64; 5], _memory: &mut Memory<'_>) -> Result<u64, HelperError> {
        Err(HelperError::Unknown)
    }

    fn answer(&mut self, id: i32, arguments: [u64; 5], memory: &mut Memory<'_>) -> Result<Answer, HelperError> {
        if id == TAIL_CALL {
            return Err(HelperError::TailCall);
        }
        self.host.entry_for(id, self.unproven).ok_or(HelperError::Unknown)?.call(arguments, memory)
    }

    fn function(
        &mut self,
        index: i32,
        arguments: [u64; 5],
        memory: &mut Memory<'_>,
    ) -> Option<Result<Answer, HelperError>> {
        Some(Host::function(self.host, index)?.call(arguments, memory))
    }

    fn map(&self, index: i32) -> Option<u64> {
        self.host.map_handle(index)
    }

    fn map_value(&self, index: i32, offset: u32) -> Option<u64> {
        self.host.map_value(index, offset)
    }
}
