//! How soon a deputy begins, and its sender goes on, and what of that the program keeps.

use palimpsest_fork::{Errands, dismiss_deputy};

use super::common::deeds::{Deed, Scene};
use super::common::gathering::{needs_huge_pages, plan};
use super::common::notified::{self, Call};
use super::common::ways::Way;
use super::common::{play, skip, slice};
use super::{CONFINED, Event, Watched, ended, live_through};

/// Returns the attributes by which a process is scheduled.
fn scheduling(process: i32) -> libc::sched_attr {
    let size = size_of::<libc::sched_attr>();
    let mut found = std::mem::MaybeUninit::<libc::sched_attr>::zeroed();
    // SAFETY: the kernel writes no more than `size` bytes, to a local.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, process, found.as_mut_ptr(), size, 0) };
    assert_eq!(answer, 0, "a process of this scenario that was not waited for");
    // SAFETY: numbers only.
    unsafe { found.assume_init() }
}

fn timeslice(process: i32) -> u64 {
    scheduling(process).sched_runtime
}

/// Fails on: a deputy that waits for its turn; one that keeps others from theirs while it works, as its sender does
/// then.
#[test]
fn a_deputy_and_its_sender_have_a_short_time_slice_until_it_is_at_work() {
    play("scheduling::a_deputy_and_its_sender_have_a_short_time_slice_until_it_is_at_work", || {
        needs_huge_pages();
        let own = scheduling(0);
        if own.sched_runtime == 0 || own.sched_policy != libc::SCHED_OTHER as u32 {
            skip("needs Linux 6.12, which tells time slices, and SCHED_OTHER");
        }
        // SAFETY: the kernel reads a local.
        if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const own, 0) } != 0 {
            skip("nobody may ask for a time slice here");
        }
        let of = |step: usize| {
            let mut watched = Watched::hold(step, |inner| live_through(Event::DeputyKilled, step, inner));
            let deputy = watched.deputy();
            if step < CONFINED {
                watched.until(|watched| watched.looking.is_some());
            } else {
                // Until its sender has gone on.
                watched.let_look();
                watched.until(|watched| timeslice(watched.program) == own.sched_runtime || watched.program_is_over());
            }
            let told = [watched.program, deputy].map(timeslice);
            watched.signal(deputy, libc::SIGKILL);
            watched.let_look();
            watched.order();
            watched.end("killed");
            told
        };
        assert_eq!((of(0), of(CONFINED)), ([100_000; 2], [own.sched_runtime; 2]));
    });
}

/// Fails on: a policy that another program gives the sender in just the moment in which it asks for a short time slice.
#[test]
fn a_policy_that_the_sender_gets_meanwhile_stays() {
    play("scheduling::a_policy_that_the_sender_gets_meanwhile_stays", || {
        needs_huge_pages();
        let asks = Call { number: libc::SYS_sched_setattr, third: None };
        let (program, listener) = notified::start(&[asks], || {
            let _scene = Scene::new(Way::Gather, Deed::Signal);
            plan(&Way::Gather.options().errands(Errands::Deputy));
            slice();
            dismiss_deputy();
            let policy = scheduling(0).sched_policy;
            // SAFETY: ends the process.
            unsafe { libc::_exit(policy as i32) }
        });
        let (mut is_given, mut status) = (false, None);
        while status.is_none() {
            if let Some(asked) = listener.next() {
                if asked.who == program && !is_given {
                    let none = libc::sched_param { sched_priority: 0 };
                    // SAFETY: the kernel reads a local.
                    let given = unsafe { libc::sched_setscheduler(program, libc::SCHED_BATCH, &raw const none) };
                    assert_eq!(given, 0);
                    is_given = true;
                }
                listener.let_go(asked);
            }
            status = ended(program);
        }
        if !is_given {
            skip("the program has said why, or asks for no time slice (Linux 6.12)");
        }
        assert_eq!(status, Some(libc::SCHED_BATCH));
    });
}
