//! `select`.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::Duration;

use libc::{fd_set, sigset_t, timespec, timeval};

use super::{Wait, long, split, waits, wanted};
use crate::arch::system_call;
use crate::limit::{AT_ONCE, Limit, Step, duration};
use crate::own_waits::{own_pselect, own_select};
use crate::real_waits::{PSELECT, SELECT};
use crate::waits::{Set, can_be_given};
use crate::{confined, errno};

/// Returns the bytes of a set with this many descriptors.
const fn set_len(count: usize) -> usize {
    count.div_ceil(64) * 8
}

/// What `select` is asked for, so that it can be asked again: the kernel writes its answer in the same place, which is
/// a copy until there is one. Only the kernel touches the program's sets: what cannot be read or written is an error.
///
/// # Invariants
///
/// 1. Each set is null, or has room for this many descriptors, while the program's call lasts.
struct Asked<F> {
    sets: [*mut fd_set; 3],
    count: c_int,
    wanted: [fd_set; 3],
    answer: [fd_set; 3],
    call: F,
}

impl<F> Asked<F> {
    /// Reads the sets; `None` if there are more descriptors than a set has, if they cannot be read, or if a filter was
    /// seen.
    ///
    /// # Safety
    ///
    /// 1. Invariant 1.
    unsafe fn read(count: c_int, sets: [*mut fd_set; 3], call: F) -> Option<Self> {
        usize::try_from(count).ok().filter(|&count| count <= libc::FD_SETSIZE)?;
        // SAFETY: all zeros is a valid set.
        let empty: [fd_set; 3] = unsafe { std::mem::zeroed() };
        let mut asked = Self { sets, count, wanted: empty, answer: empty, call };
        let own = asked.wanted.each_mut().map(ptr::from_mut);
        // SAFETY: 1. the copies are this function's own.
        let is_read = || unsafe { asked.copy(libc::SYS_process_vm_readv, own) };
        confined::working(|| !confined::is_seen() && is_read() && can_be_given()).then_some(asked)
    }

    /// Copies between the program's sets and `own` through the kernel. Returns false if it refuses.
    ///
    /// # Safety
    ///
    /// 1. What the call writes may be written, if it exists.
    unsafe fn copy(&self, call: libc::c_long, own: [*mut fd_set; 3]) -> bool {
        let len = set_len(self.count as usize);
        let part = |set: *mut fd_set, other: *mut fd_set| libc::iovec {
            iov_base: set.cast::<c_void>(),
            iov_len: if other.is_null() { 0 } else { len },
        };
        let pairs = [0, 1, 2].map(|number| (own[number], self.sets[number]));
        let [own, program] = [pairs.map(|(own, set)| part(own, set)), pairs.map(|(_, set)| part(set, set))];
        let all: usize = own.iter().map(|part| part.iov_len).sum();
        let process = rustix::process::getpid().as_raw_nonzero().get() as usize;
        let arguments = [process, own.as_ptr().expose_provenance(), 3, program.as_ptr().expose_provenance(), 3, 0];
        // SAFETY: (1); the lists outlive the call.
        all == 0 || usize::try_from(unsafe { system_call(call, arguments) }) == Ok(all)
    }

    /// Makes the next answer from what is wanted, and returns where the kernel is to write it.
    fn places(&mut self) -> [*mut fd_set; 3] {
        self.answer = self.wanted;
        let mut places = self.answer.each_mut().map(ptr::from_mut);
        for (place, _) in places.iter_mut().zip(self.sets).filter(|(_, set)| set.is_null()) {
            *place = ptr::null_mut();
        }
        places
    }
}

impl<F: Fn(Step) -> c_int> Wait for Asked<F> {
    fn look(&mut self, mask: Option<Set>) -> isize {
        let (time, mask) = (AT_ONCE, mask.map(long));
        let time = &raw const time;
        let mask = mask.as_ref().map_or(ptr::null(), ptr::from_ref);
        // The last argument of `pselect6`: a mask and its size.
        let mask = (mask.expose_provenance(), size_of::<Set>());
        let [read, write, except] = self.places().map(|set| set.expose_provenance());
        let (time, mask) = (time.expose_provenance(), (&raw const mask).expose_provenance());
        let arguments = [self.count as usize, read, write, except, time, mask];
        // SAFETY: the copies are long enough for all descriptors; all outlives the call.
        unsafe { system_call(libc::SYS_pselect6, arguments) }
    }

