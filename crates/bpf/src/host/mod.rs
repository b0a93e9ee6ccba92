//! What programs get from whoever runs them: maps, and helpers with signatures that the verifier checks calls by.
//!
//! A [`Host`] is built once and shared. [`Host::verify`] gives a [`Linked`] program, which belongs to that very host:
//! it knows its maps by index and its helpers by number. It is interpreted ([`Linked::interpret`]), or compiled
//! ([`HostedProgram`], with `std`).
//!
//! Helpers have the numbers of Linux as far as there is something for them in user space (`kernel`); others are
//! closures of the host ([`HostBuilder::helper`]).

mod call;
#[cfg(feature = "std")]
mod gate;
mod kernel;
#[cfg(feature = "std")]
mod print;
#[cfg(feature = "std")]
mod program;
mod text;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

pub use call::Call;
#[cfg(feature = "std")]
pub use program::{HostedError, HostedProgram, Slot};

use crate::code::Code;
use crate::interp::{Answer, HelperError, Helpers, Interpreter, Memory, RegionError, RunError, Trap};
#[cfg(feature = "std")]
use crate::jit::ArrayPlace;
use crate::map::{Fate, Map, Wake, cells};
use crate::verify::{Argument, Contract, MapShape, Signature, TAIL_CALL, Verified, VerifyError};
use call::{Rest, Space};

/// A helper of the host's.
type Closure = dyn Fn(&mut Call<'_>) -> Result<u64, HelperError> + Send + Sync;

/// What a helper does.
enum Function {
    Kernel(fn(&mut Call<'_>) -> Result<Answer, HelperError>),
    Custom(Box<Closure>),
}

/// A helper, with all that it needs: its address is what compiled code knows of it.
pub(crate) struct Entry {
    id: i32,
    signature: Signature,
    function: Function,
    maps: Arc<[Arc<Map>]>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("id", &self.id).field("signature", &self.signature).finish_non_exhaustive()
    }
}

impl Entry {
    /// Whether it calls functions of the program, which leaves its fifth argument free.
    #[cfg(feature = "std")]
    fn calls(&self) -> bool {
        let calls =
            self.signature.arguments().iter().any(|argument| matches!(argument, Argument::Loop | Argument::Each));
        calls && matches!(self.function, Function::Kernel(_))
    }

    /// Calls it.
    fn call(&self, arguments: [u64; 5], space: &mut dyn Space) -> Result<Answer, HelperError> {
        let rest = match &self.function {
            Function::Kernel(_) => Rest::Kept,
            Function::Custom(_) => Rest::Zeroed,
        };
        let mut call = Call::new(arguments, &self.signature, &self.maps, space, rest);
        match &self.function {
            Function::Kernel(function) => function(&mut call),
            Function::Custom(function) => function(&mut call).map(Answer::Value),
        }
    }
}

/// Maps and helpers.
#[derive(Debug)]
pub struct Host {
    maps: Arc<[Arc<Map>]>,
    /// By number, in order.
    entries: Box<[Entry]>,
}

/// A host that is being built.
#[derive(Debug, Default)]
pub struct HostBuilder {
    maps: Vec<Arc<Map>>,
    entries: Vec<(i32, Signature, Custom)>,
}

/// What a closure does.
struct Custom(Function);

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Custom")
    }
}

impl HostBuilder {
    /// Gives programs a map; its index is how many there were before.
    pub fn map(mut self, map: Arc<Map>) -> Self {
        self.maps.push(map);
        self
    }

    /// Gives programs a helper, instead of the one that had this number. What it returns goes to `r0`; an error ends
    /// the program, which has no result then. So does a panic, if panics unwind; what it was raised
    /// with is forgotten, not dropped.
    ///
    /// # Panics
    ///
    /// If `id` is 12, which is the helper that makes tail calls: programs leave behind it.
    pub fn helper(
        mut self,
        id: i32,
        signature: Signature,
        function: impl Fn(&mut Call<'_>) -> Result<u64, HelperError> + Send + Sync + 'static,
    ) -> Self {
        assert!(id != TAIL_CALL, "helper {id} makes tail calls, and is not replaced; choose another number");
        self.entries.push((id, signature, Custom(Function::Custom(Box::new(function)))));
        self
    }

    /// The host.
    pub fn build(self) -> Arc<Host> {
        let maps: Arc<[Arc<Map>]> = self.maps.into();
        let mut entries: Vec<Entry> = Vec::new();
        let kernel =
            kernel::HELPERS.iter().map(|(id, signature, function)| (*id, *signature, Function::Kernel(*function)));
        let custom = self.entries.into_iter().map(|(id, signature, Custom(function))| (id, signature, function));
        for (id, signature, function) in kernel.chain(custom) {
            let entry = Entry { id, signature, function, maps: Arc::clone(&maps) };
            match entries.binary_search_by_key(&id, |entry| entry.id) {
                Ok(place) => entries[place] = entry,
                Err(place) => entries.insert(place, entry),
            }
        }
        Arc::new(Host { maps, entries: entries.into_boxed_slice() })
    }
}

/// What programs know maps by: a number with the index that cannot be mistaken for an address, since none of user space
/// begins so.
const MAP_TAG: u64 = 0x4d41_5000_0000_0000;

fn handle(index: u32) -> u64 {
    MAP_TAG | u64::from(index)
}

/// The index of a map that programs know by `handle`.
fn index(handle: u64) -> Option<u32> {
    u32::try_from(handle ^ MAP_TAG).ok()
}

impl Host {
    /// A host with Linux's helpers and no maps.
    pub fn builder() -> HostBuilder {
        HostBuilder::default()
    }

