//! Frees functions and data, one by one or together, while the module is in use.

use std::collections::HashSet;

use cranelift_module::{DataId, FuncId, FuncOrDataId};
use palimpsest_text::{Data, Program};

use crate::definition::{DataObject, Function};
use crate::error::FreeError;
use crate::module::PackModule;

impl PackModule {
    /// Frees a function, finalized or not. It can be defined again under the same id.
    ///
    /// The code is retired: a later [`reclaim`](palimpsest_text::Packs::reclaim), after every pinned thread has left,
    /// turns its bytes into traps and frees its place. So threads that run the module's code while others free it must
    /// be pinned (see [`Packs::participant`](palimpsest_text::Packs::participant)).
    ///
    /// Only references by relocations in this module count, including those of definitions that are not finalized yet.
    /// Addresses that were handed out, to other modules or as numbers, are unknown.
    ///
    /// # Errors
    /// [`FreeError::NotDefined`]; [`FreeError::Referenced`] while another definition of the module refers to the
    /// function. Then nothing is freed. [`free_together`](Self::free_together) frees functions that refer to each
    /// other; [`take_program`](Self::take_program) takes the code regardless.
    pub fn free_function(&mut self, func_id: FuncId) -> Result<(), FreeError> {
        self.free_together(&[FuncOrDataId::Func(func_id)])
    }

    /// Frees a data object, finalized or not. It can be defined again under the same id.
    ///
    /// # Errors
    /// As for [`free_function`](Self::free_function); [`take_data`](Self::take_data) takes data regardless.
    pub fn free_data(&mut self, data_id: DataId) -> Result<(), FreeError> {
        self.free_together(&[FuncOrDataId::Data(data_id)])
    }

    /// Frees definitions that may refer to each other, but to which nothing else in the module refers.
    ///
    /// # Errors
    /// As for [`free_function`](Self::free_function), for any of `ids`; then nothing is freed.
    pub fn free_together(&mut self, ids: &[FuncOrDataId]) -> Result<(), FreeError> {
        let group: HashSet<_> = ids.iter().copied().collect();
        for id in ids {
            self.check_unreferenced(*id, &group)?;
        }
        for id in group {
            drop(self.remove(id));
        }
        Ok(())
    }

    /// Takes a finalized function out of the module, whoever refers to it; the caller now owns its code.
    ///
    /// Code of the module that was linked to it still calls it, so keep the program until that code is gone too: calls
    /// into a dropped program end in a trap, or in code that was loaded in its place. Later definitions that refer to
    /// the function need a new definition of it.
    ///
    /// # Errors
    /// [`FreeError::NotDefined`], [`FreeError::NotFinalized`].
    pub fn take_program(&mut self, func_id: FuncId) -> Result<Program, FreeError> {
        self.check_live(FuncOrDataId::Func(func_id))?;
        match self.remove(FuncOrDataId::Func(func_id)) {
            Some(Removed::Program(program)) => Ok(program),
            _ => Err(FreeError::NotDefined { name: self.scope.function_name(func_id) }),
        }
    }

    /// Takes a finalized data object out of the module, whoever refers to it; the caller now owns its memory.
    ///
    /// As with [`take_program`](Self::take_program), keep it as long as code refers to it.
    ///
    /// # Errors
    /// [`FreeError::NotDefined`], [`FreeError::NotFinalized`].
    pub fn take_data(&mut self, data_id: DataId) -> Result<Data, FreeError> {
        self.check_live(FuncOrDataId::Data(data_id))?;
        match self.remove(FuncOrDataId::Data(data_id)) {
            Some(Removed::Data(data)) => Ok(data),
            _ => Err(FreeError::NotDefined { name: self.scope.data_name(data_id) }),
        }
    }

    /// Frees everything, as dropping the module does.
    ///
    /// `JITModule::free_memory` is an `unsafe fn`, because it unmaps code that a thread may be running. Here nothing is
    /// unmapped under a pinned thread, and calling a pointer to code that is gone takes the caller's own `unsafe`. Code
    /// written for `JITModule` still compiles; the compiler then reports its `unsafe` block as unused.
    pub fn free_memory(self) {
        drop(self);
    }

    /// Drops the module, but leaves its code and data in place until the process ends, as dropping a `JITModule` does.
    pub fn leak(self) {
        let Self { scope, .. } = self;
        scope.functions.into_values().for_each(std::mem::forget);
        scope.data.into_values().for_each(std::mem::forget);
    }

    /// Refuses if `id` is not defined, or if something outside `group` refers to it.
    fn check_unreferenced(&self, id: FuncOrDataId, group: &HashSet<FuncOrDataId>) -> Result<(), FreeError> {
        let name = || self.scope.definition_name(id);
        if !self.scope.is_defined(id) {
            return Err(FreeError::NotDefined { name: name() });
        }
        let mut outside = self.references.referrers(id).filter(|other| !group.contains(other));
        match outside.next() {
            None => Ok(()),
            Some(referrer) => Err(FreeError::Referenced {
                name: name(),
                referrer: self.scope.definition_name(referrer),
                others: outside.count(),
            }),
        }
    }

    fn check_live(&self, id: FuncOrDataId) -> Result<(), FreeError> {
        let name = || self.scope.definition_name(id);
        if !self.scope.is_defined(id) {
            return Err(FreeError::NotDefined { name: name() });
        }
        if !self.scope.is_live(id) {
            return Err(FreeError::NotFinalized { name: name() });
        }
        Ok(())
    }

    /// Removes a definition from all tables, and returns the memory it had, if any.
    fn remove(&mut self, id: FuncOrDataId) -> Option<Removed> {
        let scope = &self.scope;
        self.references.undefine(id, |other| scope.is_live(other));
        match id {
            FuncOrDataId::Func(id) => match self.scope.functions.remove(&id)? {
                Function::Live(live) => Some(Removed::Program(live.program)),
                Function::Pending(_) => {
                    self.scope.pending_functions.retain(|other| *other != id);
                    None
                }
            },
            FuncOrDataId::Data(id) => match self.scope.data.remove(&id)? {
                DataObject::Live(live) => Some(Removed::Data(live.data)),
                DataObject::Pending(_) => {
                    self.scope.pending_data.retain(|other| *other != id);
                    None
                }
            },
        }
    }
}

/// Memory of a removed definition.
enum Removed {
    Program(Program),
    Data(Data),
}
