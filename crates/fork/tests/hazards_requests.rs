//! What the kernel holds on to for requests: row 5 of the hazards in `docs/src/numbered.md`, with real io_uring rings
//! and Linux AIO contexts.

mod common;

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use common::notified::{self, Call};
use common::{Memory, page, play, skip, wait};
use io_uring::{IoUring, opcode, types};
use palimpsest_fork::{Answer, FreezeError, Measure, Options, OtherThreads, Pause, RingHold, freeze as freeze_process};
use palimpsest_sys::pages::query;
use rustix::io::Errno;
use rustix::process::WaitOptions;

fn options() -> Options {
    Options::new().measure(Measure::Nothing)
}

/// Tries to freeze.
fn try_freeze(options: &Options) -> Result<palimpsest_fork::Report, FreezeError> {
    // SAFETY: the scenario is alone in its process, and what its rings hold on to is never looked at.
    unsafe { freeze_process(options) }
}

/// Returns the ring's hold that forbids freezing.
fn hold() -> Option<RingHold> {
    match try_freeze(&options()) {
        Ok(_) => None,
        Err(FreezeError::IoUring { hold, .. }) => Some(hold),
        Err(error) => panic!("{error}"),
    }
}

fn ring() -> IoUring {
    IoUring::new(8).unwrap_or_else(|error| skip(&format!("there is no io_uring here: {error}")))
}

/// Makes a ring that a freeze finds harmless, if the kernel can tell.
fn harmless_ring() -> IoUring {
    let ring = ring();
    match hold() {
        None => ring,
        Some(RingHold::Untold(errno)) => skip(&format!("this kernel does not tell what rings hold: {errno}")),
        Some(hold) => panic!("the new ring {hold}"),
    }
}

/// Checks that freezing is refused because of it, unless the caller answers for it.
fn is_refused(expected: RingHold) {
    assert_eq!(hold(), Some(expected));
    try_freeze(&options().answer_for(Answer::IoUring)).expect("answered for");
}

#[test]
fn h05_registered_buffers_are_refused() {
    play("h05_registered_buffers_are_refused", || {
        let ring = harmless_ring();
        let memory = Memory::apart(page());
        memory.set(0, 1);
        let buffer = libc::iovec { iov_base: memory.at(0), iov_len: page() };
        // SAFETY: the scenario's own memory, which is never unmapped.
        if let Err(error) = unsafe { ring.submitter().register_buffers(&[buffer]) } {
            skip(&format!("buffers cannot be registered (RLIMIT_MEMLOCK): {error}"));
        }
        is_refused(RingHold::Buffers(1));
        ring.submitter().unregister_buffers().expect("registered");
        assert_eq!(hold(), None);
    });
}

#[test]
fn h05_a_ring_of_provided_buffers_is_refused() {
    play("h05_a_ring_of_provided_buffers_is_refused", || {
        let ring = harmless_ring();
        let memory = Memory::apart(page());
        memory.set(0, 1);
        // The last one to be asked about.
        let group = u16::MAX;
        let submitter = ring.submitter();
        let address = memory.at(0).addr() as u64;
        // SAFETY: the scenario's own memory, which is never unmapped.
        if let Err(error) = unsafe { submitter.register_buf_ring_with_flags(address, 16, group, 0) } {
            skip(&format!("rings of buffers cannot be registered: {error}"));
        }
        is_refused(RingHold::BufferRing { group });
        ring.submitter().unregister_buf_ring(group).expect("registered");
        assert_eq!(hold(), None);
    });
}

/// `struct io_uring_params`: its flags are the third word, and the addresses of the queues for `IORING_SETUP_NO_MMAP`
/// the last two of the offsets (`include/uapi/linux/io_uring.h`).
fn set_up(flags: u32, (submissions, completions): (&Memory, &Memory)) -> io::Result<i32> {
    let mut parameters = [0_u64; 15];
    parameters[1] = u64::from(flags);
    parameters[9] = submissions.at(0).addr() as u64;
    parameters[14] = completions.at(0).addr() as u64;
    // SAFETY: the kernel fills a structure of 120 bytes; the queues are the scenario's own memory.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    if ring < 0 { Err(io::Error::last_os_error()) } else { Ok(i32::try_from(ring).expect("a descriptor")) }
}

