//! Keeping signal handlers out while memory is moved: what they wrote would be lost.

use std::marker::PhantomData;

/// All signals of this thread are blocked while this lives, those that libc keeps for itself included.
#[derive(Debug)]
pub(crate) struct Blocked {
    before: u64,
    /// A mask belongs to a thread.
    not_send: PhantomData<*mut ()>,
}

impl Blocked {
    pub(crate) fn all() -> Self {
        Self { before: exchange(u64::MAX), not_send: PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        exchange(self.before);
    }
}

fn exchange(mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: both sets are 8 bytes long, as the last argument says, and outlive the call.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, size_of::<u64>())
    };
    before
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::proc::status::Status;

    use super::*;

    #[test]
    fn the_mask_comes_back() {
        let mask = || Status::of_this_thread().expect("/proc is mounted").blocked.expect("shown").0;
        let before = mask();
        {
            let _blocked = Blocked::all();
            // SIGKILL and SIGSTOP cannot be blocked.
            assert_eq!(mask().count_ones(), 62);
        }
        assert_eq!(mask(), before);
    }
}
