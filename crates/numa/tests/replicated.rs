//! Replicated data: what each node gets, what an update changes, and what is reported.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_numa::{
    Allowance, Folder, NodeId, NodeStatus, Origin, ReplicateError, ReplicateOptions, Replicated, Sharing, Topology,
    When,
};
use palimpsest_sys::pages::maps::Maps;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Returns a machine with `nodes` nodes. If the real one has fewer, copies for the others are made all the same, and
/// reported to be elsewhere.
fn machine(nodes: u32) -> Topology {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("online"), format!("0-{}\n", nodes - 1)).expect("written");
    for node in 0..nodes {
        let place = folder.path().join(format!("node{node}"));
        fs::create_dir(&place).expect("made");
        let mut distances = String::new();
        (0..nodes).for_each(|to| write!(distances, "{} ", if to == node { 10 } else { 21 }).expect("a string"));
        let meminfo = format!("Node {node} MemTotal: 4096 kB\nNode {node} MemFree: 4096 kB\n");
        for (name, text) in [("cpulist", node.to_string()), ("distance", distances), ("meminfo", meminfo)] {
            fs::write(place.join(name), text).expect("written");
        }
    }
    Topology::below(folder.path(), Allowance::default()).expect("well formed")
}

fn options(nodes: u32, when: When) -> ReplicateOptions {
    ReplicateOptions::new().topology(machine(nodes)).when(when)
}

/// Counts the mappings of constant memory with this content; other tests of this program have other contents.
fn mappings_of(content: &[u8]) -> usize {
    let maps = Maps::read().expect("mounted");
    let memory = fs::File::open("/proc/self/mem").expect("mounted");
    let starts_so = |start: usize| {
        let mut bytes = vec![0; content.len()];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, start as u64).is_ok() && bytes == content
    };
    let named = |path: Option<&Path>| path.is_some_and(|path| path.to_string_lossy().contains("palimpsest-constant"));
    maps.iter().filter(|map| named(map.path.as_deref()) && starts_so(map.start)).count()
}

#[test]
fn lazy_copies_are_made_by_those_who_ask() {
    let data = Replicated::<[u8]>::new(b"lazy", options(2, When::Lazy)).expect("made");
    let made = || data.status().iter().filter(|node| node.origin.is_some()).map(|node| node.node).collect::<Vec<_>>();
    // That of the node on which this thread was then; it may have moved.
    let [first] = made()[..] else { panic!("one copy: {made:?}", made = made()) };
    let other = NodeId(1 - first.0);
    assert_eq!(&*data.get_on(other), b"lazy");
    assert_eq!(&*data.get_on(first), b"lazy");
    assert_eq!(made().len(), 2);
    assert!(!std::ptr::eq(&*data.get_on(NodeId(0)), &*data.get_on(NodeId(1))), "each node has its own");
    assert!(std::ptr::eq(&*data.get_on(NodeId(9)), &*data.get_on(NodeId(0))), "a node that was plugged later");
}

#[test]
fn eager_copies_are_there_from_the_start() {
    let data = Replicated::<[u8]>::new(b"eager", options(3, When::Eager)).expect("made");
    let status = data.status();
    assert_eq!(status.len(), 3);
    assert!(status.iter().all(|node| node.origin == Some(Origin::Private) && node.len == 5), "{status:?}");
    assert_eq!(mappings_of(b"eager"), 3);
    drop(data);
    assert_eq!(mappings_of(b"eager"), 0);
}

#[test]
fn the_status_says_where_pages_are_and_why_they_are_elsewhere() {
    // No machine that tests run on has the last node.
    let data = Replicated::<[u8]>::new(&[7; 10_000], options(64, When::Eager)).expect("made");
    let status = data.status();
    let first = &status[0];
    let Some(placed) = &first.placed else { return println!("skipped: {first}") };
    let all = |placed: &palimpsest_numa::Placed| {
        placed.at_home + placed.untold + placed.elsewhere.iter().map(|(_, bytes)| bytes).sum::<u64>()
    };
    assert_eq!(all(placed), 3 * 4096, "{first}");
    assert_eq!(placed.at_home, 3 * 4096, "node 0 is there: {first}");
    let last = status.last().expect("64 of them");
    let placed = last.placed.as_ref().expect("as for the first");
    assert_eq!((placed.at_home, all(placed)), (0, 3 * 4096), "{last}");
    let text = last.to_string();
    assert!(text.contains("not asked of the node: mbind is refused") && text.contains("bytes are on node"), "{text}");
    assert!(text.contains("10000 bytes do not fill half of a huge page"), "{text}");
}

