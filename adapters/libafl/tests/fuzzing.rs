//! Both executors fuzz the same target from the same seed: they must find the same corpus, and the planted crash, in
//! the same number of runs.

#[path = "fuzzing/campaign.rs"]
mod campaign;
#[path = "fuzzing/parser.rs"]
mod parser;

use std::time::Duration;

use libafl::executors::{Executor, ExitKind, HasTimeout, SetTimeout};
use libafl::inputs::BytesInput;
use libafl_bolts::tuples::tuple_list;
use palimpsest_libafl::{FrozenForkExecutor, Host, HostOptions, Mode, ResetExecutor, map_observer};

use campaign::{Any, Outcome, Recorder, campaign};

/// Time limit for a run: long enough for a busy machine, so that it ends only what hangs.
const LONG: Duration = Duration::from_secs(600);
/// Runs within which the crash must be found.
const MOST_RUNS: u64 = 50_000;

// ANCHOR: host
fn host(mode: Mode) -> Host {
    // SAFETY: (1) glibc's allocator, and a parser that keeps off memory management; (2) it starts no thread; (3)
    // LibAFL's observers rest while a target runs.
    unsafe { Host::start(HostOptions::new(mode), parser::set_up) }.expect("a server")
}

fn frozen() -> Outcome {
    let mut host = host(Mode::frozen());
    let observer = map_observer(&mut host, "edges").expect("the map");
    campaign(observer, MOST_RUNS, |observers| {
        Any::Frozen(FrozenForkExecutor::new(host, observers, Duration::from_secs(600)).expect("the mode fits"))
    })
}
// ANCHOR_END: host

fn reset() -> Outcome {
    let mut host = host(Mode::reset());
    let observer = map_observer(&mut host, "edges").expect("the map");
    campaign(observer, MOST_RUNS, |observers| {
        Any::Reset(ResetExecutor::new(host, observers, Duration::from_secs(600)).expect("the mode fits"))
    })
}

fn both_find_the_same() {
    let frozen = frozen();
    println!("frozen: crash after {} runs, corpus of {}", frozen.runs, frozen.corpus.len());
    assert!(frozen.runs < MOST_RUNS, "the crash was not found in {MOST_RUNS} runs");
    assert!(frozen.crash.starts_with(parser::CRASH), "{:?}", frozen.crash);
    assert_eq!(
        frozen.corpus.len(),
        parser::CRASH.len(),
        "the seed, and one more for each right letter but the last: {:?}",
        frozen.corpus
    );
    let reset = reset();
    assert!(frozen == reset, "frozen {frozen:?}\nreset {reset:?}");
}

/// Every way to end is reported as its own exit kind of LibAFL.
fn endings_are_told_apart() {
    for mode in [Mode::frozen(), Mode::reset()] {
        let mut recorder = Recorder::default();
        let mut check = |executor: &mut dyn FnMut(&mut Recorder, &[u8], Duration) -> ExitKind| {
            for (input, kind) in [
                (&b"harmless"[..], ExitKind::Ok),
                (b"exit", ExitKind::Crash),
                (parser::CRASH, ExitKind::Crash),
                (b"hang", ExitKind::Timeout),
                (b"oom", ExitKind::Oom),
                (b"", ExitKind::Ok),
            ] {
                let limit = if kind == ExitKind::Timeout { Duration::from_millis(300) } else { LONG };
                assert_eq!(executor(&mut recorder, input, limit), kind, "{input:?}");
            }
        };
        let limit = Duration::from_secs(1);
        let is_reset = matches!(mode, Mode::Reset(_));
        let host = host(mode);
        if is_reset {
            let mut executor =
                ResetExecutor::new(host, tuple_list!(), limit).expect("the mode fits").crash_exit_code(7);
            check(&mut |recorder, input, limit| {
                executor.set_timeout(limit);
                run(&mut executor, recorder, input)
            });
        } else {
            let mut executor =
                FrozenForkExecutor::new(host, tuple_list!(), limit).expect("the mode fits").crash_exit_code(7);
            check(&mut |recorder, input, limit| {
                executor.set_timeout(limit);
                run(&mut executor, recorder, input)
            });
        }
        assert_eq!(recorder.executions, 6);
    }
}

fn run<E>(executor: &mut E, recorder: &mut Recorder, input: &[u8]) -> ExitKind
where
    E: Executor<(), BytesInput, Recorder, campaign::Bytes>,
{
    executor.run_target(&mut campaign::Bytes, recorder, &mut (), &BytesInput::new(input.to_vec())).expect("a run")
}

fn an_executor_refuses_the_mode_of_the_other() {
    let error = ResetExecutor::new(host(Mode::Plain), tuple_list!(), Duration::from_secs(1)).expect_err("refused");
    assert!(error.to_string().contains("Mode::Reset"), "{error}");
    let error =
        FrozenForkExecutor::new(host(Mode::reset()), tuple_list!(), Duration::from_secs(1)).expect_err("refused");
    assert!(error.to_string().contains("Mode::Frozen"), "{error}");
}

fn the_timeout_can_be_changed() {
    let mut executor = FrozenForkExecutor::new(host(Mode::Plain), tuple_list!(), Duration::from_secs(1)).expect("fits");
    executor.set_timeout(Duration::from_secs(2));
    assert_eq!(executor.timeout(), Duration::from_secs(2));
}

fn main() {
    let tests: [(&str, fn()); 4] = [
        ("both_find_the_same", both_find_the_same),
        ("endings_are_told_apart", endings_are_told_apart),
        ("an_executor_refuses_the_mode_of_the_other", an_executor_refuses_the_mode_of_the_other),
        ("the_timeout_can_be_changed", the_timeout_can_be_changed),
    ];
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for (name, test) in tests {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
            test();
            println!("test {name} ... ok");
        }
    }
}
