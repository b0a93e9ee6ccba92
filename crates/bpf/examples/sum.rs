//! Assembles a program, verifies it, and runs it compiled and interpreted.

use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers};
use palimpsest_bpf::verify::{ContextAccess, Contract};
use palimpsest_bpf::{Code, VerifiedProgram, asm};
use palimpsest_text::Packs;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The sum of the first ten bytes of the context.
    let bytes = asm::assemble(
        "       r0 = 0
                r2 = 10
         next:  r3 = *(u8 *)(r1 + 0)
                r0 += r3
                r1 += 1
                r2 += -1
                if r2 != 0 goto next
                exit",
    )?;
    let verified = Contract::new().context(10, ContextAccess::Read).verify(Code::new(&bytes)?)?;
    let packs = Packs::new()?; // once per process, for all programs
    let program = VerifiedProgram::load(&packs, &verified, &())?;
    let compiled = program.run_read_only(b"palimpsest")?;

    let mut memory = Memory::new();
    memory.add_read_only(0x1000, b"palimpsest")?;
    let arguments = [0x1000, 10, 0, 0, 0];
    let interpreted = Interpreter::default().run(verified.code(), arguments, &mut memory, &mut NoHelpers)?;
    assert_eq!(compiled, interpreted);
    println!("{compiled}");
    Ok(())
}
