//! x86-64.

pub(super) mod icache;
pub(super) mod instructions;
pub(super) mod landing_pads;
pub(super) mod pointer_tag;
pub(super) mod serialize;
pub(super) mod stack;
pub(super) mod system_call;
pub(super) mod thread_block;
pub(super) mod thread_pointer;
pub(super) mod trap_frame;
