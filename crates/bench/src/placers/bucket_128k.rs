//! One 128 KiB mapping per program, like engines that take code memory from a pool of such buckets: the code at its
//! beginning becomes executable, the rest stays writable and untouched.
//!
//! What costs is the distance of 128 KiB between programs: their first lines share one set of every cache whose sets
//! repeat at a divisor of that distance.

use super::{Loaded, Placer, foreign};
use crate::PlaceError;
use crate::machine::CodeArea;

const BUCKET: usize = 128 << 10;

/// See the module.
pub(super) struct Bucket128k;

impl Placer for Bucket128k {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> {
        CodeArea::place(code, BUCKET).map(Loaded::Area)
    }

    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError> {
        match loaded {
            Loaded::Area(area) => {
                drop(area);
                Ok(())
            }
            _ => Err(foreign("bucket_128k")),
        }
    }
}
