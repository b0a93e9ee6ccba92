//! Text that processes share; these tests need only one node.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use palimpsest_numa::{Folder, Localized, NodeId, Origin, ProgramText, Reach, Sharing, TextOptions};
use palimpsest_sys::memory::sealed_file::SealedFile;
use palimpsest_sys::pages::maps::Maps;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::big_text::{all_work, whole};

/// Private memory that a process may use for text that another one has localised, in bytes.
const MOST_OF_ITS_OWN: u64 = 64 << 10;

/// Tells a child where copies are shared.
const FOLDER: &str = "PALIMPSEST_TEST_FOLDER";

fn localize(folder: &Path) -> ProgramText {
    let (node, reach) = (Some(NodeId(0)), Some(Reach::Everything));
    let options = TextOptions::new().node(node).reach(reach).sharing(Sharing::User(Folder::at(folder)));
    ProgramText::localize(&options).expect("nothing is in the way")
}

/// Returns the outcome for the big text.
fn big(text: &ProgramText) -> &Localized {
    text.parts().iter().find(|part| part.span.range().contains(&whole().start)).expect("a part")
}

/// Returns this process's private memory. Does not use the heap, which would count.
fn anonymous() -> u64 {
    let mut bytes = [0; 4096];
    let len = fs::File::open("/proc/self/smaps_rollup").and_then(|mut file| file.read(&mut bytes)).expect("mounted");
    let rollup = std::str::from_utf8(&bytes[..len]).expect("text");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("it is told");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Touches as much stack as programs use anyway: frames of a debug build are large.
#[inline(never)]
fn use_stack() {
    std::hint::black_box([1_u8; 64 << 10]);
}

/// Localises, prints the outcome in one line, and waits until it may end.
#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn one_of_many() {
    let folder = std::env::var(FOLDER).expect("told");
    use_stack();
    let before = anonymous();
    let text = localize(Path::new(&folder));
    let after = anonymous();
    all_work();
    let inode = Maps::read().expect("mounted").at(whole().start).expect("mapped").inode;
    let origin = match big(&text).origin {
        Some(Origin::Made) => "made",
        Some(Origin::Found { .. }) => "found",
        other => panic!("{other:?}: {:?}", text.parts()),
    };
    let lacks: Vec<String> = text.parts().iter().flat_map(|part| part.lacks.clone()).collect();
    println!("\nsays: {origin} {inode} {} {}", after.saturating_sub(before), lacks.join("; "));
    std::io::stdout().flush().expect("somebody listens");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the parent lives");
    all_work();
}

/// A process that has localised.
struct Running(Child, String);

impl Running {
    fn start(folder: &Path) -> Child {
        let mut child = Command::new(std::env::current_exe().expect("known"));
        child.args(["--exact", "sharing::one_of_many", "--nocapture", "--include-ignored"]).env(FOLDER, folder);
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started")
    }

    /// Waits until it has printed the outcome.
    fn said(mut child: Child) -> Self {
        let lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
        let said = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("says: ").map(str::to_owned));
        Self(child, said.expect("its assertions hold"))
    }

    fn end(mut self) -> String {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("a child").success());
        self.1
    }
}

#[test]
fn ten_processes_use_the_text_of_one() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("copies");
    // At the same time: the first process makes the copy.
    let children: Vec<Child> = (0..10).map(|_| Running::start(&folder)).collect();
    let running: Vec<Running> = children.into_iter().map(Running::said).collect();
    let said: Vec<String> = running.into_iter().map(Running::end).collect();
    let word = |line: &String, at: usize| line.split(' ').nth(at).expect("three words").to_owned();
    let made = said.iter().filter(|line| word(line, 0) == "made").count();
    let inodes: BTreeSet<String> = said.iter().map(|line| word(line, 1)).collect();
    assert_eq!((made, inodes.len()), (1, 1), "{said:#?}");
    for line in said.iter().filter(|line| word(line, 0) == "found") {
        // Includes what waiting for each other takes, and a huge page where the kernel gives the heap one by itself,
        // but nothing of the 10 MiB of text.
        assert!(own_memory(line) <= 4 * MOST_OF_ITS_OWN + (2 << 20), "{line}");
    }
}

/// Returns the private memory of a process that has printed this, in bytes.
fn own_memory(said: &str) -> u64 {
    said.split(' ').nth(2).and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn the_second_process_takes_next_to_no_memory() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("copies");
    let first = Running::said(Running::start(&folder));
    // The kernel gives some a huge page of heap or stack by itself, where addresses happen to suit: the least counts.
    let others: Vec<String> = (0..6).map(|_| Running::said(Running::start(&folder)).end()).collect();
    assert!(first.end().starts_with("made") && others.iter().all(|other| other.starts_with("found")), "{others:#?}");
    let least = others.iter().map(|other| own_memory(other)).min().expect("there are some");
    println!("{} KiB of memory of its own", least >> 10);
    assert!(least <= MOST_OF_ITS_OWN, "{others:#?}");
}

