//! A process's memory at the start.

use palimpsest_paging::{Attributes, Frame, NoTables, Node, PAGE, PageSize, PageSizes, Rights, Sharing, VirtAddr};

use super::{UserSpace, next_id};
use crate::arch::mmu;
use crate::kernel_space;
use crate::memory::{Records, alias};

/// Memory of a process.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    /// Its first address.
    pub(crate) start: VirtAddr,
    /// Its length.
    pub(crate) pages: u64,
    /// The rights of user mode.
    pub(crate) rights: Rights,
    /// Whether a fork shares it or makes it private.
    pub(crate) sharing: Sharing,
}

/// Maps new pages, all zero, on `node`.
///
/// # Panics
///
/// If there is no memory, or something is mapped there.
pub(super) fn map_new(space: &UserSpace, area: &Area, node: Node) {
    for number in 0..area.pages {
        let frame = Records::allocate(node, 1).unwrap_or_else(|| panic!("no memory for a process"));
        map_page(space, VirtAddr(area.start.0 + number * PAGE), frame, area);
    }
}

fn map_page(space: &UserSpace, address: VirtAddr, frame: Frame, area: &Area) {
    let attributes = Attributes { sharing: area.sharing, memory: mmu::ORDINARY, ..Attributes::user(area.rights) };
    let range = address..VirtAddr(address.0 + PAGE);
    // SAFETY: 1. `frame` was allocated for this by the caller. 2. It is user mode's from now on.
    let mapped = unsafe { space.map(range, frame, attributes, PageSizes::Only(PageSize::Small)) };
    mapped.unwrap_or_else(|error| panic!("{error}"));
}

/// Creates a space with the user programs' code at [`TEXT`](super::user::TEXT), and with `areas`.
pub(super) fn new_space(areas: &[Area], node: Node) -> Result<UserSpace, NoTables> {
    let space = mmu::new_user_space(kernel_space::get(), next_id())?;
    let image = kernel_space::user_image();
    let text = Area {
        start: super::user::TEXT,
        pages: (image.end.0 - image.start.0) / PAGE,
        rights: Rights::READ | Rights::EXECUTE,
        sharing: Sharing::Private,
    };
    for number in 0..text.pages {
        let frame = Records::allocate(node, 1).unwrap_or_else(|| panic!("no memory for a process"));
        let from = (image.start.0 + number * PAGE) as *const u8;
        // SAFETY: a page of the image, and a frame allocated just now.
        unsafe { core::ptr::copy_nonoverlapping(from, alias(frame.address()), PAGE as usize) };
        crate::arch::patch::code_was_written(alias(frame.address()), PAGE as usize);
        map_page(&space, VirtAddr(text.start.0 + number * PAGE), frame, &text);
    }
    for area in areas {
        map_new(&space, area, node);
    }
    Ok(space)
}
