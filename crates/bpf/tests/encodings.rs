//! Machine code of both compilers, read by disassemblers of others: every instruction exists, and instructions of a
//! program begin where the compiler says. Memory operands have the bases and distances that were asked for.
//!
//! A register's bit in the wrong place, a distance one bit too long, or a prefix too many shows here before anybody
//! runs the code; what it computes is compared in `differential` and `conformance`.
//!
//! Mutants that are caught: a distance without its lowest bit, a field of one bit more.

use iced_x86::{Code as X86, Decoder as X86Decoder, DecoderOptions, Instruction as X86Instruction, OpKind};
use palimpsest_bpf::jit::{Compiled, Target, compile};
use palimpsest_bpf::{Code, asm};
use yaxpeax_arch::{Decoder as _, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Instruction as A64Instruction, Opcode};

/// The x86-64 instructions of some bytes, which begin at `start`.
fn x86(bytes: &[u8], start: usize) -> Vec<X86Instruction> {
    X86Decoder::with_ip(64, bytes, start as u64, DecoderOptions::NONE).into_iter().collect()
}

/// The AArch64 instructions of some bytes.
fn a64(bytes: &[u8]) -> Vec<Option<A64Instruction>> {
    assert_eq!(bytes.len() % 4, 0, "whole words");
    let decoder = InstDecoder::default();
    bytes.chunks(4).map(|word| decoder.decode(&mut U8Reader::new(word)).ok()).collect()
}

/// The machine code of each instruction; that of the first has what the function begins with.
fn parts(compiled: &Compiled) -> Vec<(usize, &[u8])> {
    let mut starts: Vec<usize> = compiled.starts().iter().map(|start| *start as usize).collect();
    starts[0] = 0;
    let ends = starts.iter().skip(1).copied().chain([compiled.code_len()]);
    starts.iter().zip(ends).map(|(start, end)| (*start, &compiled.bytes()[*start..end])).collect()
}

fn check(text: &str) {
    let code = Code::new(&asm::assemble(text).expect(text)).expect(text);
    for target in Target::ALL {
        let compiled = compile(&code, target, &()).expect(text);
        for (index, (start, bytes)) in parts(&compiled).into_iter().enumerate() {
            let at = || format!("{text}\n{target:?}: instruction {index} at {start}: {bytes:02x?}");
            match target {
                Target::X86_64 => {
                    let instructions = x86(bytes, start);
                    assert!(instructions.iter().all(|instruction| instruction.code() != X86::INVALID), "{}", at());
                    let end = instructions.last().map_or(start as u64, X86Instruction::next_ip);
                    assert_eq!(end, (start + bytes.len()) as u64, "{}", at());
                }
                Target::Aarch64 => {
                    let all_exist = a64(bytes).iter().all(|word| {
                        word.is_some_and(|instruction| !matches!(instruction.opcode, Opcode::Invalid | Opcode::UDF))
                    });
                    assert!(all_exist, "{}", at());
                }
            }
        }
    }
}

const IMMEDIATES: [i64; 14] =
    [0, 1, -1, 127, 128, -128, -129, 255, 4095, 4096, 0xff_f000, 0x7fff_ffff, -0x8000_0000, 0x00ff_00ff];

#[test]
fn every_operation_is_an_instruction() {
    let operations = ["+=", "-=", "*=", "/=", "s/=", "%=", "s%=", "|=", "&=", "^=", "<<=", ">>=", "s>>=", "="];
    for operation in operations {
        for (dst, src) in (0..10).flat_map(|dst| (0..10).map(move |src| (dst, src))) {
            check(&format!("r{dst} {operation} r{src}\nw{dst} {operation} w{src}\nr0 = 0\nexit"));
        }
        for value in IMMEDIATES {
            let value = if operation.contains("<<") || operation.contains(">>") { value & 31 } else { value };
            check(&format!("r0 {operation} {value}\nw7 {operation} {value}\nr9 {operation} {value}\nexit"));
        }
    }
    for register in 0..10 {
        let one = |operation: &str| format!("r{register} = {operation} r{register}\n");
        let swaps: String = ["bswap16", "bswap32", "bswap64", "be16", "be32", "be64", "le16", "le32"].map(one).concat();
        check(&format!("{swaps}r{register} = -r{register}\nw{register} = -w{register}\nr0 = 0\nexit"));
        let moves = ["s8", "s16", "s32"].map(|from| format!("r{register} = ({from})r6\n")).concat();
        check(&format!("{moves}w{register} = (s8)w6\nw{register} = (s16)w6\nr0 = 0\nexit"));
    }
    for value in [0_u64, 1, 0xffff, 0x1_0000, 0xffff_0000_ffff, u64::MAX, 0xffff_ffff_0000_0001, 0x1234_5678_9abc_def0]
    {
        check(&format!("r0 = {value:#x} ll\nr6 = {value:#x} ll\nexit"));
    }
}

