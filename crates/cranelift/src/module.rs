//! [`PackModule`]: construction, finalization and access.

use std::ptr;

use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_module::{DataId, FuncId, ModuleRelocTarget, ModuleResult};
use palimpsest_text::link::Encoder;
use palimpsest_text::{Data, Packs, Program};

use crate::builder::PackModuleBuilder;
use crate::definition::{DataObject, Function, LiveFunction, Target, Trap};
use crate::error::BuildError;
use crate::fields;
use crate::link::Batch;
use crate::references::References;
use crate::scope::Scope;

/// A [`Module`](cranelift_module::Module) whose functions lie in packs and can be freed one by one.
///
/// It has the methods of `cranelift_jit::JITModule`; the [crate's introduction](crate) lists the differences.
pub struct PackModule {
    pub(crate) isa: OwnedTargetIsa,
    pub(crate) encoder: &'static dyn Encoder,
    pub(crate) scope: Scope,
    pub(crate) references: References,
    packs: Packs,
}

impl PackModule {
    /// Makes a module.
    ///
    /// # Panics
    /// If [`try_new`](Self::try_new) returns an error. With packs from [`PackModuleBuilder::packs`] and an isa that
    /// this crate supports it never does.
    #[must_use]
    pub fn new(builder: PackModuleBuilder) -> Self {
        match Self::try_new(builder) {
            Ok(module) => module,
            Err(error) => panic!("cannot make a PackModule (try_new gives this as an error): {error}"),
        }
    }

    /// Makes a module, in its own packs unless the builder got some.
    ///
    /// # Errors
    /// [`BuildError::Target`] for an instruction set that this crate cannot link, [`BuildError::Open`] if the machine
    /// provides no executable memory.
    pub fn try_new(builder: PackModuleBuilder) -> Result<Self, BuildError> {
        let encoder = fields::encoder(builder.isa.triple())?;
        let packs = match builder.packs {
            Some(packs) => packs,
            None => Packs::new()?,
        };
        Ok(Self {
            isa: builder.isa,
            encoder,
            scope: Scope::new(builder.symbols, builder.libcall_names),
            references: References::default(),
            packs,
        })
    }

    /// Returns the packs with the module's code: for statistics, reclaiming, and lookup by address.
    #[must_use]
    pub fn packs(&self) -> &Packs {
        &self.packs
    }

    /// Puts every function and data object that is defined but not yet finalized into its place.
    ///
    /// All functions together cost one synchronisation of the cores, so define many and finalize once.
    ///
    /// # Errors
    /// [`ModuleError::Backend`](cranelift_module::ModuleError::Backend) with a [`LinkError`](crate::LinkError), or
    /// [`ModuleError::Allocation`](cranelift_module::ModuleError::Allocation) when the packs are full. Then nothing is
    /// finalized and everything stays defined: define what was missing, or free what was wrong, and call again.
    pub fn finalize_definitions(&mut self) -> ModuleResult<()> {
        let mut batch = Batch::new(self.encoder, &self.packs, &self.scope);
        batch.place()?;
        batch.write()?;
        batch.go_live()?.enter(&mut self.scope);
        Ok(())
    }

    /// Returns the address of a finalized function, valid until the function is freed or the module dropped.
    ///
    /// # Panics
    /// If the function is not defined, or not finalized; [`program`](Self::program) returns `None` instead.
    #[must_use]
    pub fn get_finalized_function(&self, func_id: FuncId) -> *const u8 {
        match self.live(func_id) {
            Some(live) => live.program.entry(),
            None => panic!(
                "function `{}` is not finalized: define it, then call finalize_definitions",
                self.scope.function_name(func_id)
            ),
        }
    }

    /// Returns the address and length in bytes of a finalized data object, valid until it is freed or the module
    /// dropped.
    ///
    /// # Panics
    /// If the data object is not defined, or not finalized; [`data`](Self::data) returns `None` instead.
    #[must_use]
    pub fn get_finalized_data(&self, data_id: DataId) -> (*const u8, usize) {
        match self.scope.data.get(&data_id) {
            Some(DataObject::Live(live)) => (live.data.as_ptr().cast_const(), live.len),
            _ => panic!(
                "data object `{}` is not finalized: define it, then call finalize_definitions",
                self.scope.data_name(data_id)
            ),
        }
    }

    /// Returns the address that a relocation against `name` resolves to: a finalized definition, or a symbol of the
    /// host.
    ///
    /// # Panics
    /// If there is none, or the definition is not finalized yet.
    #[must_use]
    pub fn get_address(&self, name: &ModuleRelocTarget) -> *const u8 {
        let address = Target::of(name).and_then(|target| self.scope.address(target));
        match address {
            Some(address) => ptr::with_exposed_provenance(address as usize),
            None => {
                panic!("symbol {name} has no address: define and finalize it, or name it by PackModuleBuilder::symbol")
            }
        }
    }

    /// Returns the program of a finalized function, or `None`.
    ///
    /// A program is the function's code and then the veneers and address slots that it needs; see
    /// [`code_len`](Self::code_len).
    #[must_use]
    pub fn program(&self, func_id: FuncId) -> Option<&Program> {
        self.live(func_id).map(|live| &live.program)
    }

    /// Returns the memory of a finalized data object, or `None`.
    #[must_use]
    pub fn data(&self, data_id: DataId) -> Option<&Data> {
        match self.scope.data.get(&data_id)? {
            DataObject::Live(live) => Some(&live.data),
            DataObject::Pending(_) => None,
        }
    }

    /// Returns the bytes of a function's own code, without veneers and address slots; `None` while it is not defined.
    #[must_use]
    pub fn code_len(&self, func_id: FuncId) -> Option<usize> {
        Some(match self.scope.functions.get(&func_id)? {
            Function::Pending(pending) => pending.code.len(),
            Function::Live(live) => live.code_len,
        })
    }

    /// Returns where a function may trap and why, by ascending offset.
    ///
    /// Empty for a function that is not defined, and for one defined by `define_function_bytes`. A signal handler finds
    /// the function of a faulting address by [`Packs::lookup`], which returns the same offset.
    #[must_use]
    pub fn traps(&self, func_id: FuncId) -> &[Trap] {
        match self.scope.functions.get(&func_id) {
            Some(Function::Pending(pending)) => &pending.traps,
            Some(Function::Live(live)) => &live.traps,
            None => &[],
        }
    }

    fn live(&self, id: FuncId) -> Option<&LiveFunction> {
        match self.scope.functions.get(&id)? {
            Function::Live(live) => Some(live),
            Function::Pending(_) => None,
        }
    }
}
