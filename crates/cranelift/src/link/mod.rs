//! Finalizes: every pending definition gets a place, then its addresses, then goes live; all or none.
//!
//! Places are reserved first, because a program's final address is known before its bytes are; so forward and mutual
//! references need no second pass. Code is patched in the private image, never in executable memory.

mod patch;

use std::collections::HashMap;
use std::ops::Range;

use cranelift_module::{DataId, FuncId};
use palimpsest_text::link::{Encoder, Islands, Reference};
use palimpsest_text::{Packs, Staged, StagedData};
use tracing::debug;

use self::patch::{Patcher, Resolve};
use crate::definition::{DataObject, Fixup, Function, LiveData, LiveFunction, Target};
use crate::error::LinkError;
use crate::scope::Scope;

/// The smallest alignment that packs accept, in bytes.
const LEAST_ALIGN: usize = 4;

/// Minimum length of a function, or of a call's field with what follows it up to the next place, in bytes.
const SHORTEST: u64 = 4;

/// One finalization under way. Dropping it gives back all places.
pub(crate) struct Batch<'a> {
    encoder: &'a dyn Encoder,
    packs: &'a Packs,
    scope: &'a Scope,
    functions: Vec<(FuncId, Staged, Islands<Target>)>,
    data: Vec<(DataId, StagedData)>,
    addresses: Addresses<'a>,
}

/// The result of a finalization.
pub(crate) struct Linked {
    pub(crate) functions: Vec<(FuncId, palimpsest_text::Program)>,
    pub(crate) data: Vec<(DataId, palimpsest_text::Data)>,
}

/// Addresses of everything, including what is only staged.
struct Addresses<'a> {
    scope: &'a Scope,
    functions: HashMap<FuncId, u64>,
    data: HashMap<DataId, u64>,
}

impl Resolve for Addresses<'_> {
    fn address(&self, target: Target, referrer: &str) -> Result<u64, LinkError> {
        let staged = match target {
            Target::Function(id) => self.functions.get(&id).copied(),
            Target::Inside(id, offset) => self.functions.get(&id).map(|at| at + u64::from(offset)),
            Target::Data(id) => self.data.get(&id).copied(),
            Target::LibCall(_) => None,
        };
        match staged {
            Some(address) => Ok(address),
            None => self
                .scope
                .address(target)
                .ok_or_else(|| LinkError::Undefined { symbol: self.scope.name(target), referrer: referrer.to_owned() }),
        }
    }

    fn name(&self, target: Target) -> String {
        self.scope.name(target)
    }
}

impl<'a> Batch<'a> {
    pub(crate) fn new(encoder: &'a dyn Encoder, packs: &'a Packs, scope: &'a Scope) -> Self {
        Self {
            encoder,
            packs,
            scope,
            functions: Vec::new(),
            data: Vec::new(),
            addresses: Addresses { scope, functions: HashMap::new(), data: HashMap::new() },
        }
    }

    /// Reserves a place for every pending definition.
    pub(crate) fn place(&mut self) -> Result<(), LinkError> {
        for id in &self.scope.pending_functions {
            self.place_function(*id)?;
        }
        for id in &self.scope.pending_data {
            self.place_data(*id)?;
        }
        Ok(())
    }

    fn place_function(&mut self, id: FuncId) -> Result<(), LinkError> {
        let Some(Function::Pending(pending)) = self.scope.functions.get(&id) else {
            return Ok(());
        };
        let region = self.packs.region();
        let name = self.scope.function_name(id);
        let islands =
            Islands::plan(self.encoder, pending.code.len(), pending.fixups.iter().map(Fixup::reference), |call| {
                self.may_be_far(call, &name, &region)
            })?;
        let len = islands.program_len();
        let align = pending.align.max(islands.align()).max(LEAST_ALIGN);
        let mut staged =
            self.packs.stage(len, align).map_err(|source| LinkError::Stage { name: name.clone(), len, source })?;
        staged.set_name(&name);
        let address = staged.address().get() as u64;
        if let Some(eh_frame) = pending.unwind.as_ref().and_then(|unwind| unwind.eh_frame(address)) {
            staged.set_eh_frame(eh_frame);
        }
        self.addresses.functions.insert(id, address);
        self.functions.push((id, staged, islands));
        Ok(())
    }

