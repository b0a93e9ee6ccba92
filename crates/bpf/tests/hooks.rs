//! Hooks: attached, detached and run by many threads at once, also where programs own what is attached, in children of
//! `fork`, and where the key could not be switched.
//!
//! Mutants that are caught: priorities turned round, a context that is not compared with the program's, a child that
//! waits for its parent's thread, a key that follows the length of the list, a failed switch that is not made up for, a
//! program that is freed before the hook is whole.
#![expect(unsafe_code, reason = "processes are forked")]

mod common;

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use palimpsest_bpf::hook::{AttachError, Attached, Hook};
use palimpsest_bpf::host::{Call, Host, HostBuilder, HostedProgram};
use palimpsest_bpf::interp::HelperError;
use palimpsest_bpf::verify::{ContextAccess, Contract, Signature};
use palimpsest_bpf::{Code, ContextError, Packs, asm, hook};
use palimpsest_text::key::{Keys, State, SwitchError};
use palimpsest_text::poke::PokeError;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use common::packs;

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Request {
    kind: u32,
    len: u32,
}

hook! {
    /// In the order of priorities.
    fn ordered(request: &Request) = "test.ordered";
    /// With programs that do not fit.
    fn refused(request: &Request) = "test.refused";
    /// Under load.
    fn busy(request: &Request) = "test.busy";
    /// With a verdict of a type of its own, beside those without.
    fn judged(request: &Request) -> Verdict = "test.judged";
    /// With a program that owns another one's attachment.
    fn owning(request: &Request) = "test.owning";
    /// With a program whose host panics when it is dropped.
    fn panicking(request: &Request) = "test.panicking";
    /// In children of `fork`.
    fn forked(request: &Request) = "test.forked";
    /// Which cannot be switched for a while.
    fn damaged(request: &Request) = "test.damaged";
    /// Attached while it is being attached.
    fn reentered(request: &Request) = "test.reentered";
    /// Detached while its key is being switched.
    fn switched(request: &Request) = "test.switched";
    /// Enabled by others.
    fn shared(request: &Request) = "test.shared";
}

/// The first result that is not 0.
#[derive(PartialEq, Debug)]
struct Verdict(Option<u64>);

impl From<u64> for Verdict {
    fn from(result: u64) -> Self {
        Self((result != 0).then_some(result))
    }
}

const REQUEST: Request = Request { kind: 3, len: 40 };

fn program(packs: &Packs, text: &str, contract: Contract) -> Arc<HostedProgram> {
    let fails = |_: &mut Call<'_>| Err(HelperError::Unknown);
    program_of(packs, Host::builder().helper(1000, Signature::new([]), fails), text, contract)
}

fn program_of(packs: &Packs, host: HostBuilder, text: &str, contract: Contract) -> Arc<HostedProgram> {
    let code = Code::new(&asm::assemble(text).expect("a program")).expect("its structure is right");
    Arc::new(HostedProgram::load(packs, &host.build().verify(contract, code).expect("harmless")).expect("room"))
}

/// A program whose host owns `owned`.
fn owner(packs: &Packs, owned: impl Send + Sync + 'static) -> Arc<HostedProgram> {
    let owns = move |_: &mut Call<'_>| {
        let _ = &owned;
        Ok(0)
    };
    program_of(packs, Host::builder().helper(1000, Signature::new([]), owns), "r0 = 7\nexit", reader())
}

/// Lets go of what was detached: readers of other hooks may keep it for a while.
fn free(hook: &Hook<Request>) {
    while hook.reclaim() > 0 {
        std::thread::yield_now();
    }
}

