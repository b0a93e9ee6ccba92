//! The test programs of this machine's architecture, for a guest of the same.

use std::{fs, path::PathBuf};

use crate::{
    process,
    programs::{self, TestProgram},
    step::StepError,
    workspace::Workspace,
};

/// Builds the tests of `packages`. Returns the guest's `/init` and the `chosen` ones of the test programs, in a folder
/// of this name and without debug information, which would be most of their size.
pub(super) fn programs(
    workspace: &Workspace,
    packages: &[&str],
    folder: &str,
    chosen: impl FnOnce(Vec<TestProgram>) -> Vec<TestProgram>,
) -> Result<(PathBuf, Vec<TestProgram>), StepError> {
    let folder = workspace.separate_target("guest").join(folder);
    fs::create_dir_all(&folder).map_err(|source| StepError::File { action: "make", path: folder.clone(), source })?;
    let mut test = process::cargo(workspace);
    test.args(["test", "--all-features"]);
    for package in packages {
        test.args(["--package", package]);
    }
    let built = chosen(programs::build(&mut test)?);
    process::stream(process::cargo(workspace).args(["build", "--package", "guest-init"]))?;
    let strip = |from: PathBuf, name: &str| {
        let to = folder.join(name);
        process::stream(process::program("strip", workspace).arg("--strip-debug").arg("-o").arg(&to).arg(from))?;
        Ok::<_, StepError>(to)
    };
    let init = strip(workspace.target.join("debug/guest-init"), "init")?;
    let stripped = built.into_iter().map(|program| {
        let path = strip(program.path.clone(), &program.name)?;
        Ok(TestProgram { path, ..program })
    });
    Ok((init, stripped.collect::<Result<_, StepError>>()?))
}
