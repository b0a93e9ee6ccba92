//! How a deputy gives up its rights: it keeps no descriptor, and a filter leaves it the calls that it has yet to make.
//!
//! Whoever can write to the program's memory can make the deputy run other code, or its call with other arguments. With
//! the rights of the superuser, `madvise` could do more than ask for huge pages (`MADV_HWPOISON`), so that the filter
//! compares its advice. Anything else fails with EPERM: a filter that kills would leave a core dump of the program.
//!
//! Sources: `seccomp(2)`, `close_range(2)`, `include/uapi/linux/{seccomp,filter}.h`.

use std::mem::{offset_of, size_of};

use crate::arch::{AUDIT_ARCH, system_call};

/// What the filter sees of a call (`struct seccomp_data`).
#[repr(C)]
struct Call {
    number: i32,
    arch: u32,
    instruction: u64,
    /// The lower halves come first: both architectures are little-endian.
    arguments: [[u32; 2]; 6],
}

const NUMBER: u32 = offset_of!(Call, number) as u32;
const ARCH: u32 = offset_of!(Call, arch) as u32;
/// The second argument of `futex`, and the third of `madvise`. The kernel takes both for ints.
const OPERATION: u32 = (offset_of!(Call, arguments) + size_of::<u64>()) as u32;
const ADVICE: u32 = (offset_of!(Call, arguments) + 2 * size_of::<u64>()) as u32;

const fn load(offset: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

/// Skips `then` instructions if the loaded word is `value`, else `otherwise`.
const fn compare(value: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: then, jf: otherwise, k: value }
}

const fn answer(action: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: action }
}

/// The filter. Its last two instructions refuse and allow.
const FILTER: [libc::sock_filter; 14] = [
    load(ARCH),
    compare(AUDIT_ARCH, 0, 10),
    load(NUMBER),
    compare(libc::SYS_exit_group as u32, 9, 0),
    compare(libc::SYS_exit as u32, 8, 0),
    compare(libc::SYS_sched_yield as u32, 7, 0),
    compare(libc::SYS_madvise as u32, 0, 2),
    load(ADVICE),
    compare(libc::MADV_COLLAPSE as u32, 4, 3),
    compare(libc::SYS_futex as u32, 0, 2),
    load(OPERATION),
    compare((libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as u32, 1, 0),
    answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    answer(libc::SECCOMP_RET_ALLOW),
];

/// Leaves the calling thread no descriptor and only the calls of a deputy. Returns the kernel's error if it refuses;
/// some rights may be given up then. Makes bare system calls only.
pub(super) fn give_up_rights() -> Result<(), u32> {
    keep_no_descriptor()?;
    allow_own_calls()
}

/// Closes the descriptors, in a table of the thread's own.
fn keep_no_descriptor() -> Result<(), u32> {
    let all = [0, u32::MAX as usize, libc::CLOSE_RANGE_UNSHARE as usize];
    // SAFETY: takes numbers; whoever shares the table keeps its own.
    error(unsafe { system_call(libc::SYS_close_range, all) })
}

/// Installs the filter.
fn allow_own_calls() -> Result<(), u32> {
    let filter = libc::sock_fprog { len: FILTER.len() as u16, filter: FILTER.as_ptr().cast_mut() };
    let install = [libc::PR_SET_SECCOMP as usize, libc::SECCOMP_MODE_FILTER as usize, (&raw const filter).addr()];
    // Without it, only a superuser may install filters. SAFETY: takes numbers.
    error(unsafe { system_call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0]) })?;
    // SAFETY: the kernel reads the filter, which outlives the call.
    error(unsafe { system_call(libc::SYS_prctl, install) })
}

/// Returns the error in the kernel's answer.
fn error(answer: isize) -> Result<(), u32> {
    if answer < 0 { Err(answer.unsigned_abs() as u32) } else { Ok(()) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::threads::child;

    /// What a kernel answers that has no `close_range`, or a filter that keeps a call from the tests.
    pub(in super::super) fn refusal() -> Option<i32> {
        // SAFETY: 1. it makes system calls only.
        let child = unsafe { child::spawn(&[], || give_up_rights().map_or_else(|errno| errno as i32, |()| 0)) };
        // A child that has given up its rights may still end.
        let status = child.expect("a child").wait().expect("nobody else waits for it");
        assert!(libc::WIFEXITED(status), "{status:#x}");
        Some(libc::WEXITSTATUS(status)).filter(|errno| *errno != 0)
    }

    /// Fails on: a filter that allows more than a deputy's calls, or less; a descriptor that stays open.
    #[test]
    fn a_deputy_keeps_no_right_but_its_own_calls() {
        const REFUSED: isize = -(libc::EPERM as isize);
        static WORD: u32 = 0;
        let word = (&raw const WORD).addr();
        let calls = [
            (libc::SYS_getppid, [0; 3], true),
            (libc::SYS_kill, [0; 3], true),
            (libc::SYS_openat, [0; 3], true),
            (libc::SYS_madvise, [0, 0, libc::MADV_DONTNEED as usize], true),
            (libc::SYS_madvise, [0, 0, libc::MADV_HWPOISON as usize], true),
            (libc::SYS_madvise, [0, 0, libc::MADV_COLLAPSE as usize | 1 << 32], false),
            (libc::SYS_madvise, [0, 0, libc::MADV_COLLAPSE as usize], false),
            (libc::SYS_sched_yield, [0; 3], false),
            (libc::SYS_futex, [word, libc::FUTEX_WAIT as usize, 1], true),
            (libc::SYS_futex, [word, (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize, 1], false),
        ];
        let errand = || {
            // SAFETY: takes numbers.
            let descriptor = || unsafe { system_call(libc::SYS_fcntl, [1, libc::F_GETFD as usize]) };
            if descriptor() < 0
                || keep_no_descriptor().is_err()
                || descriptor() != -(libc::EBADF as isize)
                || allow_own_calls().is_err()
            {
                return 1;
            }
            for (index, (number, arguments, is_refused)) in calls.into_iter().enumerate() {
                // SAFETY: no call touches memory, but the word that lives for ever.
                let answer = unsafe { system_call(number, arguments) };
                if (answer == REFUSED) != is_refused {
                    return 2 + index as i32;
                }
            }
            0
        };
        if let Some(errno) = refusal() {
            return println!("skipped: a deputy cannot give up its rights here (errno {errno})");
        }
        // SAFETY: 1. it makes system calls only.
        let child = unsafe { child::spawn(&[], errand) }.expect("a child");
        assert_eq!(child.wait(), Ok(0), "1: the descriptors; 2 and more: that call's answer");
    }
}
