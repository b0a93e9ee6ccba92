//! A module of the guest that needs another one, `counter`.

#![no_std]

mod kernel;

unsafe extern "C" {
    safe fn counter_call(value: u64) -> u64;
}

/// Calls the other module, and says behind it whether the kernel's static key is on.
#[unsafe(no_mangle)]
pub extern "C" fn caller_call(value: u64) -> u64 {
    counter_call(value) << 1 | u64::from(kernel::key::is_on())
}
