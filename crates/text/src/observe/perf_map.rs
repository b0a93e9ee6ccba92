//! `/tmp/perf-PID.map`: one line per program, or per function inside if those are known, read by `perf report` and
//! other profilers.
//!
//! The format has no removal: when an address is used again, both lines stay and the reader picks one.
//! [`JitDump`](super::JitDump) has times and does not confuse them.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    Loaded, ObserveError, Observer,
    output_file::{Existing, OutputFile},
    per_process::PerProcess,
    symbol_name::symbol_name,
};
use crate::address::CodeAddress;

const OBSERVER: &str = "perf-map";

/// Where `perf` looks, whatever `TMPDIR` says (`map__new`, tools/perf/util/map.c).
const DIRECTORY: &str = "/tmp";

/// Writes the perf map of this process.
///
/// # What `perf` resolves
/// `perf` uses the map only for memory that it takes for anonymous (`is_anon_memory`, tools/perf/util/map.h; measured
/// with 6.1), and takes a memfd for a file. Packs with an observer are therefore placed so that a `perf record` that
/// started before the pack was made learns of anonymous memory. One that attaches later (`perf record -p`) reads
/// `/proc/PID/maps` and resolves only the backing `proc-mem`; [`JitDump`](super::JitDump) is resolved with every
/// backing. Readers that look only at addresses resolve all backings.
///
/// # File
/// `/tmp/perf-PID.map` has mode 0600. It is opened at the first load without following a symbolic link; a file that
/// belongs to another user, has further hard links or is not regular is refused. One left by an earlier process with
/// the same id is emptied. One that is younger, or that another code generator of this process has open, is shared;
/// lines that this process wrote before it executed this program stay, too, since nothing tells them from those of
/// generators that open the file for each line. All observers of one directory share the file, which stays open. It
/// stays after the process has ended, since `perf report` runs later.
///
/// # Process id
/// PID is what `getpid` answers: the id in the innermost pid namespace, the last number of `NSpid` in /proc/PID/status.
/// `perf` builds the name from that number and opens it within the mount namespace of the process, as long as the
/// process lives. Once a process of another pid namespace has ended, `perf` knows only its outer id and finds nothing
/// (measured with 6.1). A forked child writes a file of its own.
#[derive(Debug)]
pub struct PerfMap {
    map: Arc<Map>,
}

/// The map of one directory.
#[derive(Debug)]
struct Map {
    directory: PathBuf,
    file: PerProcess<OutputFile>,
}

impl PerfMap {
    /// Creates an observer that writes to /tmp, where `perf` looks.
    #[must_use]
    pub fn new() -> Self {
        PerfMap::in_directory(DIRECTORY)
    }

    /// Creates an observer that writes `perf-PID.map` to `directory`: for readers other than `perf`, which knows only
    /// /tmp.
    #[must_use]
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        PerfMap { map: Map::of(&directory.into()) }
    }
}

impl Map {
    /// Returns the map of `directory`. Maps live as long as the process: a later observer goes on with the lines of an
    /// earlier one, whose programs may be in samples.
    fn of(directory: &Path) -> Arc<Self> {
        static MAPS: Mutex<Vec<Arc<Map>>> = Mutex::new(Vec::new());

        // A later change of the working directory must not move the file.
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let mut maps = MAPS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = maps.iter().find(|map| map.directory == directory).map(Arc::clone);
        known.unwrap_or_else(|| {
            let map = Arc::new(Self { directory, file: PerProcess::new() });
            maps.push(Arc::clone(&map));
            map
        })
    }

    fn file(&self) -> Result<&OutputFile, ObserveError> {
        self.file
            .get_or_open(|pid| OutputFile::open(&self.directory.join(format!("perf-{pid}.map")), Existing::Extend))
            .map_err(|error| ObserveError::new(OBSERVER, error))
    }
}

impl Default for PerfMap {
    fn default() -> Self {
        PerfMap::new()
    }
}

impl Observer for PerfMap {
    fn loaded(&self, loaded: &Loaded<'_>) -> Result<(), ObserveError> {
        let lines: String = loaded.symbols().map(|one| line(&one)).collect();
        self.map.file()?.append(&[lines.as_bytes()]).map_err(|error| ObserveError::new(OBSERVER, error))
    }

    fn unloaded(&self, _address: CodeAddress, _len: usize) -> Result<(), ObserveError> {
        Ok(())
    }
}

/// Formats a program's line: start and length in hexadecimal without prefix, then the name up to the end of the line
/// (tools/perf/Documentation/jit-interface.txt).
fn line(loaded: &Loaded<'_>) -> String {
    format!("{:x} {:x} {}\n", loaded.address.get(), loaded.code.len(), symbol_name(loaded.name))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn loaded<'a>(name: &'a str, code: &'a [u8]) -> Loaded<'a> {
        Loaded { name, address: CodeAddress::new(0x7f12_3400_0040), code, eh_frame: None, lines: None, functions: &[] }
    }

    #[test]
    fn a_line_has_start_length_and_name() {
        assert_eq!(line(&loaded("filter one", &[0xc3; 0x2a])), "7f1234000040 2a filter one\n");
        assert_eq!(line(&loaded("a\nb", &[0xc3])), "7f1234000040 1 a_b\n");
    }

    #[test]
    fn lines_go_to_the_file_named_by_pid() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let map = PerfMap::in_directory(directory.path());
        map.loaded(&loaded("first", &[0xc3])).expect("loaded");
        map.loaded(&loaded("second", &[0xc3, 0xc3])).expect("loaded");
        map.unloaded(CodeAddress::new(0x7f12_3400_0040), 1).expect("unloaded");
        // Of other packs, later: the first's lines are still needed.
        drop(map);
        PerfMap::in_directory(directory.path()).loaded(&loaded("third", &[0xc3])).expect("loaded");
        let path = directory.path().join(format!("perf-{}.map", std::process::id()));
        let lines = "7f1234000040 1 first\n7f1234000040 2 second\n7f1234000040 1 third\n";
        assert_eq!(fs::read_to_string(path).expect("read"), lines);
    }

    #[test]
    fn an_unusable_directory_is_an_error_that_names_the_file() {
        let map = PerfMap::in_directory("/proc/self/fdinfo/absent");
        let error = map.loaded(&loaded("first", &[0xc3])).expect_err("refused");
        assert!(error.to_string().contains("/proc/self/fdinfo/absent/perf-"), "{error}");
    }
}
