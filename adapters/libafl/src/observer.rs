//! The coverage map as LibAFL sees it.

use std::borrow::Cow;

use libafl::Error;
use libafl::observers::StdMapObserver;
use libafl_bolts::ownedref::OwnedMutSlice;

use crate::Host;

/// An observer of the host's coverage map. There is one map, so this works once.
///
/// # Errors
///
/// [`Error::IllegalState`] where the map was taken before.
pub fn map_observer(
    host: &mut Host,
    name: impl Into<Cow<'static, str>>,
) -> Result<StdMapObserver<'static, u8, false>, Error> {
    let map =
        host.take_map().ok_or_else(|| Error::illegal_state("this host's coverage map has an observer already"))?;
    Ok(StdMapObserver::from_mut_slice(name, OwnedMutSlice::from(map)))
}