#[test]
fn every_jump_is_an_instruction() {
    for condition in ["==", "!=", ">", ">=", "<", "<=", "s>", "s>=", "s<", "s<=", "&"] {
        for (left, right) in [(0, 1), (1, 0), (5, 9), (8, 3)] {
            check(&format!("if r{left} {condition} r{right} goto +1\nif w{left} {condition} w{right} goto +0\nexit"));
        }
        for value in IMMEDIATES {
            check(&format!("if r7 {condition} {value} goto +1\nif w2 {condition} {value} goto +0\nexit"));
        }
    }
    // Near and far.
    for count in [10, 100, 10_000] {
        let between = "r1 += 1\n".repeat(count);
        check(&format!("again: if r1 == 5 goto out\n{between}goto again\nout: r0 = 0\nexit"));
    }
    check("call local f\nexit\nf: r0 = 1\nexit");
}

const OFFSETS: [i32; 13] = [0, 1, 8, -8, 127, 128, -128, -129, 255, -256, -257, 32767, -32768];

/// How the compilers call the eBPF registers.
const ON_X86: [&str; 11] = ["RAX", "RDI", "RSI", "RDX", "RCX", "R8", "RBX", "R13", "R14", "R15", "RBP"];

#[test]
fn every_access_reaches_its_place() {
    for (base, offset) in (0..10).flat_map(|base| OFFSETS.map(|offset| (base, offset))) {
        let place =
            |size: &str| format!("*({size} *)(r{base} {} {})", if offset < 0 { '-' } else { '+' }, offset.abs());
        let mut text = String::new();
        for size in ["u8", "u16", "u32", "u64"] {
            for register in [1, 4, 9] {
                text += &format!("{} = r{register}\n", place(size));
            }
            text += &format!("{} = 77\n", place(size));
        }
        for size in ["u8", "u16", "u32", "u64", "s8", "s16", "s32"] {
            text += &format!("r{} = {}\n", (base + 1) % 10, place(size));
        }
        text += "r0 = 0\nexit";
        check(&text);
        let code = Code::new(&asm::assemble(&text).expect("right")).expect("right");
        let compiled = compile(&code, Target::X86_64, &()).expect("right");
        for (start, bytes) in parts(&compiled).into_iter().skip(1).take(22) {
            let instructions = x86(bytes, start);
            let memory =
                instructions.iter().find(|instruction| instruction.op_kinds().any(|kind| kind == OpKind::Memory));
            let memory = memory.unwrap_or_else(|| panic!("{text}\n{bytes:02x?}"));
            let reached = (format!("{:?}", memory.memory_base()), memory.memory_displacement64() as i64);
            assert_eq!(reached, (ON_X86[base].to_owned(), offset.into()), "{bytes:02x?}");
        }
    }
}

#[test]
fn every_atomic_operation_is_an_instruction() {
    let operations = ["+=", "|=", "&=", "^="];
    for (base, register) in (0..10).flat_map(|base| [0, 1, 3, 8].map(|register| (base, register))) {
        for size in ["u32", "u64"] {
            let register = if size == "u32" { format!("w{register}") } else { format!("r{register}") };
            for (operation, offset) in
                operations.into_iter().flat_map(|operation| [0_i32, -8, 4096].map(|at| (operation, at)))
            {
                let sign = if offset < 0 { '-' } else { '+' };
                check(&format!(
                    "lock *({size} *)(r{base} {sign} {}) {operation} {register}\nr0 = 0\nexit",
                    offset.abs()
                ));
            }
        }
    }
    for (size, letter) in [("u32", 'w'), ("u64", 'r')] {
        for name in ["add", "or", "and", "xor"] {
            check(&format!("{letter}2 = atomic_fetch_{name}(({size} *)(r6 + 8), {letter}2)\nr0 = 0\nexit"));
        }
    }
    let golden = include_str!("../src/jit/golden/program.bpf");
    check(golden);
}
