//! Hooks: attached, detached and run by many threads at once.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use palimpsest_bpf::hook::AttachError;
use palimpsest_bpf::host::{Host, HostedProgram};
use palimpsest_bpf::verify::{ContextAccess, Contract, Signature};
use palimpsest_bpf::{Code, ContextError, Packs, asm, hook};
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
    let code = Code::new(&asm::assemble(text).expect("a program")).expect("its structure is right");
    let fails = |_: &mut palimpsest_bpf::host::Call<'_>| Err(palimpsest_bpf::interp::HelperError::Unknown);
    let host = Host::builder().helper(1000, Signature::new([]), fails).build();
    Arc::new(HostedProgram::load(packs, &host.verify(contract, code).expect("harmless")).expect("room"))
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
