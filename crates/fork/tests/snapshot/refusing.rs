//! Kernels that refuse what others do.
//!
//! One that unmaps memory and then has none for the mapping that was to replace it, as `mmap(2)` says of
//! `MAP_FIXED`: another thread answers the `mmap` calls at one address (`seccomp_unotify(2)`).

use std::io;
use std::mem::{MaybeUninit, offset_of};

/// Which calls of `mmap` at the address fail.
#[derive(Clone, Copy)]
pub(crate) enum Refuses {
    /// The first.
    Once,
    /// All.
    Always,
}

// `include/uapi/linux/seccomp.h`; the same on all architectures that Palimpsest runs on.
const RECEIVE: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;

/// Makes `mmap(address, …, MAP_FIXED)` of this thread unmap and fail from now on. Such errors come from kernels before
/// 5.5 and from emulators.
pub(crate) fn unmap_and_refuse(address: usize, refuses: Refuses) -> io::Result<()> {
    let listener = listen(address)?;
    std::thread::spawn(move || {
        for turn in 0_u32.. {
            answer(listener, turn == 0 || matches!(refuses, Refuses::Always));
        }
    });
    Ok(())
}

/// Waits until the filtered thread makes its call.
fn receive(listener: i32) -> libc::seccomp_notif {
    // SAFETY: zeros are a valid value, and what the kernel expects.
    let mut asked: libc::seccomp_notif = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the kernel fills a local of the type that it expects.
    assert_eq!(unsafe { libc::ioctl(listener, RECEIVE, &raw mut asked) }, 0, "{}", io::Error::last_os_error());
    asked
}

/// Lets the thread go on.
fn reply(listener: i32, reply: libc::seccomp_notif_resp) {
    // SAFETY: the kernel reads a local of the type that it expects.
    assert_eq!(unsafe { libc::ioctl(listener, SEND, &raw const reply) }, 0, "{}", io::Error::last_os_error());
}

fn makes_its_call(id: u64) -> libc::seccomp_notif_resp {
    libc::seccomp_notif_resp { id, val: 0, error: 0, flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 }
}

fn answer(listener: i32, refuses: bool) {
    let asked = receive(listener);
    if !refuses {
        return reply(listener, makes_its_call(asked.id));
    }
    let [address, len, ..] = asked.data.args;
    // SAFETY: what the thread that waits for the answer asked the kernel to replace.
    assert_eq!(unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(address as usize), len as usize) }, 0);
    reply(listener, libc::seccomp_notif_resp { error: -libc::ENOMEM, flags: 0, ..makes_its_call(asked.id) });
}

/// Makes this call fail with ENOSYS, as kernels do that lack it.
pub(crate) fn refuse_call(number: i64) -> io::Result<()> {
    let mut program = [
        step(LOAD, offset_of!(libc::seccomp_data, nr) as u32, 0),
        step(IS, number as u32, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0),
    ];
    install(&mut program, 0).map(drop)
}

/// Makes `madvise` with this advice fail with EINVAL, as kernels do that do not know it.
pub(crate) fn refuse_advice(advice: i32) -> io::Result<()> {
    let mut program = [
        step(LOAD, offset_of!(libc::seccomp_data, nr) as u32, 0),
        step(IS, libc::SYS_madvise as u32, 3),
        step(LOAD, argument(2), 0),
        step(IS, advice as u32, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0),
    ];
    install(&mut program, 0).map(drop)
}

/// Lets `seen` run, on another thread, whenever this thread makes this call, before it is made.
pub(crate) fn watch_call(number: i64, seen: impl Fn() + Send + 'static) -> io::Result<()> {
    let mut program = [
        step(LOAD, offset_of!(libc::seccomp_data, nr) as u32, 0),
        step(IS, number as u32, 1),
        step(RETURN, libc::SECCOMP_RET_USER_NOTIF, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let listener = install(&mut program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    std::thread::spawn(move || {
        loop {
            let asked = receive(listener);
            seen();
            reply(listener, makes_its_call(asked.id));
        }
    });
    Ok(())
}

/// Installs the filter of [`unmap_and_refuse`].
fn listen(address: usize) -> io::Result<i32> {
    let mut program = [
        step(LOAD, offset_of!(libc::seccomp_data, nr) as u32, 0),
        step(IS, libc::SYS_mmap as u32, 7),
        step(LOAD, argument(0), 0),
        step(IS, address as u32, 5),
        step(LOAD, argument(0) + 4, 0),
        step(IS, (address >> 32) as u32, 3),
        step(LOAD, argument(3), 0),
        step(HAS, libc::MAP_FIXED as u32, 1),
        step(RETURN, libc::SECCOMP_RET_USER_NOTIF, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0),
    ];
    install(&mut program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const HAS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// A step that skips `jf` steps if it finds something else.
fn step(code: u16, k: u32, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf, k }
}

/// Where the low half of an argument is.
fn argument(index: usize) -> u32 {
    (offset_of!(libc::seccomp_data, args) + 8 * index) as u32
}

/// Installs a filter, for this thread only. Returns a descriptor if `flags` ask for one.
fn install(program: &mut [libc::sock_filter], flags: libc::c_ulong) -> io::Result<i32> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: takes numbers.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program is the caller's, and outlives the call.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as i32) }
}
