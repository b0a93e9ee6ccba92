//! Whether `palimpsest run` serves this process.

use std::ffi::c_int;
use std::mem;

use palimpsest_sys::global_symbol;

/// Returns whether the object of `palimpsest run` is loaded and freezes the process by itself. It leaves alone whom its
/// settings leave out.
pub(crate) fn is_served() -> bool {
    let Some(serves) = global_symbol(c"palimpsest_serves") else { return false };
    // SAFETY: the object's function, of this type (`started.rs` of palimpsest-preload); it stays loaded.
    let serves = unsafe { mem::transmute::<*mut u8, extern "C" fn() -> c_int>(serves.as_ptr()) };
    serves() != 0
}
