//! `jit-PID.dump`: programs with their names, bytes and times, from which `perf inject --jit` makes an ELF file for
//! each.
//!
//! Usage: `perf record -k mono …`, then `perf inject --jit -i perf.data -o jitted.data`, then
//! `perf report -i jitted.data`.

mod cursor;
mod instructions;
mod record;
mod unwinding;

use std::{
    env, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
    },
};

use palimpsest_sys::memory::calls::map_for_onlookers;
use rustix::time::{ClockId, clock_gettime};

use self::{
    record::{CodeLoad, Header},
    unwinding::{Frames, Table},
};
use super::{
    Loaded, ObserveError, Observer, Patched,
    arch::ELF_MACHINE,
    output_file::{AppendError, Existing, OpenFileError, OutputFile},
    per_process::PerProcess,
    symbol_name::symbol_name,
};
use crate::address::CodeAddress;

const OBSERVER: &str = "jitdump";

/// Environment variable that names the directory, as for the agents that come with `perf`.
const DIRECTORY_VARIABLE: &str = "JITDUMPDIR";

/// Writes the jitdump of this process.
///
/// # File
/// `jit-PID.dump` has mode 0600 and is opened at the first load under the rules of [`PerfMap`](super::PerfMap), also
/// those for process ids and forks; a file that another code generator of this process has open is refused, because
/// the format allows one writer. The directory must not be mounted `noexec`: `perf` finds the file by an executable
/// mapping of it, which is made here (private, readable and executable, never writable) and stays as long as the
/// process. All observers of one directory share the file, which stays open: a program that makes and drops packs many
/// times writes one file.
///
/// `perf inject` writes its ELF files to the same directory.
///
/// # Content
/// The file holds every program's bytes, its lines, and its call frame information if it has some. The record says that
/// none of the latter is mapped: a `perf` that unwinds by libunwind (`--call-graph dwarf`) reads it only if the record
/// claims that it follows the code in memory, but there the next program begins, whose samples would lose their name.
/// So such a `perf` unwinds through frame-pointer code only; names are right in any case (measured with 6.1).
///
/// The file grows with every load: use this observer while profiling. Dropping the last observer of a directory marks
/// the end by JIT_CODE_CLOSE, which `perf` does not need.
#[derive(Debug)]
pub struct JitDump {
    dump: Arc<Dump>,
}

impl JitDump {
    /// Writes to the directory named by the environment variable `JITDUMPDIR`, or else to the current one.
    #[must_use]
    pub fn new() -> Self {
        let directory = env::var_os(DIRECTORY_VARIABLE).filter(|value| !value.is_empty());
        JitDump::in_directory(directory.map_or_else(|| PathBuf::from("."), PathBuf::from))
    }

    /// Writes to `directory`.
    #[must_use]
    pub fn in_directory(directory: impl AsRef<Path>) -> Self {
        JitDump { dump: Dump::of(directory.as_ref()) }
    }
}

impl Default for JitDump {
    fn default() -> Self {
        JitDump::new()
    }
}

impl Observer for JitDump {
    fn loaded(&self, loaded: &Loaded<'_>) -> Result<(), ObserveError> {
        let frames = loaded.eh_frame.and_then(Frames::read);
        let load = |file: &DumpFile| loaded.symbols().try_for_each(|one| file.load(&one, loaded, frames.as_ref()));
        self.dump.file().and_then(load).map_err(|error| ObserveError::new(OBSERVER, error))
    }

    fn unloaded(&self, _address: CodeAddress, _len: usize) -> Result<(), ObserveError> {
        Ok(())
    }

    /// Records the program once more, as it is now: from this time on the new record holds at its address. Its lines
    /// and its unwinding information are not kept, and so not repeated.
    fn patched(&self, patched: &Patched<'_>) -> Result<(), ObserveError> {
        self.loaded(&patched.as_loaded())
    }
}

impl Drop for JitDump {
    fn drop(&mut self) {
        // AcqRel: partner is the same subtraction in the other observers of this file, whose records come before the
        // end that the last one marks.
        if self.dump.users.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        if let Some(file) = self.dump.files.get()
            && let Err(error) = file.close()
        {
            tracing::debug!(observer = OBSERVER, %error, "the end of the dump is not marked");
        }
    }
}

/// The dump of one directory.
#[derive(Debug)]
struct Dump {
    directory: PathBuf,
    /// Number of living observers: each adds one when it is made, and subtracts one when it is dropped.
    users: AtomicUsize,
    files: PerProcess<DumpFile>,
}

impl Dump {
    /// Returns the dump of `directory`, and counts a user. Dumps live as long as the process, since `perf` wants one
    /// file and one marker per process.
    fn of(directory: &Path) -> Arc<Dump> {
        static DUMPS: Mutex<Vec<Arc<Dump>>> = Mutex::new(Vec::new());

        // A later change of the working directory must not move the file.
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let mut dumps = DUMPS.lock().unwrap_or_else(PoisonError::into_inner);
        let dump = match dumps.iter().find(|dump| dump.directory == directory) {
            Some(dump) => Arc::clone(dump),
            None => {
                let dump = Arc::new(Dump { directory, users: AtomicUsize::new(0), files: PerProcess::new() });
                dumps.push(Arc::clone(&dump));
                dump
            }
        };
        // Relaxed: the count of living observers publishes nothing when it grows.
        dump.users.fetch_add(1, Relaxed);
        dump
    }

