//! What short runs do without on AArch64: programs, tests and cases whose result depends neither on the architecture
//! nor on the guest's older kernel. What stays: code under `arch/`, compiled and rewritten code, the engine of freezes,
//! and calls whose answer differs between kernels.

use crate::step::LeftOut;

/// Test programs, which short runs neither build nor run; tests, as `program::test`; and what is played less of.
pub(crate) const LEFT_OUT: &[LeftOut] = &[
    LeftOut {
        what: "bpf.host::arrays::the_value_with_the_number_is_found_and_no_other",
        reason: "thousands of values of maps, which are plain Rust",
    },
    LeftOut {
        what: "bpf.host::printing::random_programs_print_the_same_interpreted_and_compiled",
        reason: "formatting is plain Rust; `host::kernel` calls it from compiled programs",
    },
    LeftOut { what: "bpf.host::ended::what_is_proven_and_what_fails_take_no_fuel", reason: VERIFIER },
    LeftOut { what: "bpf.conformance::every_vector_is_verified", reason: VERIFIER },
    LeftOut { what: "bpf.conformance::the_interpreter_gives_what_the_model_says", reason: VERIFIER },
    LeftOut { what: "bpf.conformance::the_interpreter_gives_what_the_vectors_say", reason: VERIFIER },
    LeftOut { what: "bpf.classic", reason: PROGRAMS },
    LeftOut { what: "bpf.dwarf", reason: PROGRAMS },
    LeftOut { what: "bpf.encodings", reason: HERE },
    LeftOut { what: "bpf.least", reason: VERIFIER },
    LeftOut { what: "bpf.objects", reason: PROGRAMS },
    LeftOut { what: "bpf.timers", reason: PROGRAMS },
    LeftOut { what: "bpf.verified", reason: PROGRAMS },
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
    LeftOut {
        what: "fork.engine::a_repair_that_was_begun_goes_on_at_each_fork_whatever_slices_do_between",
        reason: ENGINE,
    },
    LeftOut {
        what: "fork.snapshot::arenas::memory_of_an_arena_in_a_snapshot_is_not_taken_for_zeros",
        reason: "plain Rust over calls that the other tests of `snapshot` make; 8 MiB take an emulated CPU minutes",
    },
    LeftOut {
        what: "fork.snapshot::arenas::a_frozen_arena_comes_back_whole",
        reason: "plain Rust over calls of `guards` and `snapshot`; 60 MiB take an emulated CPU minutes",
    },
    LeftOut {
        what: "fork.snapshot::arenas::an_arena_comes_back_whole",
        reason: "the same; `an_arena_of_a_round_leaves_nothing` shows here that there are snapshots of arenas",
    },
    LeftOut { what: "fork.snapshot::programs::programs_leave_no_trace", reason: RANDOM },
    LeftOut { what: "fork.snapshot::programs::programs_leave_no_trace_where_each_restore_sweeps", reason: RANDOM },
    LeftOut { what: "fork.slices::it_ends_before_there_are_more_extents_than_guards_have_room_for", reason: ENGINE },
    LeftOut { what: "fork.authority", reason: FORK },
    LeftOut { what: "fork.deputies", reason: FORK },
    LeftOut { what: "fork.engine_heap", reason: FORK },
    LeftOut { what: "fork.engine_huge", reason: FORK },
    LeftOut { what: "fork.engine_times", reason: FORK },
    LeftOut { what: "fork.engine_worth", reason: FORK },
    LeftOut { what: "fork.gather", reason: FORK },
    LeftOut {
        what: "fork.glance",
        reason: "the guest's kernel is too old for samples, and plans without them are those of `slices`",
    },
    LeftOut { what: "fork.hazards_process", reason: FORK },
    LeftOut { what: "fork.hazards_requests", reason: FORK },
    LeftOut { what: "fork.hazards_semantics", reason: FORK },
    LeftOut { what: "fork.hazards_threads", reason: FORK },
    LeftOut { what: "fork.limits", reason: FORK },
    LeftOut { what: "fork.reach", reason: FORK },
    LeftOut { what: "fork.refused_deputies", reason: FORK },
    LeftOut { what: "fork.refused_fork", reason: FORK },
    LeftOut { what: "fork.repairs_in_slices", reason: FORK },
    LeftOut { what: "fork.slices_in_use", reason: FORK },
    LeftOut { what: "fork.slices_times", reason: FORK },
    LeftOut { what: "fork.survivors", reason: FORK },
    LeftOut { what: "fork.threads", reason: FORK },
    LeftOut { what: "fork.untried", reason: FORK },
    LeftOut { what: "fork.killed", reason: "kills at each step what `slices` plays: 450 processes of a second each" },
    LeftOut { what: "fork.steps", reason: "stops at each step of what `slices` plays, as `killed` does" },
    LeftOut { what: "fork.oracle", reason: "random sequences of calls that `engine` and `guards` make one by one" },
    LeftOut { what: "fork.sandbox", reason: "random sequences of what `guards` does one by one" },
    LeftOut {
        what: "forkserver.forkserver",
        reason: "its runs are restored as `snapshot` does; its protocol is plain Rust",
    },
    LeftOut {
        what: "18 of 25 holds in each test of sys.tracer",
        reason: "they are alike, and emulated spinning is slow",
    },
    LeftOut { what: "sys.lib::memory::mapping::tests::a_mapping_that_fails_takes_nobody_elses_memory", reason: RACES },
    LeftOut {
        what: "sys.lib::threads::core_sync::tests::broadcasts::a_broadcast_ends_though_threads_come_without_a_pause",
        reason: RACES,
    },
    LeftOut { what: "sys.lib::threads::hold::tests::everyone_who_is_there_sleeps", reason: RACES },
    LeftOut { what: "sys.tracer::memory::threads_come_and_go_meanwhile", reason: RACES },
    LeftOut { what: "text.fork::forking_while_others_load_deadlocks_nobody", reason: RACES },
    LeftOut { what: "text.observing", reason: PLAIN },
    LeftOut {
        what: "text.stress",
        reason: "QEMU on x86-64 orders stores as x86-64 does, so threads meet no other order",
    },
    LeftOut {
        what: "2 and 30 of the numbers of mappings that text.hostile leaves",
        reason: "10 stays; to make the 65 000 others takes a minute of an emulated CPU each time",
    },
    LeftOut {
        what: "32 of 40 forks in two tests of text.hostile",
        reason: "they are alike, and an emulated CPU takes a second for each, beside three threads that load",
    },
    LeftOut {
        what: "200 of 300 random programs of bpf.differential",
        reason: "each instruction and its compiled form is among the first ones many times",
    },
    LeftOut {
        what: "12 of 13 guarded programs of the model, in bpf.conformance",
        reason: "13 divides no number of operations or operands, so each of both stays",
    },
    LeftOut {
        what: "objects for v1 to v3 of bpf.corpus",
        reason: "their programs are those for v4, which use as many instructions; that all are accepted is plain Rust",
    },
];

