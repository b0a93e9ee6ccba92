//! Giving functions and data back, one by one or together, with the module still in use.

use std::collections::HashSet;

use cranelift_module::{DataId, FuncId, FuncOrDataId};
use palimpsest_text::{Data, Program};

use crate::definition::{DataObject, Function};
use crate::error::FreeError;
use crate::module::PackModule;

impl PackModule {
    /// Frees a function, finalized or not. It can be defined again under the same id.
    ///
    /// The code is retired: its bytes become traps, and its place free, at a
    /// [`reclaim`](palimpsest_text::Packs::reclaim) after every thread that was pinned has left. Threads that run the
    /// module's code while others free it must therefore be pinned (see
    /// [`Packs::participant`](palimpsest_text::Packs::participant)).
    ///
    /// References are those of relocations in this module, counting definitions that are not finalized yet. Addresses
    /// that were handed out, to other modules or as numbers, are not seen.
    ///
    /// # Errors
    /// [`FreeError::NotDefined`]; [`FreeError::Referenced`] while another definition of the module refers to the
    /// function. Nothing is freed then. For functions that refer to each other there is
    /// [`free_together`](Self::free_together), for taking the code regardless [`take_program`](Self::take_program).
    pub fn free_function(&mut self, func_id: FuncId) -> Result<(), FreeError> {
        self.free_together(&[FuncOrDataId::Func(func_id)])
    }

    /// Frees a data object, finalized or not. It can be defined again under the same id.
    ///
    /// # Errors
    /// As [`free_function`](Self::free_function); the way to take data regardless is [`take_data`](Self::take_data).
    pub fn free_data(&mut self, data_id: DataId) -> Result<(), FreeError> {
        self.free_together(&[FuncOrDataId::Data(data_id)])
    }

    /// Frees definitions that may refer to each other, but to which nothing else in the module refers.
    ///
    /// # Errors
    /// As [`free_function`](Self::free_function), for any of `ids`; nothing is freed then.
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
    /// Code of the module that was linked to it goes on calling it, so keep the program until that code is gone too:
    /// calls into a dropped program end in a trap, or in whatever was loaded in its place. Later definitions that refer
    /// to the function will need a new definition of it.
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
    /// What [`take_program`](Self::take_program) says of code that still refers to it holds here as well.
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
    /// `JITModule::free_memory` is an `unsafe fn`, because it unmaps code that somebody may be running. Here nothing is
    /// unmapped under a running thread that is pinned, and calling a pointer to code that is gone was already the
    /// caller's `unsafe`. Code written for `JITModule` still compiles; its `unsafe` block is then reported as unused.
    pub fn free_memory(self) {
        drop(self);
    }

    /// Gives up the module but leaves its code and data in place for the rest of the process, as dropping a
    /// `JITModule` does.
    pub fn leak(self) {
        let Self { scope, .. } = self;
        scope.functions.into_values().for_each(std::mem::forget);
        scope.data.into_values().for_each(std::mem::forget);
    }

    /// Refuses if `id` is not defined or is referred to from outside `group`.
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

    /// Removes a definition from all tables and hands out the memory it had, if it had any.
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