    fn file(&self) -> Result<&DumpFile, DumpError> {
        self.files.get_or_open(|pid| DumpFile::open(&self.directory.join(format!("jit-{pid}.dump")), pid))
    }
}

/// Why a program is not in the dump.
#[derive(Debug, thiserror::Error)]
enum DumpError {
    #[error(transparent)]
    Open(#[from] OpenFileError),
    #[error(
        "cannot map {} as executable, by which perf finds it; choose a directory that is not mounted noexec",
        path.display()
    )]
    Marker {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error("a program of {len} bytes does not fit a record of at most 4 GiB")]
    TooLong { len: usize },
    #[error("the lines of the program do not fit a record of at most 4 GiB")]
    ManyLines,
    #[error("an earlier record is incomplete, and the format cannot skip it")]
    Broken,
}

/// The dump of one process.
#[derive(Debug)]
struct DumpFile {
    output: OutputFile,
    pid: u32,
    /// Number of programs so far, from which `perf inject` names its files. Any thread that loads one adds one.
    programs: AtomicU64,
    /// Whether a record was cut off, so that what follows cannot be read. Set by its writer, read before each write.
    broken: AtomicBool,
}

impl DumpFile {
    fn open(path: &Path, pid: u32) -> Result<Self, DumpError> {
        let output = OutputFile::open(path, Existing::Refuse)?;
        let header = Header { machine: u32::from(ELF_MACHINE.0), pid, nanoseconds: monotonic_nanoseconds() };
        output.append(&[&header.encode()])?;
        map_marker(&output).map_err(|source| DumpError::Marker { path: path.to_owned(), source })?;
        Ok(DumpFile { output, pid, programs: AtomicU64::new(0), broken: AtomicBool::new(false) })
    }

    /// Records a program, or a function of it: `loaded`, of `program`, whose `frames` these are.
    fn load(&self, loaded: &Loaded<'_>, program: &Loaded<'_>, frames: Option<&Frames<'_>>) -> Result<(), DumpError> {
        let name = symbol_name(loaded.name);
        let unwinding = frames.and_then(|frames| Table::of(frames, loaded));
        let nanoseconds = monotonic_nanoseconds();
        let load = CodeLoad {
            nanoseconds,
            pid: self.pid,
            thread: rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(),
            address: loaded.address.get() as u64,
            // Relaxed: only uniqueness matters.
            index: self.programs.fetch_add(1, Relaxed),
            name: name.as_bytes(),
            code: loaded.code,
        };
        let prefix = load.encode_prefix().ok_or(DumpError::TooLong { len: loaded.code.len() })?;
        // One append, because the lines and the unwinding information belong to the next program in the file.
        let unwinding = unwinding.map(|table| table.encode(nanoseconds));
        let start = loaded.address.get() - program.address.get();
        let lines = program.lines.map(|lines| lines.within(start..start + loaded.code.len()));
        let lines = lines.filter(|lines| lines.len() > 0);
        let from = program.address.get() as u64;
        let lines = lines.map(|lines| lines.map(|(_, line)| line));
        let lines = lines.map(|lines| record::encode_lines(lines, from, load.address, nanoseconds));
        let lines = lines.map(|lines| lines.ok_or(DumpError::ManyLines)).transpose()?;
        let before = [lines, unwinding].map(Option::unwrap_or_default);
        self.append(&[&before[0], &before[1], &prefix, name.as_bytes(), &[0], loaded.code])
    }

    fn close(&self) -> Result<(), DumpError> {
        self.append(&[&record::encode_close(monotonic_nanoseconds())])
    }

    fn append(&self, parts: &[&[u8]]) -> Result<(), DumpError> {
        // Relaxed: a record that still follows a broken one is lost and harmless.
        if self.broken.load(Relaxed) {
            return Err(DumpError::Broken);
        }
        let appended = self.output.append(parts);
        if let Err(AppendError::Short { .. }) = appended {
            self.broken.store(true, Relaxed);
        }
        Ok(appended?)
    }
}

/// Maps the first page of the dump as readable and executable: `perf record` notes executable mappings of files, and
/// `perf inject` takes a file of this name for the dump (`jit_detect`, tools/perf/util/jitdump.c). The mapping is left
/// in place, since `perf` attaching later reads it from /proc/PID/maps.
fn map_marker(output: &OutputFile) -> io::Result<()> {
    map_for_onlookers(output, rustix::param::page_size()).map_err(io::Error::from)
}

