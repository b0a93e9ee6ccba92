//! Listings: the same bytes on every host. `examples/compile.rs` and a disassembler show what they are.

use alloc::format;
use alloc::string::{String, ToString};

use super::{Target, compile};
use crate::asm::assemble;
use crate::code::Code;

/// Touches most forms: loads, stores, divisions, shifts by a register, atomic operations, byte orders, calls, and jumps
/// both ways.
const PROGRAM: &str = include_str!("golden/program.bpf");

/// The code of each instruction in a line, behind the instruction.
fn listing(target: Target) -> String {
    let code = Code::new(&assemble(PROGRAM).expect("a program")).expect("its structure is right");
    let compiled = compile(&code, target, &()).expect("no helpers are called");
    let ends = compiled.starts()[1..].iter().copied().chain([compiled.code_len() as u32]);
    let lines =
        code.instructions().iter().zip(compiled.starts().iter().zip(ends)).map(|(instruction, (start, end))| {
            let bytes = compiled.bytes()[*start as usize..end as usize].iter().map(|byte| format!("{byte:02x}"));
            format!("{:<48} {}\n", instruction.to_string(), bytes.collect::<String>())
        });
    lines.collect()
}

#[test]
fn listings_are_as_they_were_when_somebody_read_them() {
    assert_eq!(listing(Target::X86_64), include_str!("golden/x86_64.txt"));
    assert_eq!(listing(Target::Aarch64), include_str!("golden/aarch64.txt"));
}
