//! Much text in this program itself: functions that return, each with a number behind it, one per page.

use std::arch::global_asm;
use std::ops::Range;

/// The number of functions: 10 MiB, which contain four whole huge pages wherever the program is loaded.
const FUNCTIONS: usize = 2560;
/// Distance between them, in bytes.
const APART: usize = 4096;

// `ret` has the same name on both architectures. The rest of the page is never executed.
global_asm!(
    ".pushsection .text.palimpsest_big, \"ax\", %progbits",
    ".balign 4096",
    ".globl palimpsest_big_text",
    "palimpsest_big_text:",
    ".set palimpsest_number, 0",
    ".rept {functions}",
    "ret",
    ".balign 8",
    ".quad palimpsest_number",
    ".zero 4080",
    ".set palimpsest_number, palimpsest_number + 1",
    ".endr",
    ".popsection",
    functions = const FUNCTIONS,
);

unsafe extern "C" {
    fn palimpsest_big_text();
}

/// Returns the start of the text.
fn start() -> usize {
    palimpsest_big_text as *const () as usize
}

/// Returns the whole huge pages in it.
pub(crate) fn whole() -> Range<usize> {
    const HUGE: usize = 2 << 20;
    start().next_multiple_of(HUGE)..(start() + FUNCTIONS * APART) & !(HUGE - 1)
}

/// Returns the address of a function.
pub(crate) fn address_of(number: usize) -> usize {
    assert!(number < FUNCTIONS);
    start() + number * APART
}

/// Calls a function. Returns the number behind it.
pub(crate) fn call(number: usize) -> usize {
    let at = address_of(number);
    // SAFETY: one of the functions above, which only returns.
    let function = unsafe { std::mem::transmute::<usize, extern "C" fn()>(at) };
    function();
    let behind = std::ptr::with_exposed_provenance::<usize>(at + 8);
    // SAFETY: the number above, which is aligned and never written.
    unsafe { behind.read() }
}

/// Returns how a function begins, whoever has written there.
pub(crate) fn first_word(number: usize) -> u32 {
    let start = std::ptr::with_exposed_provenance::<u32>(address_of(number));
    // SAFETY: text, which can be read, and is aligned to pages.
    unsafe { start.read_volatile() }
}

/// Calls one function in each of some pages.
pub(crate) fn all_work() {
    for number in (0..FUNCTIONS).step_by(7) {
        assert_eq!(call(number), number);
    }
}
