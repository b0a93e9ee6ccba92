//! Hooks: places of a host program where programs are attached and detached while it runs.
//!
//! ```
//! use std::sync::Arc;
//!
//! use palimpsest_bpf::host::{Host, HostedProgram};
//! use palimpsest_bpf::verify::{ContextAccess, Contract};
//! use palimpsest_bpf::{Code, Packs, asm, hook};
//!
//! #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
//! #[repr(C)]
//! struct Request {
//!     bytes: u64,
//! }
//!
//! /// What is done with a request.
//! #[derive(Clone, Copy, PartialEq, Debug)]
//! enum Verdict {
//!     Answer,
//!     Refuse,
//! }
//!
//! impl From<u64> for Verdict {
//!     fn from(result: u64) -> Self {
//!         if result == 0 { Self::Answer } else { Self::Refuse }
//!     }
//! }
//!
//! hook! {
//!     /// Runs before a request is answered.
//!     fn request(request: &Request) -> Verdict = "http.request";
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! assert_eq!(request(&Request { bytes: 5000 }), Verdict::Answer);
//! let code = Code::new(&asm::assemble("r0 = 0\nr1 = *(u64 *)(r1 + 0)\nif r1 < 1000 goto out\nr0 = 1\nout: exit")?)?;
//! let contract = Contract::new().context(size_of::<Request>() as u32, ContextAccess::Read);
//! let linked = Host::builder().build().verify(contract, code)?;
//! let packs = Packs::new()?; // once per process, for all programs
//! let program = Arc::new(HostedProgram::load(&packs, &linked)?);
//! let attached = request::HOOK.attach(0, program)?;
//! let verdicts = [5000, 5].map(|bytes| request(&Request { bytes }));
//! assert_eq!(verdicts, [Verdict::Refuse, Verdict::Answer]);
//! attached.detach()?;
//! assert_eq!(request(&Request { bytes: 5000 }), Verdict::Answer);
//! # Ok(())
//! # }
//! ```
//!
//! A hook is a static key ([`palimpsest_text::key`]): while nothing is attached, a call of its function is an
//! instruction without effect. The first attached program rewrites all places into which the function was inlined.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::vec::Vec;

use palimpsest_sys::published::Published;
use palimpsest_text::key::{Key, SwitchError};

use crate::host::HostedProgram;
use crate::layout::{Described, Types};
use crate::map::Plain;
use crate::program::ContextError;
use crate::verify::{ContextAccess, Contract};

/// A program that is attached.
#[derive(Clone, Debug)]
struct Attachment {
    priority: i32,
    number: u64,
    program: Arc<HostedProgram>,
}

/// A place where programs are attached. Made by [`hook!`](crate::hook!).
pub struct Hook<T> {
    key: &'static Key,
    /// In the order in which they run. Made when the first is attached.
    programs: OnceLock<Published<Vec<Attachment>>>,
    /// Held by whoever attaches or detaches, while the list and the key change, so that they agree afterwards.
    change: Mutex<()>,
    /// How many were ever attached. Whoever attaches adds one; it names the attachment.
    numbers: AtomicU64,
    /// Runs that failed. Whoever runs the programs adds to it, anybody reads it.
    failures: AtomicU64,
    context: PhantomData<fn(&T)>,
}

impl<T> fmt::Debug for Hook<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("key", &self.key).field("programs", &self.programs).finish_non_exhaustive()
    }
}

/// Why a program is not attached, or not detached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The program was verified for another context than the hook has.
    #[error("the program cannot have the context of the hook `{hook}`")]
    Context {
        /// Name of the hook.
        hook: &'static str,
        /// Why.
        #[source]
        source: ContextError,
    },
    /// The hook's key cannot be switched.
    #[error("the key of the hook `{hook}` cannot be switched")]
    Switch {
        /// Name of the hook.
        hook: &'static str,
        /// Why.
        #[source]
        source: SwitchError,
    },
}

impl<T: Plain> Hook<T> {
    /// Makes a hook whose key is on while something is attached.
    #[doc(hidden)]
    pub const fn new(key: &'static Key) -> Self {
        Self {
            key,
            programs: OnceLock::new(),
            change: Mutex::new(()),
            numbers: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            context: PhantomData,
        }
    }

