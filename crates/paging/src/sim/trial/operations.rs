//! Operations, drawn at random, on a member and on its model.

use std::ops::Range;

use super::{Expected, Host, Replicas, Trial, Value, WINDOW, at};
use crate::address::{PageSize, VirtAddr};
use crate::attributes::{Attributes, Rights, Sharing};
use crate::error::{ChangeError, FaultError, ForkError, MapError, PinError, RangeError};
use crate::flush::Flush;
use crate::machine::Node;
use crate::sim::{Hardware, MapSimulated};
use crate::space::{AddressSpace, PageSizes};

/// Whether an error is due to lack of memory.
pub(super) trait Memory {
    fn is_no_memory(&self) -> bool;
}

macro_rules! memory {
    ($($error:ty => $pattern:pat,)*) => {$(
        impl Memory for $error {
            fn is_no_memory(&self) -> bool {
                matches!(self, $pattern)
            }
        }
    )*};
}

memory! {
    MapError => MapError::NoMemory(_),
    ChangeError => ChangeError::NoMemory(_),
    ForkError => ForkError::NoMemory(_) | ForkError::NoPage { .. },
    FaultError => FaultError::NoMemory(_) | FaultError::NoPage { .. },
    PinError => PinError::Fault(_),
}

pub(super) fn virt(range: &Range<u64>) -> Range<VirtAddr> {
    at(range.start)..at(range.end)
}

