//! Program packs: a function is staged, finalized, called, and found by its address.

use std::sync::OnceLock;

use palimpsest::{Packs, Program};
use palimpsest_examples::ADD_ONE;
use palimpsest_text::{Fault, Part, Parts, Size, Working};

/// A compiler would write addresses into its code here.
fn relocate(image: &mut [u8], _address: usize) {
    image.copy_from_slice(ADD_ONE);
}

fn load(packs: &Packs) -> Result<Program, Box<dyn std::error::Error>> {
    // ANCHOR: load
    // A place with its final address, and a private image to write to.
    let mut staged = packs.stage(ADD_ONE.len(), 16)?;
    let address = staged.address();
    relocate(staged.image(), address.get());
    let program = staged.finalize()?;

    // SAFETY: the bytes are a function of that type, and `program` outlives the call.
    let f = unsafe { program.function::<extern "C" fn(u64) -> u64>() };
    assert_eq!(f(41), 42);
    // ANCHOR_END: load
    Ok(program)
}

fn together(packs: &Packs) -> Result<(), Box<dyn std::error::Error>> {
    // ANCHOR: together
    // Both have addresses before a byte of either is written.
    let mut caller = packs.stage(64, 16)?;
    let mut callee = packs.stage(ADD_ONE.len(), 16)?;
    let distance = callee.address().get().wrapping_sub(caller.address().get()) as isize;
    caller.image()[..8].copy_from_slice(&(distance as i64).to_le_bytes()); // a compiler writes a call
    callee.image().copy_from_slice(ADD_ONE);
    let programs = packs.finalize_all(vec![caller, callee])?;
    // ANCHOR_END: together
    assert_eq!(programs.len(), 2);
    assert!(i32::try_from(distance).is_ok(), "one region: always in reach");
    Ok(())
}

fn with_its_data(packs: &Packs) -> Result<(), Box<dyn std::error::Error>> {
    // ANCHOR: allocate
    let size = |len| Size { len, align: 16 };
    let sizes = Parts { code: size(400), read_only: size(64), read_write: size(8) };
    let mut linked = packs.allocate(sizes, Working::Private)?;
    // All addresses are final: a linker writes distances between them.
    let (runs_at, table) = (linked.range(Part::Code).start, linked.range(Part::ReadOnly));
    relocate(&mut linked.working(Part::Code)?[..ADD_ONE.len()], runs_at.abs_diff(table.start));
    linked.working(Part::ReadOnly)?[..5].copy_from_slice(b"table");
    // The guess was too long: the rest is free for others at once.
    linked.shrink(Part::Code, ADD_ONE.len())?;
    let mut done = packs.finalize_allocations(vec![linked])?;

    // Held by a value, as programs are, or known by addresses alone:
    let parts = done.remove(0).keep();
    let found = packs.lookup(parts.code.start + 3).ok_or("nothing is there")?;
    assert_eq!(found.parts(), Some(&parts));
    drop(found);
    packs.release(parts.code.start)?; // or by the first address of another part
    // ANCHOR_END: allocate
    Ok(())
}

// ANCHOR: faults
static PACKS: OnceLock<Packs> = OnceLock::new();

/// For a handler of SIGSEGV: returns whether the instruction at `program_counter`, from the signal's context, may
/// fault, and moves it to where the fault table of `Staged::set_faults` goes on. Takes no lock.
fn mend(program_counter: &mut usize) -> bool {
    let found = PACKS.get().and_then(|packs| packs.lookup(*program_counter));
    let landing = found.and_then(|found| found.landing());
    if let Some(landing) = landing {
        *program_counter = landing.get();
    }
    landing.is_some()
}
// ANCHOR_END: faults

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let packs = Packs::new()?;
    let program = load(&packs)?;
    assert!(packs.lookup(program.address().get()).is_some());
    // ANCHOR: drop
    drop(program); // retired: a later reclaim makes it traps, once nobody can be inside, and frees it
    packs.reclaim()?;
    // ANCHOR_END: drop
    together(&packs)?;
    with_its_data(&packs)?;

    let mut staged = packs.stage(ADD_ONE.len(), 16)?;
    staged.image().copy_from_slice(ADD_ONE);
    staged.set_faults(vec![Fault { offset: 0, landing: 4 }])?;
    let program = staged.finalize()?;
    assert!(PACKS.set(packs).is_ok());
    let mut program_counter = program.address().get();
    assert!(mend(&mut program_counter) && program_counter == program.address().get() + 4);
    assert!(!mend(&mut program_counter), "no fault is expected there");
    Ok(())
}
