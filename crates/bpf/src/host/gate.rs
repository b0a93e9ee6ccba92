//! Where compiled code calls helpers, and helpers call compiled code: here addresses become memory.
#![expect(unsafe_code, reason = "what compiled code passes are addresses, which the verifier vouches for")]

use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::with_exposed_provenance;

use super::quick::{self, Quick};
use super::vouched::Vouched;
use super::{Entry, Host, Runner};
use crate::insn::Callee;
use crate::interp::{Answer, HelperError, Iteration};
use crate::jit::{Called, Outcome, Resolve, STOPPED, Then};
use crate::map::ArrayPlace;
use crate::verify::{TAIL_CALL, Unproven};

/// Compiled code calls this for each helper of a host, with `r1` to `r5` and the address of the [`Entry`].
///
/// # Safety
///
/// 1. `entry` is the address of an [`Entry`] that lives during the call.
/// 2. The arguments are what the entry's signature says: the thread may read or write as many bytes at addresses as it
///    says, and functions are compiled functions of the program, which may be called with what the helper passes them.
///    For a helper that calls functions, `r5` is the gauge.
pub(crate) unsafe extern "C" fn enter<R: Runner>(r1: u64, r2: u64, r3: u64, r4: u64, r5: u64, entry: u64) -> Outcome {
    let place: *const Entry = with_exposed_provenance(entry as usize);
    // SAFETY: 1. entries do not change while programs have their addresses.
    let entry = unsafe { &*place };
    // SAFETY: 1. helpers touch only the bytes of their arguments (2 here).
    let mut vouched = unsafe { Vouched::<R>::new() };
    // The answer is the helper's own (1 of `Runner`): an address that it returns is one, and so is its function.
    match R::guard(|| entry.call([r1, r2, r3, r4, r5], &mut vouched)) {
        Ok(Answer::Value(value)) => Outcome { value, gauge: if entry.calls() { r5 as i64 } else { 0 } },
        Ok(Answer::Iterate(mut iteration)) => {
            let outcome = iterate(&mut iteration, r5 as i64);
            // The end of draining a ring calls the host's waker, which may panic.
            let end = || {
                drop(iteration);
                Ok(Answer::Value(0))
            };
            match R::guard(end) {
                Ok(_) => outcome,
                Err(error) => ended::<R>(entry, error),
            }
        }
        Err(error) => ended::<R>(entry, error),
    }
}

/// Compiled code calls this for helpers that `Q` can do without all that [`enter`] prepares for any helper.
///
/// # Safety
///
/// As of [`enter`].
unsafe extern "C" fn enter_quickly<R: Runner, Q: Quick>(
    r1: u64,
    r2: u64,
    r3: u64,
    r4: u64,
    r5: u64,
    entry: u64,
) -> Outcome {
    let place: *const Entry = with_exposed_provenance(entry as usize);
    // SAFETY: 1. as in `enter`.
    let known = unsafe { &*place };
    // SAFETY: 1. helpers touch only the bytes of their arguments (2 here).
    let vouched = unsafe { Vouched::<R>::new() };
    match Q::call::<R>([r1, r2, r3, r4], known, &vouched) {
        Ok(Some(value)) => Outcome { value, gauge: 0 },
        // SAFETY: 1., 2. these are our own arguments.
        Ok(None) => unsafe { enter::<R>(r1, r2, r3, r4, r5, entry) },
        Err(error) => ended::<R>(known, error),
    }
}

/// Notes that a helper has failed, and ends the program.
#[cold]
fn ended<R: Runner>(entry: &Entry, error: HelperError) -> Outcome {
    R::failed(entry.callee, error);
    Outcome { value: 0, gauge: STOPPED }
}

/// What a host has for programs that `R` runs.
pub(crate) struct RunBy<'a, R>(&'a Host, Unproven, PhantomData<fn() -> R>);

impl<'a, R> RunBy<'a, R> {
    pub(crate) const fn new(host: &'a Host, unproven: Unproven) -> Self {
        Self(host, unproven, PhantomData)
    }
}

