//! The peers `rbpf` and `solana-sbpf`.

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use rbpf::EbpfVmRaw;
use solana_sbpf::elf::Executable;
use solana_sbpf::memory_region::MemoryMapping;
use solana_sbpf::program::{BuiltinProgram, FunctionRegistry, SBPFVersion};
use solana_sbpf::verifier::RequisiteVerifier;
use solana_sbpf::vm::ContextObject;

use crate::{PlaceError, arch};

fn refused(peer: &'static str, len: usize, reason: impl ToString) -> PlaceError {
    PlaceError::Peer { peer, len, reason: reason.to_string() }
}

/// A program of `rbpf`, with the byte code that it refers to.
///
/// # Invariants
///
/// `vm` refers to `bytes` and to contexts of calls that have ended. It is dropped first, since it is declared first.
pub(crate) struct RbpfProgram {
    vm: EbpfVmRaw<'static>,
    bytes: Box<[u8]>,
}

impl RbpfProgram {
    /// Loads a program that is to be interpreted.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, PlaceError> {
        let bytes: Box<[u8]> = bytes.into();
        // SAFETY: the bytes are on the heap, are not changed, and live as long as the value, which outlives `vm`.
        let code: &'static [u8] = unsafe { slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
        let vm = EbpfVmRaw::new(Some(code)).map_err(|error| refused("rbpf", code.len(), error))?;
        Ok(Self { vm, bytes })
    }

    /// Compiles it.
    pub(crate) fn compile(&mut self) -> Result<(), PlaceError> {
        let len = self.bytes.len();
        arch::compile_rbpf(&mut self.vm).map_err(|reason| refused("rbpf", len, reason))
    }

    /// Runs what was compiled. The suite runs programs verified for a context of this length.
    #[inline]
    pub(crate) fn run_compiled(&self, context: &mut [u8]) -> Result<u64, PlaceError> {
        let context = lent(context);
        // SAFETY: the suite's programs pass the verifier for their context, so they reach nothing else.
        let result = unsafe { self.vm.execute_program_jit(context) };
        result.map_err(|error| refused("rbpf", self.bytes.len(), error))
    }

    /// Runs it interpreted.
    pub(crate) fn interpret(&self, context: &mut [u8]) -> Result<u64, PlaceError> {
        self.vm.execute_program(lent(context)).map_err(|error| refused("rbpf", self.bytes.len(), error))
    }
}

/// Returns a context for as long as a machine lives, as the peer's types demand.
fn lent(context: &mut [u8]) -> &'static mut [u8] {
    // SAFETY: the peer uses a context only during the call, for which it is borrowed here, too.
    unsafe { slice::from_raw_parts_mut(context.as_mut_ptr(), context.len()) }
}

/// What programs of `solana-sbpf` would tell their machine.
struct NoMachine;

impl ContextObject for NoMachine {
    fn consume(&mut self, _amount: u64) {}

    fn get_remaining(&self) -> u64 {
        0
    }

    fn active_mapping_ptr(&mut self) -> NonNull<MemoryMapping> {
        // Nothing is run.
        NonNull::dangling()
    }
}

/// A program of `solana-sbpf`.
pub(crate) struct SbpfProgram(#[expect(dead_code, reason = "held, not run")] Executable<NoMachine>);

/// What programs of `solana-sbpf` share.
pub(crate) struct SbpfLoader(Arc<BuiltinProgram<NoMachine>>);

impl SbpfLoader {
    /// Without functions of the host.
    pub(crate) fn new() -> Self {
        Self(Arc::new(BuiltinProgram::new_mock()))
    }

    /// Loads, verifies and compiles a program, as version 0 of its instructions, which are those of eBPF.
    pub(crate) fn load(&self, bytes: &[u8]) -> Result<SbpfProgram, PlaceError> {
        let failed = |reason: String| refused("solana-sbpf", bytes.len(), reason);
        let loader = Arc::clone(&self.0);
        let executable = Executable::from_text_bytes(bytes, loader, SBPFVersion::V0, FunctionRegistry::default());
        let executable = executable.map_err(|error| failed(error.to_string()))?;
        executable.verify::<RequisiteVerifier>().map_err(|error| failed(error.to_string()))?;
        arch::compile_sbpf(&executable).map_err(failed)?;
        Ok(SbpfProgram(executable))
    }
}
