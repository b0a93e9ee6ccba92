//! What short runs do without on AArch64: programs, tests and cases whose result depends neither on the architecture
//! nor on the guest's older kernel. What stays: code under `arch/`, compiled and rewritten code, the engine of freezes,
//! and calls whose answer differs between kernels.

use crate::{programs::TestProgram, step::LeftOut};

/// Test programs, which short runs neither build nor run; tests, as `program::test`; and what is played less of.
pub(crate) const LEFT_OUT: &[LeftOut] = &[
    LeftOut {
        what: "bpf.host::arrays::the_value_with_the_number_is_found_and_no_other",
        reason: "thousands of values of maps, which are plain Rust",
    },
    LeftOut { what: "bpf.long", reason: "counts of plain Rust, which are the same everywhere" },
    LeftOut { what: "fork.arena_collections", reason: PLAIN },
    LeftOut { what: "fork.arena_first", reason: ARENA },
    LeftOut { what: "fork.arena_fork", reason: ARENA },
    LeftOut { what: "fork.arena_global", reason: PLAIN },
    LeftOut { what: "fork.arena_model", reason: PLAIN },
    LeftOut {
        what: "fork.engine::a_repair_takes_no_longer_than_a_slice_at_a_time",
        reason: "a repair of hundreds of forks, whose slices `slices` makes one by one",
    },
    LeftOut { what: "fork.engine_huge::who_advises_against_huge_pages_gets_none", reason: NOTHING },
    LeftOut { what: "fork.engine_huge::who_has_switched_huge_pages_off_gets_none", reason: NOTHING },
    LeftOut { what: "fork.engine_worth::what_cannot_be_thawed_keeps_nothing_else_frozen", reason: ENGINE },
    LeftOut { what: "fork.hazards_process::repairs_keep_what_was_answered_for", reason: ENGINE },
    LeftOut { what: "fork.hazards_process::repairs_stop_threads_only_if_the_freeze_might", reason: ENGINE },
    LeftOut { what: "fork.limits::files_of_which_little_is_left_are_given_up", reason: ENGINE },
    LeftOut { what: "fork.slices::it_ends_before_there_are_more_extents_than_guards_have_room_for", reason: ENGINE },
    LeftOut { what: "fork.killed", reason: "kills at each step what `slices` plays: 450 processes of a second each" },
    LeftOut {
        what: "fork.oracle",
        reason: "random sequences of calls that `engine`, `guards` and `limits` make one by one",
    },
    LeftOut {
        what: "fork.sandbox",
        reason: "random sequences of what `authority`, `guards` and `limits` do one by one",
    },
    LeftOut {
        what: "forkserver.forkserver",
        reason: "its runs are restored as `snapshot` does; its protocol is plain Rust",
    },
    LeftOut { what: "text.observing", reason: PLAIN },
    LeftOut {
        what: "text.stress",
        reason: "QEMU on x86-64 orders stores as x86-64 does, so threads meet no other order",
    },
    LeftOut { what: "17 500 of 20 000 random programs of bpf.verified", reason: CASES_ARE_ALIKE },
    LeftOut { what: "200 of 300 random programs of bpf.differential", reason: CASES_ARE_ALIKE },
];

const PLAIN: &str = "plain Rust over calls that other programs here make";
const ARENA: &str = "arenas are plain Rust; that their files, mappings and forks are the kernel's, `engine` shows here";
const ENGINE: &str =
    "much memory or many forks, to reach a decision of plain Rust; the rest of `engine` and `slices` stays";
const NOTHING: &str = "3000 forks that must come to nothing, by a decision of plain Rust";
const CASES_ARE_ALIKE: &str = "each instruction and its compiled form is among the first ones many times";

/// The variables by which programs play less.
pub(crate) const CASES: &[(&str, &str)] = &[("PALIMPSEST_BPF_VERIFIED", "2500"), ("PALIMPSEST_BPF_PROGRAMS", "100")];

/// Makes a program leave out what a short run leaves out of it.
pub(crate) fn shorten(program: &mut TestProgram) {
    for left in LEFT_OUT {
        if let Some((of, test)) = left.what.split_once("::")
            && of == program.name
        {
            program.arguments.extend(["--skip", test]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn what_is_left_out_exists() {
        let workspace = Workspace::find();
        for name in LEFT_OUT.iter().map(|left| left.what).filter(|what| !what.contains(' ')) {
            let (program, test) = name.split_once("::").unwrap_or((name, ""));
            let (package, program) = program.split_once('.').expect("package.program");
            assert!(workspace.integration_tests(package).iter().any(|known| known == program), "no program {name}");
            let file = workspace.root.join(format!("crates/{package}/tests/{program}.rs"));
            let module = test.rsplit_once("::").map_or("main", |(module, _)| module);
            let source = if file.is_file() { file } else { file.with_extension("").join(format!("{module}.rs")) };
            let source = std::fs::read_to_string(source).expect("the test's file");
            let function = test.rsplit_once("::").map_or(test, |(_, function)| function);
            assert!(function.is_empty() || source.contains(&format!("fn {function}() {{")), "no test {name}");
        }
    }

    #[test]
    fn a_program_is_shortened_by_its_own_tests() {
        let mut programs =
            ["fork.engine", "fork.engine_heap"].map(|name| TestProgram::new(name.to_owned(), name.into(), "/".into()));
        programs.iter_mut().for_each(shorten);
        assert_eq!(programs[0].arguments[0], "--skip");
        assert!(programs[1].arguments.is_empty());
    }
}
