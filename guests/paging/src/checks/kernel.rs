//! The kernel's own tables: every access that rights forbid faults.

use palimpsest_paging::{AccessKind, VirtAddr};

use crate::arch::{RETURN, cpu as hardware, layout, mmu};
use crate::cpu::{self, CPUS};
use crate::kernel_space::{self, ImageRights};
use crate::{check, probe};

static RODATA: [u8; 16] = {
    let mut bytes = [0; 16];
    let (code, _) = bytes.split_at_mut(RETURN.len());
    code.copy_from_slice(RETURN);
    bytes
};

static DATA: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

pub(super) fn run() {
    check::equal("kernel.cpus", (0..CPUS).filter(|&cpu| cpu::is_up(cpu)).count(), CPUS);
    let text = kernel_space::image_range(ImageRights::Execute).start;
    let rodata = VirtAddr(RODATA.as_ptr() as u64);
    let data = VirtAddr(DATA.as_ptr() as u64);
    let physical = VirtAddr(layout::PHYSICAL_MAP + kernel_space::image_frames(ImageRights::Write).end);
    let nowhere = VirtAddr(layout::LINK_OFFSET.wrapping_add(layout::RAM_BASE).wrapping_add(0x3000_0000));
    let cases = [
        ("kernel.text.store", text, AccessKind::Write, false),
        ("kernel.text.load", text, AccessKind::Read, true),
        ("kernel.rodata.store", rodata, AccessKind::Write, false),
        ("kernel.rodata.fetch", rodata, AccessKind::Execute, false),
        ("kernel.rodata.load", rodata, AccessKind::Read, true),
        ("kernel.data.fetch", data, AccessKind::Execute, false),
        ("kernel.data.store", data, AccessKind::Write, true),
        ("kernel.physical.fetch", physical, AccessKind::Execute, false),
        ("kernel.physical.store", physical, AccessKind::Write, true),
        ("kernel.hole.load", nowhere, AccessKind::Read, false),
    ];
    for (name, address, access, should) in cases {
        // SAFETY: 1. a store to text or read-only data faults, or the check fails; other places are this check's own,
        // and fetched code returns at once.
        let passed = unsafe { probe::passes(address, access) };
        check::equal(name, passed, should);
    }
    let verified = kernel_space::get().verify();
    check::holds("kernel.verify", verified.is_ok(), format_args!("{verified:?}"));
    let root = kernel_space::get().root(cpu::node_of(hardware::number()));
    check::equal("kernel.root", mmu::loaded_kernel_root(), root);
}
