//! Programs by number, for tail calls.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use arc_swap::ArcSwapOption;

use super::{Definition, MapError};
use crate::host::HostedProgram;

/// Programs by number. A program in a map of its own host keeps both alive: remove it when it is no longer needed.
#[derive(Debug)]
pub struct Programs {
    programs: Box<[ArcSwapOption<HostedProgram>]>,
}

/// Why a program cannot be put in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no place {index} among {count} programs")]
pub struct InsertError {
    /// The place.
    pub index: u32,
    /// How many there are.
    pub count: usize,
}

impl Programs {
    /// Returns the bytes that it takes, without the programs.
    pub(super) fn bytes(definition: &Definition) -> u64 {
        u64::from(definition.max_entries) * size_of::<ArcSwapOption<HostedProgram>>() as u64
    }

    pub(super) fn new(definition: &Definition) -> Result<Self, MapError> {
        let count = definition.max_entries as usize;
        let mut programs = Vec::new();
        programs.try_reserve_exact(count).map_err(|_| {
            let bytes = Self::bytes(definition);
            MapError::Memory { name: definition.name.clone(), bytes }
        })?;
        programs.resize_with(count, ArcSwapOption::empty);
        Ok(Self { programs: programs.into_boxed_slice() })
    }

    /// Puts a program in, or removes one. Returns the old one, which others may still run.
    ///
    /// # Errors
    ///
    /// [`InsertError`].
    pub fn set(
        &self,
        index: u32,
        program: Option<Arc<HostedProgram>>,
    ) -> Result<Option<Arc<HostedProgram>>, InsertError> {
        let count = self.programs.len();
        let place = self.programs.get(index as usize).ok_or(InsertError { index, count })?;
        Ok(place.swap(program))
    }

    /// The program with this number.
    pub fn get(&self, index: u32) -> Option<Arc<HostedProgram>> {
        self.programs.get(index as usize)?.load_full()
    }
}
