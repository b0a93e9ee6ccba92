//! What a program's memory looks like, as text that is equal in two runs when the memory is.

use std::fmt::Write as _;
use std::ops::Range;

use palimpsest_sys::pages::maps::Maps;

/// Reads this process's memory through the kernel, so that an unreadable page is an answer and not a signal.
pub(crate) struct Reader {
    buffer: Vec<u8>,
    page: usize,
}

/// What one page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    Unreadable,
    /// The same byte everywhere.
    Flat(u8),
    /// Several bytes, with this digest.
    Mixed(u32),
}

impl Page {
    /// Whether this is what fresh memory shows.
    pub(crate) fn is_zero(self) -> bool {
        self == Self::Flat(0)
    }
}

impl Reader {
    pub(crate) fn new(page: usize) -> Self {
        Self { buffer: vec![0; 64 * page], page }
    }

    /// Describes the mappings of `range` and what their pages show, from its start on, in runs of equal pages.
    pub(crate) fn describe(&mut self, range: Range<usize>) -> String {
        let maps = Maps::read().expect("/proc is mounted");
        let mut text = String::new();
        let mut rights: Option<(Range<usize>, String)> = None;
        let pieces: Vec<(Range<usize>, String)> = maps
            .overlapping(range.clone())
            .map(|entry| (entry.start.max(range.start)..entry.end.min(range.end), entry.permissions.to_string()))
            .collect();
        for (piece, permissions) in pieces {
            match &mut rights {
                // How the kernel cuts a range into mappings is not something that a program sees.
                Some((last, same)) if last.end == piece.start && *same == permissions => last.end = piece.end,
                _ => {
                    if let Some((run, permissions)) = rights.replace((piece, permissions)) {
                        self.describe_run(&mut text, range.start, run, &permissions);
                    }
                }
            }
        }
        if let Some((run, permissions)) = rights {
            self.describe_run(&mut text, range.start, run, &permissions);
        }
        text
    }

    fn describe_run(&mut self, text: &mut String, base: usize, run: Range<usize>, permissions: &str) {
        let number = |address: usize, page: usize| (address - base) / page;
        let _ = write!(text, " {permissions}@{}-{}:", number(run.start, self.page), number(run.end, self.page));
        let mut pages: Vec<(Page, usize)> = Vec::new();
        for page in self.pages(run) {
            match pages.last_mut() {
                Some((last, count)) if *last == page => *count += 1,
                _ => pages.push((page, 1)),
            }
        }
        for (page, count) in pages {
            let _ = match page {
                Page::Unreadable => write!(text, "!x{count},"),
                Page::Flat(byte) => write!(text, "{byte:02x}x{count},"),
                Page::Mixed(digest) => write!(text, "?{digest:08x}x{count},"),
            };
        }
    }

    /// What each page shows.
    pub(crate) fn pages(&mut self, run: Range<usize>) -> Vec<Page> {
        let mut pages = Vec::with_capacity(run.len() / self.page);
        let mut at = run.start;
        while at < run.end {
            let got = self.read(at, (run.end - at).min(self.buffer.len()));
            let whole = got - got % self.page;
            pages.extend(self.buffer[..whole].chunks(self.page).map(look));
            at += whole;
            if whole == 0 {
                pages.push(Page::Unreadable);
                at += self.page;
            }
        }
        pages
    }

    /// Reads up to `len` bytes into the buffer. Returns how many there were before the first that cannot be read.
    fn read(&mut self, address: usize, len: usize) -> usize {
        let local = libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: len };
        let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: len };
        // SAFETY: the call always succeeds.
        let own = unsafe { libc::getpid() };
        // SAFETY: the local vector is the buffer, which has `len` bytes; the remote one may be anything.
        let got = unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(got).unwrap_or(0)
    }
}

fn look(page: &[u8]) -> Page {
    // Two overlapping slices: the C library compares faster than an unoptimised loop.
    if page[1..] == page[..page.len() - 1] {
        return Page::Flat(page[0]);
    }
    // FNV-1a, by words since tests are not optimised.
    let (words, _) = page.as_chunks::<8>();
    let digest = words.iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, word| {
        (digest ^ u64::from_le_bytes(*word)).wrapping_mul(0x100_0000_01b3).rotate_left(23)
    });
    Page::Mixed((digest ^ digest >> 32) as u32)
}

#[test]
fn equal_pages_look_equal_and_a_changed_byte_does_not() {
    let mut page = vec![7; 4096];
    assert!(look(&page) == Page::Flat(7));
    page[4095] = 8;
    let last = look(&page);
    page[4094] = 8;
    assert!(matches!(last, Page::Mixed(_)) && last != look(&page));
}
