//! Like `crates/cranelift/src/exhausted.rs`, for a version of Cranelift whose memory errors have a message.

use std::io;

use cranelift_module::ModuleError;

use crate::error::LinkError;

impl From<LinkError> for ModuleError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Stage { .. } => {
                let err = io::Error::new(io::ErrorKind::OutOfMemory, error);
                Self::Allocation { message: "no place in the packs", err }
            }
            error => Self::Backend(error.into()),
        }
    }
}
