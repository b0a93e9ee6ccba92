//! Other threads.

use crate::error::FreezeError;

const PATH: &str = "/proc/self/task";

/// How many threads the process has, workers of the kernel included.
pub(crate) fn count() -> Result<usize, FreezeError> {
    let failed = |source| FreezeError::NoProc { path: PATH.to_owned(), source };
    let mut count = 0;
    for entry in std::fs::read_dir(PATH).map_err(failed)? {
        entry.map_err(failed)?;
        count += 1;
    }
    Ok(count)
}