/// Asserts that `child` returns `true` in a child of `fork`. One that hangs ends by SIGALRM.
fn assert_in_child(child: impl FnOnce() -> bool) {
    // SAFETY: the child attaches and detaches, which allocates: the C library keeps its allocator usable. It leaves
    // below.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "a child");
    if pid == 0 {
        // SAFETY: sets a timer.
        unsafe { libc::alarm(120) };
        let code = i32::from(!child());
        // SAFETY: nothing of the parent's is run any more.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is there to be written.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "{status:#x}");
}

fn reader() -> Contract {
    Contract::new().context(8, ContextAccess::Read)
}

#[test]
fn a_verdict_has_the_type_that_the_hook_names() {
    let Some(packs) = packs() else { return };
    assert_eq!(judged(&REQUEST), Verdict(None));
    let attached = judged::HOOK.attach(0, program(&packs, "r0 = *(u32 *)(r1 + 4)\nexit", reader())).expect("it fits");
    assert_eq!(judged(&REQUEST), Verdict(Some(40)));
    attached.detach().expect("the key is ours");
    assert_eq!(judged(&REQUEST), Verdict(None));
}

#[test]
fn programs_run_in_the_order_of_priorities_until_one_decides() {
    let Some(packs) = packs() else { return };
    let hook = &ordered::HOOK;
    assert_eq!((ordered(&REQUEST), hook.attached(), hook.name()), (0, 0, "test.ordered"));
    let sees = program(&packs, "r0 = *(u32 *)(r1 + 4)\nexit", reader());
    let last = hook.attach(10, sees).expect("it fits");
    assert_eq!(ordered(&REQUEST), 40);
    let nothing = hook.attach(-5, program(&packs, "r0 = 0\nexit", reader())).expect("it fits");
    assert_eq!(ordered(&REQUEST), 40);
    let earlier = hook.attach(0, program(&packs, "r0 = 7\nexit", reader())).expect("it fits");
    let behind = hook.attach(0, program(&packs, "r0 = 8\nexit", reader())).expect("it fits");
    assert_eq!((ordered(&REQUEST), hook.attached()), (7, 4));
    earlier.detach().expect("the key is ours");
    assert_eq!(ordered(&REQUEST), 8);
    drop(behind);
    let fails = hook.attach(-9, program(&packs, "call 1000\nr0 = 9\nexit", reader())).expect("it fits");
    assert_eq!((ordered(&REQUEST), hook.failures()), (40, 1));
    drop((last, nothing, fails));
    assert_eq!((ordered(&REQUEST), hook.attached()), (0, 0));
    assert!(!ordered::KEY.is_on());
}

#[test]
fn programs_that_want_another_context_are_refused() {
    let Some(packs) = packs() else { return };
    let refuse = |text: &str, contract: Contract| {
        let error = refused::HOOK.attach(0, program(&packs, text, contract)).expect_err("it does not fit");
        let AttachError::Context { source, .. } = error else { panic!("{error}") };
        source
    };
    let longer = refuse("r0 = *(u8 *)(r1 + 8)\nexit", Contract::new().context(9, ContextAccess::Read));
    assert_eq!(longer, ContextError::Short { len: 8, least: 9 });
    let writes = Contract::new().context(8, ContextAccess::Write);
    assert_eq!(refuse("*(u8 *)(r1 + 0) = 1\nr0 = 0\nexit", writes), ContextError::ReadOnly);
    // Aligned only to 4.
    let aligned = refuse("r0 = load_acquire((u32 *)(r1 + 0))\nexit", reader());
    assert!(matches!(aligned, ContextError::Unaligned { align: 8, .. }), "{aligned}");
    assert_eq!((refused(&REQUEST), refused::HOOK.attached()), (0, 0));
}

#[test]
fn programs_come_and_go_while_others_run_them() {
    let Some(packs) = packs() else { return };
    let (done, runs) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let verdict = busy(&REQUEST);
                    assert!(verdict <= 50, "{verdict}");
                    runs.fetch_add(u64::from(verdict > 0), Ordering::Relaxed);
                }
            });
        }
        for round in 1..=50 {
            let attached = busy::HOOK.attach(round, program(&packs, &format!("r0 = {round}\nexit"), reader()));
            let attached = attached.expect("it fits");
            assert_eq!(busy(&REQUEST), round as u64);
            attached.detach().expect("the key is ours");
            packs.reclaim().expect("it works");
        }
        let attached = busy::HOOK.attach(0, program(&packs, "r0 = 1\nexit", reader())).expect("it fits");
        let before = runs.load(Ordering::Relaxed);
        while runs.load(Ordering::Relaxed) == before {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
        drop(attached);
    });
}

#[test]
fn a_program_that_is_freed_may_own_what_is_attached_to_the_same_hook() {
    let Some(packs) = packs() else { return };
    let hook = &owning::HOOK;
    let owned = hook.attach(1, program(&packs, "r0 = 8\nexit", reader())).expect("it fits");
    let owner = hook.attach(0, owner(&packs, owned)).expect("it fits");
    assert_eq!((owning(&REQUEST), hook.attached()), (7, 2));
    owner.detach().expect("the key is ours");
    free(hook);
    assert_eq!((owning(&REQUEST), hook.attached(), owning::KEY.is_on()), (0, 0, false));
}

