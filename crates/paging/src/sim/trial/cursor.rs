//! Changes page by page.

use super::operations::{Memory, virt};
use super::{Expected, Host, Trial, Value, WINDOW, at};
use crate::address::{PageSize, VirtAddr};
use crate::attributes::{Attributes, Rights};
use crate::error::MapError;
use crate::machine::Node;
use crate::sim::{Hardware, MapNextSimulated};
use crate::space::{CursorMapError, Mapping};

/// The effect of a cursor's step.
enum Change {
    Taken(Mapping),
    Protected(Mapping, Rights),
    Mapped(VirtAddr, u64),
}

impl<F: Hardware, M: Host> Trial<'_, F, M> {
    /// Does some steps with a cursor, one of which may find no memory.
    pub(super) fn by_cursor(&mut self, member: usize) {
        let range = self.some_range();
        let range = range.start..range.end.min(range.start + 2 * WINDOW);
        let space = &self.members[member].space;
        let Ok(mut cursor) = space.cursor_mut(virt(&range)) else { panic!("{self:?}: {range:x?} is no range") };
        let mut changes = Vec::new();
        for _ in 0..1 + self.below(16) {
            if self.one_in(self.case.refuse_every) {
                self.computer.refuse(0..1);
            }
            let at = cursor.address();
            let refused = match self.below(4) {
                0 => cursor.take_next().map(|taken| changes.extend(taken.map(Change::Taken))).err(),
                1 => {
                    let rights = self.some_rights();
                    let changed = cursor.protect_next(rights);
                    changed.map(|page| changes.extend(page.map(|page| Change::Protected(page, rights)))).err()
                }
                2 if at < cursor.range().end => {
                    let Some(frame) = self.computer.allocate(Node(0), 4096, PageSize::Small) else { break };
                    let value = self.new_value();
                    self.computer.set_content(frame, value);
                    let user = Attributes::user(Rights::READ | Rights::WRITE);
                    let mapped = cursor.map_simulated(frame, PageSize::Small, user);
                    match mapped {
                        Ok(()) => changes.push(Change::Mapped(at, value)),
                        Err(CursorMapError::Map(MapError::Mapped { .. } | MapError::NoMemory(_))) => {
                            self.computer.give_back(frame, 4096);
                        }
                        Err(error) => panic!("{self:?}: cursor at {at}: {error}"),
                    }
                    None
                }
                _ => {
                    cursor.skip_next();
                    None
                }
            };
            self.computer.refuse(0..0);
            if let Some(error) = refused {
                let page = cursor.find().map(|page| page.address.0 >> 12).unwrap_or_default();
                let fine = self.may_refuse(member, &(page..page + WINDOW), &error) || error.is_no_memory();
                assert!(fine, "{self:?}: cursor at {at}: {error}");
                cursor.skip_next();
            }
        }
        let flushing = cursor.finish().dispatch();
        self.meanwhile();
        flushing.wait();
        for change in changes {
            self.expect_change(member, &change);
        }
        self.check(member, "cursor");
    }

    fn expect_change(&mut self, member: usize, change: &Change) {
        let pages = &mut self.members[member].pages;
        let all = |mapping: &Mapping| {
            let start = mapping.address.0 >> 12;
            start..start + (mapping.size.bytes() >> 12)
        };
        match change {
            Change::Taken(mapping) => {
                let gone: Vec<_> = all(mapping).map(|page| pages.remove(&page)).collect();
                let rights = mapping.leaf.attributes.rights;
                let fine = gone.iter().all(|page| page.is_some_and(|page| page.rights == rights && page.pins == 0));
                assert!(fine, "{self:?}: a cursor has taken {mapping:?}, which was {gone:?}");
            }
            Change::Protected(mapping, rights) => {
                for page in all(mapping) {
                    match pages.get_mut(&page) {
                        Some(page) => page.rights = *rights,
                        None => panic!("{}: a cursor has found {page:#x}, which is not mapped", F::NAME),
                    }
                }
            }
            Change::Mapped(address, value) => {
                let (value, rights) = (Value::Own(*value), Rights::READ | Rights::WRITE);
                let new = Expected { value, rights, dirty: false, accessed: false, pins: 0 };
                let before = pages.insert(address.0 >> 12, new);
                assert_eq!(before, None, "{self:?}: {} was mapped", at(address.0 >> 12));
            }
        }
    }
}
