//! Unmodified programs on a machine with several nodes: the text of each is on the node that is asked for, as the
//! kernel tells (`move_pages`, `numa_maps`).
//!
//! `cargo xtask guest numa` has such a machine, and the programs and the object, which it cannot build. On other
//! machines these tests are skipped.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use palimpsest_numa::{NodeId, Topology};
use palimpsest_sys::memory::sealed_file::NAME;
use palimpsest_sys::numa::numa_maps::{self, NumaMap, Shown};
use palimpsest_sys::numa::placement::{self, Place};
use palimpsest_sys::numa::policy;
use palimpsest_sys::pages::maps;
use rustix::process::Pid;

/// Tells where the programs are, the object, and the command `palimpsest` if it was built, too.
const PROGRAMS: &str = "PALIMPSEST_TEST_PROGRAMS";
/// The part of the text of each program that must be on the node, in bytes.
const MUCH: u64 = 8 << 20;

/// A machine with several nodes.
struct Machine {
    topology: Topology,
    programs: PathBuf,
}

impl Machine {
    /// Returns it; `None` after saying why this is none.
    fn find() -> Option<Self> {
        let topology = Topology::read();
        let Some(programs) = std::env::var_os(PROGRAMS) else {
            println!("skipped: `cargo xtask guest numa` has a machine with several nodes and what runs there");
            return None;
        };
        assert!(topology.homes().len() > 1, "{topology:?}");
        Some(Self { topology, programs: programs.into() })
    }

    /// Returns the nodes with room for all that these tests copy.
    fn large(&self) -> Vec<NodeId> {
        let is_large = |home: &NodeId| self.topology.node(*home).is_some_and(|node| node.memory.total > 256 << 20);
        self.topology.homes().iter().copied().filter(is_large).collect()
    }

    /// Returns a command with the object, and copies in a folder of its own.
    fn command(&self, program: &str, text: &str, folder: &Path) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.env("LD_PRELOAD", self.programs.join("libpalimpsest_preload.so")).env("XDG_RUNTIME_DIR", folder);
        command.envs([("PALIMPSEST_TEXT", text), ("PALIMPSEST_FREEZE", "off"), ("PALIMPSEST_REPORT", "stderr")]);
        command
    }
}

/// A program that has run through its text, and waits.
struct Waiting {
    child: Child,
    said: String,
}

impl Waiting {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut said).expect("readable");
        Self { child, said }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns the mappings that show copies.
    fn copies(&self) -> Vec<NumaMap> {
        let all = numa_maps::of_process(self.pid()).expect("the kernel tells");
        all.into_iter().filter(|map| map.shown == Shown::File(NAME.into())).collect()
    }

    /// Asserts that all copies are on the node, by both of the kernel's tales, and returns how many bytes those are.
    fn is_on(&self, node: NodeId) -> u64 {
        let copies = self.copies();
        let present = |map: &NumaMap| map.present.iter().map(|(_, bytes)| bytes).sum::<u64>();
        for map in &copies {
            assert!(map.present.iter().all(|(on, _)| *on == node), "{map:?}");
            assert!(map.policy.contains(&node.0.to_string()), "{map:?}");
        }
        let path = format!("/proc/{}/maps", self.pid().as_raw_nonzero());
        let text = std::fs::read(path).expect("the program lives");
        let mut told = 0;
        for map in
            maps::parse(text).expect("well formed").iter().filter(|map| map.path.as_deref() == Some(NAME.as_ref()))
        {
            let places = placement::of_pages(self.pid(), map.start..map.end).expect("the kernel tells");
            let page = (map.end - map.start) / places.len();
            assert!(
                places.iter().all(|place| matches!(place, Place::On(on) if *on == node) || !is_known(place)),
                "{map:?}"
            );
            told += places.iter().filter(|place| is_known(place)).count() * page;
        }
        let bytes = copies.iter().map(present).sum::<u64>();
        assert!(told as u64 >= bytes, "{told} and {bytes}");
        bytes
    }

    /// Lets it end, and returns what it has printed on standard error.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut told = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut told).expect("readable");
        assert!(self.child.wait().expect("a child").success(), "{told}");
        told
    }
}

