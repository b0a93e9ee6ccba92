//! Instructions: loads, stores and fetches, all at once or step by step.

use std::sync::atomic::Ordering;

use super::cpu::{Cpu, Memory, Step, Translation, Trap, Walk};
use super::machine::FAULTED;
use super::tables::Tables;
use super::{Computer, Delivery, Failure, lock};
use crate::access::{Access, AccessKind};
use crate::address::{Frame, VirtAddr};
use crate::attributes::Privilege;
use crate::id::SpaceId;
use crate::machine::Node;

/// How far a walk came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// More must be read.
    Walking,
    /// The translation is in the TLB.
    Done,
    /// The access traps.
    Trapped(Trap),
    /// There is no walk on this CPU.
    Idle,
}

impl Memory for Computer {
    fn read(&self, table: Frame, index: usize) -> Option<u64> {
        let found = Tables::node_of(table).and_then(|node| self.tables.get(node)).map(|node| node.get(table));
        let Some((table, _, Ok(()))) = found else {
            self.failed(Failure::FreeTable { table });
            return None;
        };
        Some(table.0[index].load(Ordering::Acquire))
    }

    fn set(&self, table: Frame, index: usize, seen: u64, set: u64) -> bool {
        let entry = &self.table_at(table).0.0[index];
        entry.compare_exchange(seen, seen | set, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Computer {
    /// Lets a CPU run a space, with `root` as the root for the CPU's node, or none. The CPU forgets all translations.
    pub fn switch(&self, cpu: usize, to: Option<(SpaceId, Frame)>) {
        lock(&self.cpus[cpu]).switch(to);
    }

    /// Returns the node of a CPU.
    pub fn node(&self, cpu: usize) -> Node {
        lock(&self.cpus[cpu]).node
    }

    /// Returns the space that a CPU runs.
    pub fn running(&self, cpu: usize) -> Option<SpaceId> {
        lock(&self.cpus[cpu]).running.map(|(space, _)| space)
    }

    /// Loads or fetches from `address`.
    ///
    /// # Errors
    ///
    /// A page fault.
    pub fn load(&self, number: usize, address: VirtAddr, access: Access) -> Result<u64, Trap> {
        let mut cpu = lock(&self.cpus[number]);
        let frame = Frame::containing(self.translate(number, &mut cpu, address, access)?.physical(address));
        let content = lock(&self.pages).read(frame);
        Ok(content.unwrap_or_else(|| {
            self.failed(Failure::FreeFrame { frame });
            0
        }))
    }

    /// Stores to the page at `address`, in user mode.
    ///
    /// # Errors
    ///
    /// A page fault.
    pub fn store(&self, cpu: usize, address: VirtAddr, content: u64) -> Result<(), Trap> {
        self.store_from(Privilege::User, cpu, address, content)
    }

    /// Stores to the page at `address`.
    ///
    /// # Errors
    ///
    /// A page fault.
    pub fn store_from(&self, from: Privilege, number: usize, address: VirtAddr, content: u64) -> Result<(), Trap> {
        let access = Access { kind: AccessKind::Write, from };
        let mut cpu = lock(&self.cpus[number]);
        let frame = Frame::containing(self.translate(number, &mut cpu, address, access)?.physical(address));
        if lock(&self.pages).write(frame, content).is_none() {
            self.failed(Failure::FreeFrame { frame });
        }
        Ok(())
    }

    /// Returns the frame that an access reaches.
    ///
    /// # Errors
    ///
    /// A page fault.
    pub fn reach(&self, number: usize, address: VirtAddr, access: Access) -> Result<Frame, Trap> {
        let mut cpu = lock(&self.cpus[number]);
        Ok(Frame::containing(self.translate(number, &mut cpu, address, access)?.physical(address)))
    }

    fn translate(&self, number: usize, cpu: &mut Cpu, address: VirtAddr, access: Access) -> Result<Translation, Trap> {
        if self.delivery == Delivery::Random && self.coin() {
            cpu.take_interrupts();
        }
        if let Some(found) = cpu.look_up(address, access, &self.mmu) {
            return found.inspect_err(|_| self.count_fault(number));
        }
        let mut walk = Walk { address, access, at: None };
        loop {
            match cpu.step(walk, &self.mmu, self) {
                Step::More(next) => walk = next,
                Step::Done(entry) => return Ok(entry),
                Step::Trapped(trap) => {
                    self.count_fault(number);
                    return Err(trap);
                }
            }
        }
    }

    fn count_fault(&self, cpu: usize) {
        FAULTED.set(cpu);
        self.counts.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins a walk that has read nothing yet; see [`step`](Self::step). Gives up one that is under way.
    pub fn begin(&self, cpu: usize, address: VirtAddr, access: Access) {
        lock(&self.cpus[cpu]).walk = Some(Walk { address, access, at: None });
    }

    /// Makes the walk on this CPU read one entry.
    pub fn step(&self, number: usize) -> Progress {
        let mut cpu = lock(&self.cpus[number]);
        let Some(walk) = cpu.walk.take() else { return Progress::Idle };
        match cpu.step(walk, &self.mmu, self) {
            Step::More(next) => {
                cpu.walk = Some(next);
                Progress::Walking
            }
            Step::Done(_) => Progress::Done,
            Step::Trapped(trap) => {
                self.count_fault(number);
                Progress::Trapped(trap)
            }
        }
    }
}
