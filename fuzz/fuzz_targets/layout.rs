//! What must be done to mappings to restore them: done page by page to a model, it restores the model, and touches no
//! page without need.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_fork::fuzzing::{Difference, differences};
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::{Device, MapLine, Permissions};
use palimpsest_sys::pages::vmas::{Label, Vma};

const PAGES: usize = 64;
const PAGE: usize = 4096;

/// What one page shows: the file, the place in it, whether it is shared, and the rights.
type Page = Option<(u64, u64, bool, Permissions)>;

/// Reads mappings, three bytes each: gap and length, file and rights, offset.
fn mappings(bytes: &mut impl Iterator<Item = u8>, count: u8) -> Vec<Vma> {
    let mut at = 0;
    let mut all = Vec::new();
    for _ in 0..count % 9 {
        let (Some(place), Some(kind), Some(offset)) = (bytes.next(), bytes.next(), bytes.next()) else { break };
        let start = at + usize::from(place >> 6);
        let end = (start + 1 + usize::from(place & 7)).min(PAGES);
        if start >= end {
            break;
        }
        let rights =
            [(Permissions::READ, 1), (Permissions::WRITE, 2), (Permissions::EXECUTE, 4), (Permissions::SHARED, 8)];
        let permissions = rights.iter().filter(|(_, bit)| kind & bit != 0);
        let permissions = permissions.fold(Permissions::default(), |all, (one, _)| all.union(*one));
        let line = MapLine {
            start: start * PAGE,
            end: end * PAGE,
            permissions,
            offset: u64::from(offset % 16) * PAGE as u64,
            device: Device::default(),
            inode: u64::from(kind >> 6),
        };
        all.push(Vma::new(line, Label::None));
        at = end;
    }
    all
}

fn pages(mappings: &[Vma]) -> [Page; PAGES] {
    let mut pages = [None; PAGES];
    for vma in mappings {
        for page in vma.start / PAGE..vma.end / PAGE {
            let place = if vma.inode == 0 { 0 } else { vma.offset + (page * PAGE - vma.start) as u64 };
            pages[page] = Some((vma.inode, place, vma.permissions.contains(Permissions::SHARED), vma.permissions));
        }
    }
    pages
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&[first, second, out_start, out_len], rest)) = bytes.split_first_chunk() else { return };
    let mut rest = rest.iter().copied();
    let (then, now) = (mappings(&mut rest, first), mappings(&mut rest, second));
    let out_start = usize::from(out_start) % PAGES;
    let excluded = [Span::new(out_start * PAGE, (out_start + usize::from(out_len) % 8) * PAGE)];
    let excluded = if excluded[0].is_empty() { &[][..] } else { &excluded };
    let (was, mut is) = (pages(&then), pages(&now));
    let before = is;
    let mut end = 0;
    for (range, difference) in differences(&then, &now, excluded) {
        assert!(range.start >= end && !range.is_empty(), "ascending, and apart");
        end = range.end;
        for page in range.start / PAGE..range.end / PAGE {
            assert!(!excluded.iter().any(|span| span.contains(page * PAGE)), "an excluded page is touched");
            assert_ne!(was[page], before[page], "a page is touched without need");
            is[page] = match difference {
                Difference::Unmap => None,
                Difference::Remake => was[page],
                Difference::Protect(permissions) => {
                    let (inode, place, shared, _) = before[page].expect("only what is mapped has rights");
                    Some((inode, place, shared, permissions))
                }
            };
        }
    }
    for page in 0..PAGES {
        let is_excluded = excluded.iter().any(|span| span.contains(page * PAGE));
        assert_eq!(is[page], if is_excluded { before[page] } else { was[page] }, "page {page}");
    }
});
