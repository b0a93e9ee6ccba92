//! The peer uBPF, a library in C.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use libubpf_sys::{ubpf_compile, ubpf_create, ubpf_destroy, ubpf_load, ubpf_vm};

use crate::PlaceError;

/// Held during loads: the first one fills a table of the library, without a lock.
static LOADING: Mutex<()> = Mutex::new(());

/// A program of uBPF, compiled: a machine of its own, as the library's users have it.
pub(crate) struct UbpfProgram {
    _machine: Machine,
    /// In memory of the machine.
    entry: unsafe extern "C" fn(*mut c_void, usize) -> u64,
}

/// # Invariants
///
/// `ubpf_create` has made it, and nobody else has it.
struct Machine(NonNull<ubpf_vm>);

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: by the invariant it exists, and nobody uses it any more.
        unsafe { ubpf_destroy(self.0.as_ptr()) };
    }
}

impl UbpfProgram {
    /// Loads and compiles a program, with the library's defaults.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, PlaceError> {
        let failed = |reason: String| PlaceError::Peer { peer: "uBPF", len: bytes.len(), reason };
        // SAFETY: it takes nothing.
        let machine = NonNull::new(unsafe { ubpf_create() });
        let machine = Machine(machine.ok_or_else(|| failed("there is no memory for a machine".to_owned()))?);
        let len = u32::try_from(bytes.len()).map_err(|_| failed("the program is too long".to_owned()))?;
        let mut message: *mut c_char = ptr::null_mut();
        let alone = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the machine exists; there are that many bytes, which are copied; a message has a place; nobody else
        // loads now.
        let status = unsafe { ubpf_load(machine.0.as_ptr(), bytes.as_ptr().cast(), len, &raw mut message) };
        drop(alone);
        if status != 0 {
            return Err(failed(said(message)));
        }
        // SAFETY: the machine exists and has a program; a message has a place.
        let entry = unsafe { ubpf_compile(machine.0.as_ptr(), &raw mut message) };
        match entry {
            Some(entry) => Ok(Self { _machine: machine, entry }),
            None => Err(failed(said(message))),
        }
    }

    /// Runs it. The suite runs programs verified for a context of this length.
    #[inline]
    pub(crate) fn run_compiled(&self, context: &mut [u8]) -> u64 {
        // SAFETY: the code stays with the machine; the suite's programs pass the verifier for their context, so they
        // reach nothing else.
        unsafe { (self.entry)(context.as_mut_ptr().cast(), context.len()) }
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
