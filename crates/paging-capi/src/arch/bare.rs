//! Without an operating system: panics are C's.

use core::ffi::c_char;
use core::fmt::{self, Write};
use core::panic::PanicInfo;

/// Longest message; the rest is left out.
const MESSAGE: usize = 256;

unsafe extern "C" {
    /// C's. It must not return.
    fn palimpsest_paging_panic(message: *const c_char, len: usize);
}

/// A text of limited length.
struct Message {
    text: [u8; MESSAGE],
    len: usize,
}

impl Write for Message {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        for (to, from) in self.text[self.len..].iter_mut().zip(more.bytes()) {
            *to = from;
            self.len += 1;
        }
        Ok(())
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut message = Message { text: [0; MESSAGE], len: 0 };
    // It takes everything.
    let _ = write!(message, "{info}");
    loop {
        // SAFETY: a text of that length. If C's function returns in spite of what the header says, it is called again.
        unsafe { palimpsest_paging_panic(message.text.as_ptr().cast(), message.len) };
    }
}