const NO_MMAP: u32 = 1 << 14;
const REGISTERED_FD_ONLY: u32 = 1 << 15;

#[test]
fn h05_queues_in_the_programs_memory_are_refused() {
    play("h05_queues_in_the_programs_memory_are_refused", || {
        drop(harmless_ring());
        let queues = (&Memory::apart(16 * page()), &Memory::apart(16 * page()));
        queues.0.fill(0..16 * page(), 0);
        match set_up(NO_MMAP, queues) {
            Ok(_) => is_refused(RingHold::Queues),
            Err(error) => skip(&format!("queues cannot be in the program's memory (Linux 6.5): {error}")),
        }
    });
}

#[test]
fn h05_a_ring_without_a_descriptor_is_refused() {
    play("h05_a_ring_without_a_descriptor_is_refused", || {
        drop(harmless_ring());
        let queues = (&Memory::apart(16 * page()), &Memory::apart(16 * page()));
        queues.0.fill(0..16 * page(), 0);
        match set_up(NO_MMAP | REGISTERED_FD_ONLY, queues) {
            Ok(_) => is_refused(RingHold::NoDescriptor),
            Err(error) => skip(&format!("rings must have descriptors (before Linux 6.5): {error}")),
        }
    });
}

#[test]
fn h05_a_ring_whose_descriptor_was_closed_is_refused() {
    play("h05_a_ring_whose_descriptor_was_closed_is_refused", || {
        let ring = harmless_ring();
        // SAFETY: the ring is forgotten below, so that nobody closes the number again.
        unsafe { libc::close(ring.as_raw_fd()) };
        is_refused(RingHold::NoDescriptor);
        std::mem::forget(ring);
    });
}

#[test]
fn h05_a_ring_that_was_used_is_refused() {
    play("h05_a_ring_that_was_used_is_refused", || {
        let mut ring = harmless_ring();
        let (read, write) = io::pipe().expect("a pipe");
        let memory = Memory::apart(page());
        let entry = opcode::Read::new(types::Fd(read.as_raw_fd()), memory.at(0).cast(), 1).build();
        // SAFETY: the scenario's own memory, which is never unmapped, and a descriptor that is open to its end.
        unsafe { ring.submission().push(&entry).expect("room") };
        ring.submit().expect("submitted");
        is_refused(RingHold::Requests { taken: 1, posted: 0 });
        io::Write::write_all(&mut &write, b"x").expect("written");
        ring.submitter().submit_and_wait(1).expect("it completes");
        assert_eq!(ring.completion().next().map(|entry| entry.result()), Some(1));
        // A request may complete often or never, so that equal counts prove nothing.
        is_refused(RingHold::Requests { taken: 1, posted: 1 });
    });
}

#[test]
fn h05_many_completions_of_one_request_hide_no_other() {
    play("h05_many_completions_of_one_request_hide_no_other", || {
        let mut ring = harmless_ring();
        let (read, _write) = io::pipe().expect("a pipe");
        // SAFETY: takes numbers and makes a descriptor.
        let event = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) };
        // SAFETY: made just now.
        let event = unsafe { std::fs::File::from_raw_fd(event) };
        let memory = Memory::apart(page());
        let poll = opcode::PollAdd::new(types::Fd(event.as_raw_fd()), libc::POLLIN as u32).multi(true).build();
        let pending = opcode::Read::new(types::Fd(read.as_raw_fd()), memory.at(0).cast(), 1).build();
        for entry in [poll, pending] {
            // SAFETY: the scenario's own memory, which is never unmapped, and descriptors that are open to its end.
            unsafe { ring.submission().push(&entry).expect("room") };
        }
        ring.submit().expect("submitted");
        for _ in 0..2 {
            io::Write::write_all(&mut &event, &1_u64.to_ne_bytes()).expect("written");
            if let Err(error) = ring.submitter().submit_and_wait(1) {
                skip(&format!("no polls with many completions (before Linux 5.13): {error}"));
            }
        }
        let posted = ring.completion().filter(|entry| entry.result() > 0).count();
        if posted != 2 {
            skip("polls with many completions are refused (before Linux 5.13)");
        }
        // As many completions as requests, both of which are under way.
        is_refused(RingHold::Requests { taken: 2, posted: 2 });
    });
}

