//! Libraries that are loaded and unloaded with their keys.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use palimpsest_text::key::{Keys, SetError, State};
use palimpsest_text::{branch, static_key};

/// Returns the plugin, built now if cargo is installed; `None` if there is neither cargo nor a plugin (in a guest that
/// got only the tests).
fn plugin() -> Option<&'static Path> {
    static PLUGIN: OnceLock<Option<PathBuf>> = OnceLock::new();
    PLUGIN.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    // <target>/<profile>/deps/keys-<hash>
    let test = std::env::current_exe().unwrap();
    let profile = test.parent()?.parent()?;
    let file = profile.join("examples/libkey_plugin.so");
    let mut cargo = Command::new(env!("CARGO"));
    // Features as in `cargo test --workspace --all-features`: its results can be reused here.
    cargo.args(["build", "--quiet", "--workspace", "--all-features", "--example", "key_plugin", "--manifest-path"]);
    cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).arg("--target-dir").arg(profile.parent()?);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    if let Ok(status) = cargo.status() {
        assert!(status.success(), "the plugin does not build");
    }
    let exists = file.exists();
    if !exists {
        eprintln!("skipped: there is no {}", file.display());
    }
    exists.then_some(file)
}

/// A loaded library of our own, under a name that only this test uses.
struct Library {
    handle: *mut c_void,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Library {
    fn open(plugin: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libplugin.so");
        std::fs::copy(plugin, &path).unwrap();
        let mut library = Self { handle: std::ptr::null_mut(), path, _directory: directory };
        library.reopen();
        library
    }

    fn reopen(&mut self) {
        let path = CString::new(self.path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the plugin's constructors are ours.
        self.handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!self.handle.is_null(), "{}", self.path.display());
    }

    fn close(&mut self) {
        // SAFETY: open, and no function of it is kept.
        assert_eq!(unsafe { libc::dlclose(std::mem::replace(&mut self.handle, std::ptr::null_mut())) }, 0);
    }

    fn call(&self, name: &CStr, number: u64) -> u64 {
        // SAFETY: the handle is open.
        let symbol = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!symbol.is_null());
        // SAFETY: all functions of the plugin take and return one number, in registers.
        let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u64) -> u64>(symbol) };
        function(number)
    }

    /// Returns the keys of this library.
    fn keys(&self) -> Vec<palimpsest_text::key::KeyRef> {
        Keys::iter().filter(|key| key.object().as_deref() == Some(&self.path)).collect()
    }

    fn key(&self, name: &str) -> palimpsest_text::key::KeyRef {
        self.keys().into_iter().find(|key| key.name() == name).unwrap()
    }
}

/// Held by tests that switch `plugin.check` by its name, which every library has, or count on its state.
static CHECK: Mutex<()> = Mutex::new(());

const UNLIKELY: &CStr = c"plugin_unlikely";
const LIKELY: &CStr = c"plugin_likely";

#[test]
fn keys_come_and_go_with_their_library() {
    let Some(plugin) = plugin() else { return };
    let _check = CHECK.lock().unwrap_or_else(PoisonError::into_inner);
    let mut library = Library::open(plugin);
    for _ in 0..3 {
        let names: Vec<String> = library.keys().iter().map(|key| key.name().to_owned()).collect();
        assert_eq!(names, ["plugin.check", "plugin.trace"]);
        let (trace, check) = (library.key("plugin.trace"), library.key("plugin.check"));
        if super::PATCHED {
            assert_eq!((trace.sites().len(), check.sites().len()), (1, 1), "what nobody calls is not linked");
        }
        assert_eq!((library.call(UNLIKELY, 5), library.call(LIKELY, 5)), (6, 6));
        let switched = Keys::apply([(&*trace, State::On), (&*check, State::Off)]).unwrap();
        assert_eq!((switched.keys, switched.syncs), (2, super::SYNCS));
        assert_eq!((library.call(UNLIKELY, 5), library.call(LIKELY, 5)), (5002, 5002));
        // A key that was found by name keeps its library loaded.
        library.close();
        assert!(trace.is_on() && !library.keys().is_empty());
        trace.set(State::Off).unwrap();
        drop((trace, check));
        // Other tests may be listing keys, and keep it loaded as long.
        let start = Instant::now();
        while !library.keys().is_empty() {
            assert!(start.elapsed() < Duration::from_secs(600), "not forgotten");
            thread::yield_now();
        }
        library.reopen();
    }
}

