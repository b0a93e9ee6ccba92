//! The public conformance vectors, each run in every way.
//!
//! They lie beside the repository (`../shared/bpf/conformance.txt`), or where PALIMPSEST_BPF_VECTORS says. A line has a
//! name, the expected `r0`, memory, and byte code. `r1` points to the memory, `r2` is its length, and helper 5 returns
//! its first argument.

#[path = "../common/mod.rs"]
mod common;
mod groups;
mod model;
mod vectors;

use palimpsest_bpf::interp::{HelperError, Helpers, Interpreter, Memory};
use palimpsest_bpf::jit::{Dispatcher, Helper, HelperTable};
use palimpsest_bpf::verify::{ContextAccess, Contract, Trust};
use palimpsest_bpf::{Code, Program, VerifiedProgram};
use palimpsest_text::Packs;

use zerocopy::IntoBytes;

use groups::programs;
use vectors::{Vector, vectors};

use common::packs;

/// Where the memory of a vector lies in the interpreter.
const MEMORY: u64 = 0x10_0000;

struct Host;

impl Helpers for Host {
    fn call(&mut self, id: i32, arguments: [u64; 5], _memory: &mut Memory<'_>) -> Result<u64, HelperError> {
        if id == 5 { Ok(arguments[0]) } else { Err(HelperError::Unknown) }
    }
}

extern "C" fn identity(value: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    value
}

extern "C" fn dispatch(value: u64, _: u64, _: u64, _: u64, _: u64, id: u64) -> u64 {
    if id == 5 { value } else { u64::MAX }
}

impl HelperTable for Host {
    fn helper(&self, id: i32) -> Option<Helper> {
        (id == 5).then_some(identity)
    }

    fn dispatcher(&self) -> Option<Dispatcher> {
        Some(dispatch)
    }
}

fn interpreted(vector: &Vector) -> Result<u64, String> {
    let code = Code::new(&vector.code).map_err(|error| error.to_string())?;
    let mut bytes = vector.memory.clone();
    let mut memory = Memory::new();
    memory.add(MEMORY, &mut bytes).map_err(|error| error.to_string())?;
    let arguments = [if vector.memory.is_empty() { 0 } else { MEMORY }, vector.memory.len() as u64, 0, 0, 0];
    Interpreter::default().run(&code, arguments, &mut memory, &mut Host).map_err(|error| error.to_string())
}

/// Runs it compiled. Keeps the program: emulators may run stale code where new code replaces old.
fn compiled(packs: &Packs, vector: &Vector, kept: &mut Vec<Program>) -> Result<u64, String> {
    let code = Code::new(&vector.code).map_err(|error| error.to_string())?;
    let program = Program::load(packs, &code, &Host).map_err(|error| format!("{error:?}"))?;
    let mut bytes = vector.memory.clone();
    let arguments = [bytes.as_mut_ptr() as u64, bytes.len() as u64, 0, 0, 0];
    // SAFETY: 1. the interpreter has run it to its end within this memory. 2. the helpers are safe functions.
    let result = unsafe { program.run(arguments) };
    kept.push(program);
    Ok(result)
}

/// Runs it compiled, with all guards against programs of untrusted authors. Keeps the program, too.
fn guarded(packs: &Packs, vector: &Vector, kept: &mut Vec<VerifiedProgram>) -> Result<u64, String> {
    let code = Code::new(&vector.code).map_err(|error| error.to_string())?;
    let contract = Contract::new().context(vector.memory.len() as u32, ContextAccess::Write).helper(5, 1);
    let verified = contract.trust(Trust::None).verify(code).map_err(|error| error.to_string())?;
    let program = VerifiedProgram::load(packs, &verified, &Host).map_err(|error| format!("{error:?}"))?;
    // Words, since atomic operations want them aligned.
    let mut words = vec![0_u64; vector.memory.len().div_ceil(8)];
    let bytes = &mut words.as_mut_bytes()[..vector.memory.len()];
    bytes.copy_from_slice(&vector.memory);
    let result = program.run(bytes).map_err(|error| error.to_string());
    kept.push(program);
    result
}

/// Returns the vectors for which `run` gives something else than expected.
fn wrong(vectors: &[Vector], mut run: impl FnMut(&Vector) -> Result<u64, String>) -> Vec<String> {
    let wrong = vectors.iter().filter_map(|vector| {
        let got = run(vector);
        (got != Ok(vector.expected)).then(|| format!("{}: {got:x?}, not {:#x}", vector.name, vector.expected))
    });
    wrong.collect()
}

#[test]
fn the_interpreter_gives_what_the_vectors_say() {
    let Some(vectors) = vectors() else { return };
    let wrong = wrong(&vectors, interpreted);
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), vectors.len());
}

#[test]
fn compiled_programs_give_what_the_vectors_say() {
    let Some(vectors) = vectors() else { return };
    let Some(packs) = packs() else { return };
    let mut kept = Vec::new();
    let wrong = wrong(&vectors, |vector| compiled(&packs, vector, &mut kept));
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), vectors.len());
}

#[test]
fn the_interpreter_gives_what_the_model_says() {
    let programs = programs();
    let wrong = wrong(&programs, interpreted);
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), programs.len());
}

#[test]
fn compiled_programs_give_what_the_model_says() {
    let Some(packs) = packs() else { return };
    let programs = programs();
    let mut kept = Vec::new();
    let wrong = wrong(&programs, |vector| compiled(&packs, vector, &mut kept));
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), programs.len());
}

/// One of how many of the model's programs is compiled with guards, too.
const GUARDED: &str = "PALIMPSEST_GUARDED_EVERY";

#[test]
fn guarded_programs_give_what_vectors_and_model_say() {
    let Some(packs) = packs() else { return };
    let every = std::env::var(GUARDED).map_or(1, |told| told.parse().expect("a number above 0"));
    let programs: Vec<Vector> = vectors().into_iter().flatten().chain(programs().into_iter().step_by(every)).collect();
    let mut kept = Vec::new();
    let wrong = wrong(&programs, |vector| guarded(&packs, vector, &mut kept));
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), programs.len());
}

#[test]
fn every_vector_is_verified() {
    let Some(vectors) = vectors() else { return };
    let refused = vectors.iter().filter_map(|vector| {
        let code = Code::new(&vector.code).expect("its structure is right");
        let contract = Contract::new().context(vector.memory.len() as u32, ContextAccess::Write).helper(5, 1);
        let error = contract.verify(code).err()?;
        Some(format!("{}: {error}", vector.name))
    });
    let refused: Vec<String> = refused.collect();
    assert!(refused.is_empty(), "{} of {}: {refused:#?}", refused.len(), vectors.len());
}
