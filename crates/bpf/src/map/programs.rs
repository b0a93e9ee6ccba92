//! Programs by number, for tail calls.

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;

#[cfg(feature = "std")]
use arc_swap::ArcSwapOption;

use super::once::{Mutex, OnceLock, lock};
use super::{Definition, MapError};
#[cfg(feature = "std")]
use crate::host::HostedProgram;

/// A program of a [`Runner`](crate::host::Runner) outside this crate, which knows its type.
pub type Foreign = Arc<dyn Any + Send + Sync>;

/// Programs by number. A program in a map of its own host keeps both alive: remove it when it is no longer needed.
///
/// Each place has room for a program of this crate's (with `std`), and for one of another
/// [`Runner`](crate::host::Runner): whoever runs the program that makes a tail call looks among its own.
pub struct Programs {
    #[cfg(feature = "std")]
    programs: Box<[ArcSwapOption<HostedProgram>]>,
    count: usize,
    /// Made when the first is put in, or, where there are no others, with the map.
    foreign: OnceLock<Box<[Mutex<Option<Foreign>>]>>,
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Programs").field("count", &self.count).finish_non_exhaustive()
    }
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
        u64::from(definition.max_entries) * PLACE
    }

    pub(super) fn new(definition: &Definition) -> Result<Self, MapError> {
        let count = definition.max_entries as usize;
        let memory = |_| {
            let bytes = Self::bytes(definition);
            MapError::Memory { name: definition.name.clone(), bytes }
        };
        #[cfg(feature = "std")]
        {
            let programs = places(count, ArcSwapOption::empty).map_err(memory)?;
            Ok(Self { programs, count, foreign: OnceLock::new() })
        }
        #[cfg(not(feature = "std"))]
        {
            let programs = Self { count, foreign: OnceLock::new() };
            let foreign = places(count, || Mutex::new(None)).map_err(memory)?;
            programs.foreign.get_or_init(|| foreign);
            Ok(programs)
        }
    }

    /// Puts a program in, or removes one. Returns the old one, which others may still run.
    ///
    /// # Errors
    ///
    /// [`InsertError`].
    #[cfg(feature = "std")]
    pub fn set(
        &self,
        index: u32,
        program: Option<Arc<HostedProgram>>,
    ) -> Result<Option<Arc<HostedProgram>>, InsertError> {
        let place = self.programs.get(index as usize).ok_or(InsertError { index, count: self.count })?;
        Ok(place.swap(program))
    }

    /// The program with this number.
    #[cfg(feature = "std")]
    pub fn get(&self, index: u32) -> Option<Arc<HostedProgram>> {
        self.programs.get(index as usize)?.load_full()
    }

    /// Puts in a program of another runner, or removes one. Returns the old one, which others may still run.
    ///
    /// # Errors
    ///
    /// [`InsertError`].
    pub fn set_foreign(&self, index: u32, program: Option<Foreign>) -> Result<Option<Foreign>, InsertError> {
        let count = self.count;
        let empty = || (0..count).map(|_| Mutex::new(None)).collect();
        let place = self.foreign.get_or_init(empty).get(index as usize).ok_or(InsertError { index, count })?;
        Ok(core::mem::replace(&mut lock(place), program))
    }

    /// The other runner's program with this number.
    pub fn foreign(&self, index: u32) -> Option<Foreign> {
        lock(self.foreign.get()?.get(index as usize)?).clone()
    }
}

/// Makes `count` places.
fn places<T>(count: usize, empty: impl FnMut() -> T) -> Result<Box<[T]>, TryReserveError> {
    let mut places = Vec::new();
    places.try_reserve_exact(count)?;
    places.resize_with(count, empty);
    Ok(places.into_boxed_slice())
}

/// Bytes of a place.
#[cfg(feature = "std")]
const PLACE: u64 = size_of::<ArcSwapOption<HostedProgram>>() as u64;
#[cfg(not(feature = "std"))]
const PLACE: u64 = size_of::<Mutex<Option<Foreign>>>() as u64;
