//! What programs get from whoever runs them: maps, and helpers with signatures by which the verifier checks calls.
//!
//! A [`Host`] is built once and shared. [`Host::verify`] returns a [`Linked`] program, which belongs to that very host:
//! it knows its maps by index and its helpers by number. It is interpreted ([`Linked::interpret`]) or compiled
//! ([`HostedProgram`], with `std`; [`Linked::compile`] for callers with packs of their own).
//!
//! Helpers have Linux's numbers as far as they make sense in user space (`kernel`); others are closures of the host
//! ([`HostBuilder::helper`]). Programs know further closures by name ([`HostBuilder::function`]).

mod call;
mod cpu;
mod descriptors;
mod dynptr;
#[cfg(feature = "std")]
mod format;
mod function;
mod gate;
mod handle;
mod interpreted;
#[cfg(feature = "std")]
mod kept;
mod kernel;
pub mod kfunc;
mod lock;
#[cfg(feature = "std")]
mod objects;
mod panics;
#[cfg(feature = "std")]
mod print;
mod probe;
#[cfg(feature = "std")]
mod program;
mod quick;
mod ring;
#[cfg(feature = "std")]
mod run;
mod runner;
mod text;
#[cfg(feature = "std")]
mod timed;
mod vouched;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::AtomicU64;

pub use call::Call;
pub use function::{Declaration, Prototype, Shape};
#[cfg(feature = "std")]
pub use program::{HostedError, HostedProgram, Slot};
pub use runner::Runner;
#[cfg(feature = "std")]
pub(crate) use timed::{OnTimer, Timers};

use crate::code::Code;
use crate::insn::Callee;
use crate::interp::{Answer, HelperError, Interpreter, Memory, OnFault, RegionError, RunError, Trap};
use crate::jit::{CompileError, Compiled, Target, Wanted, compile_resolved};
use crate::map::{ArrayPlace, Definition, Map, cells};
#[cfg(feature = "std")]
use crate::timer::{SystemTime, TimeSource};
use crate::verify::{
    Argument, Contract, Log, MissingFunction, Names, Region, Returns, Signature, TAIL_CALL, Unproven, Verified,
    VerifyError,
};
use call::{Rest, Space};
use cpu::Cpu;
use descriptors::Descriptors;
use function::{Custom, Function as Named};
use gate::RunBy;
use handle::{find, handle, inner_handle};
use interpreted::{Interpretation, Interpreted};
use kfunc::Kfunc;

