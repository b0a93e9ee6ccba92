//! What children undo of what their parent's other threads were about, and what they leave alone since it is their own.

mod common;

use std::os::fd::AsRawFd;

use common::{in_child, play, wait};
use palimpsest_sys::brief_file::BriefFile;
use palimpsest_sys::in_children;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::threads::stack;
use rustix::fs::OFlags;

fn brief_file() -> BriefFile {
    BriefFile::open(c"/proc/thread-self/maps", OFlags::RDONLY).expect("/proc is mounted")
}

/// Plays `child` in a fork that the C library makes. Returns its exit status.
fn in_plain_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: what the child needs is not in use by another thread of the scenario.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let status = child();
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) };
    }
    wait(pid)
}

/// Fails on: a child of nobody's handlers that believes in files which only its parent has opened, so that its own
/// children close others of these numbers.
#[test]
fn a_file_with_the_number_of_an_ancestors_stays_open() {
    play("a_file_with_the_number_of_an_ancestors_stays_open", || {
        let file = brief_file().as_raw_fd();
        let is_closed = |number| {
            // SAFETY: asks about a number.
            i32::from(unsafe { libc::fcntl(number, libc::F_GETFD) } < 0)
        };
        // First of a process that has registered no handlers.
        let by_library: &dyn Fn(&dyn Fn() -> i32) -> i32 = &|child| in_child(child);
        for forks in [by_library, &|child| in_plain_child(child)] {
            let brief = brief_file();
            let number = brief.as_raw_fd();
            assert_eq!(number, file, "nothing else is opened here");
            // SAFETY: the child makes system calls, forks and ends; the scenario has one thread.
            let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            if child == 0 {
                // SAFETY: numbers of the child's.
                let copied = unsafe { libc::dup2(2, number) };
                let status = if copied == number { forks(&|| is_closed(number)) } else { 2 };
                // SAFETY: ends the child.
                unsafe { libc::_exit(status) };
            }
            assert_eq!(wait(i32::try_from(child).expect("a process id")), 0);
            // The children of who has opened it close it.
            in_children::register();
            assert_eq!(forks(&|| is_closed(number)), 1);
            drop(brief);
        }
    });
}

/// Returns whether there is a place for each of these stacks.
fn have_places(stacks: &[Span]) -> bool {
    let Some((first, rest)) = stacks.split_first() else { return true };
    // SAFETY: 1. made by the caller, for this, and the work handles no signal. 2. it needs little.
    unsafe { stack::call(*first, || have_places(rest)) }.unwrap_or(false)
}

/// Fails on: stacks of other threads that stay noted in children of the C library, until there is no place for the
/// child's own.
#[test]
fn children_of_the_c_library_have_places_for_stacks() {
    play("children_of_the_c_library_have_places_for_stacks", || {
        in_children::register();
        let [first, stacks @ ..] = [(); 5].map(|()| stack::map(1 << 16).expect("memory"));
        let fork = || {
            in_plain_child(|| {
                // A child has none of the parent's stacks.
                let own: [Span; 4] = [(); 4].map(|()| stack::map(1 << 16).unwrap_or_default());
                i32::from(!have_places(&own))
            })
        };
        let beside = || std::thread::scope(|scope| scope.spawn(fork).join());
        // SAFETY: 1. made just now, and the work handles no signal. 2. it needs little.
        let status = unsafe { stack::call(first, || (have_places(&stacks), beside().expect("no panic"))) };
        assert_eq!(status, Ok((false, 0)), "there are four places");
    });
}
