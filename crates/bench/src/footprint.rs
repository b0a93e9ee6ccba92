//! What a loaded program costs besides time: memory and mappings.
//!
//! Each contestant is measured in a process of its own, started for that purpose: in a process with a past, memory that
//! an earlier contestant left in the heap would be used again and would look free.

use std::io;

use palimpsest_sys::Causes;
use serde::{Deserialize, Serialize};

use crate::harness::{BenchError, Context, Group, Samples};
use crate::resident::Resident;

/// Who loads programs.
pub(crate) trait Loader: Copy {
    /// Name in ids, and for the process.
    fn name(self) -> &'static str;

    /// Whether the figure is Palimpsest's.
    fn is_ours(self) -> bool;

    /// Returns why it cannot take part, if it cannot.
    fn refusal(self) -> Option<String>;
}

/// What loading programs added to a process, per program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Footprint {
    /// Resident bytes, shared pages counted once.
    bytes: f64,
    mappings: f64,
    /// Bytes of page tables, which are not part of `bytes`.
    page_table_bytes: f64,
}

impl Footprint {
    /// Returns what `programs` programs added between two counts.
    pub(crate) fn between(before: &Resident, after: &Resident, programs: usize) -> Self {
        let each = |after: usize, before: usize| (after as f64 - before as f64) / programs as f64;
        Self {
            bytes: each(after.bytes, before.bytes),
            mappings: each(after.mappings, before.mappings),
            page_table_bytes: each(after.page_table_bytes, before.page_table_bytes),
        }
    }

    /// Prints it for [`Figures::run`].
    pub(crate) fn print(&self) -> Result<(), serde_json::Error> {
        serde_json::to_writer(io::stdout().lock(), self)
    }
}

/// Two groups of figures: bytes and mappings per program.
pub(crate) struct Figures<'a, L> {
    /// The helper that measures the loader whose name follows, and [prints](Footprint::print) the result.
    pub(crate) helper: &'static str,
    /// Ids of the figures; names are added to them.
    pub(crate) ids: [&'static str; 2],
    pub(crate) loaders: &'a [L],
    /// Processes per loader.
    pub(crate) runs: u32,
}

/// Notes for a loader's figures: their ids, and the mean bytes of page tables for each program.
pub(crate) type Notes<'a, L> = &'a dyn Fn(&mut Samples, L, &[String; 2], f64);

impl<L: Loader> Figures<'_, L> {
    pub(crate) fn run(
        &self,
        context: &mut Context<'_>,
        groups: [Group; 2],
        notes: Notes<'_, L>,
    ) -> Result<(), BenchError> {
        let wanted = context.wanted(groups);
        let Some(first) = wanted.first() else {
            return Ok(());
        };
        if let Err(reason) = context.helper(self.helper) {
            wanted.iter().for_each(|group| context.skip(group, &reason));
            return Ok(());
        }
        context.begin(&first.id);
        let mut samples = Samples::default();
        for &loader in self.loaders {
            let ids = self.ids.map(|id| format!("{id}.{}", loader.name()));
            let found: Result<Vec<Footprint>, BenchError> =
                (0..self.runs).map(|_| self.start(context, loader)).collect();
            match found {
                Ok(found) => {
                    samples.extend(&ids[0], found.iter().map(|one| one.bytes));
                    samples.extend(&ids[1], found.iter().map(|one| one.mappings));
                    let tables = found.iter().map(|one| one.page_table_bytes).sum::<f64>();
                    notes(&mut samples, loader, &ids, tables / f64::from(self.runs));
                }
                Err(error) if loader.is_ours() => return Err(error),
                // A rival may not be in this build, or meet a limit of this machine, such as the number of mappings.
                Err(error) => ids.iter().for_each(|id| samples.refuse(id, Causes(&error).to_string())),
            }
        }
        for group in wanted {
            let own = samples.take(&group);
            context.record(&group, own);
        }
        Ok(())
    }

    fn start(&self, context: &Context<'_>, loader: L) -> Result<Footprint, BenchError> {
        let failed = |reason: String| BenchError::Helper { contestant: loader.name().to_owned(), reason };
        if let Some(reason) = loader.refusal() {
            return Err(failed(reason));
        }
        let mut helper = context.helper(self.helper).map_err(failed)?;
        let output = helper.arg(loader.name()).output().map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(failed(format!("{}: {said}", output.status)));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
    }
}
