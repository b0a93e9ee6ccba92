//! What CPUs and devices do; and marks and replicas, which must stay unnoticed.

use std::ops::Range;

use super::operations::virt;
use super::{CPUS, Expected, Host, Replicas, Trial, Value, at};
use crate::access::Access;
use crate::attributes::Rights;
use crate::error::PinError;
use crate::machine::Node;
use crate::sim::Hardware;
use crate::space::{Fault, Mark};

impl<F: Hardware, M: Host> Trial<'_, F, M> {
    /// Makes a CPU run a member.
    pub(super) fn on_cpu(&self, member: usize) -> usize {
        let cpu = self.below(CPUS as u64) as usize;
        let space = &self.members[member].space;
        if self.computer.running(cpu) != Some(space.id()) {
            self.computer.switch(cpu, Some((space.id(), space.root(self.computer.node(cpu)))));
        }
        cpu
    }

    /// Lets things happen while a flush is under way: CPUs keep walking, and may see old or new.
    pub(super) fn meanwhile(&self) {
        for _ in 0..self.below(4) {
            let cpu = self.below(CPUS as u64) as usize;
            if self.one_in(2) {
                self.computer.step(cpu);
            } else {
                let page = self.some_range().start;
                let _ = self.computer.load(cpu, at(page), Access::USER_READ);
            }
        }
    }

    /// Makes a walk somewhere, which continues while operations come between.
    pub(super) fn wander(&self) {
        let cpu = self.below(CPUS as u64) as usize;
        if self.one_in(3) {
            let access = self.pick(&[Access::USER_READ, Access::USER_WRITE, Access::USER_EXECUTE]);
            self.computer.begin(cpu, at(self.some_range().start), access);
        }
        self.computer.step(cpu);
    }

    /// Repeats an access until it passes or the kernel refuses it.
    fn access(&self, member: usize, page: u64, access: Access, store: Option<u64>) -> Option<u64> {
        let cpu = self.on_cpu(member);
        let node = self.computer.node(cpu);
        for _ in 0..8 {
            let result = match store {
                Some(value) => self.computer.store(cpu, at(page), value).map(|()| value),
                None => self.computer.load(cpu, at(page), access),
            };
            let Err(trap) = result else { return result.ok() };
            let fault = self.attempt(member, "fault", |space| space.fault(trap.address, trap.access, node)).unwrap();
            self.expect_no_failure("fault");
            if let Fault::NotMapped | Fault::Denied = fault {
                return None;
            }
        }
        panic!("{} {:?}, operation {}: {access:?} at {page:#x} faults for ever", F::NAME, self.case, self.done);
    }

    pub(super) fn store(&mut self, member: usize) {
        let page = self.some_page(member);
        let value = self.new_value();
        let passed = self.access(member, page, Access::USER_WRITE, Some(value)).is_some();
        let expected = self.members[member].pages.get_mut(&page);
        let allowed = expected.as_ref().is_some_and(|page| page.rights.contains(Rights::WRITE));
        assert_eq!(passed, allowed, "{} {:?}, operation {}: store to {page:#x}", F::NAME, self.case, self.done);
        if let (true, Some(page)) = (passed, expected) {
            (page.dirty, page.accessed) = (true, true);
            match &mut page.value {
                Value::Own(old) => *old = value,
                Value::Shared(cell) => self.cells[*cell] = value,
            }
        }
        self.check(member, "store");
    }

    pub(super) fn load(&mut self, member: usize) {
        let page = self.some_page(member);
        let access = self.pick(&[Access::USER_READ, Access::USER_EXECUTE]);
        let got = self.access(member, page, access, None);
        let expected = self.members[member].pages.get(&page).filter(|page| page.rights.contains(access.right()));
        let want = expected.map(|page| self.value(page.value));
        assert_eq!(got, want, "{} {:?}, operation {}: load of {page:#x}, {expected:?}", F::NAME, self.case, self.done);
        if let Some(page) = self.members[member].pages.get_mut(&page) {
            page.accessed |= got.is_some();
        }
        self.check(member, "load");
    }

    /// Returns the pages that one entry maps together with `page`.
    fn together(&self, member: usize, page: u64) -> Option<Range<u64>> {
        let mapping = self.members[member].space.query(at(page))?;
        let start = mapping.address.0 >> 12;
        Some(start..start + (mapping.size.bytes() >> 12))
    }

    pub(super) fn pin(&mut self, member: usize) {
        let page = self.some_page(member);
        let node = Node(self.below(self.case.nodes as u64) as u8);
        match self.attempt(member, "pin", |space| space.pin(at(page), node)) {
            Ok(_) => {
                let Some(range) = self.together(member, page) else { unreachable!("it was pinned") };
                for (_, one) in self.members[member].pages.range_mut(range) {
                    one.pins += 1;
                }
            }
            Err(error) => {
                assert_eq!(error, PinError::NotMapped { address: at(page) });
                assert!(!self.members[member].pages.contains_key(&page));
            }
        }
        self.check(member, "pin");
        // A device writes there, and the whole space sees it.
        let Some(mapping) = self.members[member].space.query(at(page)) else { return };
        let frame = mapping.leaf.frame.offset(at(page).0 - mapping.address.0);
        let value = self.new_value();
        if let Some(Expected { pins: 1.., value: Value::Own(own), .. }) = self.members[member].pages.get_mut(&page) {
            *own = value;
            self.computer.set_content(frame, value);
        }
    }

    pub(super) fn unpin(&mut self, member: usize) {
        let pinned = self.members[member].pages.iter().filter(|(_, page)| page.pins > 0).map(|(&page, _)| page);
        let pinned: Vec<_> = pinned.collect();
        if pinned.is_empty() {
            return;
        }
        let page = self.pick(&pinned);
        self.members[member].space.unpin(at(page)).unwrap();
        let Some(range) = self.together(member, page) else { unreachable!("it was pinned") };
        for (_, one) in self.members[member].pages.range_mut(range) {
            one.pins -= 1;
        }
        self.check(member, "unpin");
    }

    pub(super) fn replicate(&mut self, member: usize) {
        let range = self.some_range();
        let on_use = self.one_in(2);
        let (_, flush) = self
            .attempt(member, "replicate", |space| {
                if on_use { space.replicate_on_use(virt(&range)) } else { space.replicate(virt(&range)) }
            })
            .unwrap();
        let flushing = flush.dispatch();
        self.meanwhile();
        flushing.wait();
        if self.case.nodes > 1 {
            self.members[member].replicas = Replicas::Some;
        }
        self.check(member, "replicate");
    }

    pub(super) fn drop_replicas(&mut self, member: usize) {
        let range = self.some_range();
        self.members[member].space.drop_replicas(virt(&range)).unwrap().finish();
        self.check(member, "drop_replicas");
    }

    pub(super) fn take_marks(&mut self, member: usize) {
        let range = self.some_range();
        let mark = self.pick(&[Mark::Accessed, Mark::Dirty]);
        let is_on = |page: &Expected| if mark == Mark::Dirty { page.dirty } else { page.accessed };
        // Where each page's mark is reported: at its own address, or at that of the large page, cut to the range.
        let due: Vec<_> = self.members[member]
            .pages
            .range(range.clone())
            .filter(|(_, page)| is_on(page))
            .map(|(&page, _)| page)
            .collect();
        let due: Vec<_> =
            due.iter().filter_map(|&page| Some(self.together(member, page)?.start.max(range.start))).collect();
        let counted = self.members[member].space.count_marked(virt(&range), mark).unwrap();
        let mut reported = std::collections::BTreeSet::new();
        let result = self.attempt(member, "take_marks", |space| {
            space.take_marks(virt(&range), mark, |address| {
                reported.insert(address.0 >> 12);
            })
        });
        result.unwrap().finish();
        assert!(
            due.iter().all(|page| reported.contains(page)),
            "{} {:?}, operation {}: {mark:?} is lost: {due:x?} {reported:x?}",
            F::NAME,
            self.case,
            self.done
        );
        assert!(counted <= reported.len() && counted >= due.iter().collect::<std::collections::BTreeSet<_>>().len());
        let first = self.together(member, range.start).map_or(range.start, |large| large.start);
        let end = self.together(member, range.end - 1).map_or(range.end, |large| large.end);
        for (_, page) in self.members[member].pages.range_mut(first..end) {
            if mark == Mark::Dirty { page.dirty = false } else { page.accessed = false }
        }
        self.check(member, "take_marks");
    }
}
