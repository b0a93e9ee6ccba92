//! Text of which a part cannot be written: what a batch has written before is taken back.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};

use palimpsest_text::poke::{Batch, Mode, ModeChoice, PokeError};

use crate::isa::generate;

/// Code in two pages of text. Nobody may write to the second one, not even through `/proc/self/mem`: it shows a file
/// that was opened for reading only.
struct Pages {
    start: *mut u8,
    page: usize,
}

impl Pages {
    fn new(code: &[u8]) -> Self {
        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("a few KiB");
        let mut bytes = code.to_vec();
        bytes.resize(page, 0);
        // The flag is of Linux 6.3, and needed where `vm.memfd_noexec` forbids execution otherwise.
        let files = [libc::MFD_EXEC, 0].map(|exec| {
            // SAFETY: makes a descriptor, with a name that ends by zero.
            unsafe { libc::memfd_create(c"partly".as_ptr(), libc::MFD_CLOEXEC | exec) }
        });
        let raw = files.into_iter().find(|file| *file >= 0).expect("a memory file");
        // SAFETY: made above, and only known here.
        let mut file = unsafe { File::from_raw_fd(raw) };
        file.write_all(&bytes).expect("room");
        let read_only = File::open(format!("/proc/self/fd/{raw}")).expect("readable");
        let map = |at, rights, flags, file| {
            // SAFETY: new memory, or in place of what was reserved for it.
            let start = unsafe { libc::mmap(at, page, rights, flags, file, 0) };
            assert_ne!(start, libc::MAP_FAILED);
            start.cast::<u8>()
        };
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory.
        let both = unsafe { libc::mmap(std::ptr::null_mut(), 2 * page, libc::PROT_NONE, anonymous, -1, 0) };
        assert_ne!(both, libc::MAP_FAILED);
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let start = map(both, write, anonymous | libc::MAP_FIXED, -1);
        // SAFETY: one page, which is ours.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), page) };
        let run = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: the same page.
        assert_eq!(unsafe { libc::mprotect(both, page, run) }, 0);
        map(both.wrapping_byte_add(page), run, libc::MAP_SHARED | libc::MAP_FIXED, read_only.as_raw_fd());
        Self { start, page }
    }

    /// Returns the bytes of one of the pages.
    fn bytes(&self, index: usize) -> Vec<u8> {
        let page = self.start.wrapping_add(index * self.page);
        // SAFETY: inside both pages, and readable; volatile, since batches write behind the compiler's back.
        (0..self.page).map(|at| unsafe { page.wrapping_add(at).read_volatile() }).collect()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody uses them any more.
        unsafe { libc::munmap(self.start.cast(), 2 * self.page) };
    }
}

#[test]
fn what_was_written_before_a_page_that_cannot_be_is_taken_back() {
    let code = generate(1);
    let pages = Pages::new(&code.code);
    let (offset, old, new) = &code.sites[0];
    let batch = |indexes: &[usize], old: &[u8], new: &[u8]| {
        let mut batch = Batch::new();
        for index in indexes {
            let address = pages.start.addr() + index * pages.page + offset;
            // SAFETY: 1. mapped code; 2. generated as a site; 3., 4. nobody runs it, or refers to it.
            unsafe { batch.add_text(address, old, new) }.expect("it can be changed");
        }
        batch
    };
    let before = pages.bytes(0);
    for choice in [ModeChoice::Automatic, ModeChoice::Only(Mode::Held)] {
        match batch(&[0, 1], old, new).apply_in(choice) {
            Err(PokeError::Write(_)) => {}
            Ok(_) => return println!("skipped: text is not written through /proc/self/mem"),
            Err(error) => panic!("{choice:?}: {error:?}"),
        }
        assert!(pages.bytes(0) == before && pages.bytes(1) == before, "{choice:?}");
        // The next one finds what it expects.
        batch(&[0], old, new).apply_in(choice).expect("its page can be written");
        assert_ne!(pages.bytes(0), before);
        batch(&[0], new, old).apply_in(choice).expect("its page can be written");
        assert_eq!(pages.bytes(0), before);
    }
}
