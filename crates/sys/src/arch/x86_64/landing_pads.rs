//! Landing pads of indirect branches (`endbr64`): Linux checks those of the kernel, and none of programs.

use rustix::mm::ProtFlags;

/// Returns what is added to the rights of code whose landing pads are checked: nothing, since they are not.
pub fn landing_pad_rights() -> ProtFlags {
    ProtFlags::empty()
}
