//! A module of the guest: functions that call the kernel, use constants, with addresses too, and data, and ask the
//! kernel's static key. `src/checks/modules.rs` loads it.

#![no_std]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

mod kernel;

use kernel::{kernel_cpu, kernel_note, kernel_relax, key};

/// Data with a value, and data without.
static CALLS: AtomicU64 = AtomicU64::new(100);
static LAST: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static HELD: AtomicBool = AtomicBool::new(false);

/// Constants, and constants with addresses.
static PRIMES: [u64; 8] = [2, 3, 5, 7, 11, 13, 17, 19];
static STEPS: [fn(u64) -> u64; 4] = [double, square, negate, prime];

fn double(value: u64) -> u64 {
    value.wrapping_mul(2)
}

fn square(value: u64) -> u64 {
    value.wrapping_mul(value)
}

fn negate(value: u64) -> u64 {
    !value
}

fn prime(value: u64) -> u64 {
    PRIMES.get(value as usize & 7).copied().unwrap_or(0)
}

/// Counts the call, and returns what one of four functions, chosen by the low two bits, makes of the others.
#[unsafe(no_mangle)]
pub extern "C" fn counter_call(value: u64) -> u64 {
    CALLS.fetch_add(1, Ordering::Relaxed);
    kernel_note(value);
    if let Some(last) = LAST.get(kernel_cpu() as usize) {
        last.store(value, Ordering::Relaxed);
    }
    STEPS.get(value as usize & 3).map_or(0, |step| step(value >> 2))
}

/// Returns how often it was called, and 100.
#[unsafe(no_mangle)]
pub extern "C" fn counter_calls(_: u64) -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Returns what a CPU's last call was for.
#[unsafe(no_mangle)]
pub extern "C" fn counter_last(cpu: u64) -> u64 {
    LAST.get(cpu as usize).map_or(0, |last| last.load(Ordering::Relaxed))
}

/// Returns 1.
#[unsafe(no_mangle)]
pub extern "C" fn counter_one(_: u64) -> u64 {
    1
}

/// Returns the address of a constant.
#[unsafe(no_mangle)]
pub extern "C" fn counter_constant(_: u64) -> u64 {
    &raw const PRIMES as u64
}

/// Returns 1 if the kernel's static key is on.
#[unsafe(no_mangle)]
pub extern "C" fn counter_asked(_: u64) -> u64 {
    u64::from(key::is_on())
}

/// Stays until [`counter_hold`] says that nobody is to stay; at once, if it has not said so for a start.
#[unsafe(no_mangle)]
pub extern "C" fn counter_stay(value: u64) -> u64 {
    while HELD.load(Ordering::Acquire) {
        kernel_relax();
    }
    value
}

/// Says whether others are to stay.
#[unsafe(no_mangle)]
pub extern "C" fn counter_hold(is_held: u64) -> u64 {
    u64::from(HELD.swap(is_held != 0, Ordering::AcqRel))
}
