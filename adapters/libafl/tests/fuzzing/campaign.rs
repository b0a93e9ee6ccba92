//! A fuzzer of LibAFL with a fixed seed, and small replacements for its parts.

use libafl::corpus::{Corpus, InMemoryCorpus};
use libafl::events::NopEventManager;
use libafl::executors::{Executor, ExitKind, HasObservers};
use libafl::feedbacks::{CrashFeedback, MaxMapFeedback};
use libafl::inputs::{BytesInput, HasTargetBytes, ToTargetBytesConverter};
use libafl::mutators::{HavocScheduledMutator, havoc_mutations};
use libafl::observers::StdMapObserver;
use libafl::schedulers::QueueScheduler;
use libafl::stages::StdMutationalStage;
use libafl::state::{HasCorpus, HasExecutions, HasSolutions, StdState};
use libafl::{Error, Evaluator, Fuzzer, StdFuzzer};
use libafl_bolts::ownedref::OwnedSlice;
use libafl_bolts::rands::StdRand;
use libafl_bolts::tuples::{RefIndexable, tuple_list};
use palimpsest_libafl::{FrozenForkExecutor, ResetExecutor};

/// What a campaign has found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Runs up to the crash.
    pub(crate) runs: u64,
    /// The input that crashed.
    pub(crate) crash: Vec<u8>,
    /// Inputs that reached something new, in order.
    pub(crate) corpus: Vec<Vec<u8>>,
}

/// Either executor, so that one campaign serves both.
pub(crate) enum Any<OT> {
    Frozen(FrozenForkExecutor<OT>),
    Reset(ResetExecutor<OT>),
}

impl<EM, I, OT, S, Z> Executor<EM, I, S, Z> for Any<OT>
where
    S: HasExecutions,
    Z: ToTargetBytesConverter<I, S>,
{
    fn run_target(&mut self, fuzzer: &mut Z, state: &mut S, manager: &mut EM, input: &I) -> Result<ExitKind, Error> {
        match self {
            Self::Frozen(executor) => executor.run_target(fuzzer, state, manager, input),
            Self::Reset(executor) => executor.run_target(fuzzer, state, manager, input),
        }
    }
}

impl<OT> HasObservers for Any<OT> {
    type Observers = OT;

    fn observers(&self) -> RefIndexable<&OT, OT> {
        match self {
            Self::Frozen(executor) => executor.observers(),
            Self::Reset(executor) => executor.observers(),
        }
    }

    fn observers_mut(&mut self) -> RefIndexable<&mut OT, OT> {
        match self {
            Self::Frozen(executor) => executor.observers_mut(),
            Self::Reset(executor) => executor.observers_mut(),
        }
    }
}

type Observers = (StdMapObserver<'static, u8, false>, ());

/// Fuzzes from a fixed seed until the first crash, or for `most` runs.
pub(crate) fn campaign(
    observer: StdMapObserver<'static, u8, false>,
    most: u64,
    executor: impl FnOnce(Observers) -> Any<Observers>,
) -> Outcome {
    let mut feedback = MaxMapFeedback::new(&observer);
    let mut objective = CrashFeedback::new();
    let (corpus, solutions) = (InMemoryCorpus::<BytesInput>::new(), InMemoryCorpus::new());
    let mut state =
        StdState::new(StdRand::with_seed(1), corpus, solutions, &mut feedback, &mut objective).expect("a state");
    let mut fuzzer = StdFuzzer::new(QueueScheduler::new(), feedback, objective);
    let mut manager = NopEventManager::new();
    let mut executor = executor(tuple_list!(observer));
    let mut stages = tuple_list!(StdMutationalStage::new(HavocScheduledMutator::new(havoc_mutations())));
    let seed = BytesInput::new(b"AAAA".to_vec());
    fuzzer.evaluate_input(&mut state, &mut executor, &mut manager, &seed).expect("the seed runs");
    while state.solutions().count() == 0 && *state.executions() < most {
        fuzzer.fuzz_one(&mut stages, &mut executor, &mut state, &mut manager).expect("a round");
    }
    let bytes = |corpus: &InMemoryCorpus<BytesInput>| -> Vec<Vec<u8>> {
        let input = |id| corpus.cloned_input_for_id(id).expect("an input").target_bytes().to_vec();
        corpus.ids().map(input).collect()
    };
    Outcome {
        runs: *state.executions(),
        crash: bytes(state.solutions()).into_iter().next().unwrap_or_default(),
        corpus: bytes(state.corpus()),
    }
}

/// A state that counts runs and nothing else.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) executions: u64,
}

impl HasExecutions for Recorder {
    fn executions(&self) -> &u64 {
        &self.executions
    }

    fn executions_mut(&mut self) -> &mut u64 {
        &mut self.executions
    }
}

/// A fuzzer that hands inputs over as they are and does nothing else.
pub(crate) struct Bytes;

impl<S> ToTargetBytesConverter<BytesInput, S> for Bytes {
    fn convert_to_target_bytes<'a>(&mut self, _: &mut S, input: &'a BytesInput) -> OwnedSlice<'a, u8> {
        input.target_bytes()
    }
}
