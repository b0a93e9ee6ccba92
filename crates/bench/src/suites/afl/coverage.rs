//! Whether all targets reach the same edges with the same inputs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::build::Built;
use super::campaign::quiet;
use super::{Target, fresh};
use crate::suites::programs::{ProgramError, doing, run_within};

/// Shows `inputs` to the targets that have the same data. Returns how many there were.
pub(super) fn compare(built: &Built, inputs: &Path, mebibytes: u32) -> Result<usize, ProgramError> {
    let reference = maps(Target::Plain, built, inputs, mebibytes)?;
    for target in [Target::Frozen, Target::FrozenHuge, Target::Reset] {
        let found = maps(target, built, inputs, mebibytes)?;
        let names = reference.keys().chain(found.keys());
        let mut unequal: Vec<String> = names.filter(|name| reference.get(*name) != found.get(*name)).cloned().collect();
        unequal.sort_unstable();
        unequal.dedup();
        if !unequal.is_empty() || found.is_empty() {
            return Err(ProgramError::Unequal {
                target: target.name(),
                reference: Target::Plain.name(),
                inputs: unequal,
            });
        }
    }
    Ok(reference.len())
}

/// Returns the edges that each input reaches, and how often.
fn maps(
    target: Target,
    built: &Built,
    inputs: &Path,
    mebibytes: u32,
) -> Result<BTreeMap<String, Vec<u8>>, ProgramError> {
    let out = built.scratch.join(format!("maps-{}", target.name()));
    fresh(&out)?;
    let (program, environment) = target.program(built, mebibytes);
    let mut showmap = quiet("afl-showmap");
    showmap.envs(environment).stdout(std::process::Stdio::null());
    if target == Target::Reset {
        // afl-fuzz sets it for targets in whose file it finds a loop; afl-showmap does not look.
        showmap.env("__AFL_PERSISTENT", "1");
    }
    showmap.arg("-i").arg(inputs).arg("-o").arg(&out).args(["-q", "-t", "10000", "-m", "none", "--"]).arg(program);
    run_within(&mut showmap, Duration::from_secs(300))?;
    let listed = || doing(format!("list {}", out.display()));
    let mut maps = BTreeMap::new();
    for entry in fs::read_dir(&out).map_err(listed())? {
        let path = entry.map_err(listed())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        maps.insert(name, fs::read(&path).map_err(doing(format!("read {}", path.display())))?);
    }
    Ok(maps)
}
