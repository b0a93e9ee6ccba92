//! The whole life of deputies.

use std::sync::LazyLock;

use super::confined::tests::refusal;
use super::*;
use crate::memory::calls;
use crate::seccomp::deadly_calls;
use crate::seccomp::tests::in_filtered_child;
use crate::threads::timeslice::tests::timeslice_of;

static STACK_OF_DESK: DeputyStack = DeputyStack::new();
static DESK: Desk = Desk::new(&STACK_OF_DESK);

/// Two pieces of memory in base pages, at a boundary of two.
static MEMORY: LazyLock<Span> = LazyLock::new(|| {
    let piece = 2 << 20;
    let room = crate::memory::vec::leak_zeroed(4 * piece).expect("memory");
    let start = room.as_ptr().expose_provenance().next_multiple_of(2 * piece);
    Span::new(start, start + 2 * piece)
});

fn deputy() -> i32 {
    i32::try_from(DESK.state.load(Ordering::Relaxed) >> 2 & ID).expect("an id")
}

fn is_waited_for(deputy: i32) -> bool {
    let mut status = 0;
    // SAFETY: the status goes to a local.
    let waited = unsafe { libc::waitpid(deputy, &raw mut status, libc::__WALL | libc::WNOHANG) };
    (waited, last_errno()) == (-1, Errno::CHILD)
}

/// What a sender has.
const OF_SENDERS: Duration = Duration::from_millis(5);

