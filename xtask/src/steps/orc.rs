//! LLVM's ORC with its code in packs: programs in C++, built by CMake.

use crate::{
    need::Need,
    process,
    step::{Depth, Done, LeftOut, StepError},
    workspace::Workspace,
};

/// The folder of what CMake builds.
pub(super) const FOLDER: &str = "llvm-orc";

pub(super) const NEEDS: &[Need] = &[
    super::CXX,
    Need::Program { program: "cmake", package: "cmake" },
    Need::File { path: "/usr/lib/llvm-14/lib/cmake/llvm/LLVMConfig.cmake", package: "llvm-14-dev" },
];

pub(super) const LEFT_OUT: &[LeftOut] = &[LeftOut {
    what: "code of LLVM's ORC in packs",
    reason: "to compile against LLVM takes a minute, and the tests of the C functions make the same calls",
}];

/// Runs the tests of the adapter, and its comparison once, with few functions.
pub(super) fn llvm_orc(workspace: &Workspace, depth: Depth) -> Result<Done, StepError> {
    if depth != Depth::Exhaustive {
        return Ok(Done::Skipped("left to --exhaustive".to_owned()));
    }
    process::stream(process::cargo(workspace).args(["build", "--release", "--package", "palimpsest-capi"]))?;
    let library = workspace.target.join("release/libpalimpsest_capi.a");
    let folder = workspace.separate_target(FOLDER);
    let mut configure = process::program("cmake", workspace);
    configure.args([
        "-S",
        "adapters/llvm-orc",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DLLVM_DIR=/usr/lib/llvm-14/lib/cmake/llvm",
    ]);
    configure.arg("-B").arg(&folder).arg(format!("-DPALIMPSEST_LIBRARY={}", library.display()));
    process::stream(&mut configure)?;
    process::stream(process::program("cmake", workspace).arg("--build").arg(&folder))?;
    process::stream(&mut process::program(folder.join("orc-test"), workspace))?;
    process::stream(process::program(folder.join("orc-bench"), workspace).arg("100"))?;
    Ok(Done::Passed)
}
