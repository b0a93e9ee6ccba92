//! uBPF, an engine in C that others have written: what it makes of a program, interpreted and compiled.

use std::ffi::{CStr, c_char};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use libubpf_sys::{ubpf_compile, ubpf_create, ubpf_destroy, ubpf_exec, ubpf_load, ubpf_vm};
use palimpsest_bpf::insn::{Extension, Instruction, Operand};

/// Held during loads: the first one fills a table of the library, without a lock.
static LOADING: Mutex<()> = Mutex::new(());

/// A program in a machine.
///
/// # Invariants
///
/// `ubpf_create` has made the machine, nobody else has it, and it has a program.
pub(crate) struct Ubpf(NonNull<ubpf_vm>);

impl Ubpf {
    /// Loads a program.
    ///
    /// # Errors
    ///
    /// What uBPF says.
    pub(crate) fn load(bytes: &[u8]) -> Result<Self, String> {
        // SAFETY: it takes nothing.
        let machine = NonNull::new(unsafe { ubpf_create() }).ok_or("there is no memory for a machine")?;
        let machine = Self(machine);
        let len = u32::try_from(bytes.len()).map_err(|error| error.to_string())?;
        let mut message: *mut c_char = ptr::null_mut();
        let alone = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the machine exists; there are that many bytes, which are copied; a message has a place; nobody else
        // loads now.
        let status = unsafe { ubpf_load(machine.0.as_ptr(), bytes.as_ptr().cast(), len, &raw mut message) };
        drop(alone);
        if status == 0 { Ok(machine) } else { Err(said(message)) }
    }

    /// Runs it interpreted, with every access checked: the address of `memory` is its first argument, the length the
    /// second.
    ///
    /// # Errors
    ///
    /// It does not come to its end.
    pub(crate) fn interpret(&self, memory: &mut [u8]) -> Result<u64, String> {
        let (start, len) = (memory.as_mut_ptr(), memory.len());
        let mut result = 0;
        // SAFETY: the machine has a program, whose accesses are checked; there is that much memory, and a place for the
        // result.
        let status = unsafe { ubpf_exec(self.0.as_ptr(), start.cast(), len, &raw mut result) };
        if status == 0 { Ok(result) } else { Err("the interpreter ends it".to_owned()) }
    }

    /// Compiles and runs it.
    ///
    /// # Errors
    ///
    /// What uBPF says.
    ///
    /// # Safety
    ///
    /// 1. It ends, and uses no other memory than `memory` and its stack.
    pub(crate) unsafe fn run_compiled(&mut self, memory: &mut [u8]) -> Result<u64, String> {
        let mut message: *mut c_char = ptr::null_mut();
        // SAFETY: the machine has a program; a message has a place.
        let entry = unsafe { ubpf_compile(self.0.as_ptr(), &raw mut message) };
        let entry = entry.ok_or_else(|| said(message))?;
        // SAFETY: 1. the caller vouches for the program; its code stays with the machine.
        Ok(unsafe { entry(memory.as_mut_ptr().cast(), memory.len()) })
    }
}

impl Drop for Ubpf {
    fn drop(&mut self) {
        // SAFETY: by the invariant it exists, and nobody uses it any more.
        unsafe { ubpf_destroy(self.0.as_ptr()) };
    }
}

/// Returns a message of the library, and frees it.
fn said(message: *mut c_char) -> String {
    if message.is_null() {
        return "it does not say why".to_owned();
    }
    // SAFETY: the library leaves a text that ends with 0, which is freed only below.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    // SAFETY: the library has allocated it with malloc, and leaves it to its caller.
    unsafe { libc::free(message.cast()) };
    text
}

/// Returns what uBPF has in place of an instruction: loads that acquire and stores that release are plain, which is the
/// same in one thread.
pub(crate) fn without_order(instruction: Instruction) -> Instruction {
    match instruction {
        Instruction::LoadAcquire { size, dst, base, offset } => {
            Instruction::Load { size, extension: Extension::Zero, dst, base, offset }
        }
        Instruction::StoreRelease { size, base, offset, src } => {
            Instruction::Store { size, base, offset, value: Operand::Register(src) }
        }
        other => other,
    }
}