    /// Returns whether a call from somewhere in `region` may be too far from its callee.
    fn may_be_far(&self, call: &Reference<Target>, referrer: &str, region: &Range<usize>) -> Result<bool, LinkError> {
        // No call, and no function in the packs, begins closer to the region's end than its own length.
        let (first, last) = (region.start as u64, region.end as u64 - SHORTEST);
        let farthest = if self.scope.is_pending(call.target) {
            last - first
        } else {
            let to = self.addresses.address(call.target, referrer)?;
            to.abs_diff(first).max(to.abs_diff(last))
        };
        Ok(farthest > self.encoder.call_reach())
    }

    fn place_data(&mut self, id: DataId) -> Result<(), LinkError> {
        let Some(DataObject::Pending(pending)) = self.scope.data.get(&id) else {
            return Ok(());
        };
        // Even an empty object has an address of its own.
        let len = pending.contents.len().max(1);
        let align = pending.align.max(LEAST_ALIGN);
        let staged = self.packs.stage_data(pending.access, len, align).map_err(|source| LinkError::Stage {
            name: self.scope.data_name(id),
            len,
            source,
        })?;
        self.addresses.data.insert(id, staged.address() as u64);
        self.data.push((id, staged));
        Ok(())
    }

    /// Writes code and contents, with all addresses, into the images.
    pub(crate) fn write(&mut self) -> Result<(), LinkError> {
        for (id, staged, islands) in &mut self.functions {
            let Some(Function::Pending(pending)) = self.scope.functions.get(id) else {
                continue;
            };
            let base = staged.address().get() as u64;
            let image = staged.image();
            image[..pending.code.len()].copy_from_slice(&pending.code);
            Patcher {
                encoder: self.encoder,
                resolve: &self.addresses,
                referrer: &self.scope.function_name(*id),
                base,
                len: pending.code.len(),
                fixups: &pending.fixups,
                islands,
            }
            .patch_all(image)?;
        }
        for (id, staged) in &mut self.data {
            let Some(DataObject::Pending(pending)) = self.scope.data.get(id) else {
                continue;
            };
            let base = staged.address() as u64;
            let image = staged.image();
            pending.contents.write(image);
            Patcher {
                encoder: self.encoder,
                resolve: &self.addresses,
                referrer: &self.scope.data_name(*id),
                base,
                len: pending.contents.len(),
                fixups: &pending.fixups,
                islands: &Islands::none(),
            }
            .patch_all(image)?;
        }
        Ok(())
    }

    /// Puts everything into place: data first, so that code never runs before its data is there; then all functions
    /// with one synchronisation of the cores.
    pub(crate) fn go_live(self) -> Result<Linked, LinkError> {
        let (functions, data) = (self.functions.len(), self.data.len());
        let failed = |source| LinkError::Finalize { functions, data, source };
        let mut live_data = Vec::with_capacity(data);
        for (id, staged) in self.data {
            live_data.push((id, staged.finalize().map_err(failed)?));
        }
        let (ids, staged): (Vec<_>, Vec<_>) = self.functions.into_iter().map(|(id, staged, _)| (id, staged)).unzip();
        let programs = if staged.is_empty() { Vec::new() } else { self.packs.finalize_all(staged).map_err(failed)? };
        debug!(functions, data, "finalized definitions");
        Ok(Linked { functions: ids.into_iter().zip(programs).collect(), data: live_data })
    }
}

impl Linked {
    /// Turns the pending definitions of `scope` into live ones.
    pub(crate) fn enter(self, scope: &mut Scope) {
        for (id, program) in self.functions {
            if let Some(Function::Pending(pending)) = scope.functions.remove(&id) {
                let live = LiveFunction { program, code_len: pending.code.len(), traps: pending.traps };
                scope.functions.insert(id, Function::Live(live));
            }
        }
        for (id, data) in self.data {
            if let Some(DataObject::Pending(pending)) = scope.data.remove(&id) {
                let live = LiveData { data, len: pending.contents.len() };
                scope.data.insert(id, DataObject::Live(live));
            }
        }
        scope.pending_functions.clear();
        scope.pending_data.clear();
    }
}