/// Panics when it is dropped.
struct Panics;

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[test]
fn a_hook_is_whole_when_a_program_panics_that_is_freed() {
    let Some(packs) = packs() else { return };
    let hook = &panicking::HOOK;
    for _ in 0..2 {
        let attached = hook.attach(0, owner(&packs, Panics)).expect("it fits");
        assert_eq!(panicking(&REQUEST), 7);
        let raised = catch_unwind(AssertUnwindSafe(|| {
            attached.detach().expect("the key is ours");
            free(hook);
        }));
        raised.expect_err("it panics");
        assert_eq!((panicking(&REQUEST), hook.attached(), panicking::KEY.is_on()), (0, 0, false));
    }
}

/// Reads a byte of code, and puts another one there.
fn exchange(address: usize, byte: u8) -> u8 {
    let memory = std::fs::File::options().read(true).write(true).open("/proc/self/mem");
    let mut memory = memory.expect("/proc is mounted");
    let (mut old, at) = ([0], SeekFrom::Start(address as u64));
    memory.seek(at).and_then(|_| memory.read_exact(&mut old)).expect("it is mapped");
    memory.seek(at).and_then(|_| memory.write_all(&[byte])).expect("text may be written here");
    old[0]
}

#[test]
fn a_switch_that_has_failed_is_made_up_for() {
    let Some(packs) = packs() else { return };
    let (hook, key) = (&damaged::HOOK, &damaged::KEY);
    let Some(site) = key.sites().first().copied() else { return println!("skipped: nothing is patched here") };
    let attach = || hook.attach(0, program(&packs, "r0 = 7\nexit", reader()));
    let is_mismatch = |error: &AttachError| {
        let AttachError::Switch { source: SwitchError::Poke { source, .. }, .. } = error else { return false };
        matches!(source, PokeError::Mismatch { .. })
    };
    // Nobody calls the hook meanwhile.
    let byte = exchange(site, 0xf4);
    let error = attach().expect_err("the site is not what it should be");
    assert!(is_mismatch(&error), "{error}");
    assert_eq!((exchange(site, byte), hook.attached(), key.enabled()), (0xf4, 0, 0));
    assert_eq!((damaged(&REQUEST), key.is_on()), (0, false));

    let attached = attach().expect("the site is as it was");
    assert_eq!(damaged(&REQUEST), 7);
    let byte = exchange(site, 0xf4);
    let error = attached.detach().expect_err("the site is not what it should be");
    assert!(is_mismatch(&error), "{error}");
    exchange(site, byte);
    assert_eq!((damaged(&REQUEST), key.is_on()), (0, true), "nothing is attached");
    let attached = attach().expect("it is on already");
    assert_eq!(damaged(&REQUEST), 7);
    attached.detach().expect("the site is as it was");
    assert_eq!((damaged(&REQUEST), key.is_on(), key.enabled()), (0, false, 0));
}

/// The next batch that changes the site `CALLED_BACK` calls `CALL_BACK`, in the middle of the switch.
static CALLED_BACK: AtomicUsize = AtomicUsize::new(0);
static CALL_BACK: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);
/// Held by a test that uses them.
static ONE_CALL_BACK: Mutex<()> = Mutex::new(());

/// Has `call_back` called once by whoever switches the site.
fn call_back_at(site: usize, call_back: impl FnOnce() + Send + 'static) {
    *CALL_BACK.lock().expect("nobody panics") = Some(Box::new(call_back));
    CALLED_BACK.store(site, Ordering::Release);
    palimpsest_text::poke::set_log(|records| {
        let site = CALLED_BACK.load(Ordering::Acquire);
        // In a child the site is 0, so that it does not wait for a lock.
        if records.iter().any(|record| record.address == site) {
            CALLED_BACK.store(0, Ordering::Relaxed);
            let call_back = CALL_BACK.lock().expect("nobody panics").take();
            call_back.expect("once")();
        }
    });
}

/// Has another thread call `change`, which switches the key of [`forked`], and stops it in the middle.
fn beside(change: impl FnOnce() + Send, check: impl FnOnce()) {
    let site = forked::KEY.sites()[0];
    let (stopped, is_stopped) = channel();
    let (go_on, may_go_on): (Sender<()>, Receiver<()>) = channel();
    call_back_at(site, move || {
        stopped.send(()).expect("somebody listens");
        let _ = may_go_on.recv();
    });
    std::thread::scope(|scope| {
        scope.spawn(change);
        is_stopped.recv().expect("it switches the key");
        let checked = catch_unwind(AssertUnwindSafe(check));
        drop(go_on);
        checked.unwrap_or_else(|raised| std::panic::resume_unwind(raised));
    });
}

