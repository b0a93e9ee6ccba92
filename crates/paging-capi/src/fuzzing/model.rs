//! What a space should translate: a plain list.

use std::vec::Vec;

use super::kernel::PAGE;
use crate::pages::{PALIMPSEST_PAGING_KERNEL, PALIMPSEST_PAGING_SHARED};
use crate::space::PALIMPSEST_PAGING_AARCH64_UPPER;

use super::walk::{ALL, levels, reach};

/// What lies behind addresses.
#[derive(Clone, Copy)]
pub(super) enum Behind {
    /// A counted page, whose first word is this one of [`Values`].
    Page(usize),
    /// Memory that nobody counts, from this physical address on.
    Device(u64),
}

/// Neighbouring addresses with the same attributes.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) attributes: u32,
    pub(super) behind: Behind,
}

impl Area {
    pub(super) fn end(&self) -> u64 {
        self.start + self.len
    }

    pub(super) fn rights(&self) -> u32 {
        self.attributes & ALL
    }

    pub(super) fn is_kernels(&self) -> bool {
        self.attributes & PALIMPSEST_PAGING_KERNEL != 0
    }

    /// Returns the part between two addresses, which meet it.
    fn part(&self, start: u64, end: u64) -> Self {
        let (start, end) = (start.max(self.start), end.min(self.end()));
        let behind = match self.behind {
            Behind::Device(physical) => Behind::Device(physical + (start - self.start)),
            page @ Behind::Page(_) => page,
        };
        Self { start, len: end - start, behind, ..*self }
    }
}

/// First words of pages, by numbers that areas hold.
#[derive(Default)]
pub(super) struct Values(Vec<u64>);

impl Values {
    pub(super) fn add(&mut self, value: u64) -> usize {
        self.0.push(value);
        self.0.len() - 1
    }

    pub(super) fn get(&self, number: usize) -> u64 {
        self.0.get(number).copied().unwrap_or(0)
    }

    pub(super) fn set(&mut self, number: usize, value: u64) {
        if let Some(word) = self.0.get_mut(number) {
            *word = value;
        }
    }
}

/// A space that lives.
pub(super) struct Model {
    pub(super) id: u64,
    pub(super) format: u32,
    /// The number of its kernel.
    pub(super) kernel: usize,
    pub(super) areas: Vec<Area>,
    /// Whether marks of use were taken: software sets them again at the next access, where CPUs do not.
    pub(super) is_unmarked: bool,
}

impl Model {
    /// Returns one of few addresses, in several tables of each level.
    pub(super) fn place(&self, choice: usize) -> u64 {
        let first = if self.format == PALIMPSEST_PAGING_AARCH64_UPPER { 0xffff << 48 } else { 0 };
        let (page, table, region) = (choice % 6, choice / 6 % 3, choice / 18 % 3);
        // The last page of a table, too.
        let page = if page == 5 { 511 } else { page as u64 };
        first + region as u64 * reach(levels(self.format)) + (table as u64 + 1) * reach(2) + page * PAGE
    }

    pub(super) fn at(&self, address: u64) -> Option<Area> {
        self.areas.iter().find(|area| (area.start..area.end()).contains(&address)).copied()
    }

    pub(super) fn meets(&self, start: u64, end: u64) -> bool {
        self.areas.iter().any(|area| area.start < end && start < area.end())
    }

    pub(super) fn has_kernels(&self, start: u64, end: u64) -> bool {
        self.areas.iter().any(|area| area.is_kernels() && area.start < end && start < area.end())
    }

    /// Replaces what lies between two addresses by what `change` makes of it.
    pub(super) fn change(&mut self, start: u64, end: u64, change: impl Fn(Area) -> Option<Area>) {
        let mut areas = Vec::new();
        for area in &self.areas {
            if area.end() <= start || end <= area.start {
                areas.push(*area);
                continue;
            }
            if area.start < start {
                areas.push(area.part(area.start, start));
            }
            areas.extend(change(area.part(start, end)));
            if end < area.end() {
                areas.push(area.part(end, area.end()));
            }
        }
        self.areas = areas;
    }

    /// Returns what a fork of the space translates: the same, and private pages are its own.
    pub(super) fn forked(&self, id: u64, values: &mut Values) -> Self {
        let mut areas = self.areas.clone();
        for area in &mut areas {
            if let (Behind::Page(value), 0) = (area.behind, area.attributes & PALIMPSEST_PAGING_SHARED) {
                let own = values.get(value);
                area.behind = Behind::Page(values.add(own));
            }
        }
        Self { id, areas, ..*self }
    }
}
