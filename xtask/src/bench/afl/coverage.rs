//! Whether all contestants reach the same edges with the same inputs.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Contestant, build::Built, campaign::quiet, fresh};
use crate::{bench::BenchError, process, step::StepError};

/// Shows `inputs` to the contestants that have the same data, and returns how many there were.
pub(super) fn compare(built: &Built, inputs: &Path, mebibytes: u32) -> Result<usize, BenchError> {
    let reference = maps(Contestant::Plain, built, inputs, mebibytes)?;
    for contestant in [Contestant::Frozen, Contestant::FrozenHuge, Contestant::Reset] {
        let found = maps(contestant, built, inputs, mebibytes)?;
        let names = reference.keys().chain(found.keys());
        let mut unequal: Vec<String> = names.filter(|name| reference.get(*name) != found.get(*name)).cloned().collect();
        unequal.sort_unstable();
        unequal.dedup();
        if !unequal.is_empty() || found.is_empty() {
            let (contestant, reference) = (contestant.name().to_owned(), Contestant::Plain.name().to_owned());
            return Err(BenchError::Unequal { contestant, reference, inputs: unequal });
        }
    }
    Ok(reference.len())
}

/// The edges that each input reaches, with how often.
fn maps(
    contestant: Contestant,
    built: &Built,
    inputs: &Path,
    mebibytes: u32,
) -> Result<BTreeMap<String, Vec<u8>>, BenchError> {
    let out = built.scratch.join(format!("maps-{}", contestant.name()));
    fresh(&out)?;
    let (target, environment) = contestant.target(built, mebibytes);
    let mut showmap = quiet("afl-showmap");
    showmap.envs(environment).stdout(std::process::Stdio::null());
    if contestant == Contestant::Reset {
        // afl-fuzz sets it for targets in whose file it finds a loop; afl-showmap does not look.
        showmap.env("__AFL_PERSISTENT", "1");
    }
    showmap.arg("-i").arg(inputs).arg("-o").arg(&out).args(["-q", "-t", "10000", "-m", "none", "--"]).arg(target);
    process::stream_within(&mut showmap, Duration::from_secs(300))?;
    let mut maps = BTreeMap::new();
    for entry in fs::read_dir(&out).map_err(failed("list", &out))? {
        let path = entry.map_err(failed("list", &out))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        maps.insert(name, fs::read(&path).map_err(failed("read", &path))?);
    }
    Ok(maps)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StepError + use<> {
    let path: PathBuf = path.to_owned();
    move |source| StepError::File { action, path, source }
}
