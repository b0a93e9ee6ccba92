//! Checks where the image runs: at an address that the boot code has chosen, with all its pointers moved there.

use palimpsest_paging::VirtAddr;

use crate::arch::layout;
use crate::asked::{self, Asked};
use crate::kernel_space::{self, ImageRights};
use crate::{check, image, say};

pub(super) fn run() {
    let moved = image::offset().wrapping_sub(layout::LINK_OFFSET);
    let slot = moved / image::SLOT;
    say!("kernel.slot {slot}");
    check::holds("base.slot", moved.is_multiple_of(image::SLOT) && slot < image::SLOTS, format_args!("{moved:#x}"));
    if let Some(asked) = asked::word(Asked::Slot).checked_sub(1) {
        check::equal("base.asked", slot, asked % image::SLOTS);
    }
    let constant = kernel_space::image_range(ImageRights::Constant);
    // Nothing is mapped at the address for which it is linked, unless it runs there.
    let root = kernel_space::get().root(palimpsest_paging::Node(0));
    let linked = VirtAddr(constant.start.0 - moved);
    check::equal("base.linked", kernel_space::walk(root, linked).is_some(), moved == 0);
    // Pointers in read-only data are those of the linker, moved; pointers to the boot code stay.
    let is_image = |address: u64| address >= layout::LINK_OFFSET;
    let by = |address: u64| if is_image(address) { moved } else { 0 };
    let wrong = image::relocations().iter().find(|pointer| {
        let at = VirtAddr(pointer.address.wrapping_add(by(pointer.address)));
        // SAFETY: it is read only if it lies in read-only data, which is mapped.
        constant.contains(&at) && unsafe { (at.0 as *const u64).read_unaligned() } != pointer.value + by(pointer.value)
    });
    check::holds("base.pointers", wrong.is_none(), format_args!("{wrong:x?}"));
    say!("# runs in slot {slot} of {}; {} pointers were moved", image::SLOTS, image::relocations().len());
}
