//! The adapters for other programs' compilers and fuzzers, each built apart from the workspace. What they depend on
//! takes minutes to compile, so only an exhaustive run builds them.
//!
//! To add one: a folder below `adapters`, an entry in [`ADAPTERS`], and its `Cargo.toml`, if it has one, in
//! [`super::supply`].

use crate::{
    bench, cmake,
    need::Need,
    process,
    step::{Check, Done, LeftOut, Pace, Step, StepError, Task},
    workspace::Workspace,
};

/// An adapter, and how it is tested.
struct Adapter {
    /// Names its folder below `adapters`, its step, and its target folder.
    name: &'static str,
    /// One line for `--list`.
    about: &'static str,
    /// What the step is skipped without.
    needs: &'static [Need],
    /// What the step covers less without.
    wants: &'static [Need],
    /// What a short run does without, and why; of one element.
    left_out: &'static [LeftOut],
    /// What the step does, in this order.
    work: &'static [Work],
}

/// Part of what the step of an adapter does.
enum Work {
    /// Runs `cargo`, with arguments, on the adapter's workspace.
    Cargo { task: &'static str, arguments: &'static [&'static str] },
    /// Measures the adapter once, as `cargo xtask bench adapters` does, but as little as possible.
    Bench,
    /// Builds the adapter, and palimpsest-capi before it, with CMake and these options.
    CMake(&'static [&'static str]),
    /// Runs the tests that CMake knows of, and shows what they print.
    CTest,
}

const TESTS: Work = Work::Cargo { task: "test", arguments: &[] };

static ADAPTERS: [Adapter; 6] = [
    Adapter {
        name: "libafl",
        about: "fuzzers with the executors for LibAFL find what is planted",
        needs: &[],
        wants: &[],
        left_out: &[LeftOut {
            what: "the executors for LibAFL",
            reason: "LibAFL takes most of two minutes to build, and palimpsest-forkserver has tests of the same calls",
        }],
        work: &[TESTS],
    },
    Adapter {
        name: "assemblers",
        about: "code of dynasm-rs and iced-x86 runs in packs",
        needs: &[],
        wants: &[],
        left_out: &[LeftOut {
            what: "code of dynasm-rs and iced-x86 in packs",
            reason: "to build the assemblers takes most of a minute, and packs have tests of the same calls",
        }],
        work: &[TESTS],
    },
    Adapter {
        name: "llvm-orc",
        about: "code that LLVM's ORC links runs in packs",
        needs: &[super::CXX, cmake::CMAKE, cmake::LLVM],
        wants: &[cmake::LLVM_EXAMPLES, super::GDB, super::PERF],
        left_out: &[LeftOut {
            what: "code of LLVM's ORC in packs",
            reason: "to compile against LLVM takes a minute, and the tests of the C functions make the same calls",
        }],
        work: &[Work::CMake(cmake::WITH_LLVM), Work::CTest, Work::Bench],
    },
    Adapter {
        name: "asmjit",
        about: "code of asmjit runs in packs",
        needs: &[super::CXX, cmake::CMAKE, cmake::ASMJIT],
        wants: &[],
        left_out: &[LeftOut {
            what: "code of asmjit in packs",
            reason: "it needs a release build of the functions for C, and their tests make the same calls",
        }],
        work: &[Work::CMake(&[]), Work::CTest, Work::Bench],
    },
    Adapter {
        name: "rbpf",
        about: "public programs on cranelift-jit run in packs, with their sources as they are",
        needs: &[],
        wants: &[],
        left_out: &[LeftOut {
            what: "rbpf and Roto, public programs on cranelift-jit, with their code in packs",
            reason: "they have another version of Cranelift, which takes minutes to build",
        }],
        work: &[TESTS, Work::Bench],
    },
    Adapter {
        name: "wasmtime",
        about: "Wasmtime modules run in packs, and pass the specification's tests there",
        needs: &[],
        wants: &[],
        left_out: &[LeftOut {
            what: "Wasmtime modules in packs, with the specification's tests",
            reason: "to build Wasmtime takes minutes on two cores",
        }],
        work: &[TESTS, Work::Cargo { task: "run", arguments: &["--example", "plugins"] }, Work::Bench],
    },
];

/// Returns a step for each adapter.
pub(super) fn steps() -> impl Iterator<Item = Step> {
    ADAPTERS.iter().map(|adapter| Step {
        name: adapter.name,
        about: adapter.about,
        pace: Pace::Slow,
        needs: adapter.needs,
        wants: adapter.wants,
        scratch: Some(adapter.name),
        left_out: adapter.left_out,
        run: Check::Exhaustive(adapter),
    })
}

impl Task for Adapter {
    fn run(&self, workspace: &Workspace) -> Result<Done, StepError> {
        let folder = workspace.root.join(bench::ADAPTERS).join(self.name);
        let built = workspace.separate_target(self.name);
        for work in self.work {
            match work {
                Work::Cargo { task, arguments } => {
                    let mut cargo = process::cargo(workspace);
                    cargo.args([task, "--locked", "--manifest-path"]).arg(folder.join("Cargo.toml")).args(*arguments);
                    process::stream_within(process::apart(&mut cargo, workspace, self.name), process::LIMIT)?;
                }
                Work::Bench => bench::adapter(workspace, self.name, &["--check".to_owned()])?,
                Work::CMake(options) => {
                    cmake::build(workspace, folder.clone(), self.name, options)?;
                }
                Work::CTest => {
                    let mut tests = process::program("ctest", workspace);
                    tests.args(["--verbose", "--no-tests=error", "--test-dir"]).arg(&built);
                    process::stream_within(&mut tests, process::LIMIT)?;
                }
            }
        }
        Ok(Done::Passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_adapter_is_a_folder_with_what_its_work_starts_from() {
        let folder = Workspace::find().root.join(bench::ADAPTERS);
        for adapter in &ADAPTERS {
            let has = |name: &str| folder.join(adapter.name).join(name).is_file();
            for work in adapter.work {
                let found = match work {
                    Work::Cargo { .. } => has("Cargo.toml") && has("Cargo.lock"),
                    Work::Bench => bench::is_measured(adapter.name),
                    Work::CMake(_) | Work::CTest => has("CMakeLists.txt"),
                };
                assert!(found, "{}", adapter.name);
            }
        }
    }
}