impl<R: Runner> Resolve for RunBy<'_, R> {
    fn helper(&self, id: i32) -> Option<Called> {
        // The verifier has found that the program never reaches a helper that this host lacks.
        Some(called::<R>(self.0.entry_for(id, self.1).unwrap_or(&self.0.absent)))
    }

    fn function(&self, index: i32) -> Option<Called> {
        Some(called::<R>(Host::function(self.0, index).unwrap_or(&self.0.absent)))
    }

    fn map(&self, index: i32) -> Option<u64> {
        self.0.map_handle(index)
    }

    fn array(&self, map: i32) -> Option<ArrayPlace> {
        self.0.array_place(map)
    }

    fn map_value(&self, map: i32, offset: u32) -> Option<u64> {
        Host::map_value(self.0, map, offset)
    }

    fn values(&self, map: i32) -> Option<Range<u64>> {
        Host::values(self.0, map)
    }
}

/// Returns how compiled code calls it.
fn called<R: Runner>(entry: &Entry) -> Called {
    let data = core::ptr::from_ref(entry).expose_provenance() as u64;
    let then = match entry.callee {
        Callee::Helper(TAIL_CALL) => Then::LeaveUnlessZero,
        _ if entry.calls() => Then::Calls,
        _ => Then::MayStop,
    };
    let function = match entry.quick {
        None => enter::<R> as *const (),
        Some(quick::Kind::LookUp) => enter_quickly::<R, quick::LookUp> as *const (),
        Some(quick::Kind::Update) => enter_quickly::<R, quick::Update> as *const (),
        #[cfg(feature = "std")]
        Some(quick::Kind::Time) => return plain(quick::time as *const ()),
        Some(quick::Kind::Processor) => return plain(quick::processor::<R> as *const ()),
        Some(quick::Kind::Output) => enter_quickly::<R, quick::Output> as *const (),
        Some(quick::Kind::Reserve) => enter_quickly::<R, quick::Reserve> as *const (),
        Some(quick::Kind::Submit) => enter_quickly::<R, quick::Submit> as *const (),
        Some(quick::Kind::Discard) => enter_quickly::<R, quick::Discard> as *const (),
    };
    Called { function: function as u64, data: Some(data), then }
}

/// Returns how compiled code calls a function that takes nothing and always returns a number: a program that calls no
/// other has nothing to check behind a call, nor to prepare for a run.
fn plain(function: *const ()) -> Called {
    Called { function: function as u64, data: None, then: Then::GoOn }
}

/// A compiled function that helpers or timers call, with four arguments and the gauge.
pub(super) type Function = extern "C" fn(u64, u64, u64, u64, i64) -> Outcome;

/// Returns the compiled function at this address.
///
/// # Safety
///
/// 1. The address is an argument of a helper whose signature says that it is a function of the program.
/// 2. The function is called with such arguments as the verifier has followed it with; its program and host stay during
///    the calls.
pub(super) unsafe fn function(address: u64) -> Function {
    let place = with_exposed_provenance::<()>(address as usize);
    // SAFETY: the compiler makes such functions callable in this way (1).
    unsafe { core::mem::transmute::<*const (), Function>(place) }
}

/// Calls a function of a program again and again, as long as that can be paid for.
fn iterate(iteration: &mut Iteration, mut gauge: i64) -> Outcome {
    // SAFETY: 1. an iteration is made of such an argument, of the call that was just made (1 of `Runner`). 2. it says
    // what the helper gives, and the program that called that helper is running.
    let function = unsafe { function(iteration.function()) };
    let mut last = None;
    while let Some([r1, r2, r3, r4, _]) = iteration.next(last) {
        gauge -= 1;
        if gauge < 0 {
            return Outcome { value: 0, gauge };
        }
        let outcome = function(r1, r2, r3, r4, gauge);
        gauge = outcome.gauge;
        if gauge < 0 {
            return Outcome { value: 0, gauge };
        }
        last = Some(outcome.value);
    }
    Outcome { value: iteration.made(), gauge }
}
