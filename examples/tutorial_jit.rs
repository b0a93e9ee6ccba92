//! Tutorial: a compiler for sums such as `x + 3 - 1`, whose programs come, run and go by the thousands.

use palimpsest::{Packs, Program};
use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers};
use palimpsest_bpf::{Code, asm};
use palimpsest_examples::ADD_ONE;

// ANCHOR: compile
/// A compiled expression. The program lives as long as this value, and so does the function.
struct Compiled {
    program: Program,
}

impl Compiled {
    fn call(&self, argument: u64) -> u64 {
        // SAFETY: `compile` made a function of this type, and the program is borrowed while it runs.
        let f = unsafe { self.program.function::<extern "C" fn(u64) -> u64>() };
        f(argument)
    }
}

/// Your compiler goes here; this one knows one expression.
fn compile(packs: &Packs, name: &str) -> Result<Compiled, Box<dyn std::error::Error>> {
    let code = ADD_ONE;
    let mut staged = packs.stage(code.len(), 16)?; // the final address is known from here on
    staged.set_name(name); // for perf, gdb and backtraces
    staged.image().copy_from_slice(code); // a private image: nobody sees it yet
    Ok(Compiled { program: staged.finalize()? })
}
// ANCHOR_END: compile

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // ANCHOR: many
    let packs = Packs::new()?;
    println!("programs lie in {}", packs.backing());
    for refused in packs.refused() {
        println!("not {}: {}", refused.backing, refused.error);
    }
    let programs: Vec<Compiled> =
        (0..5000).map(|number| compile(&packs, &format!("add_one_{number}"))).collect::<Result<_, _>>()?;
    assert!(programs.iter().enumerate().all(|(number, program)| program.call(number as u64) == number as u64 + 1));
    // ANCHOR_END: many

    // ANCHOR: free
    drop(programs); // retired; their bytes stay until nobody can be inside
    let reclaimed = packs.reclaim()?;
    println!("{reclaimed:?}");
    // ANCHOR_END: free

    // ANCHOR: oracle
    // What a compiler says should be what an interpreter says.
    let byte_code = Code::new(&asm::assemble("r0 = r1\n r0 += 1\n exit")?)?;
    let expected = Interpreter::default().run(&byte_code, [41, 0, 0, 0, 0], &mut Memory::new(), &mut NoHelpers)?;
    assert_eq!(compile(&packs, "checked")?.call(41), expected);
    // ANCHOR_END: oracle
    Ok(())
}
