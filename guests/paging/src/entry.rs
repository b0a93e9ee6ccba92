//! The part of the kernel that user mode's tables map: the code by which it is entered and left, and nothing else.
//!
//! | | in the kernel's root | in user mode's root |
//! |---|---|---|
//! | x86-64 | the process, the kernel | the process, the entry |
//! | AArch64 (the upper half's root) | the kernel | the entry |
//!
//! So speculation in user mode cannot reach the kernel's memory (Meltdown, CVE-2017-5754). Each node has its own root
//! of both kinds, and its own copy of the entry's text, which is the copy that the kernel runs. The entry's data is an
//! area for each CPU. On AArch64 both roots map text and data by the very same entries: while one root is exchanged for
//! the other, a TLB may have translations by both.

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

/// Returns the addresses of the entry's code.
pub(crate) fn text() -> Range<VirtAddr> {
    VirtAddr((&raw const entry_text_start) as u64)..VirtAddr((&raw const entry_text_end) as u64)
}

/// Returns the addresses of the CPUs' areas.
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

/// Builds the space. It has the kernel's id: whoever changes it calls every CPU.
pub(crate) fn make() {
    let space = KernelSpace::new(Memory, kernel_space::ID, &nodes(), SpaceOptions::default());
    let space = space.unwrap_or_else(|error| panic!("{error}"));
    for (range, rights) in [(text(), Rights::READ | Rights::EXECUTE), (data(), Rights::READ | Rights::WRITE)] {
        let frame = Frame::containing(range.start.0 - image::offset());
        let attributes = Attributes { memory: mmu::ORDINARY, ..Attributes::kernel(rights) };
        // SAFETY: 1. nobody counts the image's frames. 2. the kernel may use its image with the rights with which it is
        // linked, and user mode gets none.
        let mapped = unsafe { space.map(range, frame, attributes, PageSizes::Only(PageSize::Small)) };
        mapped.unwrap_or_else(|error| panic!("{error}"));
    }
    *SPACE.lock() = Some(alloc::boxed::Box::leak(alloc::boxed::Box::new(space)));
}

/// Returns the root for CPUs of `node`.
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
