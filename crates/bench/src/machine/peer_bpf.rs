//! The peers `rbpf` and `solana-sbpf`.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;

use rbpf::EbpfVmRaw;
use solana_sbpf::aligned_memory::AlignedMemory;
use solana_sbpf::ebpf::{HOST_ALIGN, MM_INPUT_START, MM_RODATA_START, MM_STACK_START};
use solana_sbpf::elf::Executable;
use solana_sbpf::error::EbpfError;
use solana_sbpf::memory_region::{MemoryMapping, MemoryRegion};
use solana_sbpf::program::{BuiltinProgram, FunctionRegistry, SBPFVersion};
use solana_sbpf::verifier::RequisiteVerifier;
use solana_sbpf::vm::{Config, ContextObject, EbpfVm, ExecutionMode};

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

/// What a machine of `solana-sbpf` keeps for its program.
struct Resources {
    /// Instructions that it may still execute.
    left: u64,
    memory: MemoryMapping,
}

impl ContextObject for Resources {
    fn consume(&mut self, amount: u64) {
        self.left = self.left.saturating_sub(amount);
    }

    fn get_remaining(&self) -> u64 {
        self.left
    }

    fn active_mapping_ptr(&mut self) -> NonNull<MemoryMapping> {
        NonNull::from(&mut self.memory)
    }
}

/// A machine of `solana-sbpf`, with one context in its memory. It is made for many calls, as in the peer's own
/// measurements, and for all programs: none of the suites' has read-only data.
struct SbpfMachine {
    machine: EbpfVm<'static, Resources>,
    /// What a program begins with.
    registers: [u64; 12],
    context: *mut [u8],
}

impl SbpfMachine {
    /// Makes one like `executable` needs. It stays as long as the process: a suite makes a few.
    fn new(executable: &Executable<Resources>, context: *mut [u8]) -> Result<Self, EbpfError> {
        let config = executable.get_config();
        let stack = Box::leak(Box::new(AlignedMemory::<HOST_ALIGN>::zero_filled(config.stack_size())));
        let stack_len = stack.len();
        let regions = vec![
            MemoryRegion::new_empty(MM_RODATA_START),
            MemoryRegion::new(stack, MM_STACK_START),
            MemoryRegion::new(context, MM_INPUT_START),
        ];
        let version = executable.get_sbpf_version();
        // SAFETY: the stack stays; the context does during calls, which borrow it: `run_compiled` compares it with the
        // one that it gets. Both may have any bytes.
        let memory = unsafe { MemoryMapping::new(regions, config, version) }?;
        let resources = Box::leak(Box::new(Resources { left: 0, memory }));
        let machine = EbpfVm::new(Arc::clone(executable.get_loader()), version, resources, stack_len);
        let mut registers = machine.registers;
        // Without translation, addresses are those of the process.
        let start = if config.enable_address_translation { MM_INPUT_START } else { context.addr() as u64 };
        (registers[1], registers[2]) = (start, context.len() as u64);
        Ok(Self { machine, registers, context })
    }

    fn run(&mut self, executable: &Executable<Resources>) -> Result<u64, EbpfError> {
        /// More instructions than any program of the suites executes.
        const METER: u64 = 1 << 40;
        self.machine.registers = self.registers;
        self.machine.context().left = METER;
        let (_, result) = self.machine.execute_program(executable, &mut ExecutionMode::Jit, &mut []);
        result.into()
    }
}

/// A program of `solana-sbpf`.
pub(crate) struct SbpfProgram {
    executable: Executable<Resources>,
    machine: SharedMachine,
}

/// What all programs of a loader run on: made by the first call with a context.
type SharedMachine = Rc<RefCell<Option<SbpfMachine>>>;

impl SbpfProgram {
    /// Runs what was compiled.
    #[inline]
    pub(crate) fn run_compiled(&self, context: &mut [u8]) -> Result<u64, PlaceError> {
        let context: *mut [u8] = context;
        let failed = |error: EbpfError| refused("solana-sbpf", context.len(), error);
        let mut machine = self.machine.borrow_mut();
        let machine = match &mut *machine {
            Some(machine) if std::ptr::eq(machine.context, context) => machine,
            other => other.insert(SbpfMachine::new(&self.executable, context).map_err(failed)?),
        };
        machine.run(&self.executable).map_err(failed)
    }
}

/// What programs of `solana-sbpf` share.
pub(crate) struct SbpfLoader {
    functions: Arc<BuiltinProgram<Resources>>,
    machine: SharedMachine,
}

impl SbpfLoader {
    /// Without functions of the host.
    pub(crate) fn new() -> Self {
        Self::with(Config::default())
    }

    /// The same without what guards a program: addresses are those of the process and are not checked, instructions
    /// are not counted, and constants and code stay as they are.
    pub(crate) fn bare() -> Self {
        Self::with(Config {
            enable_address_translation: false,
            enable_stack_frame_gaps: false,
            enable_instruction_meter: false,
            noop_instruction_rate: 0,
            sanitize_user_provided_values: false,
            ..Config::default()
        })
    }

    fn with(config: Config) -> Self {
        Self { functions: Arc::new(BuiltinProgram::new_loader(config)), machine: SharedMachine::default() }
    }

    /// Loads, verifies and compiles a program, as version 0 of its instructions, which are those of eBPF.
    pub(crate) fn load(&self, bytes: &[u8]) -> Result<SbpfProgram, PlaceError> {
        let failed = |reason: String| refused("solana-sbpf", bytes.len(), reason);
        let loader = Arc::clone(&self.functions);
        let executable = Executable::from_text_bytes(bytes, loader, SBPFVersion::V0, FunctionRegistry::default());
        let executable = executable.map_err(|error| failed(error.to_string()))?;
        executable.verify::<RequisiteVerifier>().map_err(|error| failed(error.to_string()))?;
        arch::compile_sbpf(&executable).map_err(failed)?;
        Ok(SbpfProgram { executable, machine: Rc::clone(&self.machine) })
    }
}
