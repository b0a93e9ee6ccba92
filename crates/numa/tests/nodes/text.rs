//! The program's own text.

use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_numa::{NodeId, ProgramText, TextOptions};

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
    });
    all_work();
    let (on, nowhere) = placed(whole());
    assert_eq!((on, nowhere), (vec![(node, whole().len())], 0));
    let maps = palimpsest_sys::numa::numa_maps::of_process(rustix::process::getpid()).expect("the kernel tells");
    let map = maps.iter().rev().find(|map| map.start <= whole().start).expect("mapped");
    assert!(map.present.iter().all(|(on, _)| *on == node) && map.policy.contains(&node.0.to_string()), "{map:?}");
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
