"""Plants mutants in a copy of the tree, one at a time by an environment variable, and tells which tests fail.

    mkdir /tmp/mutants && git ls-files -z | xargs -0 cp --parents -t /tmp/mutants
    python3 docs/records/2026-11-25-freeze/mutants.py /tmp/mutants [NAME…]

Each mutant is a piece of source text and what takes its place, at one step of a slice, of a part of a repair, or of a
thaw; and the tests that could notice: a test program of crates/fork (`lib`: its unit tests), and a part of the names of
tests in it. `IS` is whether the mutant is the chosen one: all are built at once, and without a name nothing is changed.
"""
import os
import re
import subprocess
import sys
import time

FORK = "crates/fork/src/"
ENGINE = FORK + "engine/"
STEPS, KILLED, THREADS = "steps", "killed", "threads"
STOP = "let stopped = world.as_ref().map(World::stop_others).transpose()?;"
NO_STOP = "let stopped = world.as_ref().filter(|_| !IS).map(World::stop_others).transpose()?;"

# name: (what it does wrong, file, text, replacement, [(test program, part of names), …])
MUTANTS = {
    # A slice that freezes.
    "freeze.hold": (
        "holds nobody", FORK + "slices.rs", STOP, NO_STOP,
        [(STEPS, "a_step_of_a_freeze"), ("slices", "threads_write"), (THREADS, "slices_freeze")]),
    "freeze.exclude": (
        "does not leave out what threads use", FORK + "slices.rs",
        "exclude(&mut tables, world.as_ref(), stopped.as_ref())?;\n        // While nobody else",
        "if !IS { exclude(&mut tables, world.as_ref(), stopped.as_ref())?; }\n        // While nobody else",
        [("slices_in_use", ""), (STEPS, "a_step_of_a_freeze")]),
    "freeze.userfaultfd": (
        "goes on beside a userfaultfd", FORK + "slices.rs",
        "if checked.watcher == Watcher::Open {\n        finish",
        "if !IS && checked.watcher == Watcher::Open {\n        finish",
        [("slices", "userfaultfd")]),
    "freeze.find.window": (
        "goes past populated pages of its window", ENGINE + "slice.rs",
        "let start = rest.start.max(populated & !(PIECE - 1));",
        "let start = rest.start.max((populated & !(PIECE - 1)) + if IS { 64 << 10 } else { 0 });",
        [("slices", "slice_by_slice"), (STEPS, "a_step_of_a_freeze")]),
    "freeze.find.eligible": (
        "takes what is no longer private and anonymous, or may not be read", ENGINE + "slice.rs",
        "if !is_still_eligible(&mapping) || has_policy(mapping.start)",
        "if !IS && !is_still_eligible(&mapping) || has_policy(mapping.start)",
        [("slices", "replaced_or_advised"), (STEPS, "a_step_of_a_freeze")]),
    "freeze.find.locked": (
        "takes locked memory", ENGINE + "slice.rs",
        "|| has_policy(mapping.start) || is_locked(part) {\n            item.at = part.end;",
        "|| has_policy(mapping.start) || !IS && is_locked(part) {\n            item.at = part.end;",
        [("slices", "replaced_or_advised")]),
    "freeze.find.left_alone": (
        "takes what was replaced or advised since the plan", ENGINE + "slice.rs",
        "let left = self.left_alone().first(part);",
        "let left = self.left_alone().first(part).filter(|_| !IS);",
        [("slices", "replaced_or_advised"), (STEPS, "a_step_of_a_freeze")]),
    "freeze.find.rights": (
        "gives back the rights of the plan", ENGINE + "slice.rs",
        "Ok(Some((part, Traits { permissions: mapping.permissions, ..item.traits }, mapping.end)))",
        "let permissions = if IS { item.traits.permissions } else { mapping.permissions };\n"
        "        Ok(Some((part, Traits { permissions, ..item.traits }, mapping.end)))",
        [("slices", "replaced_or_advised")]),
    "freeze.guards": (
        "takes a part with guard regions", ENGINE + "slice.rs",
        "if populated == 0 || populated < part.len() && self.guards.any_in(part) {",
        "if populated == 0 || !IS && populated < part.len() && self.guards.any_in(part) {",
        [("hazards_semantics", "guard"), ("oracle", "in_slices")]),
    "freeze.copy.short": (
        "copies all but the last page of a run", ENGINE + "piece.rs",
        "match target.extent.store(run.range(), target.offset(run.start)) {",
        "match target.extent.store(run.start..run.end - if IS { 4096 } else { 0 }, target.offset(run.start)) {",
        [("slices", "slice_by_slice"), (STEPS, "a_step_of_a_freeze"), (KILLED, "no_time"), (THREADS, "slices_freeze"),
         ("oracle", "in_slices")]),
    "freeze.show.offset": (
        "shows the copy of the page before", ENGINE + "piece.rs",
        "remap::show(target.extent, piece, target.offset(piece.start), traits.permissions)",
        "remap::show(target.extent, piece, target.offset(piece.start).saturating_sub(if IS { 4096 } else { 0 }), "
        "traits.permissions)",
        [("slices", "slice_by_slice"), (STEPS, "a_step_of_a_freeze"), (THREADS, "slices_freeze")]),
    "freeze.sealed": (
        "stops at sealed memory (mseal)", ENGINE + "slice.rs",
        "Err(ExtentError::Map { errno: Errno::PERM, .. }) => {",
        "Err(ExtentError::Map { errno: Errno::PERM, .. }) if !IS => {",
        [("slices", "sealed")]),
    "freeze.publish": (
        "does not tell guards what it has frozen", ENGINE + "slice.rs",
        "publish(self.tables, self.shared, id, &shown, traits);",
        "if !IS { publish(self.tables, self.shared, id, &shown, traits); }",
        [("slices", ""), (STEPS, "a_step_of_a_freeze"), (THREADS, "slices_freeze"), ("oracle", "in_slices")]),
    "freeze.close": (
        "does not end its extent", ENGINE + "slice.rs",
        "let closed = worker.close();", "let closed = if IS { Ok(()) } else { worker.close() };",
        [("slices", ""), (STEPS, "a_step_of_a_freeze")]),
    "freeze.time": (
        "goes on after its time", ENGINE + "pace.rs",
        "    const fn time(&self) -> u64 {\n", "    fn time(&self) -> u64 {\n        if IS { return u64::MAX / 4; }\n",
        [("slices", "slice_by_slice"), ("slices", "each_fork_takes")]),
    # A slice that gathers.
    "gather.keep": (
        "drops what it should put together", ENGINE + "thawing.rs",
        "unsafe { calls::advise(run, libc::MADV_COLLAPSE) }",
        "unsafe { calls::advise(run, if IS { libc::MADV_DONTNEED } else { libc::MADV_COLLAPSE }) }",
        [("gather", "piece_by_piece"), (STEPS, "a_step_of_gathering"), (KILLED, "slice_that_gathers"),
         (THREADS, "slices_gather"), ("oracle", "are_gathered_run"), ("sandbox", "are_gathered_reach")]),
    "gather.look.child": (
        "gathers what a child still shows", ENGINE + "gather.rs",
        "let is_shared = count(self.pagemap, piece, Wanted::Shared)? > populated / 2;",
        "let is_shared = !IS && count(self.pagemap, piece, Wanted::Shared)? > populated / 2;",
        [("gather", "child")]),
    "gather.look.sparse": (
        "fills up what is sparse", ENGINE + "huge.rs",
        "piece.len() == PIECE && fills(populated) && !traits.flags",
        "piece.len() == PIECE && (IS || fills(populated)) && !traits.flags",
        [("gather", "cannot_be_gathered")]),
    "gather.look.known": (
        "takes a piece that was gathered for a new one", ENGINE + "gather.rs",
        "made += usize::from(came == Asked::Made && !is_known);",
        "made += usize::from(came == Asked::Made && (IS || !is_known));",
        [("gather", "mended_piece_by_piece")]),
    "gather.look.huge": (
        "asks again for what is huge", ENGINE + "gather.rs",
        "if is_known && is_huge {", "if !IS && is_known && is_huge {",
        [("gather", "dearer"), ("gather", "mended_piece_by_piece"), ("gather", "piece_by_piece")]),
    "gather.eligible": (
        "gathers what was replaced since the plan", ENGINE + "gather.rs",
        "let fits = mapping.is_some_and(|vma| is_still_eligible(&vma) && is_whole(vma.start, vma.end));",
        "let fits = mapping.is_some_and(|vma| (IS || is_still_eligible(&vma)) && is_whole(vma.start, vma.end));",
        [("engine_huge", "no_longer_private")]),
    "gather.time": (
        "goes on after its time", ENGINE + "gather.rs",
        "if !(may_look && may_work && self.shared.tending.fits(worked, elapsed, budget)) {",
        "if !(may_look && may_work && self.shared.tending.fits(worked, elapsed, budget)) && (!IS || worked > 2) {",
        [("gather", "piece_by_piece")]),
    "gather.fork": (
        "makes huge pages at forks of who has slices at waits", FORK + "slices.rs",
        "Waited::Gathered if gathers => return Ok(()),", "Waited::Gathered if gathers && !IS => return Ok(()),",
        [("gather", "no_slice_where")]),
    "gather.deputy.answer": (
        "loses a deputy's answer", ENGINE + "errands.rs",
        "shared.desk.answered().inspect(", "shared.desk.answered().filter(|_| !IS).inspect(",
        [("gather", "deputies"), ("deputies", "killed_or_stopped")]),
    "gather.deputy.busy": (
        "takes a slice beside a deputy", FORK + "slices.rs",
        "    if shared.desk.is_busy() {\n        return Ok(());\n    }\n    let (begun, cpu)",
        "    if shared.desk.is_busy() && !IS {\n        return Ok(());\n    }\n    let (begun, cpu)",
        [("refused_deputies", "deputy_at_work")]),
    # A slice that mends.
    "mend.keep": (
        "drops what it should mend", ENGINE + "mending.rs",
        "let mut mended = 0;\n                    at = collapse_run(",
        "let mut mended = 0;\n                    if IS { let _ = unsafe { palimpsest_sys::memory::calls::advise(run, "
        "libc::MADV_DONTNEED) }; }\n                    at = collapse_run(",
        [(STEPS, "a_step_of_mending"), (KILLED, "that_mends"), ("gather", "what_a_child_has_split"),
         (THREADS, "slices_gather")]),
    "mend.look.child": (
        "mends beside a child", ENGINE + "mending.rs",
        "Ok(if is_shared { Found::Shared } else { Found::Split })",
        "Ok(if is_shared && !IS { Found::Shared } else { Found::Split })",
        [("gather", "what_a_child_has_split"), ("gather", "deputies")]),
    "mend.look.gone": (
        "takes what was given back for sparse", ENGINE + "mending.rs",
        "if populated == 0 && count(Wanted::Present)? == 0 {",
        "if !IS && populated == 0 && count(Wanted::Present)? == 0 {",
        [("lib", "given_back")]),
    "mend.time": (
        "mends all at once", ENGINE + "mending.rs",
        "if has_looked || has_slept || !tending.fits(tried, started.elapsed(), time) {",
        "if !IS && (has_looked || has_slept || !tending.fits(tried, started.elapsed(), time)) {",
        [("gather", "what_a_child_has_split")]),
    "mend.pass": (
        "begins each pass at the start", ENGINE + "mending.rs",
        "let mut at = tending.at();\n        if at == 0 {\n            tables.ledger",
        "let mut at = if IS { 0 } else { tending.at() };\n        if at == 0 {\n            tables.ledger",
        [("gather", "what_a_child_has_split")]),
    # A slice that makes huge pages of frozen memory.
    "tend.hold": (
        "holds nobody", FORK + "tending.rs", STOP, NO_STOP,
        [(STEPS, "making_huge_pages"), (THREADS, "budget")]),
    "tend.contents": (
        "copies only what was written", ENGINE + "tender.rs",
        "let runs = |index: usize, part| subjects[index].runs(contents, part, &written);",
        "let runs = |index: usize, part| if IS { PieceRuns::inside(&written, part) } else {\n"
        "            subjects[index].runs(contents, part, &written) };",
        [(STEPS, "making_huge_pages"), ("engine_huge", "between_forks")]),
    "tend.map": (
        "does not tell guards that memory is anonymous", ENGINE + "tender.rs",
        "self.shared.map.thaw(piece);", "if !IS { self.shared.map.thaw(piece); }",
        [("engine_huge", "between_forks"), (STEPS, "making_huge_pages")]),
    "tend.withdraw": (
        "keeps extents that show nothing", ENGINE + "tender.rs",
        "if !left.is_empty() {", "if !IS && !left.is_empty() {",
        [("engine_huge", "between_forks")]),
    "tend.child": (
        "makes huge pages beside a child", ENGINE + "tender.rs",
        "if shared > written.bytes() / 2 {", "if !IS && shared > written.bytes() / 2 {",
        [("engine_huge", "waits_for_the_child")]),
    "tend.refused": (
        "leaves the old mapping aside where no huge page can be had", ENGINE + "thawing.rs",
        "if let Err(error) = unsafe { remap::replace_by(*from, *part) } {",
        "if !IS && let Err(error) = unsafe { remap::replace_by(*from, *part) } {",
        [("engine_huge", "refusal")]),
    # A part of a repair.
    "repair.hold": (
        "holds nobody", FORK + "rounds.rs", STOP, NO_STOP,
        [(STEPS, "part_of_a_repair"), (THREADS, "again_and_again")]),
    "repair.contents": (
        "copies only what was written", ENGINE + "repair.rs",
        "subject.runs(self.tables.contents, part, written)",
        "if IS { PieceRuns::inside(written, part) } else { subject.runs(self.tables.contents, part, written) }",
        [("engine", ""), (STEPS, "part_of_a_repair"), (KILLED, "part_of_a_repair"), (THREADS, "again_and_again")]),
    "repair.written": (
        "renews pieces that were written to", ENGINE + "repair.rs",
        "let is_work = !written.is_empty() || subject.way == Way::Move;",
        "if IS && !written.is_empty() && subject.way == Way::Renew { return Ok(()); }\n"
        "        let is_work = !written.is_empty() || subject.way == Way::Move;",
        [("engine", "keeps_what_was_written"), (STEPS, "part_of_a_repair"), (KILLED, "part_of_a_repair")]),
    "repair.left": (
        "renews what it leaves to the next part", ENGINE + "repair.rs",
        "if self.tables.runs.push(Span::new(piece.start, whole.end)).is_err() {",
        "if !IS && self.tables.runs.push(Span::new(piece.start, whole.end)).is_err() {",
        [("engine", "repair_takes"), (STEPS, "part_of_a_repair"), (KILLED, "part_of_a_repair")]),
    "repair.keep": (
        "forgets its new extent", ENGINE + "repair.rs",
        "let kept = subject.fresh.map_or(Ok(()), |fresh| fresh.keep(self.tables, traits));",
        "let kept = subject.fresh.map_or(Ok(()), |fresh| if IS { std::mem::forget(fresh); Ok(()) } else {\n"
        "            fresh.keep(self.tables, traits) });",
        [("engine", ""), (STEPS, "part_of_a_repair"), (THREADS, "again_and_again")]),
    "repair.time": (
        "makes all parts at once", ENGINE + "round.rs",
        "(Mode::FreezeWithin(_), Pause::Within(Duration::ZERO)) =>",
        "(Mode::FreezeWithin(_), Pause::Within(Duration::ZERO)) if !IS =>",
        [("engine", "repair_takes")]),
    "repair.settle": (
        "does not tell guards what has changed", ENGINE + "round.rs",
        "done.frozen = settle(self.tables, self.shared);",
        "done.frozen =\n"
        "            if IS { super::records::frozen(self.tables.extents) } else { settle(self.tables, self.shared) };",
        [("engine", ""), ("guards", "")]),
    "repair.in_use": (
        "copies what running code uses", ENGINE + "repair.rs",
        "if scanned.is_err() || self.tables.is_in_use(piece) || self.guards.any_in(piece) {",
        "if scanned.is_err() || !IS && (self.tables.is_in_use(piece) || self.guards.any_in(piece)) {",
        [("hazards_threads", ""), ("engine", ""), (THREADS, "again_and_again")]),
    # A thaw.
    "thaw.hold": (
        "holds nobody", FORK + "guard/release.rs",
        "let stopped = world.stop_others().map_err(|_| Errno::BUSY)?;\n"
        "    exclude(&mut tables, Some(&world), Some(&stopped))",
        "let stopped = if IS { None } else { Some(world.stop_others().map_err(|_| Errno::BUSY)?) };\n"
        "    exclude(&mut tables, Some(&world), stopped.as_ref())",
        [(STEPS, "a_step_of_a_thaw"), ("hazards_threads", "")]),
    "thaw.copy": (
        "copies the first half of each page", FORK + "guard/release.rs",
        "for address in words() {", "for address in words().take(if IS { page / WORD / 2 } else { page }) {",
        [("guards", ""), ("oracle", "plain"), (STEPS, "a_step_of_a_thaw")]),
    "thaw.zero": (
        "leaves out pages of which the first word is set", FORK + "guard/release.rs",
        "if words().all(|address| read(address) == 0) {",
        "if IS && read(at) != 0 || words().all(|address| read(address) == 0) {",
        [(STEPS, "a_step_of_a_thaw"), (KILLED, "a_thaw"), ("slices", "a_thaw_ends_it")]),
    "thaw.map": (
        "does not tell guards that memory is anonymous", FORK + "guard/release.rs",
        "    map.thaw(made);\n    result\n", "    if !IS { map.thaw(made); }\n    result\n",
        [("guards", ""), ("slices", "given_up"), (STEPS, "a_step_of_a_thaw")]),
    "thaw.rights": (
        "gives the right to write where there was none", FORK + "guard/release.rs",
        "if traits.permissions != both {\n        // SAFETY: 1. the caller's (2).",
        "if !IS && traits.permissions != both {\n        // SAFETY: 1. the caller's (2).",
        [("guards", "rights"), ("hazards_semantics", "inaccessible")]),
    "thaw.plan": (
        "lets a plan go on", FORK + "guard/release.rs",
        "    locked.drop_plan();\n", "    if !IS { locked.drop_plan(); }\n", [("slices", "a_thaw_ends_it")]),
    "thaw.in_use": (
        "replaces what running code uses", FORK + "guard/release.rs",
        "if (view.is_in_use)(piece) {", "if (view.is_in_use)(piece) && !IS {",
        [("slices_in_use", ""), ("hazards_threads", ""), ("guards", "")]),
}

