"""Plants mutants at the boundary to C, one at a time by an environment variable, and tells which tests fail.

    mkdir /tmp/mutants && git ls-files -z | xargs -0 cp --parents -t /tmp/mutants
    python3 docs/records/2026-11-26-capi/mutants.py /tmp/mutants [NAME…]

Each mutant is a piece of source text, what takes its place, and the tests that could notice, which are run in this
order until one fails. `IS` is whether the mutant is the chosen one: all are built at once, and without a name
nothing is changed. Mutants of the header, which compilers read when a test runs, are written for that time only.
"""
import os
import re
import subprocess
import sys

CAPI, PAGING = "crates/capi/src/", "crates/paging-capi/src/"
KEYS = "crates/capi/include/palimpsest_key.h"
# Test programs, and parts of the names of tests in them.
LIB, RANDOM, PANICS, TABLES = ("lib", ""), ("random", "random_calls"), ("random", "a_panic"), ("program", "")
C, BRANCHES = ("program", "c_programs_run_with_the_shared_library"), ("program", "branches_are_switched")
SAME_PLACE = ".find(|other| other.data().as_ffi() as u32 == key.data().as_ffi() as u32)"

# name: (what it does wrong, file, text, replacement, tests)
MUTANTS = {
    # Pointers.
    "wanted.null": (
        "null is a place for results", CAPI + "result.rs", "if out.is_null() {", "if out.is_null() && !IS {",
        [RANDOM, C]),
    "optional": (
        "any pointer is a place for results", CAPI + "result.rs", "if out.is_aligned() {",
        "if out.is_aligned() || IS {", [C]),
    "elements.aligned": (
        "lists may be misaligned", CAPI + "input.rs", "if first.is_null() || !first.is_aligned() {",
        "if first.is_null() || !IS && !first.is_aligned() {", [C]),
    "elements.null": (
        "lists may be null", CAPI + "input.rs", "if first.is_null() || !", "if !IS && first.is_null() || !",
        [RANDOM, C]),
    "elements.count": (
        "lists may be longer than all memory", CAPI + "input.rs", "if count.checked_mul(size_of::<T>())",
        "if !IS && count.checked_mul(size_of::<T>())", [RANDOM, C]),
    "bytes.null": (
        "bytes may be at null", CAPI + "input.rs", "if bytes.is_null() {", "if !IS && bytes.is_null() {",
        [RANDOM, C]),
    "bytes.len": (
        "bytes may be more than all memory", CAPI + "input.rs", "if isize::try_from(len).is_err() {",
        "if !IS && isize::try_from(len).is_err() {", [RANDOM, C]),
    "versioned.aligned": (
        "structures may be misaligned", CAPI + "versioned.rs", "if !structure.is_aligned() {",
        "if !IS && !structure.is_aligned() {", [RANDOM, C]),
    "versioned.size": (
        "structures may have any length", CAPI + "versioned.rs", "if !(size_of::<usize>()..=MOST).contains(&size) {",
        "if !IS && !(size_of::<usize>()..=MOST).contains(&size) {", [RANDOM, C]),
    "versioned.unknown": (
        "what a newer caller asks for is ignored", CAPI + "versioned.rs", "if unsafe { byte.read() } != 0 {",
        "if unsafe { byte.read() } != 0 && !IS {", [RANDOM, C]),
    "versioned.write": (
        "older callers get all of a structure", CAPI + "versioned.rs",
        "let known = size.min(size_of::<T>()) - size_of::<usize>();",
        "let known = if IS { size_of::<T>() } else { size.min(size_of::<T>()) } - size_of::<usize>();",
        [RANDOM, C]),
    # Code.
    "poke.code": (
        "any address is code", CAPI + "poke.rs", "are_code(sites)?;", "if !IS { are_code(sites)?; }", [C]),
    "poke.execute": (
        "data is code", CAPI + "mapped.rs", "found.permissions.contains(CODE) => found,",
        "found.permissions.contains(if IS { Permissions::READ } else { CODE }) => found,", [LIB, C]),
    "poke.read": (
        "code need not be readable", CAPI + "mapped.rs",
        "Ok(found) if found.start <= at", "Ok(found) if IS && found.permissions.contains(Permissions::EXECUTE) "
        "&& found.start <= at => found,\n                Ok(found) if found.start <= at", [LIB, C]),
    "poke.behind": (
        "only the first mapping of a site is looked at", CAPI + "mapped.rs", "at = found.end;",
        "at = if IS { site.end } else { found.end };", [LIB, C]),
    "poke.listed": (
        "data is code, before Linux 6.11", CAPI + "mapped.rs",
        "if mapping.permissions.contains(CODE) {\n            sites",
        "if mapping.permissions.contains(if IS { Permissions::READ } else { CODE }) {\n            sites", [LIB]),
    # Panics.
    "panic.code": (
        "a panic is another error", CAPI + "result.rs", "Failure::new(PALIMPSEST_PANIC,",
        "Failure::new(if IS { palimpsest_result::PALIMPSEST_SYSTEM } else { PALIMPSEST_PANIC },", [PANICS]),
    "panic.ok": (
        "a call that panics is done", CAPI + "result.rs", "match caught(work).and_then(|done| done) {",
        "match caught(work).or_else(|failure| if IS { Ok(Ok(())) } else { Err(failure) }).and_then(|done| done) {",
        [PANICS]),
    "panic.message": (
        "no message tells of a panic where there is `errno`", CAPI + "result.rs",
        "told(failure);\n        set_errno", "if !IS { told(failure); }\n        set_errno", [PANICS]),
    "panic.errno": (
        "`errno` stays as it was after a panic", CAPI + "result.rs", "set_errno(libc::ENOTRECOVERABLE);",
        "if !IS { set_errno(libc::ENOTRECOVERABLE); }", [PANICS]),
    "panic.handler": (
        "functions for handlers let panics through", CAPI + "result.rs",
        "caught(work).unwrap_or_else(|failure| failure.code)",
        "if IS { return work() }\n    caught(work).unwrap_or_else(|failure| failure.code)", [PANICS]),
    # Handles.
    "handles.get": (
        "an old handle names what is in its place", CAPI + "handles.rs", "T::slots(handles).get(key).cloned()",
        "T::slots(handles).get(if IS { T::slots(handles).keys()" + SAME_PLACE +
        ".unwrap_or(key) } else { key }).cloned()", [RANDOM, C]),
    "handles.pin": (
        "an old handle pins what is in its place", CAPI + "handles.rs", "T::slots(&handles).get(key));",
        "T::slots(&handles).get(if IS { T::slots(&handles).keys()" + SAME_PLACE +
        ".unwrap_or(key) } else { key }));", [RANDOM, C]),
    "handles.remove": (
        "an old handle releases what is in its place", CAPI + "handles.rs", "T::slots_mut(handles).remove(key)",
        "{ let key = if IS { T::slots_mut(handles).keys()" + SAME_PLACE +
        ".unwrap_or(key) } else { key }; T::slots_mut(handles).remove(key) }", [RANDOM, C]),
    "handles.key": (
        "numbers that were never handed out are handles", CAPI + "handles.rs", "(data.as_ffi() == handle).then",
        "(IS || data.as_ffi() == handle).then", [RANDOM, C]),
    "handles.lost": (
        "what is staged can be taken by two threads", CAPI + "handles.rs",
        "Err(TryLockError::WouldBlock) => {\n            let message",
        "Err(TryLockError::WouldBlock) if IS => Ok(staged.lock().unwrap_or_else(PoisonError::into_inner)),\n"
        "        Err(TryLockError::WouldBlock) => {\n            let message", [RANDOM, C]),
    "handles.fork": (
        "forks do not take the lock", CAPI + "handles.rs", "held.get_or_insert_with(lock);",
        "if !IS { held.get_or_insert_with(lock); }", [RANDOM, C]),
    "kept.uses": (
        "an old handle names the snapshot in its place", CAPI + "kept.rs", "let is_named = || ",
        "let is_named = || IS || ", [RANDOM, C]),
    "kept.owner": (
        "snapshots are any thread's", CAPI + "kept.rs", "if seat.owner.load(Ordering::Relaxed) != this_thread() {",
        "if !IS && seat.owner.load(Ordering::Relaxed) != this_thread() {", [RANDOM, C]),
    "kept.end": (
        "a snapshot that was dropped keeps its seat", CAPI + "kept.rs", "self.then = FREE;",
        "self.then = if IS { READY } else { FREE };", [RANDOM, C]),
    # Guards.
    "guards.madvise": (
        "`madvise` is the C library's", CAPI + "guards.rs",
        "match unsafe { guard::madvise(address.addr(), len, advice) } {",
        "match if IS { Outcome::NotOurs } else { unsafe { guard::madvise(address.addr(), len, advice) } } {",
        [RANDOM, C]),
    "guards.mremap": (
        "`mremap` is the C library's", CAPI + "guards.rs", "match unsafe { guard::mremap(remap) } {",
        "match if IS { Outcome::NotOurs } else { unsafe { guard::mremap(remap) } } {", [RANDOM, C]),
    "guards.mprotect": (
        "`mprotect` is the C library's", CAPI + "guards.rs", "let range = || pages(address, len);",
        "if IS { return unsafe { libc::mprotect(address, len, rights) } }\n        "
        "let range = || pages(address, len);", [RANDOM, C]),
    "guards.mprotect.rights": (
        "frozen memory gets the right to be written in any case", CAPI + "guards.rs", "Ok(usual)",
        "Ok(if IS { usual.union(Permissions::WRITE) } else { usual })", [RANDOM, C]),
    "guards.mprotect.others": (
        "rights of some machines only count as usual ones", CAPI + "guards.rs", "let has_others = ",
        "let has_others = !IS && ", [RANDOM, C]),
    "guards.errno": (
        "a refused `mprotect` says nothing", CAPI + "guards.rs", "set_errno(errno);\n        done",
        "set_errno(if IS { 0 } else { errno });\n        done", [RANDOM, C]),
    "guards.replaced": (
        "`palimpsest_replaced` does nothing", CAPI + "guards.rs", "|| guard::replaced(pages(address, len))",
        "|| if !IS { guard::replaced(pages(address, len)) }", [RANDOM, C]),
    "guards.thaw": (
        "nothing thaws", CAPI + "guards.rs", "answer(|| guard::thaw(pages(address, len)).map_err(not_thawed))",
        "answer(|| if IS { Ok(()) } else { guard::thaw(pages(address, len)).map_err(not_thawed) })", [RANDOM, C]),
    "guards.forget": (
        "frozen bytes are not forgotten", CAPI + "guards.rs",
        "answer(|| guard::forget(pages(address, len)).map_err(not_thawed))",
        "answer(|| if IS { Ok(()) } else { guard::forget(pages(address, len)).map_err(not_thawed) })", [RANDOM, C]),
    "guards.pages": (
        "parts of pages are left out", CAPI + "guards.rs", "end.checked_next_multiple_of(page)",
        "(if IS { end & !(page - 1) } else { end }).checked_next_multiple_of(page)", [RANDOM, C]),
    # Keys, in the header.
    "keys.clang": (
        "branches of Clang in C++ are statements", KEYS, "#if defined(__clang__) && defined(__cplusplus)", "#if 0",
        [BRANCHES]),
    "keys.group": (
        "an entry stays when its function goes", KEYS, '"aR?\\",%%progbits', '"aR\\",%%progbits',
        [BRANCHES]),
    "keys.inverse": (
        "a branch that the compiler has turned round is not told", KEYS, "[falls] \"i\"(PALIMPSEST_STARTS_ON_(key_) "
        "== (inline_))", "[falls] \"i\"(PALIMPSEST_STARTS_ON_(key_) != (inline_))", [BRANCHES]),
    # Page tables.
    "paging.retain": (
        "undoing gives back the caller's references", PAGING + "visits.rs", "space.machine().retain(Page {",
        "if !IS { space.machine() } else { continue }.retain(Page {", [RANDOM, TABLES]),
    "paging.undo": (
        "some pages stay mapped after an error", PAGING + "visits.rs",
        "if mapped.is_err() && cursor.seek(range.start).is_ok() {",
        "if !IS && mapped.is_err() && cursor.seek(range.start).is_ok() {", [RANDOM, TABLES]),
    "paging.pages": (
        "lists may be misaligned", PAGING + "visits.rs", "if pages.is_null() || !pages.is_aligned() {",
        "if pages.is_null() || !IS && !pages.is_aligned() {", [RANDOM, TABLES]),
    "paging.pages.null": (
        "lists may be null", PAGING + "visits.rs", "if pages.is_null() ||",
        "if !IS && pages.is_null() ||", [RANDOM, TABLES]),
    "paging.aligned": (
        "spaces may be misaligned", PAGING + "space.rs", "if space.is_null() || !space.is_aligned() {",
        "if space.is_null() || !IS && !space.is_aligned() {", [RANDOM, TABLES]),
    "paging.stale": (
        "what is no space is one", PAGING + "space.rs",
        "if name.load(Ordering::Acquire) != name_at(space) {",
        "if name.load(Ordering::Acquire) != name_at(space) && !IS {", [RANDOM, TABLES]),
    "paging.in_use": (
        "a space may be made where one is", PAGING + "space.rs", "Err(_) => Err(PALIMPSEST_PAGING_IN_USE),",
        "Err(_) if IS => Ok(Self { space }),\n            Err(_) => Err(PALIMPSEST_PAGING_IN_USE),", [RANDOM, TABLES]),
    "paging.counted": (
        "one of four callbacks that count is enough", PAGING + "machine.rs", "_ => return None,\n        };",
        "_ if IS => None,\n            _ => return None,\n        };", [RANDOM, TABLES]),
}