/// Sends a deputy that gives up its rights, sooner or later.
fn send() {
    loop {
        match DESK.send(*MEMORY, 2, OF_SENDERS) {
            // On a busy machine its sender may have waited for it already.
            Ok(true) if own(DESK.state.load(Ordering::Relaxed)) == BUSY => return,
            Ok(true) | Err(NoChild::Late) => {
                DESK.dismiss();
                assert!(DESK.answered().is_some());
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Fails on: a sender that looks never, or for longer than it may.
#[test]
fn a_sender_looks_once_at_least_and_no_longer_than_it_may() {
    let within = |micros| looks(Duration::from_micros(micros));
    assert_eq!([0, 499, 1000, 2000, 2400, 5000, 1 << 40].map(within), [1, 1, 2, 4, 4, 10, 10]);
}

/// Fails on: one that is sent although none can give up its rights.
#[test]
fn none_is_sent_after_one_that_could_not_give_up_its_rights() {
    static UNUSED: DeputyStack = DeputyStack::new();
    static REFUSED: Desk = Desk::new(&UNUSED);
    REFUSED.confined.store(libc::ENOSYS.cast_unsigned(), Ordering::Relaxed);
    assert_eq!(REFUSED.send(Span::new(0, 0), 0, OF_SENDERS), Err(NoChild::Rights(Errno::NOSYS)));
    assert!(!REFUSED.is_busy() && REFUSED.answered().is_none());
}

/// Fails on: a deputy that is killed for a call that it could do without, as its sender knows.
#[test]
fn a_deputy_that_may_not_yield_does_its_work() {
    static ITS_STACK: DeputyStack = DeputyStack::new();
    static HASTY: Desk = Desk::new(&ITS_STACK);
    if let Some(errno) = refusal() {
        return println!("skipped: a deputy cannot give up its rights here (errno {errno})");
    }
    let status = in_filtered_child(libc::SYS_sched_yield, libc::SECCOMP_RET_KILL_PROCESS, || {
        deadly_calls().is_ok_and(|deadly| deadly.contains(FreezeCall::Yield))
            && loop {
                let sent = HASTY.send(Span::new(0, 0), 0, OF_SENDERS);
                HASTY.dismiss();
                match (sent, HASTY.answered()) {
                    (Err(NoChild::Late), _) => {}
                    (sent, answered) => break sent == Ok(true) && answered.is_some_and(|errand| errand.answer.is_ok()),
                }
            }
    });
    assert_eq!(status, 0);
}

/// One test, since a process has one desk here. Fails on: a deputy that nobody waits for; an answer that is given
/// twice, or lost; a child that takes its parent's deputy for its own; waiting for a deputy that was stopped; a
/// thread that takes the end of one deputy for that of the next; one that waits for a child of the program; a deputy
/// with descriptors, or with a shorter time slice than the program's; one of which nobody knows what it has taken.
#[test]
fn an_errand_is_done_beside_and_answered_once() {
    let memory = *MEMORY;
    let place = ptr::with_exposed_provenance_mut::<u8>(memory.start);
    // SAFETY: memory of this test alone.
    unsafe { place.write_bytes(7, memory.len()) };
    if let Some(errno) = refusal() {
        return println!("skipped: a deputy cannot give up its rights here (errno {errno})");
    }
    assert!(!DESK.is_busy() && DESK.answered().is_none());
    let timeslice = timeslice_of(0);
    send();
    let (first, word) = (deputy(), DESK.state.load(Ordering::Relaxed));
    let descriptors = std::fs::read_dir(format!("/proc/{first}/fd")).expect("a child that was not waited for");
    assert_eq!(descriptors.count(), 0, "what it held would outlive the program");
    assert_eq!([0, first].map(timeslice_of), [timeslice; 2], "a short one for the beginning only");
    assert_eq!(DESK.send(memory, 2, OF_SENDERS), Ok(false), "one errand at a time, until its answer is taken");
    // SAFETY: the child makes atomic accesses and system calls only.
    let child = unsafe { child::spawn(&[], || i32::from(DESK.is_busy() || DESK.answered().is_some())) };
    assert_eq!(child.expect("a child").wait(), Ok(0), "a child has no deputy");
    assert!(DESK.dismiss(), "there was one");
    assert!(!DESK.is_busy() && !DESK.dismiss());
    let errand = DESK.answered().expect("it is over");
    assert_eq!((errand.span, errand.asked, DESK.answered()), (memory, 2, None));
    // Whether there are huge pages is the machine's affair.
    assert!(!matches!(errand.answer, Err(Errno::INTR)), "{errand:?}");
    assert!(!errand.spent.is_zero(), "it took some time");
    assert!(is_waited_for(first), "nothing of it is left");
    // A thread that has read the word of the first deputy asks only now.
    send();
    let (second, now) = (deputy(), DESK.state.load(Ordering::Relaxed));
    assert_eq!((DESK.ask(word), DESK.state.load(Ordering::Relaxed)), (None, now));
    DESK.dismiss();
    assert!(DESK.answered().is_some() && is_waited_for(second));
    // The program has a child with the id of the first deputy.
    // SAFETY: the child makes one system call.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    DESK.ask(busy(child));
    let mut status = 0;
    // SAFETY: the status goes to a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child, "the program's to wait for");
    // Killed at work, or over.
    send();
    // SAFETY: a signal to a child of ours that was not waited for.
    unsafe { libc::kill(deputy(), libc::SIGKILL) };
    DESK.dismiss();
    assert!(DESK.answered().is_some() && !DESK.is_busy());
    // SAFETY: memory of this test alone.
    assert!((0..memory.len()).step_by(4096).all(|offset| unsafe { place.wrapping_add(offset).read() } == 7));
    // What is not there is an answer, too. SAFETY: 1. nobody uses it any more.
    unsafe { calls::unmap(memory) }.expect("unmapped");
    send();
    DESK.dismiss();
    assert_eq!(DESK.answered().map(|errand| errand.answer.is_err()), Some(true));
    // Stopped, or over: nobody waits for ever, nor asks for ever.
    for turn in 0..20 {
        send();
        // SAFETY: as above.
        unsafe { libc::kill(deputy(), libc::SIGSTOP) };
        if turn % 2 == 0 {
            DESK.dismiss();
        }
        while DESK.is_busy() {}
        assert!(DESK.answered().is_some());
    }
}
