//! Makes and ends spaces.

use super::{CPUS, Host, Member, Replicas, Trial, at};
use crate::machine::Node;
use crate::sim::Hardware;
use crate::space::{ChildReplicas, ForkOptions};

impl<F: Hardware, M: Host> Trial<'_, F, M> {
    pub(super) fn fork(&mut self, member: usize) {
        if self.members.len() >= 6 {
            return;
        }
        let id = self.new_id();
        let replicas = self.pick(&[ChildReplicas::Dropped, ChildReplicas::Inherited]);
        // The child's home is any node, and it has as many nodes as its parent.
        let nodes = self.case.nodes as u64;
        let home = if self.one_in(2) { 0 } else { self.below(nodes) };
        let nodes: Vec<_> = (0..nodes).map(|node| Node(((node + home) % nodes) as u8)).collect();
        let options = ForkOptions::new().nodes(&nodes).replicas(replicas);
        let (child, flush) = self.attempt(member, "fork", |space| space.fork_with(id, options)).unwrap();
        let flushing = flush.dispatch();
        self.meanwhile();
        flushing.wait();
        let mut pages = self.members[member].pages.clone();
        pages.values_mut().for_each(|page| page.pins = 0);
        let replicas = match replicas {
            ChildReplicas::Dropped => Replicas::None,
            ChildReplicas::Inherited => self.members[member].replicas,
        };
        self.members.push(Member { space: child, pages, replicas });
        self.check(member, "fork");
        self.check(self.members.len() - 1, "fork");
    }

    pub(super) fn end(&mut self, member: usize) {
        if self.members.len() > 1 {
            self.drop_member(member);
            self.expect_no_failure("drop");
        } else if self.one_in(8) {
            self.drop_member(member);
            self.expect_no_failure("drop");
            self.computer.expect_empty();
            self.expect_no_failure("drop of the last");
            self.cells.clear();
            self.add_first();
        }
    }

    /// Ends a space.
    pub(super) fn drop_member(&mut self, member: usize) {
        let member = self.members.swap_remove(member);
        for (&page, one) in &member.pages {
            // A pinned large page has the pins of its first page.
            if one.pins > 0 && member.space.query(at(page)).is_some_and(|mapping| mapping.address == at(page)) {
                for _ in 0..one.pins {
                    member.space.unpin(at(page)).unwrap();
                }
            }
        }
        for cpu in 0..CPUS {
            if self.computer.running(cpu) == Some(member.space.id()) {
                self.computer.switch(cpu, None);
            }
        }
    }
}
