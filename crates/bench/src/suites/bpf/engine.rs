//! Who takes part: engines that load byte code and run it.
//!
//! Each has its programs in its own types, so that a call reaches the engine as its users make it; the suite sees a
//! [`Contest`], whose methods do many loads or calls at once.

use std::hint::black_box;

use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers};
use palimpsest_bpf::{Code, Packs, Program, VerifiedProgram};

use super::source::Source;
pub(super) use super::source::{Refusal, contract};
use crate::PlaceError;
use crate::harness::Contestant;
use crate::harness::record::Unit;
#[cfg(palimpsest_ubpf)]
use crate::machine::UbpfProgram;
#[cfg(feature = "peers")]
use crate::machine::{AsyncLoader, AsyncProgram, RbpfProgram, SbpfLoader, SbpfProgram, as_object};

/// All contestants. The name is the last part of an entry's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Palimpsest's compiler, into packs, without verification.
    Jit,
    /// The same with verification.
    VerifyJit,
    /// Palimpsest's reference interpreter.
    Interp,
    /// The crate `rbpf`, compiled.
    Rbpf,
    /// The crate `rbpf`, interpreted.
    RbpfInterp,
    /// The crate `solana-sbpf`: verified and compiled.
    SolanaSbpf,
    /// The same without translation of addresses, meter and disguise of constants.
    SolanaSbpfBare,
    /// uBPF, compiled.
    Ubpf,
    /// The crate `async-ebpf`.
    AsyncEbpf,
}

impl Who {
    pub(super) const ALL: [Self; 9] = [
        Self::Jit,
        Self::VerifyJit,
        Self::Interp,
        Self::Rbpf,
        Self::RbpfInterp,
        Self::SolanaSbpf,
        Self::SolanaSbpfBare,
        Self::Ubpf,
        Self::AsyncEbpf,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Jit => "jit",
            Self::VerifyJit => "verify_jit",
            Self::Interp => "interp",
            Self::Rbpf => "rbpf",
            Self::RbpfInterp => "rbpf_interp",
            Self::SolanaSbpf => "solana_sbpf",
            Self::SolanaSbpfBare => "solana_sbpf_bare",
            Self::Ubpf => "ubpf",
            Self::AsyncEbpf => "async_ebpf",
        }
    }

    /// The one with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|who| who.name() == name)
    }

    /// Returns what it does when it loads a program.
    pub(super) fn note(self) -> &'static str {
        match self {
            Self::Jit => "decoded, structure checked, compiled, placed",
            Self::VerifyJit => "the same, and verified in between",
            Self::Interp => "decoded, structure checked",
            Self::Rbpf => "structure checked, compiled for memory of its own, which is writable and executable",
            Self::RbpfInterp => "structure checked",
            Self::SolanaSbpf => "structure checked, compiled with its checks of addresses and its meter",
            Self::SolanaSbpfBare => "structure checked, compiled without these",
            Self::Ubpf => "structure checked, compiled, in mappings of its own",
            Self::AsyncEbpf => "an object read, its accesses analysed, compiled when first run, which is included",
        }
    }

    /// Whether it changes the process that it is in, and must have one of its own.
    pub(super) fn lives_apart(self) -> bool {
        self == Self::AsyncEbpf
    }

    /// Whether a program gets a copy of its context, and what it writes there is lost.
    pub(super) fn copies_context(self) -> bool {
        self == Self::AsyncEbpf
    }

    /// How many programs are loaded where memory is counted: as many as fit under the usual `vm.max_map_count` with
    /// three mappings each, and fewer of those that need more, or hundreds of KiB.
    pub(super) fn counted_programs(self) -> u64 {
        if matches!(self, Self::Ubpf | Self::AsyncEbpf) { 1000 } else { 20_000 }
    }

    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::Jit | Self::VerifyJit | Self::Interp)
    }

    /// Whether its code is in packs.
    fn is_packed(self) -> bool {
        matches!(self, Self::Jit | Self::VerifyJit)
    }

    /// Returns this one's figure among `all`; those in packs are compared with the best of the others' compilers.
    pub(super) fn contestant(self, all: &[Self], unit: Unit, id: impl Fn(Self) -> String) -> Contestant {
        let contestant = Contestant::new(id(self), unit);
        if !self.is_packed() {
            return if self.is_ours() { contestant.ours() } else { contestant };
        }
        let rivals = all.iter().filter(|who| !who.is_ours() && **who != Self::RbpfInterp);
        contestant.in_packs().against_best(rivals.map(|who| id(*who)))
    }

    /// Returns an error if this build does not contain it.
    pub(super) fn check_built(self) -> Result<(), PlaceError> {
        match self {
            Self::Ubpf if !cfg!(palimpsest_ubpf) => Err(PlaceError::NoUbpf),
            Self::Jit | Self::VerifyJit | Self::Interp | Self::Ubpf => Ok(()),
            _ if cfg!(feature = "peers") => Ok(()),
            _ => Err(PlaceError::NotBuilt { peer: self.name() }),
        }
    }

    /// Returns programs in the form in which it takes them.
    pub(super) fn prepared(self, sources: Vec<Source>) -> Result<Vec<Source>, Refusal> {
        match self {
            #[cfg(feature = "peers")]
            Self::AsyncEbpf => {
                let object = |source: Source| Ok(Source { bytes: as_object(&source.bytes)?, ..source });
                sources.into_iter().map(object).collect()
            }
            _ => Ok(sources),
        }
    }

    /// An engine without programs.
    pub(super) fn open(self) -> Result<Box<dyn Contest>, Refusal> {
        self.check_built()?;
        Ok(match self {
            Self::Jit => Running::boxed(Jit(Packs::new()?)),
            Self::VerifyJit => Running::boxed(VerifyJit(Packs::new()?)),
            Self::Interp => Running::boxed(Interp),
            #[cfg(feature = "peers")]
            Self::Rbpf => Running::boxed(Rbpf::Compiled),
            #[cfg(feature = "peers")]
            Self::RbpfInterp => Running::boxed(Rbpf::Interpreted),
            #[cfg(feature = "peers")]
            Self::SolanaSbpf => Running::boxed(Sbpf(SbpfLoader::new())),
            #[cfg(feature = "peers")]
            Self::SolanaSbpfBare => Running::boxed(Sbpf(SbpfLoader::bare())),
            #[cfg(palimpsest_ubpf)]
            Self::Ubpf => Running::boxed(Ubpf),
            #[cfg(feature = "peers")]
            Self::AsyncEbpf => Running::boxed(AsyncEbpf(AsyncLoader::new())),
            #[cfg(not(all(feature = "peers", palimpsest_ubpf)))]
            _ => unreachable!("{self:?} is not in this build"),
        })
    }
}

