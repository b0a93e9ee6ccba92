//! A parser that reaches one more edge with each right letter, and crashes after the last.

use std::time::Duration;

use palimpsest_forkserver::coverage;

/// The input that crashes it.
pub(crate) const CRASH: &[u8] = b"BU";

/// Heap that each run finds and changes.
const HEAP: usize = 1 << 20;

pub(crate) fn set_up() -> impl FnMut(&[u8]) {
    let mut heap = vec![1u8; HEAP];
    move |input| {
        assert!(heap.iter().step_by(1 << 12).all(|byte| *byte == 1), "a run finds what an earlier one has left");
        heap[usize::from(*input.first().unwrap_or(&0)) << 12] = 2;
        parse(input);
    }
}

fn parse(input: &[u8]) {
    coverage::hit(0);
    for (number, (byte, wanted)) in input.iter().zip(CRASH).enumerate() {
        if byte != wanted {
            break;
        }
        coverage::hit(1 + number);
    }
    match input {
        b"exit" => std::process::exit(7),
        b"hang" => std::thread::sleep(Duration::from_secs(3600)),
        b"oom" => {
            let this = std::process::id().to_string();
            // As the kernel does when memory runs out.
            let _ = std::process::Command::new("kill").args(["-KILL", &this]).status();
        }
        _ => {}
    }
    assert!(!input.starts_with(CRASH), "planted");
}