impl<F: Hardware, M: Host> Trial<'_, F, M> {
    /// Does one operation.
    ///
    /// # Panics
    ///
    /// If anything is wrong.
    pub fn operate(&mut self) {
        self.done += 1;
        let member = self.below(self.members.len() as u64) as usize;
        match self.below(64) {
            0..=7 => self.map(member),
            8..=11 => self.unmap(member),
            12..=16 => self.protect(member),
            17..=19 => self.remap(member),
            20 => self.split(member),
            21 => self.merge(member),
            22..=25 => self.fork(member),
            26..=28 => self.end(member),
            29..=46 => self.store(member),
            47..=56 => self.load(member),
            57 => self.pin(member),
            58 => self.unpin(member),
            59 => self.replicate(member),
            60 => self.drop_replicas(member),
            61 => self.take_marks(member),
            62 => self.by_cursor(member),
            _ => self.wander(),
        }
        if self.done.is_multiple_of(self.case.compare_every) {
            self.compare_all();
        }
    }

    /// Runs an operation, in some cases with memory refused at each point in turn; then nothing may have changed.
    pub(super) fn attempt<'w, T, E: Memory + std::fmt::Debug>(
        &'w self,
        member: usize,
        what: &str,
        mut run: impl FnMut(&'w AddressSpace<F, M>) -> Result<T, E>,
    ) -> Result<T, E> {
        let space = &self.members[member].space;
        if !self.one_in(self.case.refuse_every) {
            return run(space);
        }
        let once = self.one_in(2);
        for request in 0.. {
            self.computer.refuse(request..if once { request + 1 } else { u64::MAX });
            let result = run(space);
            self.computer.refuse(0..0);
            match result {
                Err(error) if error.is_no_memory() => {
                    self.check(member, what);
                    self.compare(member, what);
                }
                result => return result,
            }
        }
        unreachable!("memory is refused a number of times that has an end")
    }

    pub(super) fn some_rights(&self) -> Rights {
        let write = Rights::READ | Rights::WRITE;
        self.pick(&[write, write, write, Rights::READ, Rights::READ | Rights::EXECUTE, Rights::all(), Rights::empty()])
    }

    fn map(&mut self, member: usize) {
        let range = match self.below(12) {
            0 => {
                let start = self.some_range().start & !(WINDOW - 1);
                start..start + WINDOW
            }
            _ => self.some_range(),
        };
        let range = range.start..range.end.min(range.start + 2 * WINDOW).min(u64::MAX >> 12);
        let bytes = (range.end - range.start) << 12;
        let align = if self.one_in(2) { PageSize::Large } else { PageSize::Small };
        let Some(frame) = self.computer.allocate(Node(self.below(self.case.nodes as u64) as u8), bytes, align) else {
            return;
        };
        let shared = self.one_in(5);
        let sharing = if shared { Sharing::Shared } else { Sharing::Private };
        let rights = self.some_rights();
        let attributes = Attributes { sharing, ..Attributes::user(rights) };
        let sizes = self.pick(&[
            PageSizes::UpTo(PageSize::Small),
            PageSizes::UpTo(PageSize::Large),
            PageSizes::UpTo(PageSize::Giant),
        ]);
        let mut new = Vec::new();
        for (index, page) in range.clone().enumerate() {
            let content = self.new_value();
            self.computer.set_content(frame.offset((index as u64) << 12), content);
            let value = if shared {
                self.cells.push(content);
                Value::Shared(self.cells.len() - 1)
            } else {
                Value::Own(content)
            };
            new.push((page, Expected { value, rights, dirty: false, accessed: false, pins: 0 }));
        }
        let result = self.attempt(member, "map", |space| space.map_simulated(virt(&range), frame, attributes, sizes));
        let first = self.members[member].pages.range(range.clone()).next().map(|(&page, _)| at(page));
        match (result, first) {
            (Ok(()), None) => self.members[member].pages.extend(new),
            (Err(MapError::Mapped { address, .. }), Some(first)) => {
                assert_eq!(address, first, "operation {}", self.done);
                self.computer.give_back(frame, bytes);
            }
            (result, first) => panic!("{:?}, operation {}: map: {result:?}, mapped: {first:?}", self.case, self.done),
        }
        self.check(member, "map");
    }

    fn is_pinned(&self, member: usize, range: &Range<u64>) -> bool {
        self.members[member].pages.range(range.clone()).any(|(_, page)| page.pins > 0)
    }

    /// Returns whether the range contains a page that another space may have pinned.
    fn has_shared(&self, member: usize, range: &Range<u64>) -> bool {
        self.members[member].pages.range(range.clone()).any(|(_, page)| matches!(page.value, Value::Shared(_)))
    }

    /// Returns whether a change may be refused for reasons that the model does not know completely.
    pub(super) fn may_refuse(&self, member: usize, range: &Range<u64>, error: &ChangeError) -> bool {
        match error {
            // A large page counts as a whole.
            ChangeError::Pinned { .. } => {
                let around = range.start & !(WINDOW - 1)..(range.end + WINDOW - 1) & !(WINDOW - 1);
                self.is_pinned(member, &around) || self.has_shared(member, &around)
            }
            ChangeError::Replicated { .. } => self.members[member].replicas == Replicas::Some,
            _ => false,
        }
    }

    /// Waits for a change's flush, or checks why there was none. Returns false for an error.
    fn settle(
        &self,
        member: usize,
        range: &Range<u64>,
        what: &str,
        result: Result<Flush<'_, F, M>, ChangeError>,
    ) -> bool {
        let done = match result {
            Ok(flush) => {
                let flushing = flush.dispatch();
                self.meanwhile();
                flushing.wait();
                true
            }
            Err(error) => {
                let fine = self.may_refuse(member, range, &error);
                assert!(fine, "{} {:?}, operation {}: {what} {range:x?}: {error:?}", F::NAME, self.case, self.done);
                self.compare(member, what);
                false
            }
        };
        self.expect_no_failure(what);
        done
    }

    fn unmap(&mut self, member: usize) {
        let range = self.some_range();
        let pinned = self.is_pinned(member, &range);
        let result = self.attempt(member, "unmap", |space| space.unmap(virt(&range)));
        assert!(!(pinned && result.is_ok()), "a pinned page was unmapped");
        if self.settle(member, &range, "unmap", result) {
            let pages = &mut self.members[member].pages;
            let gone: Vec<_> = pages.range(range).map(|(&page, _)| page).collect();
            for page in gone {
                pages.remove(&page);
            }
        }
        self.check(member, "unmap");
    }

    fn protect(&mut self, member: usize) {
        let range = self.some_range();
        let rights = self.some_rights();
        let result = self.attempt(member, "protect", |space| space.protect(virt(&range), rights));
        if self.settle(member, &range, "protect", result) {
            for (_, page) in self.members[member].pages.range_mut(range) {
                page.rights = rights;
            }
        }
        self.check(member, "protect");
    }

    fn remap(&mut self, member: usize) {
        let from = self.some_range();
        let length = from.end - from.start;
        let to = self.some_range().start;
        let to = if self.one_in(2) { to & !(WINDOW - 1) | from.start & (WINDOW - 1) } else { to };
        let into = to..to.saturating_add(length);
        if into.end > u64::MAX >> 12 || !F::is_valid(at(into.end - 1)) || !F::is_valid(at(from.end - 1)) {
            return;
        }
        let pages = &self.members[member].pages;
        let is_mapped = pages.range(into.clone()).next().is_some();
        let overlap = into.start < from.end && from.start < into.end;
        let result = self.attempt(member, "remap", |space| space.remap(virt(&from), at(to)));
        let result = match result {
            Err(ChangeError::Overlap { .. }) => return assert!(overlap),
            Err(ChangeError::Mapped { .. }) => return assert!(is_mapped),
            Err(ChangeError::Misaligned { .. }) => return assert_ne!(from.start & (WINDOW - 1), to & (WINDOW - 1)),
            Err(ChangeError::Range(RangeError::NotCanonical { .. })) => return,
            result => result,
        };
        assert!(!(result.is_ok() && (overlap || is_mapped)), "operation {}", self.done);
        if self.settle(member, &from, "remap", result) {
            let pages = &mut self.members[member].pages;
            let moved: Vec<_> = pages.range(from.clone()).map(|(&page, _)| page).collect();
            for page in moved {
                if let Some(one) = pages.remove(&page) {
                    pages.insert(page - from.start + to, one);
                }
            }
        }
        self.check(member, "remap");
    }

    fn split(&mut self, member: usize) {
        let range = self.some_range();
        let result = self.attempt(member, "split", |space| space.split(virt(&range)));
        self.settle(member, &range, "split", result);
        self.check(member, "split");
    }

    fn merge(&mut self, member: usize) {
        let page = self.some_range().start & !(WINDOW - 1);
        if page + WINDOW > u64::MAX >> 12 {
            return;
        }
        let merged = self.attempt(member, "merge", |space| space.merge(at(page), PageSize::Large));
        if let Ok(true) = merged {
            let found = self.members[member].space.query(at(page)).map(|mapping| mapping.size);
            assert_eq!(found, Some(PageSize::Large));
            // The page's marks are one now, and contain those of all parts.
        }
        assert!(merged.is_ok(), "{merged:?}");
        self.check(member, "merge");
    }
}
