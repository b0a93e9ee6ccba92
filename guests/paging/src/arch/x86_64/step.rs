//! Runs the kernel instruction by instruction: the trap flag (SDM volume 3, 18.3.1.4).

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

/// Traps after each instruction, beginning with the next but one. Traps themselves are not stepped.
pub(crate) fn on() {
    // SAFETY: the traps touch only their own data.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
}

/// Ends stepping.
pub(crate) fn off() {
    // SAFETY: as in `on`.
    unsafe { asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
}

/// Returns where the instructions are that a system call runs before stepping can begin: first with user mode's root,
/// then with the kernel's. Only their lines matter, not their number: each counts as 4 bytes.
pub(crate) fn from_user_mode() -> (impl Iterator<Item = VirtAddr>, impl Iterator<Item = VirtAddr>) {
    let stub = code(&raw const system_call_stub, &raw const system_call_stub_end);
    let first = code(&raw const from_user, &raw const from_user_switched);
    (stub.chain(first), code(&raw const from_user_switched, &raw const from_user_end))
}

/// Returns where the instructions are that run after stepping has ended, on the way back: first with the kernel's root,
/// then with user mode's.
pub(crate) fn to_user_mode() -> (impl Iterator<Item = VirtAddr>, impl Iterator<Item = VirtAddr>) {
    (code(&raw const to_user, &raw const to_user_switched), code(&raw const to_user_switched, &raw const to_user_end))
}

fn code(start: *const [u8; 0], end: *const [u8; 0]) -> impl Iterator<Item = VirtAddr> {
    (start as u64..end as u64).step_by(4).map(VirtAddr)
}