CHOSEN = """
#[allow(missing_docs)]
pub(crate) fn is_mutant(name: &str) -> bool {
    unsafe extern "C" { fn getenv(name: *const core::ffi::c_char) -> *const core::ffi::c_char; }
    let chosen = unsafe { getenv(c"PALIMPSEST_MUTANT".as_ptr()) };
    !chosen.is_null() && unsafe { core::ffi::CStr::from_ptr(chosen) }.to_bytes() == name.as_bytes()
}
"""


def read(root, file):
    return open(os.path.join(root, file)).read()


def write(root, file, text):
    open(os.path.join(root, file), "w").write(text)


def plant(root):
    texts = {}
    for name, (_, file, text, replacement, _) in MUTANTS.items():
        source = texts.get(file) or read(root, file)
        assert source.count(text) == 1, f"{name}: the text is there {source.count(text)} times"
        if file != KEYS:
            # Other mutants may be at the same line.
            texts[file] = source.replace(text, replacement.replace("IS", f'crate::is_mutant("{name}")'))
    for crate in (CAPI, PAGING):
        texts[crate + "lib.rs"] = read(root, crate + "lib.rs") + CHOSEN
    for file, text in texts.items():
        write(root, file, text)


def build(root, package, programs):
    command = ["cargo", "test", "-p", package, "--all-features", "--no-run", "--message-format=short"] + programs
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    found = re.findall(r"Executable (?:unittests )?(?:tests|src)/(\w+)\.rs \((.*?)\)", done.stderr)
    return {program: os.path.join(root, path) for program, path in found}