/// Makes a context of Linux AIO.
fn context() -> usize {
    let mut context = 0_usize;
    // SAFETY: the kernel stores a word, to a local.
    if unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) } != 0 {
        skip(&format!("there is no Linux AIO here: {}", io::Error::last_os_error()));
    }
    context
}

#[test]
fn h05_a_context_of_linux_aio_is_refused() {
    play("h05_a_context_of_linux_aio_is_refused", || {
        let context = context();
        let refused = |result: Result<_, FreezeError>| match result {
            Err(FreezeError::LinuxAio { context: found }) => assert_eq!(found, context),
            other => panic!("{other:?}"),
        };
        refused(try_freeze(&options()));
        // A read that waits: `struct iocb` of `include/uapi/linux/aio_abi.h`. IOCB_CMD_PREAD on an empty pipe blocks
        // the submitter, so IOCB_CMD_POLL stands for all requests under way.
        const POLL: u64 = 5;
        let (read, write) = io::pipe().expect("a pipe");
        let mut request = [0_u64; 8];
        request[2] = POLL;
        request[2] |= u64::from(read.as_raw_fd().unsigned_abs()) << 32;
        request[3] = libc::POLLIN as u64;
        let requests = [&raw mut request];
        // SAFETY: one request, of the scenario's own, which outlives it.
        let submitted = unsafe { libc::syscall(libc::SYS_io_submit, context, 1_usize, requests.as_ptr()) };
        println!("{submitted} request under way");
        refused(try_freeze(&options()));
        try_freeze(&options().answer_for(Answer::LinuxAio)).expect("answered for");
        // A child has the ring and no context.
        // SAFETY: one thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let done = try_freeze(&options());
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(done.is_err())) };
        }
        assert_eq!(wait(child), 0);
        drop(write);
        // SAFETY: the context was made above; the request ends with it or has ended.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        try_freeze(&options()).expect("the context is gone");
    });
}

/// Fails on: a ring that is taken for harmless because it cannot be asked.
#[test]
fn where_asking_rings_kills_each_is_refused_unasked() {
    play("where_asking_rings_kills_each_is_refused_unasked", || {
        let ring = ring();
        common::filter(libc::SYS_io_uring_register, libc::SECCOMP_RET_KILL_PROCESS);
        assert!(matches!(hold(), Some(RingHold::Untold(Errno::PERM))), "{:?}", hold());
        drop(ring);
        // In this thread's table there may be another one, from before the filter.
        assert!(matches!(hold(), Some(RingHold::Untold(Errno::PERM))), "{:?}", hold());
    });
}

#[test]
fn a_filter_that_refuses_memory_policies_changes_nothing() {
    play("a_filter_that_refuses_memory_policies_changes_nothing", || {
        common::filter(libc::SYS_get_mempolicy, libc::SECCOMP_RET_ERRNO | Errno::PERM.raw_os_error().cast_unsigned());
        let memory = Memory::apart(16 << 20);
        memory.fill(0..memory.len, 1);
        try_freeze(&options()).expect("allowed");
        assert!(memory.holds(0..memory.len, 1) && memory.is_frozen());
    });
}