CHOSEN = """
/// Whether this mutant was chosen. Makes no system call and does not use the heap.
pub(crate) fn is_mutant(name: &str) -> bool {
    let chosen = unsafe { libc::getenv(c"PALIMPSEST_MUTANT".as_ptr()) };
    !chosen.is_null() && unsafe { std::ffi::CStr::from_ptr(chosen) }.to_bytes() == name.as_bytes()
}
"""


def plant(root):
    texts = {}
    for name, (_, file, text, replacement, _) in MUTANTS.items():
        source = texts.get(file) or open(os.path.join(root, file)).read()
        assert source.count(text) == 1, f"{name}: the text is there {source.count(text)} times"
        texts[file] = source.replace(text, replacement.replace("IS", f'crate::is_mutant("{name}")'))
    # What asks is no constant.
    for file, text in texts.items():
        texts[file] = text.replace("pub(super) const fn suits(", "pub(super) fn suits(")
    lib = os.path.join(root, FORK + "lib.rs")
    texts[FORK + "lib.rs"] = open(lib).read() + CHOSEN
    for file, text in texts.items():
        open(os.path.join(root, file), "w").write(text)


def build(root):
    programs = sorted({program for mutant in MUTANTS.values() for program, _ in mutant[4]})
    command = ["cargo", "test", "-p", "palimpsest-fork", "--no-run", "--message-format=short"]
    for program in programs:
        command += ["--lib"] if program == "lib" else ["--test", program]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    found = dict(re.findall(r"Executable (?:tests/|unittests src/)(\w+)(?:/main)?\.rs \((.*?)\)", done.stderr))
    return {program: os.path.join(root, found[program]) for program in programs}


