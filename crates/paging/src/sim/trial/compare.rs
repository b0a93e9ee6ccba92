//! Compares spaces with their models.

use std::ops::{ControlFlow, Range};

use super::{Host, Member, Trial, Value};
use crate::address::VirtAddr;
use crate::attributes::Sharing;
use crate::sim::Hardware;
use crate::space::Accounting;

impl<F: Hardware, M: Host> Trial<'_, F, M> {
    pub(super) fn value(&self, value: Value) -> u64 {
        match value {
            Value::Own(value) => value,
            Value::Shared(cell) => self.cells[cell],
        }
    }

    pub(super) fn expect_no_failure(&self, what: &str) {
        let failures = self.computer.take_failures();
        assert!(failures.is_empty(), "{} {:?}, operation {} ({what}): {failures:?}", F::NAME, self.case, self.done);
    }

    /// Makes the cheap checks, after each operation.
    pub(super) fn check(&self, member: usize, what: &str) {
        self.expect_no_failure(what);
        let Some(one) = self.members.get(member) else { return };
        if let Err(error) = one.space.verify() {
            panic!("{} {:?}, operation {} ({what}): {error}", F::NAME, self.case, self.done);
        }
        self.computer.expect_coherent(one.space.id());
        if self.case.options.accounting == Accounting::Exact {
            let charged = self.computer.charged(one.space.id()).pages;
            assert_eq!(
                charged,
                one.pages.len() as i64,
                "{} {:?}, operation {} ({what})",
                F::NAME,
                self.case,
                self.done
            );
        }
        self.expect_no_failure(what);
    }

    fn everywhere() -> Vec<Range<VirtAddr>> {
        let bytes = F::TOP.table_bytes();
        if F::is_valid(VirtAddr(bytes - 1)) {
            return std::iter::once(VirtAddr(0)..VirtAddr(bytes)).collect();
        }
        if !F::is_valid(VirtAddr(0)) {
            return std::iter::once(VirtAddr(Self::base())..VirtAddr(!0xfff)).collect();
        }
        vec![VirtAddr(0)..VirtAddr(bytes / 2), VirtAddr(0_u64.wrapping_sub(bytes / 2))..VirtAddr(!0xfff)]
    }

    /// Checks that a member translates everything as it must.
    pub(super) fn compare(&self, member: usize, what: &str) {
        let Member { space, pages, .. } = &self.members[member];
        let mut expected = pages.iter();
        for range in Self::everywhere() {
            space
                .walk(range, |mapping| {
                    for part in 0..mapping.size.bytes() >> 12 {
                        let page = (mapping.address.0 >> 12) + part;
                        let Some((&number, want)) = expected.next() else {
                            panic!(
                                "{} {:?}, operation {} ({what}): {page:#x} is mapped",
                                F::NAME,
                                self.case,
                                self.done
                            );
                        };
                        let leaf = mapping.leaf;
                        assert!(
                            leaf.dirty >= want.dirty && leaf.accessed >= want.accessed,
                            "{} {:?}, operation {} ({what}): page {page:#x} has lost a mark: {leaf:?}, {want:?}",
                            F::NAME,
                            self.case,
                            self.done
                        );
                        let content = self.computer.content(mapping.leaf.frame.offset(part << 12));
                        let sharing =
                            if matches!(want.value, Value::Own(_)) { Sharing::Private } else { Sharing::Shared };
                        let seen = (page, mapping.leaf.attributes.rights, mapping.leaf.attributes.sharing, content);
                        let wanted = (number, want.rights, sharing, self.value(want.value));
                        assert_eq!(seen, wanted, "{} {:?}, operation {} ({what})", F::NAME, self.case, self.done);
                    }
                    ControlFlow::Continue(())
                })
                .unwrap();
        }
        assert_eq!(expected.next(), None, "{} {:?}, operation {} ({what})", F::NAME, self.case, self.done);
        self.expect_no_failure(what);
    }

    /// Makes the expensive checks.
    pub(super) fn compare_all(&self) {
        for member in 0..self.members.len() {
            self.check(member, "comparison");
            self.compare(member, "comparison");
        }
        let roots: Vec<_> = self.members.iter().map(|member| member.space.root(member.space.home())).collect();
        self.computer.expect_counted(&roots);
        self.expect_no_failure("counting");
    }

    /// Ends all spaces, and checks that nothing is left.
    ///
    /// # Panics
    ///
    /// If something is.
    pub fn finish(mut self) {
        self.compare_all();
        while !self.members.is_empty() {
            self.drop_member(0);
        }
        self.computer.expect_empty();
        self.expect_no_failure("the end");
        assert_eq!((self.computer.live_tables(), self.computer.live_frames()), (0, 0));
    }
}