/// Fails on: data that cannot be read, replaced or reported any more.
#[test]
fn a_node_that_goes_after_the_topology_was_read_costs_only_its_place() {
    // The last of these was there when the topology was read, and is not there now.
    let data = Replicated::<[u8]>::new(b"before", options(64, When::Lazy)).expect("made");
    let gone = NodeId(63);
    assert_eq!((&*data.get(), &*data.get_on(gone)), (&b"before"[..], &b"before"[..]));
    data.update(b"after").expect("made");
    assert_eq!((&*data.get(), &*data.get_on(gone)), (&b"after"[..], &b"after"[..]));
    let status = data.status();
    let last = status.last().expect("64 of them");
    assert_eq!((last.node, last.len), (gone, 5), "{last}");
    assert!(last.lacks.iter().any(|lack| lack.contains("not asked of the node")), "{last}");
    reclaim(&data);
}

#[test]
fn large_content_is_in_huge_pages() {
    let content = vec![3_u8; (4 << 20) + 1];
    let data = Replicated::<[u8]>::new(&content, options(1, When::Lazy)).expect("made");
    assert!(*data.get() == content[..]);
    let status = &data.status()[0];
    let Some(placed) = &status.placed else { return println!("skipped: {status}") };
    assert!(placed.huge == 4 << 20 || status.lacks.iter().any(|lack| lack.contains("huge")), "{status}");
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct Entry {
    key: u64,
    weight: u32,
    kind: u32,
}

#[test]
fn values_and_slices_of_them_are_read_as_they_were() {
    let entry = Entry { key: 1, weight: 2, kind: 3 };
    let one = Replicated::new(&entry, options(2, When::Lazy)).expect("made");
    assert_eq!(*one.get(), entry);
    let many = Replicated::<[Entry]>::new(&[entry; 5], options(2, When::Lazy)).expect("made");
    assert_eq!(*many.get_on(NodeId(1)), [entry; 5]);
    assert_eq!(many.get_on(NodeId(0)).len(), 5);
}

#[test]
fn files_are_replicated_and_what_cannot_be_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("table");
    fs::write(&path, "from a file").expect("written");
    let data = Replicated::from_file(&path, options(2, When::Lazy)).expect("made");
    fs::write(&path, "changed").expect("written");
    assert_eq!(&*data.get_on(NodeId(1)), b"from a file");
    let absent = Replicated::from_file(folder.path().join("absent"), ReplicateOptions::new()).expect_err("no file");
    assert!(matches!(&absent, ReplicateError::Read { path, .. } if path.ends_with("absent")), "{absent}");
    fs::write(&path, "").expect("written");
    let empty = Replicated::from_file(&path, ReplicateOptions::new()).expect_err("nothing in it");
    assert!(matches!(empty, ReplicateError::Copy(_)), "{empty}");
}

