//! Helpers that ask the operating system, and those that print.

use palimpsest_sys::clock::Clock;

use super::call::{Call, failed};
use super::format::{Lossy, MOST, Printer, until_zero};
use crate::interp::{Answer, HelperError};

fn now(clock: Clock) -> Result<Answer, HelperError> {
    Ok(Answer::Value(clock.nanoseconds()))
}

pub(super) fn monotonic(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    now(Clock::Monotonic)
}

pub(super) fn coarse(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    now(Clock::Coarse)
}

pub(super) fn since_start(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    now(Clock::Boot)
}

pub(super) fn atomic(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    now(Clock::Atomic)
}

/// The node that the thread runs on.
pub(super) fn node(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    Ok(Answer::Value(palimpsest_sys::numa::current_node().0.into()))
}

/// Returns 32 bits that nobody can predict.
pub(super) fn random(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    Ok(Answer::Value(crate::random::number() >> 32))
}

/// The process in the upper half, the thread in the lower.
pub(super) fn process(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let thread = palimpsest_sys::threads::own::own_thread();
    Ok(Answer::Value(u64::from(std::process::id()) << 32 | u64::from(thread as u32)))
}

/// The thread's user in the lower half, its group in the upper: the real ones, as its own user namespace numbers them.
pub(super) fn owner(_call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let (user, group) = palimpsest_sys::threads::own::own_owner();
    Ok(Answer::Value(u64::from(group) << 32 | u64::from(user)))
}

/// The thread's name as far as it fits, and zeros: at least one.
pub(super) fn name(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let name = palimpsest_sys::threads::own::own_name();
    let Some(room) = call.len(0)?.checked_sub(1) else { return failed(EINVAL) };
    let name = until_zero(&name);
    let len = name.len().min(room);
    call.write_at(0, 0, &name[..len])?;
    call.zero_from(0, len)?;
    Ok(Answer::Value(0))
}

const EINVAL: i64 = 22;

/// Prints a line as an event of `tracing` with the target `bpf`.
fn print(call: &mut Call<'_>, format: &[u8], numbers: &[u64]) -> Result<Answer, HelperError> {
    let mut line = [0; MOST];
    let len = Printer::to_line(call, &mut line).print(until_zero(format), numbers)?;
    let line = &line[..len.min(MOST)];
    let end = line.iter().rposition(|letter| *letter != b'\n').map_or(0, |last| last + 1);
    tracing::info!(target: "bpf", "{}", Lossy(&line[..end]));
    Ok(Answer::Value(len as u64))
}

/// `bpf_trace_printk`.
pub(super) fn trace(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let mut format = [0; MOST];
    let len = call.read(0, &mut format)?;
    let numbers = [2, 3, 4].map(|index| call.number(index));
    print(call, &format[..len], &numbers)
}

/// The same with numbers in memory (`bpf_trace_vprintk`).
pub(super) fn trace_many(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let mut format = [0; MOST];
    let len = call.read(0, &mut format)?;
    let mut numbers = [0; MOST_NUMBERS];
    match read_numbers(call, 2, &mut numbers)? {
        Some(count) => print(call, &format[..len], &numbers[..count]),
        None => failed(EINVAL),
    }
}

/// `bpf_snprintf`: text and a zero, as far as they fit. Returns the length of all of it, including the zero.
pub(super) fn format(call: &mut Call<'_>) -> Result<Answer, HelperError> {
    let mut numbers = [0; MOST_NUMBERS];
    let Some(count) = read_numbers(call, 3, &mut numbers)? else {
        call.zero_from(0, 0)?;
        return failed(EINVAL);
    };
    let mut format = [0; MOST];
    let (address, len) = call.text(2)?;
    let format = &mut format[..len.min(MOST as u64) as usize];
    call.read_at(address, format)?;
    let room = call.len(0)?.saturating_sub(1);
    let len = Printer::to_room(call, room).print(until_zero(format), &numbers[..count])?;
    call.zero_from(0, len.min(room))?;
    Ok(Answer::Value(len as u64 + 1))
}

/// Numbers of one format (`MAX_BPRINTF_VARARGS` of Linux, `include/linux/bpf.h`).
const MOST_NUMBERS: usize = 12;

/// Copies the numbers at which the argument with this index points. Returns how many; `None` for a wrong number of
/// bytes.
fn read_numbers(
    call: &Call<'_>,
    index: usize,
    numbers: &mut [u64; MOST_NUMBERS],
) -> Result<Option<usize>, HelperError> {
    let len = call.len(index)?;
    if !len.is_multiple_of(8) || len > size_of_val(numbers) {
        return Ok(None);
    }
    for (at, number) in (0..len).step_by(8).zip(numbers) {
        let mut bytes = [0; 8];
        call.read_at(call.address(index) + at as u64, &mut bytes)?;
        *number = u64::from_ne_bytes(bytes);
    }
    Ok(Some(len / 8))
}
