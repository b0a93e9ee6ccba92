//! The program's own text: after the exchange it runs as before, at the same addresses, and can be patched.

mod torture;

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_numa::{Folder, Loads, NodeId, Origin, Pages, ProgramText, Reach, Sharing, TextOptions, Topology};
use palimpsest_sys::pages::maps::{Maps, Permissions};

/// Number of functions in the library.
const FUNCTIONS: usize = 2100;

/// Tells a child where the library is.
const LIBRARY: &str = "PALIMPSEST_TEST_LIBRARY";

/// Tells where programs and libraries in C are, on a machine that cannot build them.
const BUILT: &str = "PALIMPSEST_TEST_PROGRAMS";

/// Builds a library with much text; `None` without a C compiler.
fn build(folder: &Path) -> Option<PathBuf> {
    const NAME: &str = "libbig.so";
    if let Some(built) = std::env::var_os(BUILT) {
        return Some(Path::new(&built).join(NAME));
    }
    let (source, object) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text/big.c"), folder.join(NAME));
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&object).arg(&source).status();
    built.is_ok_and(|status| status.success()).then_some(object)
}

fn library() -> PathBuf {
    std::env::var_os(LIBRARY).expect("told by the parent").into()
}

/// Ends threads, also when an assertion fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Call = extern "C" fn(i32, i32) -> i32;

/// Returns the library's `call`.
fn load() -> Call {
    opened().1
}

/// Returns its handle and its `call`.
fn opened() -> (*mut libc::c_void, Call) {
    opened_at(&library())
}

/// Returns those of the library at another place.
fn opened_at(path: &Path) -> (*mut libc::c_void, Call) {
    let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero");
    // SAFETY: a library without constructors.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    // SAFETY: a library that is loaded, and a C string.
    let symbol = unsafe { libc::dlsym(handle, c"call".as_ptr()) };
    // SAFETY: a function of this type, according to the source above.
    (handle, unsafe { std::mem::transmute::<*mut libc::c_void, Call>(symbol) })
}

/// Runs one test in its own process: text is exchanged for the whole process.
fn apart(name: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(library) = build(folder.path()) else { return println!("skipped: no C compiler (cc)") };
    let mut child = Command::new(std::env::current_exe().expect("known"));
    child.args(["--exact", name, "--nocapture", "--include-ignored"]).env(LIBRARY, library);
    let output = child.output().expect("started");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn all_functions_work(call: Call) {
    for number in (0..FUNCTIONS).step_by(7) {
        let number = i32::try_from(number).expect("small");
        assert_eq!(call(number, 5), number + 5);
    }
}

/// Whole huge pages, also where several nodes would have everything copied; whatever the kernel could do with the
/// library's own pages; and on one node, wherever this thread runs by then.
fn copies() -> TextOptions {
    TextOptions::new().node(Topology::read().homes()[0]).pages(Pages::Copied).reach(Reach::HugePages)
}

/// Returns the number of exchanged bytes of the library's text.
fn of_library(text: &ProgramText) -> usize {
    text.parts().iter().filter(|part| part.path == library()).map(|part| part.exchanged).sum()
}

#[test]
fn text_runs_on_while_it_is_exchanged() {
    apart("exchanged_while_it_runs");
}

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn exchanged_while_it_runs() {
    let call = load();
    let before = Maps::read().expect("mounted");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ended = Ended(&done);
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    all_functions_work(call);
                }
            });
        }
        let text = ProgramText::localize(&copies()).expect("nothing is in the way");
        assert!(of_library(&text) >= 6 << 20, "{:?}", text.parts());
        for part in text.parts().iter().filter(|part| part.exchanged > 0) {
            let is_told = part.lacks.iter().any(|lack| lack.contains("huge"));
            assert!(part.huge == part.exchanged || is_told, "{part:?}");
            assert_eq!(part.origin, Some(Origin::Private));
        }
        assert!(text.to_string().contains("KiB of text on node"), "{text}");
    });
    all_functions_work(call);
    let after = Maps::read().expect("mounted");
    assert!(after.writable_and_executable().next().is_none());
    // Every address still has its rights.
    for map in before.iter().filter(|map| map.permissions.contains(Permissions::EXECUTE)) {
        for address in (map.start..map.end).step_by(1 << 16) {
            assert_eq!(after.at(address).expect("still mapped").permissions, map.permissions, "{address:#x}");
        }
    }
    // Once more: nothing is left to exchange, and nothing is undone.
    let again = ProgramText::localize(&copies()).expect("nothing is in the way");
    assert_eq!(of_library(&again), 0, "{:?}", again.parts());
    all_functions_work(call);
}

