//! The helpers for timers: they let [`timer`](crate::timer) call functions of compiled programs.
#![expect(unsafe_code, reason = "a timer calls compiled code, which is kept for it")]

use alloc::sync::Arc;

use super::call::{Call, failed};
use super::gate::function;
use super::kept::Kept;
use super::{handle, program, run};
use crate::interp::{Answer, HelperError};
use crate::jit::Outcome;
use crate::map::Map;
use crate::timer::{self, Callback, Ended, From, TimerClock, TimerError};

/// The timers of a host's maps.
pub(crate) type Timers = timer::Timers<OnTimer>;

type Answered = Result<Answer, HelperError>;

/// A function of a program, and its arguments.
///
/// # Invariants
///
/// 1. `function` is one of the compiled functions of `kept`, and was verified for these `arguments`: the timer's map,
///    and the addresses of a key and a value of that map.
#[derive(Clone)]
pub(crate) struct OnTimer {
    kept: Arc<Kept>,
    function: u64,
    arguments: [u64; 3],
}

impl Callback for OnTimer {
    fn call(&self) -> Ended {
        // Keeps the host, and so its maps, during the call.
        let Some(host) = self.kept.host.upgrade() else { return Ended::Returned };
        let [map, key, value] = self.arguments;
        let enter = || -> Outcome {
            // SAFETY: it is a compiled function (invariant 1), whose code `self` keeps.
            let function = unsafe { function(self.function) };
            function(map, key, value, 0, self.kept.fuel)
        };
        program::run_later(&host, &self.kept, enter)
    }

    fn is_alive(&self) -> bool {
        self.kept.host.strong_count() > 0
    }
}

/// Finds the map that holds the timer at the first argument's address: its index and the map.
fn map<'a>(call: &Call<'a>) -> Result<(u32, &'a Map), HelperError> {
    let address = call.number(0);
    let found = (0..).zip(call.maps()).find(|(_, map)| map.timed_element(address).is_some());
    found.map(|(index, map)| (index, &**map)).ok_or(HelperError::NoArgument { index: 0 })
}

/// What drives a map's timers. Nothing does in a child whose parent was about to give the map to a host.
fn driver(map: &Map) -> Result<&Timers, TimerError> {
    map.timed().get().map(|timers| &**timers).ok_or(TimerError::Child)
}

fn status(result: Result<u64, TimerError>) -> Answered {
    result.map_or_else(|error| failed(error.errno()), |value| Ok(Answer::Value(value)))
}

/// `bpf_timer_init`.
pub(super) fn init(call: &mut Call<'_>) -> Answered {
    let (_, map) = map(call)?;
    let clock = TimerClock::new(call.number(2)).ok_or(TimerError::Invalid);
    status(clock.and_then(|clock| driver(map)?.init(call.number(0), clock)).map(|()| 0))
}

/// `bpf_timer_set_callback`.
pub(super) fn set_callback(call: &mut Call<'_>) -> Answered {
    let (index, map) = map(call)?;
    let address = call.number(0);
    let (Some(element), true) = (map.timed_element(address), call.is_compiled()) else {
        return Err(HelperError::Timer);
    };
    // Kept of the program that makes the call. A program with another runner has none, or one without this function.
    let kept = run::kept().filter(|kept| kept.has(call.number(1))).ok_or(HelperError::Timer)?;
    // Invariant 1: the verifier has followed the function that this call names, with the map that holds this timer.
    let arguments = [handle(index), element.key, element.value];
    let callback = OnTimer { kept, function: call.number(1), arguments };
    status(driver(map).and_then(|timers| timers.set_callback(address, callback)).map(|()| 0))
}

/// `bpf_timer_start`.
pub(super) fn start(call: &mut Call<'_>) -> Answered {
    let (_, map) = map(call)?;
    let from = match call.number(2) {
        0 => Ok(From::Now),
        1 => Ok(From::Beginning),
        // `BPF_F_TIMER_CPU_PIN` is refused: one thread, bound to no CPU, calls all timers.
        _ => Err(TimerError::Invalid),
    };
    status(from.and_then(|from| driver(map)?.start(call.number(0), call.number(1), from)).map(|()| 0))
}

/// `bpf_timer_cancel`.
pub(super) fn cancel(call: &mut Call<'_>) -> Answered {
    let (_, map) = map(call)?;
    status(driver(map).and_then(|timers| timers.cancel(call.number(0))).map(u64::from))
}
