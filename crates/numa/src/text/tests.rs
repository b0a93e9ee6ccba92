use std::os::unix::process::ExitStatusExt;

use super::*;
use crate::shared::tests::{FOLDER, KILLED_AT, child, entries, folder};

/// The child below.
const LOCALISES: &str = "text::tests::another_process_localises";

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn another_process_localises() {
    let folder = Folder::at(std::env::var(FOLDER).expect("told"));
    let options = TextOptions::new().node(NodeId(0)).reach(Reach::Everything).sharing(Sharing::User(folder.clone()));
    let text = ProgramText::localize(&options).expect("nothing is in the way");
    let of = |is: fn(&Origin) -> bool| text.parts().iter().filter_map(|part| part.origin).filter(is).count();
    let (made, found) = (of(|origin| *origin == Origin::Made), of(|origin| matches!(origin, Origin::Found { .. })));
    let gone = text.parts().iter().flat_map(|part| &part.lacks).filter(|lack| lack.contains("has ended")).count();
    assert_eq!(entries(&folder).len(), made + found, "{:?}", text.parts());
    println!("made {made}, found {found}, gone {gone}");
}

/// Fails on: a copy of a process that was killed which another one uses; one that is offered before it is sealed; an
/// entry, or a lock, that stays.
#[test]
fn who_is_killed_at_any_step_of_localising_leaves_nothing_that_is_trusted() {
    for at in [Step::Opened, Step::Locked, Step::Sealed, Step::Registered, Step::Standing, Step::Exchanged] {
        let (_parent, folder) = folder();
        let mut command = child(LOCALISES);
        let killed = command.env(FOLDER, folder.path()).env(KILLED_AT, format!("{at:?}")).output().expect("started");
        assert_eq!(killed.status.signal(), Some(9), "{at:?}: {killed:?}");
        let left = entries(&folder).len();
        let (fewest, most) = match at {
            Step::Opened | Step::Locked | Step::Sealed => (0, 0),
            Step::Registered => (1, 1),
            Step::Standing | Step::Exchanged => (2, usize::MAX),
        };
        assert!(fewest <= left && left <= most, "{at:?}: {left}");
        let next = child(LOCALISES).env(FOLDER, folder.path()).output().expect("started");
        let said = String::from_utf8_lossy(&next.stdout).into_owned();
        assert!(next.status.success(), "{at:?}: {said}{}", String::from_utf8_lossy(&next.stderr));
        assert!(said.contains(&format!(", found 0, gone {left}\n")) && !said.contains("made 0,"), "{at:?}: {said}");
        assert!(entries(&folder).is_empty(), "{at:?}: {:?}", entries(&folder));
    }
}

/// A part of 4 MiB of which everything is exchanged.
fn part() -> Localized {
    Localized {
        path: PathBuf::from("/program"),
        span: Span::new(0, 4 << 20),
        in_place: 0,
        exchanged: 4 << 20,
        huge: 4 << 20,
        not_placed: None,
        elsewhere: 0,
        origin: Some(Origin::Private),
        not_shared: None,
        lacks: Vec::new(),
    }
}

/// Fails on: a node that is named for text which is not there.
#[test]
fn text_that_is_not_on_its_node_is_told() {
    let told = |part| {
        let text = ProgramText { node: NodeId(7), among: Among::Several, parts: vec![part], _offered: Vec::new() };
        (text.to_string(), text.not_on_the_node())
    };
    let is_there = "4096 KiB of text on node 7, 4096 KiB of it in huge pages".to_owned();
    assert_eq!(told(part()), (is_there, None));
    let errno = rustix::io::Errno::PERM;
    let not_placed = Some(NumaError::Refused { call: "mbind", errno });
    let (text, why) = told(Localized { not_placed, ..part() });
    assert_eq!(text, "4096 KiB of text meant for node 7, 4096 KiB of it in huge pages");
    assert_eq!(why, Some(format!("text is not kept on node 7: mbind is refused: {errno}")));
    let why = told(Localized { elsewhere: 1 << 20, ..part() }).1;
    assert_eq!(why.as_deref(), Some("1024 KiB of text are not on node 7: it has no room"));
}

/// Fails on: one node that is said to be the only one because nothing is known of any.
#[test]
fn a_machine_that_is_taken_for_one_node_is_not_said_to_have_one() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("online"), "").expect("written");
    let topology = Topology::below(folder.path(), crate::Allowance::default()).expect("well formed");
    let among = Among::of(&topology);
    let text = ProgramText { node: NodeId(0), among, parts: vec![part()], _offered: Vec::new() }.to_string();
    assert!(text.contains(" on node 0, taken for the only one (") && text.contains("lists no node), "), "{text}");
}

/// Tells the child below to share nothing.
const ALONE: &str = "PALIMPSEST_TEST_ALONE";

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn a_process_names_an_absent_node() {
    let folder = Folder::at(std::env::var(FOLDER).expect("told"));
    let is_alone = std::env::var_os(ALONE).is_some();
    let sharing = if is_alone { Sharing::Private } else { Sharing::User(folder.clone()) };
    let options = TextOptions::new().node(NodeId(1023)).reach(Reach::Everything).sharing(sharing);
    let text = ProgramText::localize(&options).expect("nothing is in the way");
    let exchanged: Vec<&Localized> = text.parts().iter().filter(|part| part.exchanged > 0).collect();
    let is_told = |part: &&Localized| part.not_placed.is_some() && part.origin == Some(Origin::Private);
    assert!(!exchanged.is_empty() && exchanged.iter().all(is_told), "{:?}", text.parts());
    assert!(text.not_on_the_node().is_some() && exchanged.iter().all(|part| part.not_shared.is_none() == is_alone));
    assert!(is_alone || entries(&folder).is_empty(), "{:?}", entries(&folder));
}

/// Fails on: a copy that could not be placed, and is told as if it had been, or offered to others.
#[test]
fn a_node_that_cannot_be_asked_is_told_with_each_part() {
    let (_parent, folder) = folder();
    let mut command = child("text::tests::a_process_names_an_absent_node");
    command.env(FOLDER, folder.path());
    let shared = command.output().expect("started");
    for ran in [shared, command.env(ALONE, "").output().expect("started")] {
        let told = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        assert!(ran.status.success(), "{told:?}");
    }
}