/// An entry of the folder, apart from the process that has it, its descriptor and the object's inode.
struct Entry {
    key: String,
    /// The bytes of the object.
    content: Vec<u8>,
}

/// Returns what a process offers.
fn offered(folder: &Path) -> Vec<Entry> {
    let names = fs::read_dir(folder).expect("made").map(|entry| entry.expect("readable").file_name());
    let names = names.map(|name| name.into_string().expect("text")).filter(|name| !name.starts_with("lock"));
    let entry = |name: String| {
        let words: Vec<&str> = name.split('-').collect();
        let content = fs::read(format!("/proc/{}/fd/{}", words[3], words[4])).expect("it lives");
        Entry { key: words[..3].join("-"), content }
    };
    names.map(entry).collect()
}

impl Entry {
    /// Enters that this process has it, as this object.
    fn plant(&self, folder: &Path, descriptor: i32, inode: u64) {
        let name = format!("{}-{}-{descriptor}-{inode}", self.key, std::process::id());
        fs::write(folder.join(name), "").expect("the folder is this user's");
    }
}

#[test]
fn a_copy_with_other_bytes_or_one_that_can_be_written_is_refused_and_told() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("copies");
    let first = Running::said(Running::start(&folder));
    let entries = offered(&folder);
    assert!(first.end().starts_with("made"));
    let refused = |why: &str| {
        let second = Running::said(Running::start(&folder)).end();
        assert!(second.starts_with("made") && second.contains(why), "{why}: {second}");
    };
    let own = std::process::id();
    let other_bytes = format!("what process {own} says to have has other bytes");
    // The right bytes up to the middle, as if the maker had been interrupted; but for one; and too few.
    let sealed = |content: &[u8], len: usize| {
        let size = content.len();
        SealedFile::filled(size, 0..size, None, |bytes| {
            bytes[..len].copy_from_slice(&content[..len]);
            Ok(())
        })
        .expect("made")
        .0
    };
    let last_changed = |content: &[u8]| {
        let mut content = content.to_vec();
        // The last byte of the text; zeros may be behind it.
        let last = content.iter().rposition(|byte| *byte != 0).expect("text");
        content[last] ^= 1;
        sealed(&content, content.len())
    };
    type Make<'a> = &'a dyn Fn(&[u8]) -> SealedFile;
    let makes: [(&str, Make<'_>); 3] = [
        ("half", &|content| sealed(content, content.len() / 2)),
        ("one byte", &last_changed),
        ("short", &|content| sealed(&content[..4096], 4096)),
    ];
    for (what, make) in makes {
        let planted: Vec<SealedFile> = entries.iter().map(|entry| make(&entry.content)).collect();
        entries.iter().zip(&planted).for_each(|(entry, file)| entry.plant(&folder, file.descriptor(), file.id().inode));
        println!("{what}");
        refused(&other_bytes);
    }
    // The right bytes in an object that its maker can still write: one without seals, one that can still get more.
    for seals in [SealFlags::empty(), SealFlags::GROW | SealFlags::SHRINK, SealFlags::WRITE | SealFlags::SHRINK] {
        let make = |entry: &Entry| {
            let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
            let mut file = fs::File::from(memfd_create(c"palimpsest-constant", flags).expect("made"));
            file.write_all(&entry.content).expect("there is memory");
            fcntl_add_seals(&file, seals).expect("it can be sealed");
            file
        };
        let planted: Vec<fs::File> = entries.iter().map(make).collect();
        for (entry, file) in entries.iter().zip(&planted) {
            entry.plant(&folder, file.as_raw_fd(), file.metadata().expect("open").ino());
        }
        refused("is not sealed: it could still change");
    }
    // Another file.
    let open = fs::File::open("/dev/null").expect("there");
    entries.iter().for_each(|entry| entry.plant(&folder, open.as_raw_fd(), 7));
    refused("is no memory object");
}

#[test]
fn a_process_that_was_killed_leaves_nothing_but_a_name_that_is_told_and_removed() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("copies");
    let mut first = Running::said(Running::start(&folder));
    first.0.kill().expect("a child");
    first.0.wait().expect("a child");
    let second = Running::said(Running::start(&folder)).end();
    assert!(second.starts_with("made") && second.contains("has ended, and its entry is removed"), "{second}");
}
