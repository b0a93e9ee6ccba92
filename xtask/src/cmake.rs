//! Adapters in C++, built by CMake over the functions for C; and what compiles either.

use std::path::PathBuf;

use crate::{need::Need, process, step::StepError, workspace::Workspace};

pub(crate) const CC: Need = Need::Program { program: "cc", package: "gcc" };
pub(crate) const CXX: Need = Need::Program { program: "c++", package: "g++" };
pub(crate) const CMAKE: Need = Need::Program { program: "cmake", package: "cmake" };
pub(crate) const LLVM: Need =
    Need::File { path: "/usr/lib/llvm-14/lib/cmake/llvm/LLVMConfig.cmake", package: "llvm-14-dev" };
pub(crate) const LLVM_EXAMPLES: Need =
    Need::File { path: "/usr/share/doc/llvm-14-examples/examples/OrcV2Examples", package: "llvm-14-examples" };
pub(crate) const ASMJIT: Need = Need::File { path: "/usr/include/asmjit/asmjit.h", package: "libasmjit-dev" };

/// For adapters that need LLVM: the version that Debian has, whatever else is installed.
pub(crate) const WITH_LLVM: &[&str] = &["-DLLVM_DIR=/usr/lib/llvm-14/lib/cmake/llvm"];

/// Builds palimpsest-capi, and the adapter in the folder `source` with it. Returns the folder of its programs.
pub(crate) fn build(
    workspace: &Workspace,
    source: PathBuf,
    name: &str,
    options: &[&str],
) -> Result<PathBuf, StepError> {
    let mut library = process::cargo(workspace);
    process::stream(library.args(["build", "--release", "--package", "palimpsest-capi"]))?;
    let library = workspace.target.join("release/libpalimpsest_capi.a");
    let built = workspace.separate_target(name);
    let mut configure = process::program("cmake", workspace);
    configure.arg("-S").arg(source).arg("-B").arg(&built).arg("-DCMAKE_BUILD_TYPE=Release");
    configure.arg(format!("-DPALIMPSEST_LIBRARY={}", library.display())).args(options);
    process::stream(&mut configure)?;
    process::stream(process::program("cmake", workspace).arg("--build").arg(&built))?;
    Ok(built)
}
