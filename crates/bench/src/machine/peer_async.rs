//! The peer `async-ebpf`. It handles signals of the whole process: open it only in a process of its own.

use std::cell::RefCell;
use std::future::{Future, ready};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use async_ebpf::program::{
    DummyProgramEventListener, GlobalEnv, PreemptionEnabled, Program, ProgramLoader, ThreadEnv, TimesliceConfig,
    Timeslicer,
};
use object::write::{Object, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope};
use rand_08::SeedableRng;
use rand_08::rngs::SmallRng;

use crate::PlaceError;

/// How often its timer looks for programs that run for long, as in its own measurements.
const TIMER: Duration = Duration::from_millis(10);

/// When a program gives way, also as there.
const SLICES: TimesliceConfig = TimesliceConfig {
    max_run_time_before_throttle: Duration::from_secs(10),
    max_run_time_before_yield: Duration::from_millis(5),
    throttle_duration: Duration::from_millis(1),
};

/// The section that is the program.
const ENTRY: &str = "program";

/// Waits and works at once, in the thread that asks.
struct AtOnce;

impl Timeslicer for AtOnce {
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> {
        thread::sleep(duration);
        ready(())
    }

    fn yield_now(&self) -> impl Future<Output = ()> {
        ready(())
    }

    fn run_blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> impl Future<Output = T> {
        ready(work())
    }
}

fn refused(len: usize, reason: impl ToString) -> PlaceError {
    PlaceError::Peer { peer: "async-ebpf", len, reason: reason.to_string() }
}

/// What programs of `async-ebpf` share.
pub(crate) struct AsyncLoader {
    loader: ProgramLoader,
    /// Where it puts things, as it likes it: by chance.
    numbers: RefCell<SmallRng>,
    thread: ThreadEnv,
    timer: Rc<PreemptionEnabled>,
}

impl AsyncLoader {
    /// Without functions of the host. From now on the process handles SIGSEGV, SIGBUS and SIGUSR1 as the peer does.
    pub(crate) fn new() -> Self {
        // SAFETY: the process may handle these signals: `suites::bpf` opens this peer only in a helper, in which
        // nothing else handles them.
        let all = unsafe { GlobalEnv::new() };
        let thread = all.init_thread(TIMER);
        let mut numbers = SmallRng::seed_from_u64(27_112_026);
        let loader = ProgramLoader::new(&mut numbers, Arc::new(DummyProgramEventListener), &[]);
        Self { loader, numbers: numbers.into(), thread, timer: Rc::new(PreemptionEnabled::new(thread)) }
    }

    /// Loads the object that [`as_object`] has made of a program, and runs it once with so many bytes of context: the
    /// peer compiles a program when it is first run.
    pub(crate) fn load(&self, object: &[u8], context: usize) -> Result<AsyncProgram, PlaceError> {
        let loaded = self.loader.load(&mut *self.numbers.borrow_mut(), object);
        let loaded = loaded.map_err(|error| refused(object.len(), error))?;
        let program = loaded.pin_to_current_thread(self.thread);
        let program = AsyncProgram { program, timer: Rc::clone(&self.timer) };
        program.run_compiled(&vec![0; context])?;
        Ok(program)
    }
}

/// A program of `async-ebpf`.
pub(crate) struct AsyncProgram {
    program: Program,
    timer: Rc<PreemptionEnabled>,
}

impl AsyncProgram {
    /// Runs it on a copy of the context.
    #[inline]
    pub(crate) fn run_compiled(&self, context: &[u8]) -> Result<u64, PlaceError> {
        let run = pin!(self.program.run(&SLICES, &AtOnce, ENTRY, &mut [], context, &self.timer));
        match run.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(result)) => Ok(result.cast_unsigned()),
            Poll::Ready(Err(error)) => Err(refused(context.len(), error)),
            Poll::Pending => Err(refused(context.len(), "it waits for something")),
        }
    }
}

/// Returns the object file with the program, which is what the peer loads.
pub(crate) fn as_object(bytes: &[u8]) -> Result<Vec<u8>, PlaceError> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
    let section = object.add_section(Vec::new(), ENTRY.into(), SectionKind::Text);
    object.append_section_data(section, bytes, 8);
    object.add_symbol(Symbol {
        name: ENTRY.into(),
        value: 0,
        size: bytes.len() as u64,
        kind: SymbolKind::Text,
        scope: SymbolScope::Linkage,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    });
    object.write().map_err(|error| refused(bytes.len(), error))
}