    /// Its maps.
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    /// The map of this name.
    pub fn map(&self, name: &str) -> Option<&Arc<Map>> {
        self.maps.iter().find(|map| map.definition().name == name)
    }

    fn entry(&self, id: i32) -> Option<&Entry> {
        let place = self.entries.binary_search_by_key(&id, |entry| entry.id).ok()?;
        self.entries.get(place)
    }

    /// Verifies `code` for this host: `contract` says which context and budget it gets; its helpers and maps are this
    /// host's.
    ///
    /// # Errors
    ///
    /// [`VerifyError`].
    pub fn verify(self: &Arc<Self>, mut contract: Contract, code: Code) -> Result<Linked, VerifyError> {
        for entry in &self.entries {
            contract.set_helper(entry.id, entry.signature);
        }
        let shape = |map: &Arc<Map>| {
            let definition = map.definition();
            let (key_len, value_len) = (definition.key_len, definition.value_len);
            MapShape { kind: definition.kind, key_len, value_len, access: definition.access }
        };
        contract.set_maps(self.maps.iter().map(shape).collect());
        Ok(Linked { verified: contract.verify(code)?, host: Arc::clone(self) })
    }

    /// Where the values of an array lie, if helper 1 is Linux's.
    #[cfg(feature = "std")]
    fn array_place(&self, index: i32) -> Option<ArrayPlace> {
        let is_linux = matches!(self.entry(1)?.function, Function::Kernel(_));
        self.maps.get(usize::try_from(index).ok()?).filter(|_| is_linux)?.array_place()
    }

    /// Gives records back that a program which was ended did not.
    fn discard(&self, records: &[u64]) {
        for ring in self.maps.iter().filter_map(|map| map.ring()) {
            records.iter().for_each(|record| ring.finish(*record, Fate::Discard, Wake::IfWaiting));
        }
    }

    fn map_value(&self, index: i32, offset: u32) -> Option<u64> {
        let map = self.maps.get(usize::try_from(index).ok()?)?;
        Some(map.first_value()? + u64::from(offset))
    }

    fn map_handle(&self, index: i32) -> Option<u64> {
        let index = u32::try_from(index).ok()?;
        self.maps.get(index as usize).map(|_| handle(index))
    }
}

/// A program that was verified for a host.
#[derive(Clone, Debug)]
pub struct Linked {
    verified: Verified,
    host: Arc<Host>,
}

impl Linked {
    /// The program.
    pub fn code(&self) -> &Code {
        self.verified.code()
    }

    /// The host that it was verified for.
    pub const fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Runs it interpreted, with `context` at an address of the interpreter's choice. Its operations on maps are those
    /// of one thread: what others do to the same values at the same time can come between.
    ///
    /// # Errors
    ///
    /// [`RunError`].
    pub fn interpret(&self, interpreter: &Interpreter, context: &mut [u8]) -> Result<u64, RunError> {
        /// Where the context lies.
        const CONTEXT: u64 = 0x10_0000;
        let failed = |error: RegionError| RunError { slot: 0, trap: Trap::from(error) };
        let mut memory = Memory::new();
        let arguments = [CONTEXT, context.len() as u64, 0, 0, 0];
        memory.add(CONTEXT, context).map_err(failed)?;
        for words in self.host.maps.iter().flat_map(|map| map.shared()) {
            memory.add_shared(cells::address(words), words).map_err(failed)?;
        }
        let interpreter = self.verified.fuel().map_or(*interpreter, |fuel| interpreter.fuel(fuel));
        let result = interpreter.run(self.code(), arguments, &mut memory, &mut &*self.host);
        self.host.discard(memory.held());
        result
    }
}

impl Helpers for &Host {
    fn call(&mut self, _id: i32, _arguments: [u64; 5], _memory: &mut Memory<'_>) -> Result<u64, HelperError> {
        Err(HelperError::Unknown)
    }

    fn answer(&mut self, id: i32, arguments: [u64; 5], memory: &mut Memory<'_>) -> Result<Answer, HelperError> {
        if id == TAIL_CALL {
            return Err(HelperError::TailCall);
        }
        self.entry(id).ok_or(HelperError::Unknown)?.call(arguments, memory)
    }

    fn map(&self, index: i32) -> Option<u64> {
        self.map_handle(index)
    }

    fn map_value(&self, index: i32, offset: u32) -> Option<u64> {
        Host::map_value(self, index, offset)
    }
}
