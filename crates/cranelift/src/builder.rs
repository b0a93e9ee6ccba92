//! [`PackModuleBuilder`]: the settings of a module.

use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_module::ModuleResult;
use palimpsest_text::Packs;

use crate::error::BuildError;
use crate::scope::LibCallNames;
use crate::symbols::{Lookup, Symbols};

/// Collects what a [`PackModule`](crate::PackModule) needs; it has the methods of `cranelift_jit::JITBuilder`.
///
/// `memory_provider` has no counterpart, see the [crate's introduction](crate); [`packs`](Self::packs) replaces it.
pub struct PackModuleBuilder {
    pub(crate) isa: OwnedTargetIsa,
    pub(crate) symbols: Symbols,
    pub(crate) libcall_names: LibCallNames,
    pub(crate) packs: Option<Packs>,
}

impl PackModuleBuilder {
    /// Creates a builder for the present machine, with default flags.
    ///
    /// `libcall_names` returns the symbols of Cranelift's library calls; [`cranelift_module::default_libcall_names`]
    /// suits most.
    ///
    /// # Errors
    /// [`ModuleError::Backend`](cranelift_module::ModuleError::Backend) with [`BuildError::Host`] if Cranelift has no
    /// backend for this machine.
    pub fn new(libcall_names: LibCallNames) -> ModuleResult<Self> {
        Self::with_flags(&[], libcall_names)
    }

    /// Creates a builder for the present machine, with Cranelift flags by name and value.
    ///
    /// Sets `is_pic` and `use_colocated_libcalls` to `false` whatever `flags` says, as `JITBuilder` does: addresses are
    /// final when code is linked, so position independence would only cost. [`with_isa`](Self::with_isa) accepts any
    /// values.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and [`ModuleError::Flag`](cranelift_module::ModuleError::Flag) for a flag that
    /// Cranelift does not know.
    pub fn with_flags(flags: &[(&str, &str)], libcall_names: LibCallNames) -> ModuleResult<Self> {
        let mut builder = settings::builder();
        let ours = [("use_colocated_libcalls", "false"), ("is_pic", "false")];
        for (name, value) in flags.iter().chain(&ours) {
            builder.set(name, value)?;
        }
        let isa = cranelift_native::builder()
            .map_err(|reason| BuildError::Host { reason })?
            .finish(settings::Flags::new(builder))?;
        Ok(Self::with_isa(isa, libcall_names))
    }

    /// Creates a builder for any target, with whatever flags `isa` was made with, `is_pic` included.
    ///
    /// Code for another machine can be placed, linked and inspected, but of course not called.
    #[must_use]
    pub fn with_isa(isa: OwnedTargetIsa, libcall_names: LibCallNames) -> Self {
        Self { isa, symbols: Symbols::default(), libcall_names, packs: None }
    }

    /// Names a host function or data object. The last address given to a name counts.
    ///
    /// Symbols that are declared but not defined in the module are searched here first, then by the lookups of
    /// [`symbol_lookup_fn`](Self::symbol_lookup_fn), then among Cranelift's library calls and what the process has
    /// loaded. The address must stay valid for as long as code of the module is called; dependency tracking
    /// ([`PackModule::free_function`](crate::PackModule::free_function)) does not know its users.
    pub fn symbol<K>(&mut self, name: K, ptr: *const u8) -> &mut Self
    where
        K: Into<String>,
    {
        self.symbols.name(name.into(), ptr);
        self
    }

    /// Names several host functions or data objects, as [`symbol`](Self::symbol) does for one.
    pub fn symbols<It, K>(&mut self, symbols: It) -> &mut Self
    where
        It: IntoIterator<Item = (K, *const u8)>,
        K: Into<String>,
    {
        for (name, ptr) in symbols {
            self.symbols.name(name.into(), ptr);
        }
        self
    }

    /// Adds a function that finds addresses by name. The last one added is asked first.
    pub fn symbol_lookup_fn(&mut self, symbol_lookup_fn: Lookup) -> &mut Self {
        self.symbols.lookup(symbol_lookup_fn);
        self
    }

    /// Puts the module's code into `packs` instead of packs of its own.
    ///
    /// Modules that share packs fill the same huge pages and call each other directly; `packs` is a handle, so clone it
    /// for each.
    pub fn packs(&mut self, packs: Packs) -> &mut Self {
        self.packs = Some(packs);
        self
    }
}
