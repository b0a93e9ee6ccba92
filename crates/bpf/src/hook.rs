//! Hooks: places of a host program where programs are attached and detached while it runs.
//!
//! ```
//! use std::sync::Arc;
//!
//! use palimpsest_bpf::host::{Host, HostedProgram};
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
//! let linked = Host::builder().build().verify(request::HOOK.contract(), code)?;
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
//!
//! What programs own is dropped when nobody attaches or detaches: it may do so itself. A child of `fork` attaches and
//! detaches, also if another thread of its parent was in the middle of it.

use std::borrow::ToOwned;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::vec::Vec;

use palimpsest_sys::SetOnce;
use palimpsest_sys::published::{Published, Replaced};
use palimpsest_text::key::{Key, State, SwitchError, Switched};

use crate::host::HostedProgram;
use crate::layout::{Described, Types};
use crate::map::Plain;
use crate::map::turns::{Orphan, Turn, Turns};
use crate::program::ContextError;
use crate::verify::{ContextAccess, Contract};

/// A program that is attached.
#[derive(Clone, Debug)]
struct Attachment {
    priority: i32,
    number: u64,
    program: Arc<HostedProgram>,
    /// Set by who would detach it in the middle of a turn and cannot wait for its end: who has the turn detaches it.
    is_leaving: Arc<AtomicBool>,
}

/// A place where programs are attached. Made by [`hook!`](crate::hook!).
pub struct Hook<T> {
    key: &'static Key,
    /// In the order in which they run. Made when the first is attached.
    programs: SetOnce<Published<Vec<Attachment>>>,
    /// Of whoever attaches or detaches, while the list and the key change, so that they agree afterwards.
    turns: Turns,
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
    /// The hook's key cannot be switched. With [`SwitchError::Reentered`] this very thread is attaching or detaching
    /// here, or switching the key: a log of patches ([`palimpsest_text::poke::set_log`]) or a signal handler has called
    /// back. Or another thread is, and this one must not wait for it: a signal handler has interrupted its change of a
    /// map.
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
            programs: SetOnce::new(),
            turns: Turns::new(),
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
    pub fn contract(&self) -> Contract {
        Contract::of::<T>(ContextAccess::Read)
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
        let turn = self.turn()?;
        // Relaxed: the number is all that matters.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut programs = self.list();
        let place = programs.partition_point(|other| other.priority <= priority);
        programs.insert(place, Attachment { priority, number, program, is_leaving: Arc::default() });
        let replaced = self.set(programs);
        // Not only for the first: an earlier call may not have come to it, or failed.
        let switched = self.key.keep(State::On);
        if switched.is_err() {
            // A key that stays on costs time and does no harm.
            let _ = self.withdraw(|attachment| attachment.number == number);
        }
        self.end(turn);
        // Behind the turn, as in `detach`.
        replaced.free();
        switched.map(|_| Attached { hook: self, number }).map_err(|source| AttachError::Switch { hook, source })
    }

    fn detach(&self, number: u64) -> Result<(), AttachError> {
        let is_it = |attachment: &Attachment| attachment.number == number;
        let turn = self.turn().inspect_err(|_| self.leave(is_it))?;
        let (replaced, switched) = self.withdraw(is_it);
        self.end(turn);
        // Behind the turn: what is freed is the host's, and may attach and detach.
        replaced.free();
        switched.map(drop).map_err(|source| AttachError::Switch { hook: self.name(), source })
    }

    /// Ends a turn, after detaching what was to be detached in the middle of it.
    fn end(&self, turn: Turn<'_>) {
        // Relaxed: set by this thread, or see the fence below.
        let is_leaving = |attachment: &Attachment| attachment.is_leaving.load(Ordering::Relaxed);
        let is_any_leaving = || self.programs.get().is_some_and(|programs| programs.read().iter().any(is_leaving));
        let mut turn = turn;
        loop {
            if is_any_leaving() {
                // A key that stays on costs time and does no harm. What is not freed here is freed by the next call.
                let _ = self.withdraw(is_leaving);
            }
            drop(turn);
            // With the fence of `leave`: without it, this could miss the mark, and that thread the end of the turn.
            fence(Ordering::SeqCst);
            // A handler may have come between the look and the end of the turn. Behind it, handlers take their own.
            if !is_any_leaving() {
                return;
            }
            let Ok(again) = self.turn() else { return };
            turn = again;
        }
    }

    /// Has what `is_it` detached by whoever has the turn: this thread, or another one for which it may not wait.
    fn leave(&self, is_it: impl Fn(&Attachment) -> bool) {
        let Some(programs) = self.programs.get() else { return };
        // Relaxed: read by this thread, or behind the fence.
        programs.read().iter().filter(|other| is_it(other)).for_each(|it| it.is_leaving.store(true, Ordering::Relaxed));
        // With the fence of `end`: another thread sees the mark there, or its turn is over here.
        fence(Ordering::SeqCst);
        if let Ok(turn) = self.turn() {
            self.end(turn);
        }
    }

    /// Takes what `is_it` from the list, and switches the key off if nothing is left. Frees nothing.
    fn withdraw(
        &self,
        is_it: impl Fn(&Attachment) -> bool,
    ) -> (Replaced<'_, Vec<Attachment>>, Result<Switched, SwitchError>) {
        let mut programs = self.list();
        // Not the last of the program: the present list has it, too.
        programs.retain(|attachment| !is_it(attachment));
        let state = if programs.is_empty() { State::Off } else { State::On };
        // The list first: nothing runs from here on, whatever becomes of the key.
        let replaced = self.set(programs);
        (replaced, self.key.keep(state))
    }

