//! Everything that a name in a module can refer to, and its address.

use std::collections::HashMap;

use cranelift_codegen::ir::LibCall;
use cranelift_module::{DataId, FuncId, FuncOrDataId, Linkage, ModuleDeclarations};

use crate::definition::{DataObject, Function, Target};
use crate::symbols::Symbols;

/// Translates a library call into the symbol that implements it.
pub(crate) type LibCallNames = Box<dyn Fn(LibCall) -> String + Send + Sync>;

/// Declarations, definitions and host symbols of one module.
///
/// A dropped module gives back its memory in the order of the fields: code before the data that it reads.
pub(crate) struct Scope {
    pub(crate) functions: HashMap<FuncId, Function>,
    pub(crate) data: HashMap<DataId, DataObject>,
    /// Pending functions in the order of their definitions, which becomes their order in memory.
    pub(crate) pending_functions: Vec<FuncId>,
    /// Pending data objects in the order of their definitions.
    pub(crate) pending_data: Vec<DataId>,
    pub(crate) declarations: ModuleDeclarations,
    pub(crate) symbols: Symbols,
    pub(crate) libcall_names: LibCallNames,
}

impl Scope {
    pub(crate) fn new(symbols: Symbols, libcall_names: LibCallNames) -> Self {
        Self {
            functions: HashMap::new(),
            data: HashMap::new(),
            pending_functions: Vec::new(),
            pending_data: Vec::new(),
            declarations: ModuleDeclarations::default(),
            symbols,
            libcall_names,
        }
    }

    pub(crate) fn function_name(&self, id: FuncId) -> String {
        let declaration = self.declarations.get_function_decl(id);
        declaration.linkage_name(id).into_owned()
    }

    pub(crate) fn data_name(&self, id: DataId) -> String {
        let declaration = self.declarations.get_data_decl(id);
        declaration.linkage_name(id).into_owned()
    }

    pub(crate) fn definition_name(&self, id: FuncOrDataId) -> String {
        match id {
            FuncOrDataId::Func(id) => self.function_name(id),
            FuncOrDataId::Data(id) => self.data_name(id),
        }
    }

    pub(crate) fn name(&self, target: Target) -> String {
        match target {
            Target::Function(id) => self.function_name(id),
            Target::Data(id) => self.data_name(id),
            Target::LibCall(call) => (self.libcall_names)(call),
            Target::Inside(id, offset) => format!("{}+{offset:#x}", self.function_name(id)),
        }
    }

    /// Returns whether `target` is defined but not placed.
    pub(crate) fn is_pending(&self, target: Target) -> bool {
        match target {
            Target::Function(id) | Target::Inside(id, _) => {
                matches!(self.functions.get(&id), Some(Function::Pending(_)))
            }
            Target::Data(id) => matches!(self.data.get(&id), Some(DataObject::Pending(_))),
            Target::LibCall(_) => false,
        }
    }

    /// Returns whether `id` is finalized.
    pub(crate) fn is_live(&self, id: FuncOrDataId) -> bool {
        match id {
            FuncOrDataId::Func(id) => matches!(self.functions.get(&id), Some(Function::Live(_))),
            FuncOrDataId::Data(id) => matches!(self.data.get(&id), Some(DataObject::Live(_))),
        }
    }

    /// Returns whether `id` is defined, finalized or not.
    pub(crate) fn is_defined(&self, id: FuncOrDataId) -> bool {
        match id {
            FuncOrDataId::Func(id) => self.functions.contains_key(&id),
            FuncOrDataId::Data(id) => self.data.contains_key(&id),
        }
    }

    /// Returns the address of a finalized definition or, if the module does not define it, of the host's symbol of that
    /// name.
    ///
    /// A missing symbol that may be missing ([`Linkage::Preemptible`]) has address 0.
    pub(crate) fn address(&self, target: Target) -> Option<u64> {
        let (live, declared) = match target {
            Target::LibCall(call) => {
                let name = (self.libcall_names)(call);
                return self.symbols.address(&name).map(|address| address as u64);
            }
            Target::Function(id) | Target::Inside(id, _) => {
                let declaration = self.declarations.get_function_decl(id);
                (self.functions.get(&id).map(Function::address), (declaration.name.as_deref(), declaration.linkage))
            }
            Target::Data(id) => {
                let declaration = self.declarations.get_data_decl(id);
                (self.data.get(&id).map(DataObject::address), (declaration.name.as_deref(), declaration.linkage))
            }
        };
        let start = match (live, declared) {
            // Defined here: so the host's symbol of that name is not meant, even while there is no address yet.
            (Some(address), _) => address?,
            (None, (name, linkage)) => match name.and_then(|name| self.symbols.address(name)) {
                Some(address) => address,
                None if linkage == Linkage::Preemptible => 0,
                None => return None,
            },
        };
        let offset = match target {
            Target::Inside(_, offset) => u64::from(offset),
            _ => 0,
        };
        Some(start as u64 + offset)
    }
}