/// Whether the process has touched the page.
fn is_known(place: &Place) -> bool {
    matches!(place, Place::On(_))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn the_text_of_a_program_is_on_the_node_that_is_asked_for() {
    let Some(machine) = Machine::find() else { return };
    for node in machine.large() {
        let folder = folder();
        let mut command = machine.command("shared_text", &format!("local:{}", node.0), folder.path());
        command.arg("wait");
        let running = Waiting::start(command);
        assert!(running.said.contains("shared"), "in memory: {}", running.said);
        let bytes = running.is_on(node);
        println!("{} KiB on {node}", bytes >> 10);
        assert!(bytes >= MUCH, "{bytes}");
        let told = running.end();
        assert!(told.contains(&format!(" KiB of text on {node}, ")) && !told.contains("elsewhere"), "{told}");
    }
}

/// Fails on: a copy where the first process of all ran.
#[test]
fn without_a_node_it_is_that_of_the_main_thread() {
    let Some(machine) = Machine::find() else { return };
    for node in machine.large() {
        let folder = folder();
        let mut command = machine.command("shared_text", "local", folder.path());
        command.arg("wait");
        let cpus = machine.topology.node(node).expect("a home").cpus.clone();
        // A child inherits the CPUs of the thread that starts it.
        let start = move || {
            policy::set_affinity(&cpus).expect("CPUs that are there");
            Waiting::start(command)
        };
        let running = std::thread::spawn(start).join().expect("it starts");
        assert!(running.is_on(node) >= MUCH, "{}", running.said);
        running.end();
    }
}

/// Fails on: a process that uses the copy of another node; one that makes a second copy on its own.
#[test]
fn processes_share_a_copy_on_each_node() {
    let Some(machine) = Machine::find() else { return };
    let folder = folder();
    let start = |node: &NodeId| {
        let mut command = machine.command("shared_text", &format!("local:{},shared", node.0), folder.path());
        command.arg("wait");
        Waiting::start(command)
    };
    let nodes = machine.large();
    let (first, second): (Vec<Waiting>, Vec<Waiting>) = nodes.iter().map(|node| (start(node), start(node))).unzip();
    for ((node, first), second) in nodes.iter().zip(&first).zip(&second) {
        assert!(first.is_on(*node) >= MUCH && second.is_on(*node) >= MUCH);
        assert_eq!(first.said, second.said, "one object on {node}");
    }
    assert_ne!(first[0].said, first[1].said, "one for each node");
    first.into_iter().chain(second).for_each(|running| drop(running.end()));
}

/// Fails on: a command that does not pass the node on; a picture of another node.
#[test]
fn the_command_puts_it_there_and_shows_it() {
    let Some(machine) = Machine::find() else { return };
    let palimpsest = machine.programs.join("palimpsest");
    if !palimpsest.is_file() {
        return println!("skipped: the command is not here: only the step numa-x86_64 brings it");
    }
    let node = *machine.large().last().expect("there is one");
    let folder = folder();
    let mut command = Command::new(&palimpsest);
    command.args(["run", "--local-text", "--no-freeze", "--report", "--node", &node.0.to_string(), "--"]);
    command.arg(machine.programs.join("shared_text")).arg("wait").env("XDG_CACHE_HOME", folder.path());
    let running = Waiting::start(command);
    let bytes = running.is_on(node);
    assert!(bytes >= MUCH, "{bytes}");
    let numa = |arguments: &[&str]| {
        let ran = Command::new(&palimpsest).arg("numa").args(arguments).output().expect("it was brought");
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success(), "{text}{}", String::from_utf8_lossy(&ran.stderr));
        println!("{text}");
        text
    };
    let machine_shown = numa(&[]);
    assert!(machine_shown.starts_with("4 nodes; ") && machine_shown.contains("on nodes 0-1,3\n"), "{machine_shown}");
    let pid = running.child.id().to_string();
    let pages = numa(&["--pages", &pid]);
    let row = node.0.to_string().repeat(64);
    let rows = pages.lines().filter(|line| line.ends_with(&row)).count();
    assert!(rows > 0 && pages.contains("palimpsest-constant"), "{pages}");
    let json: serde_json::Value = serde_json::from_str(&numa(&["--json", &pid])).expect("JSON");
    assert!(json.to_string().contains("palimpsest-constant"), "{json}");
    let told = running.end();
    assert!(told.contains(&format!(" KiB of text on {node}, ")), "{told}");
}
