//! The coverage map as LibAFL sees it.

use std::borrow::Cow;

use libafl::Error;
use libafl::observers::StdMapObserver;
use libafl_bolts::ownedref::OwnedMutSlice;

use crate::Host;

/// Returns an observer of the host's coverage map. Works once, since there is one map.
///
/// # Errors
///
/// [`Error::IllegalState`] if the map was taken before.
pub fn map_observer(
    host: &mut Host,
    name: impl Into<Cow<'static, str>>,
) -> Result<StdMapObserver<'static, u8, false>, Error> {
    let map =
        host.take_map().ok_or_else(|| Error::illegal_state("this host's coverage map has an observer already"))?;
    Ok(StdMapObserver::from_mut_slice(name, OwnedMutSlice::from(map)))
}
