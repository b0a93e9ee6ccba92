//! The addresses of operations: mostly the same few, so that operations meet.

use std::ops::Range;

use super::{GIANT, Host, Trial, WINDOW};
use crate::address::VirtAddr;
use crate::sim::Hardware;

impl<F: Hardware, M: Host> Trial<'_, F, M> {
    /// Returns the page numbers where the tables that operations use begin.
    pub(super) fn windows() -> Vec<u64> {
        let bytes = F::TOP.table_bytes();
        let high = 0_u64.wrapping_sub(bytes / 2);
        let windows = [
            1 << 30,
            (1 << 30) + (2 << 20),
            (1 << 30) + (4 << 20),
            2 << 30,
            1 << 39,
            high,
            bytes - (2 << 20),
            0_u64.wrapping_sub(2 << 20),
        ];
        let base = Self::base();
        let windows = windows
            .into_iter()
            .map(|start: u64| start.saturating_add(base))
            .filter(|&start| F::is_valid(VirtAddr(start)));
        windows.map(|start| (start & !0x1f_ffff) >> 12).collect()
    }

    /// Returns where the lower windows begin, for a format without a lower half.
    pub(super) fn base() -> u64 {
        if F::is_valid(VirtAddr(0)) { 0 } else { 0_u64.wrapping_sub(F::TOP.table_bytes()) }
    }

    /// Returns a few pages in an existing window, mostly the same ones, so that operations meet.
    pub(super) fn some_range(&self) -> Range<u64> {
        let window = self.pick(&self.windows);
        let giant = (Self::base() >> 12) + (1 << 18);
        let range = match self.below(32) {
            0..=1 => window..window + WINDOW,
            2 => giant..giant + 2 * WINDOW,
            3 if self.one_in(2) => giant..giant + GIANT,
            3 => giant..giant + 2 * GIANT,
            4..=6 => {
                // Across the border of two tables.
                let start = giant + WINDOW - 1 - self.below(4);
                start..start + 2 + self.below(6)
            }
            n => {
                let offset = if n < 10 { 500 } else { 0 } + self.below(8);
                let start = window + offset;
                start..start + 1 + self.below(4)
            }
        };
        // The last page of all cannot be in a range.
        range.start..range.end.min(u64::MAX >> 12)
    }

    pub(super) fn some_page(&self, member: usize) -> u64 {
        let pages = &self.members[member].pages;
        if !self.one_in(8) && !pages.is_empty() {
            let from = self.some_range().start;
            if let Some((&page, _)) = pages.range(from..).nth(self.below(3) as usize) {
                return page;
            }
        }
        self.some_range().start
    }
}