/// A helper of the host's.
type Closure = dyn Fn(&mut Call<'_>) -> Result<u64, HelperError> + Send + Sync;

/// What a helper does.
enum Function {
    Kernel(fn(&mut Call<'_>) -> Result<Answer, HelperError>),
    Custom(Box<Closure>),
}

/// What all helpers of a host share.
#[derive(Clone, Debug)]
struct Shared {
    maps: Arc<[Arc<Map>]>,
}

/// A helper with all that it needs: compiled code knows its address.
pub(crate) struct Entry {
    callee: Callee,
    signature: Signature,
    function: Function,
    shared: Shared,
    /// Whether the programs that call it may read from unproven addresses.
    unproven: Unproven,
    /// Whether it calls functions of the program, which leaves its fifth argument free. Noted, as is the next, since
    /// each call of it depends on it.
    calls: bool,
    /// Which argument is a map; [`NO_MAP`] if none is.
    map: u8,
    /// How compiled code calls it in a shorter way.
    quick: Option<quick::Kind>,
}

/// Beyond the last argument.
const NO_MAP: u8 = 5;

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("callee", &self.callee)
            .field("signature", &self.signature)
            .finish_non_exhaustive()
    }
}

impl Entry {
    fn new(callee: Callee, signature: Signature, function: Function, shared: &Shared, unproven: Unproven) -> Self {
        let arguments = signature.arguments();
        let is_called = |argument: &Argument| matches!(argument, Argument::Loop | Argument::Each | Argument::Drain);
        let calls = matches!(function, Function::Kernel(_)) && arguments.iter().any(is_called);
        let map = arguments.iter().position(|argument| matches!(argument, Argument::Map(_)));
        let map = map.map_or(NO_MAP, |place| place as u8);
        let quick = match (callee, &function) {
            (Callee::Helper(id), Function::Kernel(_)) => quick::Kind::of(id),
            _ => None,
        };
        Self { callee, signature, function, shared: shared.clone(), unproven, calls, map, quick }
    }

    /// Whether it calls functions of the program.
    const fn calls(&self) -> bool {
        self.calls
    }

    /// Whether it does more for programs that may read from unproven addresses.
    fn probes(&self) -> bool {
        let prints = |argument: &Argument| matches!(argument, Argument::Printed | Argument::PrintedBytes);
        self.signature.returns == Returns::Probed || self.signature.arguments().iter().any(prints)
    }

    /// Calls it. In place where compiled code enters: its result is long, and would be copied once more.
    #[inline(always)]
    fn call(&self, arguments: [u64; 5], space: &mut dyn Space) -> Result<Answer, HelperError> {
        let rest = match &self.function {
            Function::Kernel(_) => Rest::Kept,
            Function::Custom(_) => Rest::Zeroed,
        };
        let mut call = Call::new(arguments, self, space, rest);
        match &self.function {
            Function::Kernel(function) => function(&mut call),
            Function::Custom(function) => function(&mut call).map(Answer::Value),
        }
    }
}

/// Maps and helpers.
#[derive(Debug)]
pub struct Host {
    shared: Shared,
    /// Of maps that have one.
    descriptors: Descriptors,
    /// By number, in order.
    entries: Box<[(i32, Entry)]>,
    /// The entries that differ for programs that may read from unproven addresses.
    probing: Box<[(i32, Entry)]>,
    /// By index.
    functions: Box<[Named]>,
    /// What calls of missing helpers and functions lead to, in code that programs never reach.
    absent: Entry,
    /// Tells on which CPU interpreted programs run.
    cpu: Option<Cpu>,
    /// What drives its maps' timers, if it has maps with timers.
    #[cfg(feature = "std")]
    timers: Option<Arc<Timers>>,
}

/// A host that is being built.
#[derive(Debug, Default)]
pub struct HostBuilder {
    maps: Vec<Arc<Map>>,
    descriptors: Descriptors,
    entries: Vec<(i32, Signature, Custom)>,
    declared: Vec<Declaration>,
    functions: Vec<(String, Signature, Custom)>,
    cpu: Option<Cpu>,
    #[cfg(feature = "std")]
    time: Option<Time>,
}

/// What timers tell time by.
#[cfg(feature = "std")]
#[derive(Debug)]
struct Time(Box<dyn TimeSource>);

impl HostBuilder {
    /// Gives programs a map; its index is how many there were before it.
    pub fn map(mut self, map: Arc<Map>) -> Self {
        self.maps.push(map);
        self
    }

    /// Gives programs a helper, replacing the one with this number. What it returns goes to `r0`; an error ends the
    /// program, which then has no result. So does a panic, if panics unwind; its payload is forgotten, not dropped.
    ///
    /// # Panics
    ///
    /// If `id` is 12, the helper for tail calls, behind which a program does not go on. If the signature has an
    /// [`Argument::Record`] or what follows it, which only Linux's helpers can handle.
    pub fn helper(
        mut self,
        id: i32,
        signature: Signature,
        function: impl Fn(&mut Call<'_>) -> Result<u64, HelperError> + Send + Sync + 'static,
    ) -> Self {
        assert!(id != TAIL_CALL, "helper {id} makes tail calls, and is not replaced; choose another number");
        refuse_linux(&signature);
        self.entries.push((id, signature, Custom(Function::Custom(Box::new(function)))));
        self
    }

    /// Gives programs a function that they call by name (in C: `extern … __ksym`), replacing the one of this name.
    /// Results, errors and panics are as for [`helper`](Self::helper).
    ///
    /// Programs of an object find it if its C declaration fits `signature`: numbers for numbers and sizes, addresses
    /// for all else. Functions that no object declares get the indexes behind the declared ones, in the order in which
    /// they were given.
    ///
    /// # Panics
    ///
    /// If the signature has an [`Argument::Record`] or what follows it, which only Linux's helpers can handle.
    pub fn function(
        mut self,
        name: &str,
        signature: Signature,
        function: impl Fn(&mut Call<'_>) -> Result<u64, HelperError> + Send + Sync + 'static,
    ) -> Self {
        refuse_linux(&signature);
        let function = Custom(Function::Custom(Box::new(function)));
        self.functions.retain(|(known, ..)| known != name);
        self.functions.push((name.to_string(), signature, function));
        self
    }

    /// Does the same with a function that [`kfunc!`](crate::kfunc) has made.
    ///
    /// # Panics
    ///
    /// As [`function`](Self::function); never for what the macro makes.
    pub fn kfunc(mut self, kfunc: Kfunc) -> Self {
        let Kfunc { name, signature, function } = kfunc;
        refuse_linux(&signature);
        self.functions.retain(|(known, ..)| known != name);
        self.functions.push((name.to_string(), signature, Custom(Function::Custom(function))));
        self
    }

    /// Notes which functions programs know by their indexes.
    pub(crate) fn declared(mut self, declared: &[Declaration]) -> Self {
        self.declared.extend_from_slice(declared);
        self
    }

    /// Has programs' timers tell time by `time` instead of by the kernel's clocks: for tests and replays. When that
    /// time jumps, call [`Host::look_at_time`]. Maps that were given to another host first keep that host's time.
    #[cfg(feature = "std")]
    pub fn time(self, time: impl TimeSource) -> Self {
        Self { time: Some(Time(Box::new(time))), ..self }
    }

    /// The host.
    pub fn build(self) -> Arc<Host> {
        let shared = Shared { maps: self.maps.into() };
        let mut entries: Vec<(i32, Entry)> = Vec::new();
        let kernel =
            kernel::HELPERS.iter().map(|(id, signature, function)| (*id, *signature, Function::Kernel(*function)));
        let custom = self.entries.into_iter().map(|(id, signature, Custom(function))| (id, signature, function));
        for (id, signature, function) in kernel.chain(custom) {
            let entry = Entry::new(Callee::Helper(id), signature, function, &shared, Unproven::Refuse);
            match entries.binary_search_by_key(&id, |(known, _)| *known) {
                Ok(place) => entries[place] = (id, entry),
                Err(place) => entries.insert(place, (id, entry)),
            }
        }
        let functions = named(self.declared, self.functions, &shared);
        // Linux's helpers, unless the host has replaced them.
        let probes = entries.iter().filter(|(_, entry)| entry.probes());
        let probing = probes.filter_map(|(id, entry)| match entry.function {
            Function::Kernel(function) => {
                let Entry { callee, signature, .. } = *entry;
                let function = Function::Kernel(function);
                Some((*id, Entry::new(callee, signature, function, &shared, Unproven::Probe)))
            }
            Function::Custom(_) => None,
        });
        let probing = probing.collect();
        let nobody = Function::Kernel(|_| Err(HelperError::Unknown));
        let absent = Entry::new(Callee::Helper(-1), Signature::new([]), nobody, &shared, Unproven::Refuse);
        #[cfg(feature = "std")]
        let timers = timers(&shared.maps, self.time);
        Arc::new(Host {
            shared,
            descriptors: self.descriptors,
            entries: entries.into_boxed_slice(),
            probing,
            functions,
            absent,
            cpu: self.cpu,
            #[cfg(feature = "std")]
            timers,
        })
    }
}

/// Makes what drives timers, if there are maps with timers, and gives it to those that have none yet.
#[cfg(feature = "std")]
fn timers(maps: &[Arc<Map>], time: Option<Time>) -> Option<Arc<Timers>> {
    let with_timers = || maps.iter().filter(|map| map.definition().timer.is_some());
    with_timers().next()?;
    let time = time.map_or_else(|| Box::new(SystemTime) as Box<dyn TimeSource>, |Time(time)| time);
    let timers = Arc::new(Timers::new(time));
    with_timers().for_each(|map| map.timed().set(&timers));
    Some(timers)
}

#[cfg(feature = "std")]
impl Drop for Host {
    /// Removes the timers that call its programs, also in maps that other hosts share.
    fn drop(&mut self) {
        self.shared.maps.iter().filter_map(|map| map.timed().get()).for_each(|timers| timers.forget_dead());
    }
}

/// The verifier would count a record as given back, or a dynptr as made, and no closure can do that.
fn refuse_linux(signature: &Signature) {
    let is_for_linux = signature.arguments().iter().any(|argument| argument.is_for_linux());
    assert!(!is_for_linux, "helpers of a host take no records and dynptrs; programs give them to Linux's helpers");
}

/// Returns the declared functions, followed by all others.
fn named(declared: Vec<Declaration>, given: Vec<(String, Signature, Custom)>, shared: &Shared) -> Box<[Named]> {
    let mut given: BTreeMap<usize, _> = given.into_iter().enumerate().collect();
    let places: BTreeMap<String, usize> = given.iter().map(|(place, (name, ..))| (name.clone(), *place)).collect();
    let mut functions: Vec<Named> = Vec::new();
    let entry = |index: usize, signature, Custom(function)| {
        let callee = Callee::Kernel { id: index as i32, module: 0 };
        Entry::new(callee, signature, function, shared, Unproven::Refuse)
    };
    for Declaration { name, prototype } in declared {
        let index = functions.len();
        let found = places.get(&name).and_then(|place| given.remove(place));
        let entry = match found {
            None => Err(MissingFunction::NotGiven),
            Some((_, signature, _)) if !prototype.is_none_or(|prototype| prototype.fits(&signature)) => {
                Err(MissingFunction::Prototype)
            }
            Some((_, signature, function)) => Ok(entry(index, signature, function)),
        };
        functions.push(Named { name, entry });
    }
    for (name, signature, function) in given.into_values() {
        let index = functions.len();
        functions.push(Named { name, entry: Ok(entry(index, signature, function)) });
    }
    functions.into_boxed_slice()
}

impl Host {
    /// Returns a builder with Linux's helpers and no maps.
    pub fn builder() -> HostBuilder {
        HostBuilder::default()
    }

    /// Its maps.
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.shared.maps
    }

    /// The map of this name.
    pub fn map(&self, name: &str) -> Option<&Arc<Map>> {
        self.shared.maps.iter().find(|map| map.definition().name == name)
    }

    /// Has timers look at their clock, and waits until every timer that was armed before, and is due now, has been
    /// called: for a [`time`](HostBuilder::time) that has jumped. Does not wait for timers that are armed meanwhile,
    /// and returns at once in a function that any host's timer calls, and in [`Map::change_locked`].
    #[cfg(feature = "std")]
    pub fn look_at_time(&self) {
        if let Some(timers) = &self.timers {
            timers.look();
        }
    }

    /// How many calls by timers have failed: a helper returned an error or panicked, or the fuel ran out.
    #[cfg(feature = "std")]
    pub fn timer_failures(&self) -> u64 {
        self.timers.as_ref().map_or(0, |timers| timers.failures())
    }

    fn entry(&self, id: i32) -> Option<&Entry> {
        let place = self.entries.binary_search_by_key(&id, |(known, _)| *known).ok()?;
        self.entries.get(place).map(|(_, entry)| entry)
    }

    /// The helper with this number, for programs with these rights to unproven addresses.
    fn entry_for(&self, id: i32, unproven: Unproven) -> Option<&Entry> {
        let probing = || {
            let place = self.probing.binary_search_by_key(&id, |(known, _)| *known).ok()?;
            self.probing.get(place).map(|(_, entry)| entry)
        };
        let found = if unproven == Unproven::Probe { probing() } else { None };
        found.or_else(|| self.entry(id))
    }

    fn function(&self, index: i32) -> Option<&Entry> {
        self.functions.get(usize::try_from(index).ok()?)?.entry.as_ref().ok()
    }

    /// Returns the names of the functions that programs call by name, by their indexes.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = &str> {
        self.functions.iter().map(|function| function.name.as_str())
    }

    /// Verifies `code` for this host: `contract` sets its context and budget; its helpers and maps are this host's.
    ///
    /// # Errors
    ///
    /// [`VerifyError`].
    pub fn verify(self: &Arc<Self>, contract: Contract, code: Code) -> Result<Linked, VerifyError> {
        let verified = self.completed(contract).verify(code)?.of_host();
        Ok(Linked { verified, host: Arc::clone(self) })
    }

    /// Does the same, and tells in `log` what it took, and how it came to a refusal
    /// ([`Contract::verify_logged`]); maps and functions by their names.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn verify_logged(
        self: &Arc<Self>,
        contract: Contract,
        code: Code,
        log: &mut Log,
    ) -> Result<Linked, VerifyError> {
        let names = Names {
            maps: self.shared.maps.iter().map(|map| map.definition().name.clone()).collect(),
            functions: self.functions().map(String::from).collect(),
        };
        let verified = self.completed(contract).verify_named(code, log, &names)?.of_host();
        Ok(Linked { verified, host: Arc::clone(self) })
    }

    /// Returns a contract with this host's helpers, functions and maps.
    fn completed(&self, mut contract: Contract) -> Contract {
        for (id, entry) in &self.entries {
            contract.set_helper(*id, entry.signature);
        }
        let signature =
            |function: &Named| function.entry.as_ref().map(|entry| entry.signature).map_err(|missing| *missing);
        contract.set_functions(self.functions.iter().map(signature).collect());
        let definitions: Vec<&Definition> = self.shared.maps.iter().map(|map| map.definition()).collect();
        contract.set_maps(&definitions);
        contract
    }

    /// Returns the words of its maps, and of maps inside them, by address.
    fn words(&self) -> BTreeMap<u64, &[AtomicU64]> {
        let own = self.shared.maps.iter();
        let all = own.chain(self.shared.maps.iter().filter_map(|map| map.maps()).flat_map(|maps| maps.kept()));
        all.flat_map(|map| map.shared()).map(|words| (cells::address(words), words)).collect()
    }

    /// Returns where the values of an array lie, if helper 1 is Linux's.
    fn array_place(&self, index: i32) -> Option<ArrayPlace> {
        let is_linux = matches!(self.entry(1)?.function, Function::Kernel(_));
        self.shared.maps.get(usize::try_from(index).ok()?).filter(|_| is_linux)?.array_place()
    }

    /// Gives back records, locks and objects that an ended program did not ([`Runner::hold`]). The thread or CPU that
    /// ran the program calls it. If a waker of a ring, or what drops an object, panics, all is given back nevertheless.
    pub fn discard(&self, records: &[u64]) {
        // They are dropped last: what drops them is the host's, and may panic.
        #[cfg(feature = "std")]
        let _objects = objects::Left(records);
        records.iter().for_each(|record| lock::discard(&self.shared.maps, *record));
        ring::discard_all(&self.shared.maps, records);
    }

    fn map_value(&self, index: i32, offset: u32) -> Option<u64> {
        let map = self.shared.maps.get(usize::try_from(index).ok()?)?;
        Some(map.first_value()? + u64::from(offset))
    }

    /// Returns where all values of a map lie.
    fn values(&self, index: i32) -> Option<Range<u64>> {
        self.shared.maps.get(usize::try_from(index).ok()?)?.values()
    }

    fn map_handle(&self, index: i32) -> Option<u64> {
        let index = u32::try_from(index).ok()?;
        self.shared.maps.get(index as usize).map(|_| handle(index))
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

    /// Returns what the verifier has found: which context it needs, and whether it takes fuel.
    pub const fn verified(&self) -> &Verified {
        &self.verified
    }

    /// Compiles it for `R` to run, on this machine. With the feature `std` use [`HostedProgram`]; this is for callers
    /// with packs of their own. [`Compiled::has_gauge`] tells how to call it; `random` blinds constants if the
    /// program's maker is not trusted.
    ///
    /// The code contains addresses of the host's maps and helpers: the host must live as long as the code may run.
    ///
    /// # Errors
    ///
    /// [`CompileError`].
    pub fn compile<R: Runner>(&self, target: Target, random: u64) -> Result<Compiled, CompileError> {
        let wanted = Wanted::of(&self.verified, random);
        compile_resolved(self.code(), target, &RunBy::<R>::new(&self.host, self.verified.unproven()), wanted)
    }

    /// Interprets it, with `context` at an address of the interpreter's choice. Its operations on maps are those of one
    /// thread: what others do to the same values may come in between. Of maps inside maps it knows those that exist
    /// when it begins.
    ///
    /// Unproven loads ([`Verified::probes`]) give 0 where the program's own memory has nothing, whatever the process
    /// has there.
    ///
    /// A panic of a helper passes through; what the program held is given back.
    ///
    /// # Errors
    ///
    /// [`RunError`].
    pub fn interpret(&self, interpreter: &Interpreter, context: &mut [u8]) -> Result<u64, RunError> {
        /// Where the context lies.
        const CONTEXT: u64 = 0x10_0000;
        let failed = |error: RegionError| RunError { slot: 0, trap: Trap::from(error) };
        let mut run = Interpretation { host: &self.host, memory: Memory::new() };
        let memory = &mut run.memory;
        memory.set_cpu(self.host.cpu.as_ref().map(Cpu::number));
        let arguments = [CONTEXT, context.len() as u64, 0, 0, 0];
        memory.add(CONTEXT, context).map_err(failed)?;
        for (address, words) in self.host.words() {
            memory.add_shared(address, words).map_err(failed)?;
        }
        memory.keep_stores(self.verified.checked().iter().map(|(index, region)| {
            let range = match region {
                Region::Context => CONTEXT..CONTEXT + self.verified.context_len() as u64,
                Region::Map(map) => self.host.values(*map as i32).unwrap_or_default(),
            };
            (*index, range)
        }));
        let interpreter = self.verified.fuel().map_or(*interpreter, |fuel| interpreter.fuel(fuel));
        let unproven = self.verified.unproven();
        let has_probes = !self.verified.probes().is_empty();
        let interpreter = if has_probes { interpreter.on_fault(OnFault::LoadZero) } else { interpreter };
        interpreter.run(self.code(), arguments, memory, &mut Interpreted { host: &self.host, unproven })
    }
}
