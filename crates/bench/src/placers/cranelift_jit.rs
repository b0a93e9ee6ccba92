//! The crate `cranelift-jit`: `define_function_bytes` and `finalize_definitions`.
//!
//! A module frees all its functions together, so that freeing here only counts; when the last program has gone, the
//! module is replaced.

use cranelift_codegen::settings::{self, Configurable};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Module, default_libcall_names};

use super::{Loaded, Placer, foreign};
use crate::PlaceError;
use crate::machine::OwnedModule;

/// Finalised after each program.
pub(super) struct CraneliftJit {
    module: OwnedModule,
    held: usize,
}

impl CraneliftJit {
    /// Opens it with an empty module.
    pub(super) fn open() -> Result<Self, PlaceError> {
        Ok(Self { module: empty_module()?, held: 0 })
    }

    fn module(&mut self) -> Result<&mut JITModule, PlaceError> {
        self.module.get().ok_or_else(|| refused(0, &"the module is gone"))
    }

    fn define(&mut self, code: &[u8]) -> Result<FuncId, PlaceError> {
        let module = self.module()?;
        let signature = module.make_signature();
        let id = module.declare_anonymous_function(&signature).map_err(|error| refused(code.len(), &error))?;
        module.define_function_bytes(id, 16, code, &[]).map_err(|error| refused(code.len(), &error))?;
        Ok(id)
    }

    fn finalize(&mut self) -> Result<(), PlaceError> {
        self.module()?.finalize_definitions().map_err(|error| refused(0, &error))
    }

    fn loaded(&mut self, id: FuncId) -> Result<Loaded, PlaceError> {
        let entry = self.module()?.get_finalized_function(id);
        self.held += 1;
        Ok(Loaded::Defined(entry))
    }
}

impl Placer for CraneliftJit {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> {
        let id = self.define(code)?;
        self.finalize()?;
        self.loaded(id)
    }

    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError> {
        let Loaded::Defined(_) = loaded else {
            return Err(foreign("cranelift_jit"));
        };
        self.held -= 1;
        if self.held == 0 {
            self.module = empty_module()?;
        }
        Ok(())
    }
}

/// Finalised once after all programs, as by a compiler that needs them only together.
pub(super) struct Batch(CraneliftJit);

impl Batch {
    /// With an empty module.
    pub(super) fn open() -> Result<Self, PlaceError> {
        CraneliftJit::open().map(Self)
    }
}

impl Placer for Batch {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> {
        self.0.load(code)
    }

    fn load_all(&mut self, codes: &[&[u8]], loaded: &mut Vec<Loaded>) -> Result<(), PlaceError> {
        let mut ids = Vec::with_capacity(codes.len());
        for code in codes {
            ids.push(self.0.define(code)?);
        }
        self.0.finalize()?;
        for id in ids {
            loaded.push(self.0.loaded(id)?);
        }
        Ok(())
    }

    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError> {
        self.0.free(loaded)
    }
}

fn empty_module() -> Result<OwnedModule, PlaceError> {
    let mut flags = settings::builder();
    // `JITModule` demands position-dependent code; the programs have no relocations, so it makes no difference to them.
    flags.set("is_pic", "false").map_err(|error| refused(0, &error))?;
    let isa = cranelift_native::builder()
        .map_err(|error| refused(0, &error))?
        .finish(settings::Flags::new(flags))
        .map_err(|error| refused(0, &error))?;
    Ok(OwnedModule::new(JITModule::new(JITBuilder::with_isa(isa, default_libcall_names()))))
}

fn refused(len: usize, reason: &dyn std::fmt::Display) -> PlaceError {
    PlaceError::Peer { peer: "cranelift-jit", len, reason: reason.to_string() }
}