#[test]
fn keys_of_two_objects_switch_in_one_batch() {
    static_key!(static HOST: "host.with.plugin" = off);
    let Some(plugin) = plugin() else { return };
    let library = Library::open(plugin);
    let trace = library.key("plugin.trace");
    let switched = Keys::apply([(&*trace, State::On), (&HOST, State::On)]).unwrap();
    assert_eq!((switched.keys, switched.syncs), (2, super::SYNCS));
    assert!(branch!(unlikely HOST));
    assert_eq!(library.call(UNLIKELY, 5), 5002);
}

#[test]
fn the_librarys_own_copy_switches_the_same_key() {
    let Some(plugin) = plugin() else { return };
    let mut library = Library::open(plugin);
    let trace = library.key("plugin.trace");
    thread::scope(|scope| {
        for state in [State::Off, State::On] {
            let (handle, trace) = (library.handle.expose_provenance(), &trace);
            scope.spawn(move || {
                let handle = std::ptr::with_exposed_provenance_mut::<c_void>(handle);
                // SAFETY: the handle is open.
                let symbol = unsafe { libc::dlsym(handle, c"plugin_switch".as_ptr()) };
                // SAFETY: the plugin's function has this type.
                let switch = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> u32>(symbol) };
                for _ in 0..100 {
                    assert_eq!(switch(state.is_on().into()), 0);
                    trace.set(state).unwrap();
                }
            });
        }
    });
    let expected = if trace.is_on() { 5002 } else { 6 };
    assert_eq!(library.call(UNLIKELY, 5), expected);
    assert_eq!(library.call(c"plugin_switch", 1), 0);
    assert!(trace.is_on());
    drop(trace);
    library.close();
    // If it has installed a handler, it stays; else it stays as long as other tests list keys.
    while !super::PATCHED && !library.keys().is_empty() {
        thread::yield_now();
    }
    assert_eq!(library.keys().is_empty(), !super::PATCHED);
}

/// A host that handles faults itself would call code that is no longer there.
#[test]
fn a_library_whose_handler_is_installed_stays() {
    let Some(plugin) = plugin() else { return };
    let mut library = Library::open(plugin);
    assert_eq!(library.call(c"plugin_resume", 0), 0);
    library.close();
    let path = CString::new(library.path.as_os_str().as_bytes()).unwrap();
    // Other tests that list keys keep it loaded for a moment.
    let is_loaded = || {
        // SAFETY: loads nothing.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        // SAFETY: open, and no function of it is kept.
        !handle.is_null() && unsafe { libc::dlclose(handle) } == 0
    };
    for _ in 0..100 {
        assert!(is_loaded());
        thread::yield_now();
    }
}

#[test]
fn switching_goes_on_while_libraries_come_and_go() {
    static_key!(static STEADY: "coming.steady" = off);
    let Some(plugin) = plugin() else { return };
    let _check = CHECK.lock().unwrap_or_else(PoisonError::into_inner);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _stop = super::StopOnDrop(&stop);
            let mut library = Library::open(plugin);
            for _ in 0..60 {
                assert!([6, 5002].contains(&library.call(UNLIKELY, 5)));
                library.close();
                library.reopen();
            }
        });
        let mut state = State::On;
        while !stop.load(Ordering::Relaxed) {
            Keys::set("coming.*", state).unwrap();
            assert_eq!(branch!(unlikely STEADY), state.is_on());
            match Keys::set("plugin.check", state) {
                Ok(_) | Err(SetError::NoKey { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
            state = if state.is_on() { State::Off } else { State::On };
        }
    });
}