/// Freezes in a process whose other thread sets up a context of Linux AIO when the first signal is on its way to it:
/// the process was looked at, and nobody is held yet.
fn freeze_while_a_context_comes(freeze: fn() -> Result<(), FreezeError>) {
    let ([order, tell], [answers, answer]) = (pipe(), pipe());
    let call = Call { number: libc::SYS_rt_tgsigqueueinfo, third: None };
    let (program, listener) = notified::start(&[call], || {
        let (told, is_there) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // From here on it hears signals, and no tracer need hold it.
            told.send(()).expect("heard");
            let _ = rustix::io::read(&order, &mut [0_u8; 1]);
            let mut context = 0_usize;
            // SAFETY: the kernel stores a word, to a local.
            let is_made = unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) } == 0;
            rustix::io::write(&answer, &[u8::from(is_made)]).expect("heard");
            let _ = rustix::io::read(&order, &mut [0_u8; 1]);
        });
        is_there.recv().expect("told");
        let memory = Memory::apart(4 << 20);
        memory.fill(0..memory.len, 1);
        let refused = freeze();
        let is_right = matches!(refused, Err(FreezeError::LinuxAio { .. })) && palimpsest_fork::frozen_bytes() == 0;
        println!("{refused:?}");
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(!is_right)) };
    });
    let mut was_asked = false;
    let status = loop {
        if let Some(asked) = listener.next() {
            let mut is_made = [1_u8];
            if asked.who == program && !was_asked {
                rustix::io::write(&tell, b"x").expect("heard");
                rustix::io::read(&answers, &mut is_made).expect("answered");
                was_asked = true;
            }
            listener.let_go(asked);
            if is_made == [0] {
                // SAFETY: a child that was not waited for.
                unsafe { libc::kill(program, libc::SIGKILL) };
                wait(program);
                skip("there is no Linux AIO here");
            }
        }
        let program = rustix::process::Pid::from_raw(program);
        if let Some((_, status)) = rustix::process::waitpid(program, WaitOptions::NOHANG).expect("a child of ours") {
            break status;
        }
    };
    assert!(was_asked, "it holds no thread by a signal");
    assert_eq!(status.exit_status(), Some(0));
}

fn pipe() -> [OwnedFd; 2] {
    rustix::pipe::pipe().expect("descriptors").into()
}

/// Fails on: a freeze that holds others and does not look once more.
#[test]
fn h05_what_comes_between_the_look_and_the_hold_is_refused() {
    play("h05_what_comes_between_the_look_and_the_hold_is_refused", || {
        freeze_while_a_context_comes(|| try_freeze(&options().other_threads(OtherThreads::Stop)).map(drop));
    });
}

/// Fails on: a slice that holds others and does not look once more.
#[test]
fn h05_what_comes_between_the_look_and_the_hold_of_a_slice_is_refused() {
    play("h05_what_comes_between_the_look_and_the_hold_of_a_slice_is_refused", || {
        let maps = std::fs::File::open("/proc/self/maps").expect("/proc is mounted");
        if query::each_shared_file(maps.as_fd(), &mut |_| ControlFlow::Break(())).is_err() {
            skip("slices do not see that before Linux 6.11");
        }
        freeze_while_a_context_comes(|| {
            let in_slices = options().other_threads(OtherThreads::Stop).pause(Pause::Within(Duration::ZERO));
            try_freeze(&in_slices).expect("a plan holds nobody");
            // SAFETY: 1. as for the plan.
            unsafe { palimpsest_fork::freeze_slice() }.map(drop)
        });
    });
}

/// Fails on: a freeze that is refused for a call that it can do without, or that makes it: this process ends.
#[test]
fn calls_that_only_a_part_of_a_freeze_needs_refuse_that_part() {
    play("calls_that_only_a_part_of_a_freeze_needs_refuse_that_part", || {
        let memory = Memory::apart(16 << 20);
        memory.fill(0..memory.len, 1);
        for number in [
            libc::SYS_pkey_mprotect,
            libc::SYS_get_mempolicy,
            libc::SYS_mincore,
            libc::SYS_getrusage,
            libc::SYS_close_range,
            libc::SYS_rt_tgsigqueueinfo,
            libc::SYS_io_uring_register,
            libc::SYS_io_submit,
        ] {
            common::filter(number, libc::SECCOMP_RET_KILL_PROCESS);
        }
        let answered = Options::new().answer_for(Answer::IoUring);
        let report = try_freeze(&answered).expect("frozen");
        assert!(memory.is_frozen() && memory.holds(0..memory.len, 1), "{report}");
        let told = "a seccomp filter would end the program for get_mempolicy, io_uring_register, io_submit: ";
        assert!(report.notes.iter().any(|note| note.starts_with(told)), "{report}");
        let stop = Options::new().other_threads(OtherThreads::Stop);
        let refused = std::thread::spawn(move || try_freeze(&stop)).join().expect("it lives").expect_err("two threads");
        let FreezeError::Filtered { call, .. } = refused else { panic!("{refused}") };
        assert_eq!(call.number(), libc::SYS_rt_tgsigqueueinfo);
    });
}
