//! A SIGSEGV handler that uses `lookup`.

mod common;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use palimpsest_text::{Fault, Packs};

static PACKS: OnceLock<Packs> = OnceLock::new();

extern "C" fn on_fault(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the interrupted context to an SA_SIGINFO handler.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let pc = common::program_counter(context);
    let landing = PACKS.get().and_then(|packs| packs.lookup(*pc as usize)).and_then(|found| found.landing());
    match landing {
        Some(landing) => *pc = landing.get() as u64,
        // SAFETY: restores the default action; returning then repeats the fault.
        None => unsafe {
            libc::signal(signal, libc::SIG_DFL);
        },
    }
}

#[test]
fn a_faulting_load_goes_on_at_its_landing() {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as extern "C" fn(_, _, _) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler is async-signal-safe, which is what this test shows of `lookup`.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()) }, 0);

    let packs = PACKS.get_or_init(|| Packs::new().unwrap());
    let (code, offset, landing) = common::faulting_load();
    let mut staged = packs.stage(code.len(), 16).unwrap();
    staged.image().copy_from_slice(&code);
    let error = staged.set_faults(vec![Fault { offset: 4096, landing }]).unwrap_err();
    assert!(error.to_string().contains("offset 4096"), "{error}");
    let error = staged.set_faults(vec![Fault { offset, landing }, Fault { offset, landing: 0 }]).unwrap_err();
    assert!(error.to_string().contains("two landings"), "{error}");
    staged.set_faults(vec![Fault { offset: landing, landing: 0 }, Fault { offset, landing }]).unwrap();
    let program = staged.finalize().unwrap();
    // SAFETY: the code is a function of that type, and `program` outlives the calls.
    let load = unsafe { program.function::<extern "C" fn(*const u8) -> i64>() };
    assert_eq!(load(&raw const code[0]), i64::from(code[0]));
    for round in 0..1000 {
        assert_eq!(load(std::ptr::without_provenance(round)), -1);
    }
    // Another instruction of the same program has no landing: the fault stays a fault.
    let elsewhere = packs.load(&code, 16).unwrap();
    // SAFETY: as above; in a child, since it dies there.
    let load = unsafe { elsewhere.function::<extern "C" fn(*const u8) -> i64>() };
    let status = common::fork_and_wait(|| load(std::ptr::null()) as i32);
    assert_eq!(common::killed_by(status), Some(libc::SIGSEGV));
}

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn tells(_signal: i32) {
    if CALLS.fetch_add(1, Ordering::Relaxed) > 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(7) };
    }
}

/// Fails on: a handler that is called again and again, where it would have been called once (`SA_RESETHAND`).
#[test]
fn a_handler_behind_ours_that_is_called_once_ends_the_program_then() {
    let status = common::fork_and_wait(|| {
        // SAFETY: all-zero is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = tells as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESETHAND;
        // SAFETY: the handler is async-signal-safe.
        assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()) }, 0);
        Packs::new().unwrap().resume_after_faults().unwrap();
        // SAFETY: a page that is mapped nowhere: this is the end of the child.
        i32::from(unsafe { std::ptr::without_provenance::<u8>(4096).read_volatile() })
    });
    assert_eq!(common::killed_by(status), Some(libc::SIGSEGV), "status {status:#x}");
}
