//! Tables that are allocated before an operation starts, so that nothing can fail half-way.

use crate::address::Frame;
use crate::error::NoTables;
use crate::machine::{Machine, Node, allocate};

/// Unused tables, linked by their meta data. Dropping this gives back what is left.
pub(crate) struct Reserve<'m, M: Machine> {
    machine: &'m M,
    first: Option<Frame>,
}

/// Up to this many are allocated without first asking whether there are enough.
const FEW: usize = 16;

impl<'m, M: Machine> Reserve<'m, M> {
    /// Allocates `needed` tables, or none.
    pub(crate) fn new(machine: &'m M, needed: usize, node: Node) -> Result<Self, NoTables> {
        let mut reserve = Self { machine, first: None };
        if needed > FEW {
            let got = machine.free_tables();
            if got < needed {
                return Err(NoTables { needed, got });
            }
        }
        for got in 0..needed {
            let table = allocate(machine, node).ok_or(NoTables { needed, got })?;
            // SAFETY: allocated just now.
            unsafe { machine.meta(table) }.set_link(reserve.first);
            reserve.first = Some(table);
        }
        Ok(reserve)
    }

    /// Takes one of the tables, empty. There are as many as were counted beforehand.
    pub(crate) fn take(&mut self) -> Frame {
        let Some(table) = self.first else {
            // A wrong count is an error of this crate, and continuing without a table would corrupt the space.
            unreachable!("an operation needs more tables than it has counted");
        };
        // SAFETY: allocated, and given to nobody.
        let meta = unsafe { self.machine.meta(table) };
        self.first = meta.link();
        meta.set_link(None);
        table
    }
}

impl<M: Machine> Drop for Reserve<'_, M> {
    fn drop(&mut self) {
        while self.first.is_some() {
            let table = self.take();
            // SAFETY: 1. it was never used.
            unsafe { self.machine.free_table(table) };
        }
    }
}