/// Frees old copies; other tests of this program may be reading something at any moment.
fn reclaim(data: &Replicated<[u8]>) {
    while data.reclaim() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn an_update_replaces_all_copies_and_gives_the_old_ones_back() {
    let data = Replicated::<[u8]>::new(b"update one", options(2, When::Lazy)).expect("made");
    data.get_on(NodeId(0));
    data.get_on(NodeId(1));
    let held = data.get_on(NodeId(1));
    data.update(b"update two, longer").expect("made");
    assert_eq!(data.status().iter().filter(|node| node.origin.is_some()).count(), 2, "both had a copy before");
    assert_eq!(&*held, b"update one", "what is held stays");
    assert_eq!(&*data.get(), b"update two, longer");
    assert_eq!((data.reclaim(), mappings_of(b"update one")), (1, 2), "it is still held");
    drop(held);
    reclaim(&data);
    assert_eq!(mappings_of(b"update one"), 0);
    // Nobody holds it: an update alone gives it back, unless another test is reading.
    data.update(b"update three").expect("made");
    reclaim(&data);
    assert_eq!((mappings_of(b"update two, longer"), mappings_of(b"update three")), (0, 2));
    // A failed update changes nothing.
    data.update(&[]).expect_err("nothing in it");
    assert_eq!(&*data.get(), b"update three");
    assert_eq!(mappings_of(b"update three"), 2);
}

#[test]
fn readers_see_one_content_or_another_and_never_an_older_one_again() {
    const LEN: usize = 3000;
    // Fewer if everything is emulated.
    let updates = std::env::var("PALIMPSEST_UPDATES").map_or(200, |told| told.parse().expect("a number"));
    let data = Replicated::<[u32]>::new(&[0; LEN], options(4, When::Lazy)).expect("made");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4_u32)
            .map(|number| {
                let (data, done) = (&data, &done);
                scope.spawn(move || {
                    let (mut last, mut rounds) = (0, 0_usize);
                    while !done.load(Ordering::Relaxed) || rounds < 10 {
                        let content = data.get_on(NodeId((number + rounds as u32) % 4));
                        let first = content[0];
                        assert!(content.iter().all(|value| *value == first), "a mixture");
                        assert!(first >= last, "{first} after {last}");
                        let seen = data.get_on(NodeId(number));
                        assert!(seen.iter().all(|value| *value == seen[0]) && seen[0] >= first);
                        last = first;
                        rounds += 1;
                    }
                })
            })
            .collect();
        for value in 1..=updates {
            data.update(&[value; LEN]).expect("made");
        }
        done.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().expect("no mixture was seen"));
    });
    assert_eq!(data.get()[0], updates);
}

#[test]
fn many_threads_that_ask_first_make_one_copy() {
    let data = Replicated::<[u8]>::new(b"at once", options(2, When::Lazy)).expect("made");
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                assert_eq!(&*data.get_on(NodeId(0)), b"at once");
                assert_eq!(&*data.get_on(NodeId(1)), b"at once");
            });
        }
    });
    assert_eq!(mappings_of(b"at once"), 2);
}

#[test]
fn shared_copies_are_one_object_and_go_with_the_last_user() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = Folder::at(parent.path().join("copies"));
    let shared = || options(2, When::Eager).sharing(Sharing::User(folder.clone()));
    let first = Replicated::<[u8]>::new(b"shared", shared()).expect("made");
    let second = Replicated::<[u8]>::new(b"shared", shared()).expect("made");
    // What is not on its node, since this machine has no such node, is offered to nobody.
    let is_placed = |node: &NodeStatus| !node.lacks.iter().any(|lack| lack.starts_with("not asked of the node"));
    let is_from = |data: &Replicated<[u8]>, origin| {
        let all = data.status();
        let expected = |node: &NodeStatus| Some(if is_placed(node) { origin } else { Origin::Private });
        assert!(all.iter().all(|node| node.origin == expected(node)), "{all:?}");
        all.iter().filter(|node| is_placed(node)).count()
    };
    let process = i32::try_from(std::process::id()).expect("a process id");
    let placed = is_from(&first, Origin::Made);
    assert_eq!(is_from(&second, Origin::Found { process }), placed);
    let entries = || fs::read_dir(folder.path()).expect("there").count();
    let locks = entries() - 2 * placed;
    drop(first);
    assert_eq!(&*second.get(), b"shared");
    drop(second);
    assert_eq!(entries(), locks);
}

#[test]
fn a_folder_that_cannot_be_used_makes_private_copies_and_says_so() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = Folder::at(parent.path().join("absent/copies"));
    let options = options(1, When::Lazy).sharing(Sharing::User(folder));
    let data = Replicated::<[u8]>::new(b"alone", options).expect("made all the same");
    let status = &data.status()[0];
    assert_eq!(status.origin, Some(Origin::Private));
    assert!(status.to_string().contains("not shared: cannot open the folder"), "{status}");
}
