//! The program's own text.

use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_numa::{NodeId, ProgramText, ReplicateOptions, Replicated, TextOptions};

use crate::big_text::{all_work, whole};
use crate::machine::{apart, placed, several_nodes};

/// Tells a child the node.
const NODE: &str = "PALIMPSEST_TEST_NODE";

#[test]
fn text_is_moved_to_the_node_that_is_asked_while_threads_execute_it() {
    let Some(machine) = several_nodes() else { return };
    for node in machine.large_homes() {
        apart("text::exchanged_while_it_runs", &[(NODE, &node.0.to_string())]);
    }
}

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn exchanged_while_it_runs() {
    several_nodes().expect("as the parent has found");
    let node = NodeId(std::env::var(NODE).expect("told").parse().expect("a number"));
    all_work();
    println!("numa.guest.remote_pages.plain {}", remote_pages(node));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    all_work();
                }
            });
        }
        let text = ProgramText::localize(&TextOptions::new().node(node));
        done.store(true, Ordering::Relaxed);
        let text = text.expect("nothing is in the way");
        assert_eq!(text.node(), node);
        let exchanged: usize = text.parts().iter().map(|part| part.exchanged).sum();
        assert!(exchanged >= whole().len(), "{:?}", text.parts());
        assert!(text.parts().iter().all(|part| part.elsewhere == 0), "{:?}", text.parts());
    });
    all_work();
    println!("numa.guest.remote_pages.local {}", remote_pages(node));
    let (on, nowhere) = placed(whole());
    assert_eq!((on, nowhere), (vec![(node, whole().len())], 0));
    let maps = palimpsest_sys::numa::numa_maps::of_process(rustix::process::getpid()).expect("the kernel tells");
    let map = maps.iter().rev().find(|map| map.start <= whole().start).expect("mapped");
    assert!(map.present.iter().all(|(on, _)| *on == node) && map.policy.contains(&node.0.to_string()), "{map:?}");
}

/// Returns how many pages of the big text are on other nodes than `node`.
fn remote_pages(node: NodeId) -> usize {
    let remote: usize = placed(whole()).0.into_iter().filter(|(on, _)| *on != node).map(|(_, bytes)| bytes).sum();
    remote / rustix::param::page_size()
}

#[test]
fn text_for_a_full_node_is_on_others_which_is_told() {
    let Some(machine) = several_nodes() else { return };
    let of_home = |home: &NodeId| machine.node(*home);
    let small = machine.homes().iter().filter_map(of_home).min_by_key(|node| node.memory.total).expect("several");
    if small.memory.total > 128 << 20 {
        return println!("skipped: {} has too much memory to be filled", small.id);
    }
    let content = vec![7; usize::try_from(small.memory.total).expect("checked above") * 5 / 4];
    let mut fillers = Vec::new();
    // Tests that run at the same time may give memory of the node back in between, though not as much as it has.
    for bytes in [content.len(), content.len() / 4, content.len() / 4, content.len() / 4] {
        let filler = Replicated::<[u8]>::new(&content[..bytes], ReplicateOptions::new()).expect("made");
        drop(filler.get_on(small.id));
        fillers.push(filler);
        let asked = apart("text::asked_of_a_full_node", &[(NODE, &small.id.0.to_string())]);
        if !String::from_utf8_lossy(&asked.stdout).contains(HAD_ROOM) {
            return;
        }
    }
    panic!("the node never stays full");
}

/// What is said by a process that found room on the node that had been filled.
const HAD_ROOM: &str = "the node had room";

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn asked_of_a_full_node() {
    several_nodes().expect("as the parent has found");
    let node = NodeId(std::env::var(NODE).expect("told").parse().expect("a number"));
    let text = ProgramText::localize(&TextOptions::new().node(node)).expect("nothing is in the way");
    all_work();
    let (on, nowhere) = placed(whole());
    assert_eq!((on.iter().map(|(_, bytes)| bytes).sum::<usize>(), nowhere), (whole().len(), 0));
    let part = text.parts().iter().find(|part| part.span.range().contains(&whole().start)).expect("a part");
    let remote = remote_pages(node) * rustix::param::page_size();
    if remote == 0 && part.elsewhere == 0 {
        return println!("{HAD_ROOM}");
    }
    assert!(remote > 0 && part.elsewhere >= remote && part.exchanged >= whole().len(), "{on:?}: {part:?}");
    assert!(part.lacks.iter().any(|lack| lack.contains("has no room")), "{part:?}");
    println!("{} of {} KiB are elsewhere", part.elsewhere >> 10, part.exchanged >> 10);
}

#[test]
fn text_goes_from_node_to_node_while_threads_execute_it() {
    if several_nodes().is_some() {
        apart("text::moved_while_it_runs", &[]);
    }
}

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn moved_while_it_runs() {
    let machine = several_nodes().expect("as the parent has found");
    let rounds = 6;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    all_work();
                }
            });
        }
        let moved = std::panic::catch_unwind(|| {
            for node in machine.large_homes().into_iter().cycle().take(rounds) {
                let options = TextOptions::new().node(node);
                let text = ProgramText::localize(&options).expect("nothing is in the way");
                assert_eq!(placed(whole()), (vec![(node, whole().len())], 0), "{:?}", text.parts());
                // Text that is there already stays.
                let again = ProgramText::localize(&options).expect("nothing is in the way");
                assert!(again.parts().iter().all(|part| part.exchanged == 0), "{:?}", again.parts());
            }
        });
        done.store(true, Ordering::Relaxed);
        moved.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    all_work();
}
