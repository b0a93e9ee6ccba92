//! Declares and defines: the [`Module`] trait.

use cranelift_codegen::Context;
use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::ir::Signature;
use cranelift_codegen::isa::TargetIsa;
use cranelift_control::ControlPlane;
use cranelift_module::{
    DataDescription, DataId, FuncId, FuncOrDataId, Init, Linkage, Module, ModuleDeclarations, ModuleError, ModuleReloc,
    ModuleResult,
};
use palimpsest_text::DataAccess;
use tracing::trace;

use crate::definition::{Contents, DataObject, Fixup, Function, PendingData, PendingFunction, Trap};
use crate::error::DefineError;
use crate::module::PackModule;
use crate::unwind::Unwind;

/// Alignment of writable data that requests none, in bytes: that of the widest scalar.
const WRITABLE_ALIGN: u64 = 8;

impl PackModule {
    /// Refuses a second definition, and one of a symbol that was only imported.
    fn check_definable(&self, id: FuncOrDataId) -> ModuleResult<String> {
        let name = self.scope.definition_name(id);
        let linkage = match id {
            FuncOrDataId::Func(id) => self.scope.declarations.get_function_decl(id).linkage,
            FuncOrDataId::Data(id) => self.scope.declarations.get_data_decl(id).linkage,
        };
        if !linkage.is_definable() {
            return Err(ModuleError::InvalidImportDefinition(name));
        }
        if self.scope.is_defined(id) {
            return Err(ModuleError::DuplicateDefinition(name));
        }
        Ok(name)
    }

    /// Records a function that is now defined.
    fn enter_function(&mut self, id: FuncId, pending: PendingFunction) {
        let targets = pending.fixups.iter().filter_map(|f| f.target.definition());
        self.references.define(FuncOrDataId::Func(id), targets);
        self.scope.functions.insert(id, Function::Pending(pending));
        self.scope.pending_functions.push(id);
    }

    /// Returns the alignment in bytes of a function that requests `wanted`.
    fn function_align(&self, name: &str, wanted: u64) -> Result<usize, DefineError> {
        let least = u64::from(self.isa.function_alignment().minimum).max(self.isa.symbol_alignment());
        checked_align(name, wanted.max(least))
    }
}

impl Module for PackModule {
    fn isa(&self) -> &dyn TargetIsa {
        &*self.isa
    }

    fn declarations(&self) -> &ModuleDeclarations {
        &self.scope.declarations
    }

    fn declare_function(&mut self, name: &str, linkage: Linkage, signature: &Signature) -> ModuleResult<FuncId> {
        let (id, _) = self.scope.declarations.declare_function(name, linkage, signature)?;
        Ok(id)
    }

    fn declare_anonymous_function(&mut self, signature: &Signature) -> ModuleResult<FuncId> {
        self.scope.declarations.declare_anonymous_function(signature)
    }

    fn declare_data(&mut self, name: &str, linkage: Linkage, writable: bool, tls: bool) -> ModuleResult<DataId> {
        refuse_thread_local(name, tls)?;
        let (id, _) = self.scope.declarations.declare_data(name, linkage, writable, tls)?;
        Ok(id)
    }

    fn declare_anonymous_data(&mut self, writable: bool, tls: bool) -> ModuleResult<DataId> {
        refuse_thread_local("(anonymous)", tls)?;
        self.scope.declarations.declare_anonymous_data(writable, tls)
    }

    fn define_function_with_control_plane(
        &mut self,
        func: FuncId,
        ctx: &mut Context,
        ctrl_plane: &mut ControlPlane,
    ) -> ModuleResult<()> {
        let name = self.check_definable(FuncOrDataId::Func(func))?;
        ctx.compile(&*self.isa, ctrl_plane)?;
        // `compile` returns a borrow of all of `ctx`, but symbol names are in `ctx.func`.
        let Some(compiled) = ctx.compiled_code() else {
            return Err(DefineError::Empty { name }.into());
        };
        let code = compiled.code_buffer();
        let relocs: Vec<_> =
            compiled.buffer.relocs().iter().map(|reloc| ModuleReloc::from_mach_reloc(reloc, &ctx.func, func)).collect();
        let traps = compiled.buffer.traps().iter().map(|trap| Trap { offset: trap.offset, code: trap.code });
        let pending = PendingFunction {
            align: self.function_align(&name, u64::from(compiled.buffer.alignment))?,
            fixups: Fixup::all(self.encoder, &name, code, &relocs)?,
            traps: traps.collect(),
            unwind: Unwind::of(&*self.isa, compiled)?,
            code: code.to_vec(),
        };
        trace!(name, len = pending.code.len(), "defined function");
        self.enter_function(func, pending);
        Ok(())
    }

    fn define_function_bytes(
        &mut self,
        func_id: FuncId,
        alignment: u64,
        bytes: &[u8],
        relocs: &[ModuleReloc],
    ) -> ModuleResult<()> {
        let name = self.check_definable(FuncOrDataId::Func(func_id))?;
        if bytes.is_empty() {
            return Err(DefineError::Empty { name }.into());
        }
        let pending = PendingFunction {
            align: self.function_align(&name, alignment)?,
            fixups: Fixup::all(self.encoder, &name, bytes, relocs)?,
            traps: Vec::new(),
            unwind: None,
            code: bytes.to_vec(),
        };
        trace!(name, len = bytes.len(), "defined function from bytes");
        self.enter_function(func_id, pending);
        Ok(())
    }

    fn define_data(&mut self, data_id: DataId, data: &DataDescription) -> ModuleResult<()> {
        let name = self.check_definable(FuncOrDataId::Data(data_id))?;
        let declaration = self.scope.declarations.get_data_decl(data_id);
        let (access, align) = if declaration.writable {
            (DataAccess::ReadWrite, data.align.unwrap_or(WRITABLE_ALIGN))
        } else {
            (DataAccess::ReadOnly, data.align.unwrap_or(1))
        };
        let contents = match &data.init {
            Init::Uninitialized => return Err(DefineError::Uninitialized { name }.into()),
            Init::Zeros { size } => Contents::Zeros(*size),
            Init::Bytes { contents } => Contents::Bytes(contents.clone()),
        };
        // All instruction sets in `arch` have 64-bit pointers.
        let relocs: Vec<_> = data.all_relocs(Reloc::Abs8).collect();
        let pending = PendingData {
            access,
            align: checked_align(&name, align)?,
            fixups: Fixup::all(self.encoder, &name, &[], &relocs)?,
            contents,
        };
        let targets = pending.fixups.iter().filter_map(|f| f.target.definition());
        self.references.define(FuncOrDataId::Data(data_id), targets);
        self.scope.data.insert(data_id, DataObject::Pending(pending));
        self.scope.pending_data.push(data_id);
        Ok(())
    }
}

fn refuse_thread_local(name: &str, tls: bool) -> Result<(), DefineError> {
    if tls {
        let name = name.to_owned();
        return Err(DefineError::ThreadLocal { name });
    }
    Ok(())
}

/// Returns `align` as a size, if it is a power of two.
fn checked_align(name: &str, align: u64) -> Result<usize, DefineError> {
    usize::try_from(align)
        .ok()
        .filter(|align| align.is_power_of_two())
        .ok_or_else(|| DefineError::Alignment { name: name.to_owned(), align })
}