const VERIFIER: &str = "the verifier and the interpreter are plain Rust; compiled programs are compared here";
const PLAIN: &str = "plain Rust over calls that other programs here make";
const RANDOM: &str = "random sequences of what the other tests of `snapshot` do one by one";
const RACES: &str = "threads race for minutes, to meet orders of system calls that are the same everywhere";
const ARENA: &str = "arenas are plain Rust; that their files, mappings and forks are the kernel's, `engine` shows here";
const ENGINE: &str =
    "much memory or many forks, to reach a decision of plain Rust; the rest of `engine` and `slices` stays";
const FORK: &str =
    "plain Rust over calls of palimpsest-sys, which `engine`, `guards`, `slices` and `snapshot` make here";
const PROGRAMS: &str = "the compiler's code for AArch64 runs in `conformance`, `differential`, `guarded` and `host`";
const HERE: &str = "encoders for AArch64 are the same on every host";

/// The variables by which programs play less.
pub(crate) const CASES: &[(&str, &str)] = &[
    ("PALIMPSEST_BPF_PROGRAMS", "100"),
    ("PALIMPSEST_CORPUS_VERSIONS", "v4"),
    ("PALIMPSEST_FORKS_WHILE_LOADING", "8"),
    ("PALIMPSEST_GUARDED_EVERY", "13"),
    ("PALIMPSEST_HOLDS", "7"),
    ("PALIMPSEST_MAPPINGS_LEFT", "10"),
];
