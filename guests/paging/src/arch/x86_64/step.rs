//! Running the kernel instruction by instruction: the trap flag (SDM volume 3, 18.3.1.4).

use core::arch::asm;

use palimpsest_paging::VirtAddr;

// In `trap.s`.
unsafe extern "C" {
    static system_call_stub: [u8; 0];
    static system_call_stub_end: [u8; 0];
    static from_user: [u8; 0];
    static from_user_switched: [u8; 0];
    static from_user_end: [u8; 0];
    static to_user: [u8; 0];
    static to_user_switched: [u8; 0];
    static to_user_end: [u8; 0];
}

/// A trap behind each instruction from the next but one on. Traps run without.
pub(crate) fn on() {
    // SAFETY: the traps keep to their own data.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
}

/// No more.
pub(crate) fn off() {
    // SAFETY: as before `on`.
    unsafe { asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
}

/// Where instructions are that a system call runs before it reaches what can be stepped: by user mode's root, and then
/// by the kernel's. Their lines matter, not their number: each is taken for 4 bytes long.
pub(crate) fn from_user_mode() -> (impl Iterator<Item = VirtAddr>, impl Iterator<Item = VirtAddr>) {
    let stub = code(&raw const system_call_stub, &raw const system_call_stub_end);
    let first = code(&raw const from_user, &raw const from_user_switched);
    (stub.chain(first), code(&raw const from_user_switched, &raw const from_user_end))
}

/// Those behind it, on the way back: by the kernel's root, and then by user mode's.
pub(crate) fn to_user_mode() -> (impl Iterator<Item = VirtAddr>, impl Iterator<Item = VirtAddr>) {
    (code(&raw const to_user, &raw const to_user_switched), code(&raw const to_user_switched, &raw const to_user_end))
}

fn code(start: *const [u8; 0], end: *const [u8; 0]) -> impl Iterator<Item = VirtAddr> {
    (start as u64..end as u64).step_by(4).map(VirtAddr)
}
