//! Modules: relocatable objects that are loaded while the kernel runs.
//!
//! | part | where | rights |
//! |---|---|---|
//! | code, with veneers | a place in the packs, in each node's copy | read, execute |
//! | constants, with address slots | behind the packs, in each node's copy | read |
//! | data | behind these, once | read, write |
//!
//! What runs is never writable where it runs: `palimpsest_module` links a module as bytes, which are then stored
//! through the physical map. So loading changes no rights, no translation is flushed, and processes, whose tables
//! lead to the same pages, have a module as soon as the kernel has it.
//!
//! A module stays while somebody has a handle of it ([`get`]), and while another module needs it. CPUs may run it with
//! interrupts on, so that no call of CPUs could tell who is in it; handles do.

mod exports;
mod memory;

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use palimpsest_module::{Addresses, Limits, LinkError, Module as Object, Part, ReadError};

use crate::key::{self, KeySite, NoSite};
use crate::packs::{self, Full, Place};
use crate::sync::SpinLock;
use crate::{arch, flush};

pub(crate) use exports::noted;
pub(crate) use memory::{Kind, Room, make, range, taken};

/// A module that is loaded.
#[derive(Debug)]
pub(crate) struct Module {
    name: String,
    code: Place,
    constants: Room,
    data: Room,
    exports: BTreeMap<String, u64>,
    /// Modules whose exports it uses.
    needs: Vec<Arc<Module>>,
}

/// Why a module is not loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LoadError {
    /// There is one with this name.
    Loaded,
    /// Another module exports this name.
    Taken(String),
    /// The object is none that can be loaded.
    Read(ReadError),
    /// It does not fit the kernel, or where it would lie.
    Link(LinkError),
    /// There is no room for a part.
    Full(Full),
    /// It lists a site of the key that is none.
    Site(NoSite),
}

/// Why a module is not unloaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnloadError {
    /// There is none with this name.
    Unknown,
    /// Somebody uses it.
    InUse {
        /// How many handles there are, those of other modules too.
        handles: usize,
    },
}

static LOADED: SpinLock<Vec<Arc<Module>>> = SpinLock::new(Vec::new());

/// Returns a handle of a module, which keeps it loaded.
pub(crate) fn get(name: &str) -> Option<Arc<Module>> {
    LOADED.lock().iter().find(|module| module.name == name).cloned()
}

/// Returns the module that exports a name, and the address.
fn exporter(name: &str) -> Option<(Arc<Module>, u64)> {
    LOADED.lock().iter().find_map(|module| Some((Arc::clone(module), *module.exports.get(name)?)))
}

/// Loads a module: when this returns, all CPUs can run it.
pub(crate) fn load(name: &str, object: &[u8]) -> Result<(), LoadError> {
    if get(name).is_some() {
        return Err(LoadError::Loaded);
    }
    let object = Object::read(object, arch::MODULES, &Limits::USUAL).map_err(LoadError::Read)?;
    let [text, constants, data] = Part::ALL.map(|part| object.extent(part));
    let key_sites = object.table(".key_sites", key::ENTRY).map_err(LoadError::Read)?;
    let code = Place::reserve(text.len, text.align).map_err(LoadError::Full)?;
    let constants = Room::take(Kind::Constants, constants).map_err(LoadError::Full)?;
    let data = Room::take(Kind::Data, data).map_err(LoadError::Full)?;
    let at = Addresses { text: code.entry().0, constants: constants.start().0, data: data.start().0 };
    let mut needs: Vec<Arc<Module>> = Vec::new();
    let resolve = |wanted: &str| {
        exports::address(wanted).or_else(|| {
            let (module, address) = exporter(wanted)?;
            if !needs.iter().any(|known| Arc::ptr_eq(known, &module)) {
                needs.push(module);
            }
            Some(address)
        })
    };
    let linked = object.link(&at, resolve).map_err(LoadError::Link)?;
    let mut sites = Vec::new();
    if let Some((part, place)) = key_sites {
        let (entries, _) = linked.bytes(part)[place].as_chunks();
        sites.extend(entries.iter().map(|entry| KeySite::from_entry(*entry)));
    }
    constants.store(linked.bytes(Part::Constants));
    data.store(linked.bytes(Part::Data));
    let module =
        Arc::new(Module { name: name.to_owned(), code, constants, data, exports: linked.exports().clone(), needs });
    let mut bytes = linked.bytes(Part::Text).to_vec();
    key::adopt(&sites, &mut bytes, at.text, |bytes| module.code.write(bytes, &[])).map_err(LoadError::Site)?;
    // No CPU runs what it has fetched earlier from its place.
    flush::synchronize_all();
    publish(module)
}

/// Lets others find a module, if no other has its name or exports one of its names.
fn publish(module: Arc<Module>) -> Result<(), LoadError> {
    let error = {
        let mut loaded = LOADED.lock();
        let taken = module.exports.keys().find(|name| loaded.iter().any(|other| other.exports.contains_key(*name)));
        match (loaded.iter().any(|other| other.name == module.name), taken) {
            (true, _) => LoadError::Loaded,
            (false, Some(name)) => LoadError::Taken(name.clone()),
            (false, None) => {
                loaded.push(module);
                return Ok(());
            }
        }
    };
    remove(module);
    Err(error)
}

/// Unloads a module that nobody uses: when this returns, traps are where its code was, on every node, and every CPU has
/// dropped what it had fetched.
pub(crate) fn unload(name: &str) -> Result<(), UnloadError> {
    let module = {
        let mut loaded = LOADED.lock();
        let index = loaded.iter().position(|module| module.name == name).ok_or(UnloadError::Unknown)?;
        // Handles are made from other handles, or from this list, whose lock is held: if there is no other, none comes.
        match Arc::strong_count(&loaded[index]) - 1 {
            0 => loaded.swap_remove(index),
            handles => return Err(UnloadError::InUse { handles }),
        }
    };
    remove(module);
    Ok(())
}

/// Takes a module that nobody can run any more out of memory.
fn remove(module: Arc<Module>) {
    let Some(module) = Arc::into_inner(module) else { panic!("a module is removed, and somebody has it") };
    key::abandon(&module.code());
    let Module { code, constants, data, needs, .. } = module;
    drop(code);
    packs::reclaim();
    // Code may use these until here.
    drop((constants, data, needs));
}

impl Module {
    /// Returns the address of what it exports by this name.
    pub(crate) fn export(&self, name: &str) -> Option<u64> {
        self.exports.get(name).copied()
    }

    /// Returns where its code is.
    pub(crate) fn code(&self) -> core::ops::Range<u64> {
        let start = self.code.entry().0;
        start..start + self.code.bytes() as u64
    }

    /// Returns where its constants and its data begin.
    pub(crate) fn rooms(&self) -> [u64; 2] {
        [self.constants.start().0, self.data.start().0]
    }

    /// Calls a function that it exports: of one word, for one word.
    ///
    /// # Panics
    ///
    /// If it exports no such name, or something that is not code.
    pub(crate) fn call(&self, name: &str, argument: u64) -> u64 {
        let entry = self.export(name).filter(|entry| self.code().contains(entry));
        let entry = entry.unwrap_or_else(|| panic!("{} has no function {name}", self.name));
        // SAFETY: modules are part of this kernel, as trusted as it is, and export only functions of this type. The
        // code is there as long as the handle.
        let function = unsafe { core::mem::transmute::<*const (), extern "C" fn(u64) -> u64>(entry as *const ()) };
        function(argument)
    }
}
