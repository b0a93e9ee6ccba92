//! The ways to run a program.

use std::sync::Arc;

use clap::ValueEnum;
use palimpsest_bpf::elf::{Explained, Program};
use palimpsest_bpf::host::{Host, HostedError, HostedProgram, Linked};
use palimpsest_bpf::interp::{HelperError, Helpers, Interpreter, Memory, RegionError, RunError};
use palimpsest_bpf::jit::{Dispatcher, Helper, HelperTable};
use palimpsest_bpf::verify::{Argument, ContextAccess, Contract, Log, Signature, VerifyError};
use palimpsest_bpf::{Code, LoadError, StructureError, VerifiedError, VerifiedProgram};

use super::terms::Terms;

/// Who runs a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Engine {
    /// The reference interpreter. It also runs what cannot be verified.
    Interpreter,
    /// The compiler for this machine. It runs what is verified.
    Compiler,
}

impl Engine {
    /// Returns its name on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Interpreter => "interpreter",
            Self::Compiler => "compiler",
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    #[error("the program is refused")]
    Verify(#[from] VerifyError),
    #[error("the program is refused, and compiled programs must be verified; `--engine interpreter` runs it")]
    Compiler(#[source] VerifyError),
    #[error("there is no memory for compiled programs")]
    Packs(#[from] palimpsest_bpf::OpenError),
    #[error("the program is not loaded")]
    Load(#[from] LoadError),
    #[error("the program has no result")]
    Verified(#[from] VerifiedError),
    #[error("the context does not fit")]
    Region(#[from] RegionError),
    #[error("the program was ended")]
    Run(#[from] RunError),
    #[error("the program is refused")]
    Explained(#[from] Explained),
    #[error("the structure of the program is wrong")]
    Structure(#[from] StructureError),
    #[error("the program has no result")]
    Hosted(#[from] HostedError),
    #[error("the context has {len} bytes, and contexts have less than 4 GiB")]
    Long { len: usize },
}

/// The helper of the conformance suite, which returns its first argument.
pub(super) const IDENTITY: i32 = 5;

/// The host that the conformance suite expects.
struct Suite;

impl Helpers for Suite {
    fn call(&mut self, id: i32, arguments: [u64; 5], _memory: &mut Memory<'_>) -> Result<u64, HelperError> {
        if id == IDENTITY { Ok(arguments[0]) } else { Err(HelperError::Unknown) }
    }
}

extern "C" fn identity(value: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    value
}

extern "C" fn dispatch(value: u64, _: u64, _: u64, _: u64, _: u64, id: u64) -> u64 {
    // The verifier lets no other number through.
    debug_assert_eq!(id, IDENTITY as u64);
    value
}

impl HelperTable for Suite {
    fn helper(&self, id: i32) -> Option<Helper> {
        (id == IDENTITY).then_some(identity)
    }

    fn dispatcher(&self) -> Option<Dispatcher> {
        Some(dispatch)
    }
}

/// Returns what programs of the command line get: a context, and the helper of the conformance suite.
pub(super) fn contract(len: u32, access: ContextAccess) -> Contract {
    Contract::new().context(len, access).helper(IDENTITY, 1)
}

/// Returns a host with what [`contract`] promises.
pub(super) fn host() -> Arc<Host> {
    Host::builder().helper(IDENTITY, Signature::new([Argument::Number]), |call| Ok(call.number(0))).build()
}

/// The address of an interpreted program's context.
const CONTEXT: u64 = 0x10_0000;

pub(super) fn promised(context: &[u8]) -> Result<u32, EngineError> {
    u32::try_from(context.len()).map_err(|_| EngineError::Long { len: context.len() })
}

/// Verifies a program of an object for the host that has the object's maps.
pub(super) fn link(
    host: &Arc<Host>,
    program: &Program,
    contract: Contract,
    log: Option<&mut Log>,
) -> Result<Linked, EngineError> {
    let code = program.code()?;
    let linked = match log {
        Some(log) => host.verify_logged(contract, code, log),
        None => host.verify(contract, code),
    };
    Ok(linked.map_err(|error| program.explain(error))?)
}

impl Engine {
    /// Runs a program of an object with `context`, which it may write. Returns `r0`.
    pub(super) fn run_hosted(
        self,
        host: &Arc<Host>,
        program: &Program,
        context: &mut [u8],
        terms: &Terms,
    ) -> Result<u64, EngineError> {
        let contract = terms.of(Contract::new().context(promised(context)?, ContextAccess::Write));
        let linked = link(host, program, contract, None)?;
        match self {
            Self::Interpreter => Ok(linked.interpret(&Interpreter::default(), context)?),
            Self::Compiler => Ok(HostedProgram::load(&palimpsest_bpf::Packs::new()?, &linked)?.run(context)?),
        }
    }

    /// Runs `code` with `context`, which it may write. Returns `r0`.
    pub(super) fn run(self, code: Code, context: &mut [u8], terms: &Terms) -> Result<u64, EngineError> {
        match self {
            Self::Interpreter => {
                let mut memory = Memory::new();
                let len = context.len() as u64;
                let address = if context.is_empty() { 0 } else { CONTEXT };
                memory.add(CONTEXT, context)?;
                Ok(terms.interpreter().run(&code, [address, len, 0, 0, 0], &mut memory, &mut Suite)?)
            }
            Self::Compiler => {
                let contract = terms.of(contract(promised(context)?, ContextAccess::Write));
                let verified = contract.verify(code).map_err(EngineError::Compiler)?;
                let program = VerifiedProgram::load(&palimpsest_bpf::Packs::new()?, &verified, &Suite)?;
                Ok(program.run(context)?)
            }
        }
    }
}
