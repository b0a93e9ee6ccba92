//! A panic in any function for C becomes an answer: each function is called with one planted inside.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::ptr::{null, null_mut};

use palimpsest_capi::allocations::*;
use palimpsest_capi::arena::*;
use palimpsest_capi::data::*;
use palimpsest_capi::freeze::*;
use palimpsest_capi::fuzzing::panics::{PLANTED, arm, disarm};
use palimpsest_capi::guards::*;
use palimpsest_capi::keys::*;
use palimpsest_capi::lines::*;
use palimpsest_capi::packs::*;
use palimpsest_capi::pins::*;
use palimpsest_capi::poke::*;
use palimpsest_capi::programs::*;
use palimpsest_capi::reports::*;
use palimpsest_capi::result::palimpsest_result::PALIMPSEST_PANIC;
use palimpsest_capi::result::*;
use palimpsest_capi::slices::*;
use palimpsest_capi::snapshots::*;

use super::declared;

/// What a function returned.
#[derive(PartialEq, Debug)]
enum Returned {
    Code(palimpsest_result),
    Number(isize),
    Pointer(usize),
    Nothing,
}

impl From<palimpsest_result> for Returned {
    fn from(code: palimpsest_result) -> Self {
        Self::Code(code)
    }
}

impl From<c_int> for Returned {
    fn from(number: c_int) -> Self {
        Self::Number(number as isize)
    }
}

impl From<usize> for Returned {
    fn from(number: usize) -> Self {
        Self::Number(number.cast_signed())
    }
}

impl From<*mut c_void> for Returned {
    fn from(pointer: *mut c_void) -> Self {
        Self::Pointer(pointer.addr())
    }
}

impl From<()> for Returned {
    fn from((): ()) -> Self {
        Self::Nothing
    }
}

/// How a function tells of a panic.
#[derive(Clone, Copy, PartialEq)]
enum Tells {
    /// By a code and a message.
    Code,
    /// By a code alone: it may be called in signal handlers.
    CodeAlone,
    /// By this value, `errno`, and a message.
    Errno(isize),
    /// By `errno` and a message.
    ErrnoAlone,
}