    fn wait(&mut self, step: Step, mask: Set) -> isize {
        let (time, mask) = (step.time(), long(mask));
        let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        let [read, write, except] = self.places();
        // SAFETY: as in `look`.
        waits(|| unsafe { PSELECT.or(own_pselect)(self.count, read, write, except, time, &raw const mask) })
    }

    fn call(&mut self, left: Step) -> c_int {
        (self.call)(left)
    }

    fn give(&mut self, answer: isize) -> Option<isize> {
        if answer < 0 {
            return Some(answer);
        }
        if confined::is_seen() {
            return None;
        }
        let own = self.answer.each_mut().map(ptr::from_mut);
        // SAFETY: 1. invariant 1.
        let is_given = unsafe { self.copy(libc::SYS_process_vm_writev, own) };
        Some(if is_given { answer } else { -(libc::EFAULT as isize) })
    }
}

/// Returns a time for `select`: no less than asked for; `None` for ever.
fn micros(left: Step) -> Option<timeval> {
    let time = match left {
        Step::For(time) => time.saturating_add(Duration::from_nanos(999)),
        Step::Forever => return None,
    };
    let seconds = libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX);
    Some(timeval { tv_sec: seconds, tv_usec: time.subsec_micros().into() })
}

/// `select(2)`: tells how much of the time was left.
///
/// # Safety
///
/// 1. As for the C library's function.
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    // SAFETY: contract 1.
    let call = |time| unsafe { SELECT.or(own_select)(count, read, write, except, time) };
    // SAFETY: null, or a time by contract 1.
    let told = unsafe { time.as_ref() }.copied();
    let duration_of = |time: timeval| {
        let micros = u64::try_from(time.tv_usec).ok()?;
        Some(Duration::from_secs(u64::try_from(time.tv_sec).ok()?) + Duration::from_micros(micros))
    };
    let limit = told.map_or(Some(None), |time| duration_of(time).map(Some));
    if let Some(limit) = limit
        && let Some(started) = wanted(limit, [SELECT.address(), PSELECT.address()])
        // SAFETY: 1. contract 1.
        && let Some(mut asked) = unsafe {
            Asked::read(count, [read, write, except], |left| {
                call(micros(left).as_mut().map_or(ptr::null_mut(), ptr::from_mut))
            })
        }
    {
        let limit = Limit::after(limit);
        let answer = split(started, limit, None, &mut asked);
        // SAFETY: null, or a time by contract 1.
        if let (Some(time), Step::For(left)) = (unsafe { time.as_mut() }, limit.left()) {
            time.tv_sec = libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX);
            time.tv_usec = left.subsec_micros().into();
        }
        return errno::answer(answer) as c_int;
    }
    call(time)
}

/// `pselect(2)`.
///
/// # Safety
///
/// 1. As for the C library's function.
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: contract 1.
    let call = |time| unsafe { PSELECT.or(own_pselect)(count, read, write, except, time, mask) };
    // SAFETY: null, or a time by contract 1.
    let told = unsafe { time.as_ref() }.copied();
    let limit = told.map_or(Some(None), |time| duration(time).map(Some));
    let call_for = |left: Step| call(left.time().as_ref().map_or(ptr::null(), ptr::from_ref));
    if let Some(limit) = limit
        && let Some(started) = wanted(limit, [PSELECT.address(), PSELECT.address()])
        // SAFETY: 1. contract 1.
        && let Some(mut asked) = unsafe { Asked::read(count, [read, write, except], call_for) }
    {
        // SAFETY: null, or a set by contract 1.
        let mask = unsafe { Set::read(mask) };
        let answer = split(started, Limit::after(limit), mask, &mut asked);
        return errno::answer(answer) as c_int;
    }
    call(time)
}