    /// Returns its name, which is its key's.
    pub fn name(&self) -> &'static str {
        self.key.name()
    }

    /// The contract for which programs of this hook are verified: they may read the context.
    ///
    /// # Panics
    ///
    /// If the context has 4 GiB or more.
    pub fn contract(&self) -> Contract {
        let len = u32::try_from(size_of::<T>()).expect("contexts have less than 4 GiB");
        Contract::new().context(len, ContextAccess::Read)
    }

    /// The types of its context, from which a C header for programs and BTF to adapt them are made.
    pub fn types(&self) -> Types
    where
        T: Described,
    {
        Types::of::<T>()
    }

    /// Returns how many programs are attached.
    pub fn attached(&self) -> usize {
        self.programs.get().map_or(0, |programs| programs.read().len())
    }

    /// Returns how often a program had no result because a helper failed.
    pub fn failures(&self) -> u64 {
        // Relaxed: a statistic.
        self.failures.load(Ordering::Relaxed)
    }

    /// Attaches a program. Lower priority numbers run first; programs of one priority run in the order in which they
    /// came. It runs until the result is detached.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; then nothing has changed.
    pub fn attach(&'static self, priority: i32, program: Arc<HostedProgram>) -> Result<Attached<T>, AttachError> {
        let hook = self.name();
        program.fits(size_of::<T>(), align_of::<T>()).map_err(|source| AttachError::Context { hook, source })?;
        let _held = self.lock();
        // Relaxed: the number is all that matters.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut programs = self.list();
        let place = programs.partition_point(|other| other.priority <= priority);
        programs.insert(place, Attachment { priority, number, program });
        let is_first = programs.len() == 1;
        self.set(programs);
        if is_first && let Err(source) = self.key.enable() {
            self.set(Vec::new());
            return Err(AttachError::Switch { hook, source });
        }
        Ok(Attached { hook: self, number })
    }

    fn detach(&self, number: u64) -> Result<(), AttachError> {
        let _held = self.lock();
        let mut programs = self.list();
        programs.retain(|attachment| attachment.number != number);
        let is_last = programs.is_empty();
        // The list first: nothing runs from here on, whatever becomes of the key.
        self.set(programs);
        if is_last {
            self.key.disable().map_err(|source| AttachError::Switch { hook: self.name(), source })?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // Nothing that panics leaves list and key half changed.
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> Vec<Attachment> {
        self.programs.get().map_or_else(Vec::new, |programs| programs.read().clone())
    }

    fn set(&self, list: Vec<Attachment>) {
        self.programs.get_or_init(|| Published::new(Vec::new())).replace(list);
    }

    /// Lets go of programs that were detached, as far as no thread runs them any more. Attaching and detaching do the
    /// same. Returns how many earlier lists of programs are left.
    pub fn reclaim(&self) -> usize {
        self.programs.get().map_or(0, Published::reclaim)
    }

    /// Runs what is attached until a result is not 0. Returns that, or 0.
    #[doc(hidden)]
    #[cold]
    pub fn run(&self, context: &T) -> u64 {
        let Some(programs) = self.programs.get() else { return 0 };
        let bytes = context.as_bytes();
        for attachment in programs.read().iter() {
            match attachment.program.run_read_only(bytes) {
                Ok(0) => {}
                Ok(verdict) => return verdict,
                Err(_) => {
                    // Relaxed: a statistic.
                    self.failures.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        0
    }
}

/// An attached program: attached until this is detached or dropped.
#[must_use = "the program is detached when this is dropped"]
pub struct Attached<T: Plain + 'static> {
    hook: &'static Hook<T>,
    number: u64,
}

impl<T: Plain> fmt::Debug for Attached<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached").field("hook", self.hook).field("number", &self.number).finish()
    }
}

impl<T: Plain> Attached<T> {
    /// Detaches it: calls that begin from now on do not run it.
    ///
    /// # Errors
    ///
    /// [`AttachError::Switch`] if the key cannot be switched off; the program still does not run any more.
    pub fn detach(self) -> Result<(), AttachError> {
        let (hook, number) = (self.hook, self.number);
        std::mem::forget(self);
        hook.detach(number)
    }
}

impl<T: Plain> Drop for Attached<T> {
    fn drop(&mut self) {
        // A key that stays on costs time and does no harm: the list is empty.
        let _ = self.hook.detach(self.number);
    }
}

/// Defines hooks: functions that run what is attached and return its verdict, the first result that is not 0; 0 if
/// nothing is attached or all programs return 0. Beside the function there is a module of the same name with the
/// [`Hook`] as `HOOK`.
///
/// The context is a type of plain bytes, which programs may read ([`Plain`]). The verdict is `u64`, or a type of the
/// host's that is made from it (`From<u64>`), if the function names one: `fn request(request: &Request) -> Verdict =
/// "http.request"`. See the [module](mod@crate::hook).
#[macro_export]
macro_rules! hook {
    (@verdict) => { u64 };
    (@verdict $verdict:ty) => { $verdict };
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($context:ident: &$type:ty) $(-> $verdict:ty)? = $text:literal
    );+ $(;)?) => {$(
        $(#[$meta])*
        #[inline]
        $vis fn $name($context: &$type) -> $crate::hook!(@verdict $($verdict)?) {
            use $name::KEY;
            let verdict: u64 = if $crate::__text::branch!(unlikely KEY) { $name::HOOK.run($context) } else { 0 };
            verdict.into()
        }

        #[doc = concat!("The hook `", $text, "`.")]
        $vis mod $name {
            use super::*;

            $crate::__text::static_key! {
                /// On while something is attached.
                pub(super) static KEY: $text = off;
            }

            /// What is attached.
            pub static HOOK: $crate::hook::Hook<$type> = $crate::hook::Hook::new(&KEY);
        }
    )+};
}