type Call = (&'static str, Tells, Box<dyn Fn() -> Returned>);

macro_rules! calls {
    ($($name:ident($($argument:expr),*) $tells:expr;)+) => {
        [$({
            // SAFETY: it panics before it looks at its arguments.
            let call = || Returned::from(unsafe { $name($($argument),*) });
            (stringify!($name), $tells, Box::new(call) as Box<dyn Fn() -> Returned>)
        }),+]
    };
}

const PACKS: palimpsest_packs = palimpsest_packs { handle: 0 };
const STAGED: palimpsest_staged = palimpsest_staged { handle: 0 };
const STAGED_DATA: palimpsest_staged_data = palimpsest_staged_data { handle: 0 };
const PROGRAM: palimpsest_program = palimpsest_program { handle: 0 };
const DATA: palimpsest_data = palimpsest_data { handle: 0 };
const ALLOC: palimpsest_alloc = palimpsest_alloc { handle: 0 };
const SNAPSHOT: palimpsest_snapshot = palimpsest_snapshot { handle: 0 };
const RANGE: palimpsest_range = palimpsest_range { start: null(), len: 0 };

/// Functions without a guard, each with a reason in its source.
const UNGUARDED: [&str; 4] =
    ["palimpsest_error_message", "palimpsest_report_text", "palimpsest_version", "palimpsest_abandon"];

#[expect(unused_unsafe, reason = "not all of them are unsafe")]
fn calls() -> Vec<Call> {
    use Tells::{Code, CodeAlone, Errno, ErrnoAlone};
    Vec::from(calls! {
        palimpsest_packs_open(null(), null_mut()) Code;
        palimpsest_packs_close(PACKS) Code;
        palimpsest_packs_get_stats(PACKS, null_mut()) Code;
        palimpsest_packs_reclaim(PACKS, null_mut()) Code;
        // Not null, which is refused before all else.
        palimpsest_lookup(PACKS, null(), [0_usize; 32].as_mut_ptr().cast()) CodeAlone;
        palimpsest_load(PACKS, null(), null(), 0, 0, null_mut()) Code;
        palimpsest_stage(PACKS, 0, 0, null_mut(), null_mut(), null_mut()) Code;
        palimpsest_staged_set_name(STAGED, null()) Code;
        palimpsest_staged_set_eh_frame(STAGED, null(), 0) Code;
        palimpsest_staged_set_faults(STAGED, null(), 0) Code;
        palimpsest_staged_set_lines(STAGED, null(), 0) Code;
        palimpsest_finalize(PACKS, null(), 0, null_mut()) Code;
        palimpsest_staged_drop(STAGED) Code;
        palimpsest_program_entry(PROGRAM, null_mut(), null_mut()) Code;
        palimpsest_program_at(null(), null_mut()) Code;
        palimpsest_program_release(PROGRAM) Code;
        palimpsest_stage_data(PACKS, 0, 0, 0, null_mut(), null_mut(), null_mut()) Code;
        palimpsest_finalize_data(STAGED_DATA, null_mut()) Code;
        palimpsest_staged_data_drop(STAGED_DATA) Code;
        palimpsest_data_release(DATA) Code;
        palimpsest_alloc_allocate(PACKS, null(), null_mut(), null_mut()) Code;
        palimpsest_alloc_shrink(ALLOC, 0, 0) Code;
        palimpsest_alloc_set_name(ALLOC, null()) Code;
        palimpsest_alloc_set_eh_frame(ALLOC, null(), 0) Code;
        palimpsest_alloc_set_functions(ALLOC, null(), 0) Code;
        palimpsest_alloc_set_lines(ALLOC, null(), 0) Code;
        palimpsest_alloc_finalize(PACKS, null(), 0) Code;
        palimpsest_alloc_drop(ALLOC) Code;
        palimpsest_alloc_release(PACKS, null(), 0, null_mut()) Code;
        palimpsest_alloc_query(PACKS, 0, [0_usize; 32].as_mut_ptr().cast()) CodeAlone;
        palimpsest_pin(PACKS) Code;
        palimpsest_unpin(PACKS) Code;
        palimpsest_poke(null(), 0, null_mut()) Code;
        palimpsest_key_set(null(), 0) Code;
        palimpsest_key_enable(null()) Code;
        palimpsest_key_disable(null()) Code;
        palimpsest_key_is_on(null(), null_mut()) Code;
        palimpsest_keys_set(null::<c_char>(), 0, null_mut()) Code;
        palimpsest_freeze(null(), null_mut()) Code;
        palimpsest_survey(null(), null_mut()) Code;
        palimpsest_report_get_range(0, null_mut()) Code;
        palimpsest_fork(null_mut()) Code;
        palimpsest_get_fork_status(null_mut()) Code;
        palimpsest_frozen_bytes() Errno(0);
        palimpsest_freeze_slice(null_mut()) Code;
        palimpsest_freeze_while(None, null_mut(), null_mut()) Code;
        palimpsest_freeze_get_progress(null_mut()) Code;
        palimpsest_next_slice(null_mut()) CodeAlone;
        palimpsest_put_off_slices(0) ErrnoAlone;
        palimpsest_dismiss_deputy() ErrnoAlone;
        palimpsest_make_room() Errno(0);
        palimpsest_snapshot_take(null(), null_mut()) Code;
        palimpsest_snapshot_restore(SNAPSHOT, null_mut()) Code;
        palimpsest_snapshot_run(SNAPSHOT, 0, None, null_mut(), null_mut(), null_mut(), null_mut()) Code;
        palimpsest_snapshot_rounds(null(), 0, None, null_mut(), null_mut()) Code;
        palimpsest_snapshot_declare(SNAPSHOT, RANGE) Code;
        palimpsest_snapshot_get_extent(SNAPSHOT, null_mut()) Code;
        palimpsest_snapshot_not_taken(SNAPSHOT, 0, null_mut()) Code;
        palimpsest_snapshot_drop(SNAPSHOT) Code;
        palimpsest_madvise(null_mut(), 0, 0) Errno(-1);
        palimpsest_mremap(null_mut(), 0, 0, 0, null_mut()) Errno(-1);
        palimpsest_mprotect(null_mut(), 0, 0) Errno(-1);
        palimpsest_pkey_mprotect(null_mut(), 0, 0, 0) Errno(-1);
        palimpsest_replaced(null(), 0) ErrnoAlone;
        palimpsest_changed(null(), 0) ErrnoAlone;
        palimpsest_may_be_frozen(null(), 0) Errno(0);
        palimpsest_mlock(null(), 0) Errno(-1);
        palimpsest_mlockall(0) Errno(-1);
        palimpsest_thaw(null(), 0) Code;
        palimpsest_thaw_all() Code;
        palimpsest_forget(null(), 0) Code;
        palimpsest_confined() ErrnoAlone;
        palimpsest_arena_malloc(1) Errno(0);
        palimpsest_arena_calloc(1, 1) Errno(0);
        palimpsest_arena_realloc(null_mut(), 1) Errno(0);
        palimpsest_arena_free(null_mut()) ErrnoAlone;
        palimpsest_arena_aligned_alloc(16, 1) Errno(0);
        palimpsest_arena_usable_size(null_mut()) Errno(0);
        palimpsest_arena_freeze() Errno(-1);
        palimpsest_arena_refreeze(null_mut()) Errno(-1);
        palimpsest_arena_trim() Errno(0);
        palimpsest_arena_stats(null_mut()) Errno(-1);
    })
}

fn message() -> String {
    // SAFETY: never null, and valid until this thread's next failure.
    unsafe { CStr::from_ptr(palimpsest_error_message()) }.to_string_lossy().into_owned()
}

fn set_errno(value: c_int) {
    // SAFETY: the C library's errno of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: always valid for this thread.
    unsafe { errno.write(value) };
}

/// Fails on: a function whose guard is taken away (the process ends then), or that the list lacks.
#[test]
fn a_panic_in_any_function_becomes_an_answer() {
    let calls = calls();
    let named: BTreeSet<String> = calls.iter().map(|(name, ..)| *name).chain(UNGUARDED).map(str::to_owned).collect();
    assert_eq!(named, declared::functions(), "functions of this list, and of the header");
    for (name, tells, call) in &calls {
        // A call without a panic, whose message is another.
        palimpsest_packs_close(PACKS);
        set_errno(0);
        arm();
        let returned = call();
        let errno = io::Error::last_os_error().raw_os_error();
        assert!(!disarm(), "{name} does not come to the place where panics are planted");
        let is_told = message() == format!("palimpsest panicked: {PLANTED}");
        assert_eq!(is_told, *tells != Tells::CodeAlone, "{name}: {}", message());
        match *tells {
            Tells::Code | Tells::CodeAlone => assert_eq!(returned, Returned::Code(PALIMPSEST_PANIC), "{name}"),
            Tells::Errno(value) => {
                assert_eq!(errno, Some(libc::ENOTRECOVERABLE), "{name}");
                let is_pointer = returned == Returned::Pointer(value.cast_unsigned());
                assert!(is_pointer || returned == Returned::Number(value), "{name}: {returned:?}");
            }
            Tells::ErrnoAlone => {
                assert_eq!((returned, errno), (Returned::Nothing, Some(libc::ENOTRECOVERABLE)), "{name}");
            }
        }
        // As usable as before.
        assert_eq!(palimpsest_packs_close(PACKS), palimpsest_result::PALIMPSEST_STALE, "{name}");
    }
}
