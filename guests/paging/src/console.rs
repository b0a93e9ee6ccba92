//! Lines of text on the serial console.

use core::fmt::{self, Write};

use crate::arch;
use crate::sync::SpinLock;

struct Serial;

static SERIAL: SpinLock<Serial> = SpinLock::new(Serial);

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(arch::console::write_byte);
        Ok(())
    }
}

/// Writes one line.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    // Writing never fails.
    let _ = writeln!(SERIAL.lock(), "{text}");
}

/// Writes one line without taking the lock: the last words of a panic.
pub(crate) fn last_line(text: fmt::Arguments<'_>) {
    let _ = writeln!(Serial, "\n{text}");
}

/// Writes one line.
#[macro_export]
macro_rules! say {
    ($($argument:tt)*) => { $crate::console::line(format_args!($($argument)*)) };
}