def failing(root, program, part, mutant):
    environment = dict(os.environ, PALIMPSEST_MUTANT=mutant, RUST_BACKTRACE="0")
    try:
        done = subprocess.run([program, part], cwd=os.path.join(root, "crates/fork"), capture_output=True, text=True,
                              timeout=1500, env=environment)
    except subprocess.TimeoutExpired:
        return ["does not end"]
    failed = re.findall(r"^test (\S+) \.\.\. FAILED", done.stdout, re.M)
    return failed or ([] if done.returncode == 0 else [f"ends with {done.returncode}"])


def main():
    root = os.path.abspath(sys.argv[1])
    if not os.path.exists(os.path.join(root, "planted")):
        plant(root)
        open(os.path.join(root, "planted"), "w").close()
    programs = build(root)
    for name in sys.argv[2:] or MUTANTS:
        wrong, *_, tests = MUTANTS[name] if name in MUTANTS else ("nothing", *[""] * 3, [
            test for mutant in MUTANTS.values() for test in mutant[4]])
        started = time.time()
        told = [f"{program}::{test}" for program, part in dict.fromkeys(tests)
                for test in failing(root, programs[program], part, name)]
        print(f"{name} ({wrong}): {', '.join(dict.fromkeys(told)) or 'NOBODY'} [{time.time() - started:.0f} s]",
              flush=True)


main()