#[test]
fn a_child_attaches_and_detaches_what_a_thread_of_its_parent_was_attaching_or_detaching() {
    let Some(packs) = packs() else { return };
    let _one = ONE_CALL_BACK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if forked::KEY.sites().is_empty() {
        return println!("skipped: nothing is patched here");
    }
    let hook = &forked::HOOK;
    let [parents, childs] = [1, 2].map(|number| program(&packs, &format!("r0 = {number}\nexit"), reader()));
    let attach = |priority, program: &Arc<HostedProgram>| hook.attach(priority, Arc::clone(program));
    let check = |left| {
        assert_in_child(|| {
            let attached = attach(-1, &childs);
            let mut verdicts = vec![forked(&REQUEST)];
            let is_detached = attached.is_ok_and(|attached| attached.detach().is_ok());
            verdicts.push(forked(&REQUEST));
            is_detached && verdicts == [2, left] && forked::KEY.is_on() == (left != 0)
        });
    };
    let attached: Mutex<Option<Attached<Request>>> = Mutex::default();
    let attached = &attached;
    beside(
        || *attached.lock().expect("nobody panics") = Some(attach(0, &parents).expect("it fits")),
        // The thread that would detach it is not there.
        || check(1),
    );
    assert_eq!(forked(&REQUEST), 1);
    let attached = attached.lock().expect("nobody panics").take().expect("put there");
    beside(|| attached.detach().expect("the key is ours"), || check(0));
    assert_eq!((forked(&REQUEST), forked::KEY.is_on()), (0, false));
}

#[test]
fn a_thread_that_attaches_in_the_middle_of_attaching_is_refused() {
    let Some(packs) = packs() else { return };
    let _one = ONE_CALL_BACK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let hook = &reentered::HOOK;
    let Some(site) = reentered::KEY.sites().first().copied() else { return };
    let (inner, outer) = (program(&packs, "r0 = 1\nexit", reader()), program(&packs, "r0 = 2\nexit", reader()));
    let (told, is_told) = channel();
    call_back_at(site, move || {
        let refused = hook.attach(-1, inner).map(drop);
        told.send(refused).expect("somebody listens");
    });
    let attached = hook.attach(0, outer).expect("it fits");
    let refused = is_told.recv().expect("it was called");
    assert!(matches!(refused, Err(AttachError::Switch { source: SwitchError::Reentered { .. }, .. })), "{refused:?}");
    assert_eq!((reentered(&REQUEST), hook.attached()), (2, 1));
    attached.detach().expect("the key is ours");
}

#[test]
fn a_program_that_is_detached_while_its_key_is_switched_does_not_run_any_more() {
    palimpsest_text::static_key!(static OTHER: "test.switched_too" = off);
    let is_other_on = || palimpsest_text::branch!(unlikely OTHER);
    let Some(packs) = packs() else { return };
    let _one = ONE_CALL_BACK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (hook, key) = (&switched::HOOK, &switched::KEY);
    let attach = || hook.attach(0, program(&packs, "r0 = 7\nexit", reader())).expect("it fits");
    let attached = attach();
    assert!(switched(&REQUEST) == 7 && !is_other_on());
    let Some(site) = OTHER.sites().first().copied() else { return };
    let (told, is_told) = channel();
    call_back_at(site, move || told.send(attached.detach()).expect("somebody listens"));
    // One batch has both keys, of which one does not change.
    Keys::apply([(key, State::Off), (&OTHER, State::On)]).expect("the keys are ours");
    let refused = is_told.recv().expect("it was called");
    assert!(matches!(refused, Err(AttachError::Switch { source: SwitchError::Reentered { .. }, .. })), "{refused:?}");
    assert_eq!((switched(&REQUEST), hook.attached(), key.is_on()), (0, 0, true));
    attach().detach().expect("the key is ours");
    assert!(!key.is_on() && is_other_on());
}

#[test]
fn a_hook_and_those_who_enable_its_key_leave_each_other_alone() {
    let Some(packs) = packs() else { return };
    let (hook, key) = (&shared::HOOK, &shared::KEY);
    let attach = || hook.attach(0, program(&packs, "r0 = 7\nexit", reader())).expect("it fits");
    key.enable().expect("the key is ours");
    let attached = attach();
    key.disable().expect("it is enabled");
    assert_eq!(shared(&REQUEST), 7, "it is attached");
    key.enable().expect("the key is ours");
    attached.detach().expect("the key is ours");
    assert_eq!((shared(&REQUEST), key.is_on()), (0, true));
    key.disable().expect("it is still enabled");
    assert!(!key.is_on());
}
