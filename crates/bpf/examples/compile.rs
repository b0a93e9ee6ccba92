//! Compiles a program in text, from standard input, for an architecture, and writes the machine code to standard
//! output.
//!
//! ```text
//! cargo run -p palimpsest-bpf --example compile -- aarch64 <program.bpf >program.bin
//! aarch64-linux-gnu-objdump -D -b binary -m aarch64 program.bin
//! ```

use std::error::Error;
use std::io::{Read, Write};

use palimpsest_bpf::jit::{Helper, Target, compile};
use palimpsest_bpf::{Code, asm};

extern "C" fn zero(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    0
}

fn main() -> Result<(), Box<dyn Error>> {
    let target = match std::env::args().nth(1).as_deref() {
        Some("x86_64") => Target::X86_64,
        Some("aarch64") => Target::Aarch64,
        _ => return Err("name the architecture: x86_64 or aarch64".into()),
    };
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let code = Code::new(&asm::assemble(&text)?)?;
    let helpers: [(i32, Helper); 1] = [(1, zero)];
    std::io::stdout().write_all(compile(&code, target, &helpers[..])?.bytes())?;
    Ok(())
}