/// An engine with programs.
pub(super) trait Contest {
    /// Loads all of these besides those that it has.
    fn load(&mut self, sources: &[Source]) -> Result<(), Refusal>;

    /// Ends all programs.
    fn clear(&mut self) -> Result<(), Refusal>;

    /// Loads each of these, which have no context, and ends it before the next.
    fn load_and_free(&mut self, programs: &mut dyn Iterator<Item = &[u8]>) -> Result<(), Refusal>;

    /// Calls each program once. Returns the sum of the results.
    fn pass(&self, context: &mut [u8]) -> Result<u64, Refusal>;

    /// Calls the first program this many times. Returns the last result.
    fn call(&self, times: u64, context: &mut [u8]) -> Result<u64, Refusal>;
}

/// How one engine does it.
trait Engine {
    type Program;

    fn load(&self, bytes: &[u8], context: u32) -> Result<Self::Program, Refusal>;

    fn run(&self, program: &Self::Program, context: &mut [u8]) -> Result<u64, Refusal>;

    /// Finishes what ending programs left for later.
    fn settle(&self) -> Result<(), Refusal> {
        Ok(())
    }
}

struct Running<E: Engine> {
    engine: E,
    programs: Vec<E::Program>,
}

impl<E: Engine + 'static> Running<E> {
    fn boxed(engine: E) -> Box<dyn Contest> {
        Box::new(Self { engine, programs: Vec::new() })
    }
}