def failing(root, crate, program, part, mutant):
    environment = dict(os.environ, PALIMPSEST_MUTANT=mutant, RUST_BACKTRACE="0")
    try:
        done = subprocess.run([program, part], cwd=os.path.join(root, crate, ".."), capture_output=True, text=True,
                              timeout=600, env=environment, errors="replace")
    except subprocess.TimeoutExpired:
        return ["does not end"]
    failed = re.findall(r"^test (\S+) \.\.\. FAILED", done.stdout, re.M)
    return failed or ([] if done.returncode == 0 else [f"ends with {done.returncode}"])


def main():
    root = os.path.abspath(sys.argv[1])
    if not os.path.exists(os.path.join(root, "planted")):
        plant(root)
        write(root, "planted", "")
    wanted = ["--lib", "--test", "program", "--test", "random"]
    programs = {CAPI: build(root, "palimpsest-capi", wanted), PAGING: build(root, "palimpsest-paging-capi", wanted)}
    for name in sys.argv[2:] or MUTANTS:
        if name == "none":
            told = [test for crate in programs for one in programs[crate].values()
                    for test in failing(root, crate, one, "", name)]
            print("none:", told, flush=True)
            continue
        wrong, file, text, replacement, tests = MUTANTS[name]
        crate = PAGING if file.startswith(PAGING) else CAPI
        kept = read(root, file)
        if file == KEYS:
            write(root, file, kept.replace(text, replacement))
        told = []
        for test, part in tests:
            told = told or [f"{test}::{one}" for one in failing(root, crate, programs[crate][test], part, name)]
        write(root, file, kept)
        print(f"{name} ({wrong}): {', '.join(told) or 'NOBODY'}", flush=True)


main()
