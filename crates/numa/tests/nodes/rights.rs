//! Properties of a text mapping besides its rights are kept, or the text is left alone. These tests need one node.

use palimpsest_numa::{Loads, Localized, Pages, ProgramText, Reach, TextOptions};
use palimpsest_sys::numa::text::{self, Branches};

use crate::big_text::whole;
use crate::machine::apart;

/// Value from `arch/arm64/include/uapi/asm/mman.h`. Other kernels refuse it.
const PROT_BTI: i32 = 0x10;

fn localized() -> Vec<Localized> {
    let text = ProgramText::localize(&TextOptions::new().pages(Pages::Copied)).expect("nothing is in the way");
    text.parts().iter().filter(|part| part.span.start < whole().end && whole().start < part.span.end).cloned().collect()
}

#[test]
fn marked_branches_stay_marked() {
    apart("rights::of_marked_branches", &[]);
}

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn of_marked_branches() {
    let at = std::ptr::with_exposed_provenance_mut(whole().start);
    let rights = libc::PROT_READ | libc::PROT_EXEC | PROT_BTI;
    // SAFETY: text of this program that this test does not execute.
    if unsafe { libc::mprotect(at, whole().len(), rights) } != 0 {
        return println!("skipped: no PROT_BTI: {}", std::io::Error::last_os_error());
    }
    let is_marked = || {
        let parts = text::parts(Loads::NONE, Reach::Everything).expect("mounted");
        let part = parts.iter().find(|part| part.span.range().contains(&whole().start)).expect("a part");
        part.branches == Branches::Marked
    };
    if !is_marked() {
        return println!("skipped: this CPU does not look at marks");
    }
    let exchanged: usize = localized().iter().map(|part| part.exchanged).sum();
    assert!(exchanged >= whole().len());
    assert!(is_marked());
}

#[test]
fn text_behind_a_protection_key_stays_as_it_is() {
    apart("rights::of_a_protection_key", &[]);
}

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn of_a_protection_key() {
    // SAFETY: takes a key.
    let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
    if key < 0 {
        return println!("skipped: no protection keys: {}", std::io::Error::last_os_error());
    }
    let rights = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: text of this program, whose rights stay.
    let answer = unsafe { libc::syscall(libc::SYS_pkey_mprotect, whole().start, whole().len(), rights, key) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    let exchanged = localized();
    assert!(
        exchanged.iter().all(|part| part.span.end <= whole().start || whole().end <= part.span.start),
        "{exchanged:?}"
    );
}