impl<E: Engine> Contest for Running<E> {
    fn load(&mut self, sources: &[Source]) -> Result<(), Refusal> {
        self.programs.reserve(sources.len());
        for source in sources {
            self.programs.push(self.engine.load(&source.bytes, source.context)?);
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<(), Refusal> {
        self.programs.clear();
        self.engine.settle()
    }

    fn load_and_free(&mut self, programs: &mut dyn Iterator<Item = &[u8]>) -> Result<(), Refusal> {
        for bytes in programs {
            self.engine.load(bytes, 0)?;
        }
        self.engine.settle()
    }

    fn pass(&self, context: &mut [u8]) -> Result<u64, Refusal> {
        let mut sum = 0_u64;
        for program in &self.programs {
            sum = sum.wrapping_add(self.engine.run(program, context)?);
        }
        Ok(sum)
    }

    fn call(&self, times: u64, context: &mut [u8]) -> Result<u64, Refusal> {
        let program = self.programs.first().ok_or("no program is loaded")?;
        let mut last = 0;
        for _ in 0..times {
            // This compiler knows nothing of what runs: it leaves the calls as they are.
            last = self.engine.run(program, context)?;
        }
        Ok(black_box(last))
    }
}

struct Jit(Packs);

impl Engine for Jit {
    type Program = Program;

    fn load(&self, bytes: &[u8], _context: u32) -> Result<Program, Refusal> {
        Ok(Program::load(&self.0, &Code::new(bytes)?, &())?)
    }

    /// Safe code does not run unverified programs. The calls to measure are those of [`VerifyJit`], whose code is the
    /// same.
    fn run(&self, _program: &Program, _context: &mut [u8]) -> Result<u64, Refusal> {
        Err("programs that were not verified are loaded and not run".into())
    }

    fn settle(&self) -> Result<(), Refusal> {
        self.0.reclaim()?;
        Ok(())
    }
}

struct VerifyJit(Packs);

impl Engine for VerifyJit {
    type Program = VerifiedProgram;

    fn load(&self, bytes: &[u8], context: u32) -> Result<VerifiedProgram, Refusal> {
        let verified = contract(context).verify(Code::new(bytes)?)?;
        Ok(VerifiedProgram::load(&self.0, &verified, &())?)
    }

    #[inline(always)]
    fn run(&self, program: &VerifiedProgram, context: &mut [u8]) -> Result<u64, Refusal> {
        Ok(program.run(context)?)
    }

    fn settle(&self) -> Result<(), Refusal> {
        self.0.reclaim()?;
        Ok(())
    }
}

struct Interp;

impl Engine for Interp {
    type Program = Code;

    fn load(&self, bytes: &[u8], _context: u32) -> Result<Code, Refusal> {
        Ok(Code::new(bytes)?)
    }

    fn run(&self, program: &Code, context: &mut [u8]) -> Result<u64, Refusal> {
        /// The address of the context.
        const PLACE: u64 = 0x10_0000;
        let mut memory = Memory::new();
        let arguments = [PLACE, context.len() as u64, 0, 0, 0];
        memory.add(PLACE, context)?;
        Ok(Interpreter::default().run(program, arguments, &mut memory, &mut NoHelpers)?)
    }
}

#[cfg(feature = "peers")]
enum Rbpf {
    Compiled,
    Interpreted,
}

#[cfg(feature = "peers")]
impl Engine for Rbpf {
    type Program = RbpfProgram;

    fn load(&self, bytes: &[u8], _context: u32) -> Result<RbpfProgram, Refusal> {
        let mut program = RbpfProgram::new(bytes)?;
        if matches!(self, Self::Compiled) {
            program.compile()?;
        }
        Ok(program)
    }

    #[inline(always)]
    fn run(&self, program: &RbpfProgram, context: &mut [u8]) -> Result<u64, Refusal> {
        match self {
            Self::Compiled => Ok(program.run_compiled(context)?),
            Self::Interpreted => Ok(program.interpret(context)?),
        }
    }
}

#[cfg(feature = "peers")]
struct Sbpf(SbpfLoader);

#[cfg(feature = "peers")]
impl Engine for Sbpf {
    type Program = SbpfProgram;

    fn load(&self, bytes: &[u8], _context: u32) -> Result<SbpfProgram, Refusal> {
        Ok(self.0.load(bytes)?)
    }

    #[inline(always)]
    fn run(&self, program: &SbpfProgram, context: &mut [u8]) -> Result<u64, Refusal> {
        Ok(program.run_compiled(context)?)
    }
}

#[cfg(palimpsest_ubpf)]
struct Ubpf;

#[cfg(palimpsest_ubpf)]
impl Engine for Ubpf {
    type Program = UbpfProgram;

    fn load(&self, bytes: &[u8], _context: u32) -> Result<UbpfProgram, Refusal> {
        Ok(UbpfProgram::new(bytes)?)
    }

    #[inline(always)]
    fn run(&self, program: &UbpfProgram, context: &mut [u8]) -> Result<u64, Refusal> {
        Ok(program.run_compiled(context))
    }
}

#[cfg(feature = "peers")]
struct AsyncEbpf(AsyncLoader);

#[cfg(feature = "peers")]
impl Engine for AsyncEbpf {
    type Program = AsyncProgram;

    fn load(&self, object: &[u8], context: u32) -> Result<AsyncProgram, Refusal> {
        Ok(self.0.load(object, context as usize)?)
    }

    #[inline(always)]
    fn run(&self, program: &AsyncProgram, context: &mut [u8]) -> Result<u64, Refusal> {
        Ok(program.run_compiled(context)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_engines_in_this_process_return_the_same() -> Result<(), Refusal> {
        let sources =
            [Source::trivial()?, Source::fnv1k()?, Source::bubble64()?, Source::filter()?, Source::generated(100, 1)?];
        // Unverified programs are loaded and not run.
        let runs = |who: &Who| *who != Who::Jit && !who.lives_apart() && who.check_built().is_ok();
        for who in Who::ALL.into_iter().filter(runs) {
            for source in &sources {
                let mut engine = who.open()?;
                engine.load(&who.prepared(vec![source.clone()])?)?;
                assert_eq!(engine.call(1, &mut source.fresh_context())?, source.expected()?, "{who:?}: {source:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn who_is_not_in_this_build_says_so() {
        for who in Who::ALL.into_iter().filter(|who| who.check_built().is_err()) {
            let refusal = who.open().err().expect("it is not there").to_string();
            assert!(refusal.contains("is not in this build: run `cargo xtask bench`"), "{refusal}");
        }
    }
}
