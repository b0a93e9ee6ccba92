//! Running the kernel instruction by instruction: the trap flag (SDM volume 3, 18.3.1.4).

use core::arch::asm;

use palimpsest_paging::VirtAddr;

// In `trap.s`.
unsafe extern "C" {
    static system_call_stub: [u8; 0];
    static system_call_stub_end: [u8; 0];
    static from_user: [u8; 0];
    static from_user_end: [u8; 0];
    static to_user: [u8; 0];
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

/// Where instructions are that a system call runs before it reaches what can be stepped. Their lines matter, not their
/// number: each is taken for 4 bytes long.
pub(crate) fn from_user_mode() -> impl Iterator<Item = VirtAddr> {
    let stub = [(&raw const system_call_stub) as u64, (&raw const system_call_stub_end) as u64];
    let rest = [(&raw const from_user) as u64, (&raw const from_user_end) as u64];
    code(stub).chain(code(rest))
}

/// Those behind it, on the way back.
pub(crate) fn to_user_mode() -> impl Iterator<Item = VirtAddr> {
    code([(&raw const to_user) as u64, (&raw const to_user_end) as u64])
}

fn code([start, end]: [u64; 2]) -> impl Iterator<Item = VirtAddr> {
    (start..end).step_by(4).map(VirtAddr)
}
