//! The child processes: they load programs under an observer and call through them.

use std::{
    backtrace::Backtrace,
    hint::black_box,
    panic, process,
    sync::atomic::{
        AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

use palimpsest_text::{
    CodeAddress, Packs, Program,
    observe::{GdbJit, JitDump, PerfMap, UnwindRegistry, frame_pointer_eh_frame},
};

use crate::{Attached, arch};

/// Name of the program that keeps a frame pointer.
pub(crate) const FRAMED: &str = "jitted_with_frame_pointer";
/// Name of the program that has only call frame information.
pub(crate) const FRAMELESS: &str = "jitted_without_frame_pointer";
/// Name of the program that keeps the processor busy.
pub(crate) const BUSY: &str = "jitted_count_down";

type Function = extern "C-unwind" fn();

/// The inner program's address; the debugger also reads it after the program is gone.
#[unsafe(no_mangle)]
static OBSERVERS_INNER_PROGRAM: AtomicUsize = AtomicUsize::new(0);

/// Opens packs with the observer that `attach` adds, or with none.
macro_rules! packs {
    ($attached:expr, $observer:expr) => {{
        let builder = Packs::builder();
        match $attached {
            Attached::Yes => builder.observer($observer),
            Attached::No => builder,
        }
        .open()
        .expect("packs")
    }};
}

fn load(packs: &Packs, name: &str, code: &[u8], eh_frame: impl FnOnce(CodeAddress) -> Vec<u8>) -> Program {
    let mut staged = packs.stage(code.len(), 16).expect("stage");
    let address = staged.address();
    staged.image()[..code.len()].copy_from_slice(code);
    staged.set_name(name);
    staged.set_eh_frame(eh_frame(address));
    staged.finalize().expect("finalize")
}

/// Calls `innermost` through these frames: host, program with frame pointer, host, program without, host.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn observers_outermost(packs: &Packs, innermost: Function) {
    let code = arch::call_without_frame_pointer(innermost as *const () as usize);
    let inner =
        load(packs, FRAMELESS, &code, |address| arch::eh_frame_without_frame_pointer(address.get(), code.len()));
    OBSERVERS_INNER_PROGRAM.store(inner.address().get(), SeqCst);
    let code = arch::call_with_frame_pointer(observers_between as *const () as usize);
    let outer = load(packs, FRAMED, &code, |address| frame_pointer_eh_frame(address, code.len()));
    // SAFETY: the code is a function without parameters and result, and `outer` lives until after the call.
    let function: Function = unsafe { outer.function() };
    function();
    // Keeps this frame in place: the call above must not become a jump.
    black_box((&inner, &outer));
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn observers_between() {
    let address = OBSERVERS_INNER_PROGRAM.load(SeqCst);
    // SAFETY: the address of the inner program, a function of this type, which `observers_outermost` keeps alive.
    let function: Function = unsafe { std::mem::transmute(address) };
    function();
    black_box(address);
}

/// Is where the debugger stops: called by the inner program.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn observers_innermost() {
    black_box(OBSERVERS_INNER_PROGRAM.load(Relaxed));
}

/// Is where the debugger stops once the programs are gone.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn observers_unloaded() {
    // Differs from the body of `observers_innermost`: otherwise the two would become one function.
    black_box("unloaded");
}

extern "C-unwind" fn print_backtrace() {
    println!("{}", Backtrace::force_capture());
}

extern "C-unwind" fn panics() {
    panic!("from the innermost function");
}

pub(crate) fn gdb(attached: Attached) {
    let packs = packs!(attached, GdbJit::new());
    observers_outermost(&packs, observers_innermost);
    packs.reclaim().expect("reclaim");
    observers_unloaded();
}

pub(crate) fn backtrace(attached: Attached) {
    // SAFETY: 1. the tables of this file are right.
    let packs = packs!(attached, unsafe { UnwindRegistry::new() });
    observers_outermost(&packs, print_backtrace);
}

pub(crate) fn panic(attached: Attached) {
    // SAFETY: 1. the tables of this file are right.
    let packs = packs!(attached, unsafe { UnwindRegistry::new() });
    let caught = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        observers_outermost(&packs, panics);
    }));
    let payload = caught.expect_err("it panics");
    println!("caught: {}", payload.downcast_ref::<&str>().expect("text"));
}

pub(crate) fn perf_map(attached: Attached) {
    let packs = packs!(attached, PerfMap::new());
    println!("pid={}", process::id());
    keep_busy(&packs);
}

pub(crate) fn jit_dump(attached: Attached) {
    let packs = packs!(attached, JitDump::new());
    keep_busy(&packs);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let writable_code: Vec<&str> = maps.lines().filter(|line| line.contains("rwx")).collect();
    assert_eq!(writable_code, <[&str; 0]>::default());
}

/// Runs a program for about a third of a second.
fn keep_busy(packs: &Packs) {
    let code = arch::count_down();
    let program = load(packs, BUSY, &code, |address| frame_pointer_eh_frame(address, code.len()));
    // SAFETY: the code is a function of one word, and `program` lives until after the call.
    let function: extern "C-unwind" fn(usize) = unsafe { program.function() };
    function(black_box(1_000_000_000));
}

/// Loads a program, forks, and loads one more in the child, in the working directory.
pub(crate) fn fork(_: Attached) {
    let packs = Packs::builder()
        .observer(PerfMap::in_directory("."))
        .observer(JitDump::in_directory("."))
        .open()
        .expect("packs");
    let code = arch::count_down();
    let before = load(&packs, "before_fork", &code, |address| frame_pointer_eh_frame(address, code.len()));
    // SAFETY: this process has one thread, so the child may do anything.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let loaded = packs.load_named("in_child", &code, 16);
        process::exit(if loaded.is_ok() { 0 } else { 1 });
    }
    assert!(pid > 0);
    let mut status = -1;
    // SAFETY: `pid` is a child of this process, and `status` is writable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child failed");
    println!("parent={} child={pid}", process::id());
    drop(before);
}
