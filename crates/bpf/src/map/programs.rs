//! Programs by number, for tail calls.

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;

#[cfg(feature = "std")]
use palimpsest_sys::SetOnce;
#[cfg(feature = "std")]
use palimpsest_sys::published::Published;

#[cfg(not(feature = "std"))]
use super::once::{Mutex, OnceLock as SetOnce, lock};
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
    programs: Box<[Place<Arc<HostedProgram>>]>,
    count: usize,
    /// Made when the first is put in, or, where there are no others, with the map.
    foreign: SetOnce<Box<[ForeignPlace]>>,
}

/// A place for a program, made when the first is put in. Whoever reads it waits for nobody, allocates nothing, and
/// frees nothing. Whoever puts a program in waits for nobody either, who might be missing in a child.
#[cfg(feature = "std")]
type Place<P> = SetOnce<Published<Option<P>>>;

/// A place for another runner's program.
#[cfg(feature = "std")]
type ForeignPlace = Place<Foreign>;
#[cfg(not(feature = "std"))]
type ForeignPlace = Mutex<Option<Foreign>>;

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Programs").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Why a program cannot be put in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InsertError {
    /// There is no such place.
    #[error("there is no place {index} among {count} programs")]
    NoPlace {
        /// The place.
        index: u32,
        /// How many there are.
        count: usize,
    },
    /// There is no memory for the places of other runners' programs, which the first such program needs.
    #[error("no memory for {count} programs of other runners; make a map with fewer")]
    Memory {
        /// How many there are.
        count: usize,
    },
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
            let programs = places(count, SetOnce::new).map_err(memory)?;
            Ok(Self { programs, count, foreign: SetOnce::new() })
        }
        #[cfg(not(feature = "std"))]
        {
            let programs = Self { count, foreign: SetOnce::new() };
            let foreign = places(count, || Mutex::new(None)).map_err(memory)?;
            programs.foreign.get_or_init(|| foreign);
            Ok(programs)
        }
    }

    /// Puts a program in, or removes one. Returns the old one, which others may still run: the map lets go of it when
    /// they have left it, now or at the next change of this place (or [`reclaim`](Self::reclaim)). Not for signal
    /// handlers that may have interrupted the allocator.
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
        let place = self.programs.get(index as usize).ok_or(InsertError::NoPlace { index, count: self.count })?;
        Ok(swap(place, program))
    }

    /// The program with this number.
    #[cfg(feature = "std")]
    pub fn get(&self, index: u32) -> Option<Arc<HostedProgram>> {
        self.programs.get(index as usize)?.get()?.read().clone()
    }

    /// Lets go of programs that were replaced, as far as no thread runs them any more. Returns of how many not.
    /// [`set`](Self::set) does the same for its place.
    #[cfg(feature = "std")]
    pub fn reclaim(&self) -> usize {
        let own = self.programs.iter().filter_map(SetOnce::get).map(Published::reclaim);
        let foreign = self.foreign.get().into_iter().flatten().filter_map(SetOnce::get).map(Published::reclaim);
        own.chain(foreign).sum()
    }

    /// Puts in a program of another runner, or removes one. Returns the old one, which others may still run.
    ///
    /// # Errors
    ///
    /// [`InsertError`].
    pub fn set_foreign(&self, index: u32, program: Option<Foreign>) -> Result<Option<Foreign>, InsertError> {
        let count = self.count;
        let no_place = InsertError::NoPlace { index, count };
        if index as usize >= count {
            return Err(no_place);
        }
        #[cfg(feature = "std")]
        if self.foreign.get().is_none() {
            let made = places(count, SetOnce::new).map_err(|_| InsertError::Memory { count })?;
            // Another thread may have been faster.
            self.foreign.get_or_init(|| made);
        }
        let place = self.foreign.get().and_then(|places| places.get(index as usize)).ok_or(no_place)?;
        #[cfg(feature = "std")]
        return Ok(swap(place, program));
        #[cfg(not(feature = "std"))]
        return Ok(core::mem::replace(&mut lock(place), program));
    }

    /// The other runner's program with this number. Without `std`, whoever changes or looks up this place must not be
    /// interrupted, on its CPU, by somebody who looks up the same place: that one would wait for ever.
    pub fn foreign(&self, index: u32) -> Option<Foreign> {
        let place = self.foreign.get()?.get(index as usize)?;
        #[cfg(feature = "std")]
        return place.get()?.read().clone();
        #[cfg(not(feature = "std"))]
        return lock(place).clone();
    }
}

/// Puts a program in, or removes one. Returns the old one.
#[cfg(feature = "std")]
fn swap<P: Clone>(place: &Place<P>, program: Option<P>) -> Option<P> {
    match (place.get(), &program) {
        (None, None) => None,
        _ => place.get_or_init(|| Published::new(None)).replace_and(program, Option::clone).0,
    }
}

/// Makes `count` places.
fn places<T>(count: usize, empty: impl FnMut() -> T) -> Result<Box<[T]>, TryReserveError> {
    let mut places = Vec::new();
    places.try_reserve_exact(count)?;
    places.resize_with(count, empty);
    Ok(places.into_boxed_slice())
}

/// Bytes of a place, with what is made when the first program is put in.
#[cfg(feature = "std")]
const PLACE: u64 = (size_of::<Place<Arc<HostedProgram>>>() + size_of::<Published<Option<Arc<HostedProgram>>>>()) as u64;
#[cfg(not(feature = "std"))]
const PLACE: u64 = size_of::<Mutex<Option<Foreign>>>() as u64;

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::map::tests::{in_a_child, in_the_middle};

    #[test]
    fn a_child_waits_for_nobody_who_was_making_a_place() {
        let definition = Definition::new("programs", crate::map::Kind::Programs, 4, 4, 2);
        let programs = Programs::new(&definition).expect("room");
        let make = |is_in_the_middle: &dyn Fn()| {
            programs.foreign.get_or_init(|| {
                is_in_the_middle();
                places(2, SetOnce::new).expect("room")
            });
        };
        let set = || programs.set_foreign(1, Some(Arc::new(7))).is_ok() && programs.foreign(1).is_some();
        in_the_middle(make, || in_a_child(set));
        let make = |is_in_the_middle: &dyn Fn()| {
            programs.foreign.get().expect("made above")[1].get_or_init(|| {
                is_in_the_middle();
                Published::new(None)
            });
        };
        in_the_middle(make, || in_a_child(set));
    }

    #[test]
    fn places_for_which_there_is_no_memory_are_an_error() {
        let definition = Definition::new("programs", crate::map::Kind::Programs, 4, 4, 2);
        let programs = Programs::new(&definition).expect("room");
        assert!(programs.set_foreign(0, Some(Arc::new(7))).is_ok_and(|old| old.is_none()));
        let old = programs.set_foreign(0, None).expect("a place").and_then(|old| old.downcast::<i32>().ok());
        assert_eq!((old.as_deref(), programs.foreign(0).is_none()), (Some(&7), true));
        let none = programs.set_foreign(2, None).map(drop);
        assert_eq!(none, Err(InsertError::NoPlace { index: 2, count: 2 }));
        // More than there is address space.
        let count = usize::MAX;
        let programs = Programs { count, ..Programs::new(&definition).expect("room") };
        assert_eq!(programs.set_foreign(0, None).map(drop), Err(InsertError::Memory { count }));
    }
}
