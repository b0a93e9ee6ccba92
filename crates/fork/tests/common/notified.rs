//! Holds processes before their system calls: a filter has this process asked about each (`SECCOMP_RET_USER_NOTIF`).
//! Or has them refused.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use super::skip;

/// How long to wait for a question before another look at the rest, in milliseconds. Nothing depends on it.
const PATIENCE: i32 = 10;

/// A system call that is asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    pub(crate) number: libc::c_long,
    /// Only with this as its third argument.
    pub(crate) third: Option<i32>,
}

/// Where questions come.
pub(crate) struct Listener(OwnedFd);

/// A process that is held before a system call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    id: u64,
    /// The id of its thread.
    pub(crate) who: i32,
    pub(crate) call: libc::c_long,
}

/// Plays `play` in a child that asks before these calls, and whose children do. Returns its process id.
pub(crate) fn start(calls: &[Call], play: impl FnOnce() + Send) -> (i32, Listener) {
    // A filter belongs to the thread that has installed it, and to those that it makes.
    let started = std::thread::scope(|scope| {
        let starter = scope.spawn(|| {
            let listener = listen(calls);
            // SAFETY: the only other thread waits for this one, and holds no lock.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                drop(listener);
                // A thread that panics would be the last one, and its process would end well.
                let _panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
                // SAFETY: ends the child.
                unsafe { libc::_exit(101) };
            }
            (child, listener)
        });
        starter.join()
    });
    started.expect("it starts a process")
}

/// Refuses these calls to this thread, and to those that it makes.
pub(crate) fn refuse(calls: &[Call], errno: i32) {
    assert_eq!(install(calls, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned(), 0), 0);
}

/// Has these calls kill the process that makes one: this thread's, and those that it makes.
pub(crate) fn kill_for(calls: &[Call]) {
    assert_eq!(install(calls, libc::SECCOMP_RET_KILL_PROCESS, 0), 0);
}

/// Installs a filter that asks about these calls.
fn listen(calls: &[Call]) -> Listener {
    let made = install(calls, libc::SECCOMP_RET_USER_NOTIF, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    if made < 0 {
        skip("the kernel asks nobody about calls (SECCOMP_RET_USER_NOTIF)");
    }
    // SAFETY: a new descriptor, which nobody else knows.
    Listener(unsafe { OwnedFd::from_raw_fd(made as RawFd) })
}

/// Installs a filter that answers these calls so. Returns the kernel's answer.
fn install(calls: &[Call], action: u32, flags: libc::c_ulong) -> libc::c_long {
    let statement = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset: usize| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset as u32);
    let unless = |value: u32, over: u8| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, over, value);
    let answer = |action: u32| statement(libc::BPF_RET | libc::BPF_K, 0, 0, action);
    let mut program = Vec::new();
    for Call { number, third } in calls {
        program.push(load(0));
        program.push(unless(*number as u32, if third.is_some() { 3 } else { 1 }));
        if let Some(third) = third {
            // Its lower half, on machines with the lower one first.
            program.push(load(std::mem::offset_of!(libc::seccomp_data, args) + 2 * 8));
            program.push(unless(*third as u32, 1));
        }
        program.push(answer(action));
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true).expect("always allowed");
    // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
    unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) }
}

impl Listener {
    /// Returns who is held, if somebody soon is.
    pub(crate) fn next(&self) -> Option<Asked> {
        if !has_more_within(&self.0, PATIENCE) {
            return None;
        }
        // SAFETY: numbers.
        let mut asked = unsafe { std::mem::zeroed::<libc::seccomp_notif>() };
        // SAFETY: `asked` outlives the call. If it fails, who has asked is gone.
        let told = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) };
        let call = libc::c_long::from(asked.data.nr);
        (told == 0).then(|| Asked { id: asked.id, who: asked.pid.cast_signed(), call })
    }

    /// Returns whether a process is still held: another one may have ended it.
    pub(crate) fn is_waiting(&self, asked: &Asked) -> bool {
        // SAFETY: the number outlives the call, which reads it.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const asked.id) == 0 }
    }

    /// Lets a process make its call; one that has ended meanwhile needs no answer. Ends the scenario if the kernel
    /// cannot let it.
    pub(crate) fn let_go(&self, asked: Asked) {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let mut answer = libc::seccomp_notif_resp { id: asked.id, val: 0, error: 0, flags };
        // SAFETY: `answer` outlives the call.
        let told = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
        if told < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
            skip("a kernel before 5.5, or an emulated one: a call that is asked about cannot go on");
        }
    }
}

/// Whether there is something to read.
pub(crate) fn has_more(file: &impl std::os::fd::AsRawFd) -> bool {
    has_more_within(file, 0)
}

fn has_more_within(file: &impl std::os::fd::AsRawFd, milliseconds: i32) -> bool {
    let mut asked = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one description, which outlives the call.
    unsafe { libc::poll(&raw mut asked, 1, milliseconds) == 1 && asked.revents & libc::POLLIN != 0 }
}
