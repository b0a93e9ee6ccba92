//! Turns linking errors into those of modules: the one conversion that differs between versions of Cranelift.

use std::io;

use cranelift_module::ModuleError;

use crate::error::LinkError;

impl From<LinkError> for ModuleError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Stage { .. } => Self::Allocation { err: io::Error::new(io::ErrorKind::OutOfMemory, error) },
            error => Self::Backend(error.into()),
        }
    }
}
