//! Palimpsest's packs through `palimpsest-cranelift`, with the same calls as the peer: `define_function_bytes` and
//! `finalize_definitions` for each program, and then `free_function`.

use cranelift_codegen::settings::{self, Configurable};
use cranelift_module::{Module, default_libcall_names};
use palimpsest_cranelift::{PackModule, PackModuleBuilder};

use super::{Loaded, Placer, foreign};
use crate::PlaceError;

/// See the module.
pub(super) struct PackedCranelift(PackModule);

impl PackedCranelift {
    /// With an empty module.
    pub(super) fn open() -> Result<Self, PlaceError> {
        let mut flags = settings::builder();
        flags.set("is_pic", "false").map_err(|error| refused(0, &error))?;
        let isa = cranelift_native::builder()
            .map_err(|error| refused(0, &error))?
            .finish(settings::Flags::new(flags))
            .map_err(|error| refused(0, &error))?;
        PackModule::try_new(PackModuleBuilder::with_isa(isa, default_libcall_names()))
            .map(Self)
            .map_err(|error| refused(0, &error))
    }
}

impl Placer for PackedCranelift {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> {
        let signature = self.0.make_signature();
        let id = self.0.declare_anonymous_function(&signature).map_err(|error| refused(code.len(), &error))?;
        self.0.define_function_bytes(id, 16, code, &[]).map_err(|error| refused(code.len(), &error))?;
        self.0.finalize_definitions().map_err(|error| refused(code.len(), &error))?;
        Ok(Loaded::Function { id, entry: self.0.get_finalized_function(id) })
    }

    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError> {
        match loaded {
            Loaded::Function { id, .. } => self.0.free_function(id).map_err(|error| refused(0, &error)),
            _ => Err(foreign("packed_cranelift")),
        }
    }

    fn settle(&mut self) -> Result<(), PlaceError> {
        self.0.packs().reclaim()?;
        Ok(())
    }
}

fn refused(len: usize, reason: &dyn std::fmt::Display) -> PlaceError {
    PlaceError::Peer { peer: "palimpsest-cranelift", len, reason: reason.to_string() }
}