#[test]
fn patched_pages_stay_and_exchanged_ones_can_be_patched() {
    apart("patched_before_and_after");
}

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn patched_before_and_after() {
    let call = load();
    let start = call as usize;
    let maps = Maps::read().expect("mounted");
    let text = maps.at(start).expect("there").clone();
    let memory = fs::File::options().read(true).write(true).open("/proc/self/mem").expect("mounted");
    // Writes like a debugger: into padding that nobody executes, in the first whole huge page.
    let first = text.start.next_multiple_of(2 << 20) as u64;
    let mut zeros = [0; 4096];
    memory.read_exact_at(&mut zeros, first).expect("mapped");
    let hole = zeros.windows(16).position(|window| window == [0; 16]).expect("padding") as u64;
    memory.write_all_at(b"patch", first + hole).expect("a private copy");
    let exchanged = of_library(&ProgramText::localize(&copies()).expect("nothing is in the way"));
    let whole = (text.end & !((2 << 20) - 1)) - text.start.next_multiple_of(2 << 20);
    assert_eq!(exchanged, whole - (2 << 20), "all but the page that was written");
    let mut read = [0; 5];
    memory.read_exact_at(&mut read, first + hole).expect("mapped");
    assert_eq!(&read, b"patch");
    let second = first + (2 << 20);
    memory.read_exact_at(&mut zeros, second).expect("mapped");
    let hole = zeros.windows(16).position(|window| window == [0; 16]).expect("padding") as u64;
    memory.write_all_at(b"later", second + hole).expect("exchanged text can have breakpoints");
    memory.read_exact_at(&mut read, second + hole).expect("mapped");
    assert_eq!(&read, b"later");
    all_functions_work(call);
}

#[test]
fn what_is_loaded_later_is_localised_when_it_is_asked_for_and_can_be_unloaded() {
    apart("loaded_later");
}

/// Fails on: a second call that leaves the library in its file; one that takes others for new; a library that stays
/// loaded because it was localised.
#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn loaded_later() {
    let (loads, options) = (Loads::now(), copies().reach(Reach::Everything));
    let first = ProgramText::localize(&options).expect("nothing is in the way");
    assert!(first.parts().iter().any(|part| part.exchanged > 0), "{:?}", first.parts());
    assert_eq!(Loads::now(), loads);
    let none = ProgramText::localize(&options.clone().loaded_since(loads)).expect("nothing is in the way");
    assert!(none.parts().is_empty(), "{:?}", none.parts());
    for options in [options.clone().loaded_since(loads), options] {
        let (handle, call) = opened();
        all_functions_work(call);
        assert_ne!(Loads::now(), loads);
        let later = ProgramText::localize(&options).expect("nothing is in the way");
        assert!(of_library(&later) >= 8 << 20, "{:?}", later.parts());
        let others = later.parts().iter().filter(|part| part.exchanged > 0 && part.path != library());
        assert_eq!(others.count(), 0, "{:?}", later.parts());
        all_functions_work(call);
        // SAFETY: nothing of the library is used any more.
        assert_eq!(unsafe { libc::dlclose(handle) }, 0);
        let maps = Maps::read().expect("mounted");
        assert!(maps.at(call as usize).is_none(), "{:?}", maps.at(call as usize));
    }
}

#[test]
fn text_at_the_same_place_in_a_huge_page_is_shared() {
    apart("shared_with_itself");
}

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn shared_with_itself() {
    let call = load();
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("copies");
    // In small pages if the kernel has not aligned the library.
    let (node, reach) = (Some(NodeId(0)), Some(Reach::Everything));
    let options = TextOptions::new().node(node).reach(reach).sharing(Sharing::User(Folder::at(&folder)));
    let text = ProgramText::localize(&options).expect("nothing is in the way");
    let of_library = text.parts().iter().find(|part| part.path == library() && part.exchanged > 0);
    assert_eq!(of_library.expect("exchanged").origin, Some(Origin::Made));
    assert!(fs::read_dir(&folder).expect("there").count() > 1);
    drop(text);
    all_functions_work(call);
}