    fn turn(&self) -> Result<Turn<'_>, AttachError> {
        // A thread that the process does not have may have left a list that the key does not follow yet. Whoever takes
        // its turn over switches the key as well.
        self.turns.take(Orphan::IsTakenOver).map_err(|_| {
            let (hook, name) = (self.name(), self.name().to_owned());
            AttachError::Switch { hook, source: SwitchError::Reentered { name } }
        })
    }

    fn list(&self) -> Vec<Attachment> {
        self.programs.get().map_or_else(Vec::new, |programs| programs.read().clone())
    }

    fn set(&self, list: Vec<Attachment>) -> Replaced<'_, Vec<Attachment>> {
        self.programs.get_or_init(|| Published::new(Vec::new())).replace_only(list)
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
    /// [`AttachError::Switch`] if the key cannot be switched. The program still does not run any more; the next call
    /// that attaches or detaches tries the key again. Only where this thread is attaching or detaching here
    /// ([`SwitchError::Reentered`]), calls may run the program until it has done so.
    pub fn detach(self) -> Result<(), AttachError> {
        let (hook, number) = (self.hook, self.number);
        std::mem::forget(self);
        hook.detach(number)
    }
}

impl<T: Plain> Drop for Attached<T> {
    fn drop(&mut self) {
        // A key that stays on costs time and does no harm. The program does not run, or not for long.
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

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use std::sync::mpsc::channel;

    use crate::holding::{Holding, Level};
    use crate::host::Host;
    use crate::jit::Target;
    use crate::map::tests::beside;
    use crate::{Code, Packs, asm};

    palimpsest_text::static_key!(static KEY: "test.left" = off);
    static HOOK: Hook<u64> = Hook::new(&KEY);

    /// A program that returns `number`.
    fn constant(packs: &Packs, number: u64) -> Arc<HostedProgram> {
        let text = std::format!("r0 = {number}\nexit");
        let code = Code::new(&asm::assemble(&text).expect("a program")).expect("its structure is right");
        let linked = Host::builder().build().verify(HOOK.contract(), code).expect("harmless");
        Arc::new(HostedProgram::load(packs, &linked).expect("room"))
    }

    fn left() -> u64 {
        if palimpsest_text::branch!(unlikely KEY) { HOOK.run(&0) } else { 0 }
    }

    palimpsest_text::static_key!(static BUSY_KEY: "test.busy_turn" = off);
    static BUSY: Hook<u64> = Hook::new(&BUSY_KEY);

    #[test]
    fn what_is_detached_in_the_middle_of_a_turn_is_at_its_end() {
        if Target::NATIVE.is_none() {
            return;
        }
        let packs = Packs::new().expect("packs");
        let [first, second] = [1, 2].map(|number| constant(&packs, number));
        let attached = BUSY.attach(0, first).expect("it fits");
        // As in a signal handler that has interrupted this thread in `attach`.
        let turn = BUSY.turn().expect("nobody has it");
        let refused = attached.detach().expect_err("it is this thread's");
        assert!(matches!(refused, AttachError::Switch { source: SwitchError::Reentered { .. }, .. }), "{refused}");
        assert_eq!(BUSY.attached(), 1);
        BUSY.end(turn);
        assert_eq!((BUSY.attached(), BUSY_KEY.is_on()), (0, false));
        // The handle may also be dropped, and came too late for the end: the next one does it.
        let attached = BUSY.attach(0, second).expect("it fits");
        let turn = BUSY.turn().expect("nobody has it");
        drop(attached);
        drop(turn);
        let third = BUSY.attach(0, constant(&packs, 3)).expect("it fits");
        assert_eq!((BUSY.attached(), BUSY.run(&0)), (1, 3));
        third.detach().expect("the key is ours");
        assert_eq!((BUSY.attached(), BUSY_KEY.is_on()), (0, false));
        // Another thread has the turn, for which a handler that has interrupted a change of a map must not wait.
        let fourth = BUSY.attach(0, constant(&packs, 4)).expect("it fits");
        let ((taken, is_taken), (done, is_done)) = (channel(), channel::<()>());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let turn = BUSY.turn().expect("nobody has it");
                taken.send(()).expect("somebody listens");
                let _ = is_done.recv();
                BUSY.end(turn);
            });
            is_taken.recv().expect("it is taken");
            let holding = Holding::begin(Level::Part);
            let refused = fourth.detach().expect_err("it must not wait");
            assert!(matches!(refused, AttachError::Switch { source: SwitchError::Reentered { .. }, .. }), "{refused}");
            drop((holding, done));
        });
        assert_eq!((BUSY.attached(), BUSY_KEY.is_on()), (0, false));
    }

    #[test]
    fn a_child_switches_the_key_for_a_list_that_its_parent_has_changed() {
        if Target::NATIVE.is_none() {
            return;
        }
        let packs = Packs::new().expect("packs");
        let [first, second] = [1, 2].map(|number| constant(&packs, number));
        // As far as `attach` has come before it switches the key.
        let changes = || {
            let turn = HOOK.turn();
            let is_leaving = Arc::default();
            let _ = HOOK.set(vec![Attachment { priority: 0, number: 7, program: first, is_leaving }]);
            turn
        };
        let check = || {
            let attached = HOOK.attach(-1, second);
            attached.is_ok_and(|attached| left() == 2 && attached.detach().is_ok() && left() == 1)
        };
        beside(changes, check);
        let _ = HOOK.set(Vec::new());
    }
}