/// Returns the time of the clock of `perf record -k mono`.
fn monotonic_nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;
    use crate::observe::{Function, SourceLine, SourceLines, frame_pointer_eh_frame};

    fn word(data: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(data[at..at + 4].try_into().expect("four bytes"))
    }

    #[test]
    fn a_dump_has_header_loads_and_close() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let address = CodeAddress::new(0x7f12_3400_0040);
        let eh_frame = frame_pointer_eh_frame(address, 3);
        for eh_frame in [None, Some(eh_frame.as_slice())] {
            let dump = JitDump::in_directory(directory.path());
            let second = JitDump::in_directory(directory.path());
            dump.loaded(&Loaded { name: "first", address, code: &[1, 2, 3], eh_frame, lines: None, functions: &[] })
                .expect("loaded");
            dump.unloaded(address, 3).expect("unloaded");
            drop(second);
        }
        let path = directory.path().join(format!("jit-{}.dump", std::process::id()));
        let data = fs::read(&path).expect("read");
        let mut ids = Vec::new();
        let mut at = word(&data, 8) as usize;
        while at < data.len() {
            ids.push(word(&data, at));
            at += word(&data, at + 4) as usize;
        }
        assert_eq!(at, data.len());
        assert_eq!(ids, [0, 3, 4, 0, 3]);

        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        let marker: Vec<&str> = maps.lines().filter(|line| line.ends_with(path.to_str().expect("utf-8"))).collect();
        assert_eq!(marker.len(), 1, "{marker:?}");
        assert!(marker[0].contains(" r-xp "), "{marker:?}");
    }

    /// Fails on: lines that are lost, told of the wrong function, or counted from it.
    #[test]
    fn each_function_has_the_lines_that_hold_in_it() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let mut lines = SourceLines::new();
        for (offset, line) in [(0, 1), (4, 2), (9, 3)] {
            lines.add(SourceLine { offset, file: "f", line, column: 0 });
        }
        let functions = [(0, 3), (6, 4)].map(|(offset, len)| Function { offset, len, name: "inside".into() });
        let address = CodeAddress::new(0x7f12_3400_0100);
        let program = Loaded { name: "", address, code: &[7; 10], eh_frame: None, lines: Some(&lines), functions: &[] };
        let dump = JitDump::in_directory(directory.path());
        dump.loaded(&Loaded { functions: &functions, ..program }).expect("loaded");
        dump.loaded(&program).expect("loaded");
        let data = fs::read(directory.path().join(format!("jit-{}.dump", std::process::id()))).expect("read");
        // Of each record of lines: where its function begins, and where each line begins.
        let mut found = Vec::new();
        let mut at = word(&data, 8) as usize;
        while at < data.len() {
            if word(&data, at) == 2 {
                // An entry has 16 bytes, and the name of the file with a zero.
                let entries = (0..word(&data, at + 24) as usize).map(|entry| at + 32 + entry * 18);
                let places = entries.map(|entry| (word(&data, entry) - 0x3400_0100, word(&data, entry + 8)));
                found.push((word(&data, at + 16) - 0x3400_0100, places.collect::<Vec<_>>()));
            }
            at += word(&data, at + 4) as usize;
        }
        let whole = (0, vec![(0, 1), (4, 2), (9, 3)]);
        assert_eq!(found, [(0, vec![(0, 1)]), (6, vec![(6, 2), (9, 3)]), whole]);
    }

    #[test]
    fn a_poke_is_a_new_load_at_the_old_address() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let address = CodeAddress::new(0x7f12_3400_0080);
        let dump = JitDump::in_directory(directory.path());
        dump.loaded(&Loaded { name: "poked", address, code: &[1, 2, 3], eh_frame: None, lines: None, functions: &[] })
            .expect("loaded");
        dump.patched(&Patched { name: "poked", address, code: &[1, 9, 3], patches: &[], functions: &[] })
            .expect("patched");
        let data = fs::read(directory.path().join(format!("jit-{}.dump", std::process::id()))).expect("read");
        let first = word(&data, 8) as usize;
        let second = first + word(&data, first + 4) as usize;
        assert_eq!((word(&data, first), word(&data, second)), (0, 0));
        // Behind the head of 16 bytes: pid, tid, address twice, length, number.
        let place = |at: usize| data[at + 24..at + 48].to_vec();
        assert_eq!(place(first), place(second), "addresses and length");
        assert_ne!(data[first + 48..first + 56], data[second + 48..second + 56], "a number of its own");
        assert!(data[first..second].ends_with(b"poked\0\x01\x02\x03"));
        assert!(data.ends_with(b"poked\0\x01\x09\x03"));
    }

    #[test]
    fn a_dump_of_another_writer_is_refused() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join(format!("jit-{}.dump", std::process::id()));
        let mut theirs = fs::File::create(&path).expect("create");
        theirs.write_all(b"theirs").expect("write");
        let error = JitDump::in_directory(directory.path())
            .loaded(&Loaded {
                name: "first",
                address: CodeAddress::new(0x1000),
                code: &[1],
                eh_frame: None,
                lines: None,
                functions: &[],
            })
            .expect_err("in use");
        assert!(error.to_string().contains("choose another directory"), "{error}");
        assert_eq!(fs::read(&path).expect("read"), b"theirs");
    }
}
