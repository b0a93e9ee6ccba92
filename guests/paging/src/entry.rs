//! What user mode's tables have of the kernel: the way in and out, and nothing else.
//!
//! | | in the kernel's root | in user mode's root |
//! |---|---|---|
//! | x86-64 | the process, the kernel | the process, and what is here |
//! | AArch64 (the upper half's root) | the kernel | what is here |
//!
//! So user mode cannot even guess at the kernel's memory by what speculation leaves behind (Meltdown, CVE-2017-5754).
//! Each node has its own root of both kinds, and its own copy of the entry's text, the same that the kernel runs. The
//! entry's data, an area for each CPU, is the kernel's too. On AArch64 both roots map text and data by the very same
//! entries: while one root is exchanged for the other, a TLB may have translations by both.

use core::ops::Range;

use palimpsest_paging::{Attributes, Frame, Node, PageSize, PageSizes, Rights, SpaceOptions, VirtAddr};

use crate::arch::mmu::{self, KernelSpace};
use crate::image;
use crate::kernel_space::{self, Copies};
use crate::memory::{Memory, nodes};
use crate::sync::SpinLock;

// In `link.ld`.
unsafe extern "C" {
    static entry_text_start: [u8; 0];
    static entry_text_end: [u8; 0];
    static entry_data_start: [u8; 0];
    static entry_data_end: [u8; 0];
}

static SPACE: SpinLock<Option<&'static KernelSpace>> = SpinLock::new(None);

/// Where the code is.
pub(crate) fn text() -> Range<VirtAddr> {
    VirtAddr((&raw const entry_text_start) as u64)..VirtAddr((&raw const entry_text_end) as u64)
}

/// Where the CPUs' areas are.
pub(crate) fn data() -> Range<VirtAddr> {
    VirtAddr((&raw const entry_data_start) as u64)..VirtAddr((&raw const entry_data_end) as u64)
}

/// The large pages in which the data are.
pub(crate) fn large_data() -> Range<VirtAddr> {
    let (data, page) = (data(), PageSize::Large.bytes());
    VirtAddr(data.start.0 / page * page)..VirtAddr(data.end.0.next_multiple_of(page))
}

fn get() -> &'static KernelSpace {
    SPACE.lock().unwrap_or_else(|| panic!("the entry's space is made first"))
}

/// Builds the space. It is the kernel's: who changes it calls every CPU.
pub(crate) fn make() {
    let space = KernelSpace::new(Memory, kernel_space::ID, &nodes(), SpaceOptions::default());
    let space = space.unwrap_or_else(|error| panic!("{error}"));
    for (range, rights) in [(text(), Rights::READ | Rights::EXECUTE), (data(), Rights::READ | Rights::WRITE)] {
        let frame = Frame::containing(range.start.0 - image::offset());
        let attributes = Attributes { memory: mmu::ORDINARY, ..Attributes::kernel(rights) };
        // SAFETY: 1. nobody counts the image's frames. 2. They are the kernel's, as it is linked.
        let mapped = unsafe { space.map(range, frame, attributes, PageSizes::Only(PageSize::Small)) };
        mapped.unwrap_or_else(|error| panic!("{error}"));
    }
    *SPACE.lock() = Some(alloc::boxed::Box::leak(alloc::boxed::Box::new(space)));
}

/// The root by which CPUs of `node` find it.
pub(crate) fn root(node: Node) -> Frame {
    get().root(node)
}

/// Makes or drops the replicas of the text.
pub(crate) fn set_copies(copies: Copies) {
    let flush = match copies {
        Copies::One => get().drop_replicas(text()),
        Copies::EachNode => get().replicate(text()).map(|(_, flush)| flush),
    };
    flush.unwrap_or_else(|error| panic!("{error}")).finish();
}
