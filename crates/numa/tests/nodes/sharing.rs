//! Text that processes share; these tests need only one node.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use palimpsest_numa::{Folder, Localized, NodeId, Origin, ProgramText, Reach, Sharing, TextOptions};
use palimpsest_sys::memory::sealed_file::SealedFile;
use palimpsest_sys::pages::maps::Maps;

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
    let second = Running::said(Running::start(&folder)).end();
    assert!(first.end().starts_with("made") && second.starts_with("found"), "{second}");
    println!("{} KiB of memory of its own", own_memory(&second) >> 10);
    assert!(own_memory(&second) <= MOST_OF_ITS_OWN, "{second}");
}

#[test]
fn a_copy_with_other_bytes_or_one_that_can_be_written_is_refused_and_told() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("copies");
    let first = Running::said(Running::start(&folder));
    let key = |name: &str| name.split('-').take(3).collect::<Vec<_>>().join("-");
    let names: Vec<String> = fs::read_dir(&folder)
        .expect("made")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
        .filter(|name| !name.starts_with("lock"))
        .collect();
    assert!(first.end().starts_with("made"));
    // This process claims to have all of them, but it has zeros.
    let (zeros, _) = SealedFile::filled(32 << 20, 0..4096, None, |_| Ok(())).expect("made");
    let own = std::process::id();
    for name in &names {
        let planted = format!("{}-{own}-{}-{}", key(name), zeros.descriptor(), zeros.id().inode);
        fs::write(folder.join(planted), "").expect("the folder is this user's");
    }
    let second = Running::said(Running::start(&folder)).end();
    assert!(second.starts_with("made"), "{second}");
    assert!(second.contains(&format!("what process {own} says to have has other bytes")), "{second}");
    // It also claims to have others, which are other files.
    let open = fs::File::open("/dev/null").expect("there");
    for name in &names {
        let number = std::os::fd::AsRawFd::as_raw_fd(&open);
        fs::write(folder.join(format!("{}-{own}-{number}-7", key(name))), "").expect("as above");
    }
    let third = Running::said(Running::start(&folder)).end();
    assert!(third.starts_with("made") && third.contains("is no memory object"), "{third}");
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
