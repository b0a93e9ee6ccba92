//! What profilers, debuggers and unwinders learn of programs: names, lines of C, and callers.

mod arch;
#[path = "../common/mod.rs"]
mod common;
mod unwinding;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use palimpsest_bpf::elf::Object;
use palimpsest_bpf::host::HostedProgram;
use palimpsest_bpf::jit::{Target, compile};
use palimpsest_bpf::verify::{Argument, ContextAccess, Contract, Signature};
use palimpsest_bpf::{Code, Packs, Source, VerifiedProgram, asm};
use palimpsest_text::observe::{GdbJit, JitDump};

/// What clang 14 made of `objects/c/stop.c`.
const STOP: &[u8] = include_bytes!("../objects/golden/stop.o");
/// That source; the test looks up lines in it.
const SOURCE: &str = include_str!("../objects/c/stop.c");
/// Makes a run of this binary the child that a debugger looks at.
const CHILD: &str = "PALIMPSEST_OBSERVED_CHILD";

/// A line of a program, as a dump tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    offset: u64,
    line: u32,
    column: u32,
    file: String,
}

/// A program, as a dump tells it.
#[derive(Debug, Default)]
struct Dumped {
    name: String,
    len: u64,
    lines: Vec<Line>,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes[at..].first_chunk().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(*bytes[at..].first_chunk().expect("eight bytes"))
}

fn text_at(bytes: &[u8], at: usize) -> String {
    let len = bytes[at..].iter().position(|byte| *byte == 0).expect("a zero");
    String::from_utf8(bytes[at..at + len].to_vec()).expect("text")
}

/// Reads the dump in `directory` as its specification says (tools/perf/Documentation/jitdump-specification.txt).
fn dumped(directory: &Path) -> Vec<Dumped> {
    let bytes = std::fs::read(directory.join(format!("jit-{}.dump", std::process::id()))).expect("a dump");
    let (mut programs, mut lines, mut lines_of) = (Vec::new(), Vec::new(), 0);
    let mut at = u32_at(&bytes, 8) as usize;
    while at < bytes.len() {
        let (id, size) = (u32_at(&bytes, at), u32_at(&bytes, at + 4) as usize);
        let record = &bytes[at..at + size];
        match id {
            // Code: process and thread, address twice, length, number, name.
            0 => {
                let (address, len) = (u64_at(record, 32), u64_at(record, 40));
                if !lines.is_empty() {
                    assert_eq!(address, lines_of, "lines are of the program that follows");
                }
                programs.push(Dumped { name: text_at(record, 56), len, lines: std::mem::take(&mut lines) });
            }
            // Lines: address, how many; each: address, line, column, file.
            2 => {
                let (address, count) = (u64_at(record, 16), u64_at(record, 24));
                lines_of = address;
                let mut entry = 32;
                for _ in 0..count {
                    let (line, column) = (u32_at(record, entry + 8), u32_at(record, entry + 12));
                    let file = text_at(record, entry + 16);
                    let offset = u64_at(record, entry) - address;
                    entry += 16 + file.len() + 1;
                    lines.push(Line { offset, line, column, file });
                }
            }
            _ => {}
        }
        at += size;
    }
    programs
}

fn contract() -> Contract {
    Contract::new().context(8, ContextAccess::Read)
}

/// Returns the program of `STOP`, which calls `stop`.
fn stopping(packs: &Packs, stop: fn(u64)) -> HostedProgram {
    of_object(packs, STOP, stop)
}

/// Returns the same from these bytes of an object.
fn of_object(packs: &Packs, bytes: &[u8], stop: fn(u64)) -> HostedProgram {
    let object = Object::parse(bytes).expect("an object");
    let signature = Signature::new([Argument::Number]);
    let host = object.host().expect("it has no maps").helper(1000, signature, move |call| {
        stop(call.number(0));
        Ok(0)
    });
    let code = object.program("outermost").expect("it is there").code().expect("its structure is right");
    let linked = host.build().verify(contract(), code).expect("it is harmless");
    HostedProgram::load(packs, &linked).expect("it compiles")
}

/// The number of the only line that has this text.
fn line_of(text: &str) -> u32 {
    let mut found = SOURCE.lines().zip(1..).filter(|(line, _)| line.contains(text)).map(|(_, number)| number);
    let number = found.next().expect("the text is there");
    assert_eq!(found.next(), None, "{text}");
    number
}

#[test]
fn a_jitdump_has_the_line_of_each_instruction() {
    let directory = tempfile::tempdir().expect("a directory");
    let packs = Packs::builder().observer(JitDump::in_directory(directory.path())).open().expect("packs");
    let text = "r0 = 1\nr1 = 0x1122334455667788 ll\nif r0 == 2 goto out\nr0 += r1\nout: exit";
    let code = Code::new(&asm::assemble(text).expect("a program")).expect("its structure is right");
    let Some(target) = Target::NATIVE else {
        eprintln!("skipped: there is no compiler for this machine");
        return;
    };
    let starts = compile(&code, target, &()).expect("it compiles").starts().to_vec();
    let mut source = Source::new("five");
    // Nothing begins in the middle of the second instruction.
    for (slot, line) in [(0, 10), (1, 20), (2, 25), (3, 30), (5, 40)] {
        source.add(slot, if line < 30 { "one.c" } else { "two.h" }, line, line + 1);
    }
    let verified = Contract::new().verify(code.with_source(Arc::new(source))).expect("it is harmless");
    let program = VerifiedProgram::load(&packs, &verified, &()).expect("it compiles");
    assert_eq!(program.run(&mut []), Ok(0x1122_3344_5566_7789));
    let line = |index: usize, line: u32, file: &str| {
        let file = String::from(file);
        Line { offset: starts[index].into(), line, column: line + 1, file }
    };
    let found = dumped(directory.path());
    assert_eq!((found.len(), found[0].name.as_str()), (1, "five"));
    assert_eq!(
        found[0].lines,
        [line(0, 10, "one.c"), line(1, 20, "one.c"), line(2, 30, "two.h"), line(4, 40, "two.h")]
    );

    // One without a source has no lines, not even those of the previous one.
    let plain = Code::new(&asm::assemble("r0 = 3\nexit").expect("a program")).expect("its structure is right");
    let plain = VerifiedProgram::load(&packs, &Contract::new().verify(plain).expect("it is harmless"), &());
    assert_eq!(plain.expect("it compiles").run(&mut []), Ok(3));
    // And one in C.
    let stopping = stopping(&packs, |_| ());
    assert_eq!(stopping.run_read_only(&[0, 4, 2, 0, 0, 0, 0, 0]), Ok(16));
    let found = dumped(directory.path());
    let [_, plain, stopping] = &found[..] else { panic!("{found:?}") };
    assert_eq!((plain.name.as_str(), &plain.lines[..]), ("unnamed", &[][..]));
    assert_eq!(stopping.name, "outermost");
    for text in ["packet[1]", "number * 3", "number += 1", "innermost frame"] {
        let has = |line: &Line| line.line == line_of(text) && line.file.ends_with("stop.c");
        assert!(stopping.lines.iter().any(has), "{text}: {:?}", stopping.lines);
    }
    assert!(stopping.lines.is_sorted_by_key(|line| line.offset));
    assert!(stopping.lines.iter().all(|line| line.offset < stopping.len));
}

/// Returns `STOP` with a file name that is not text.
fn nameless() -> Vec<u8> {
    let mut bytes = STOP.to_vec();
    // Symbols and DWARF have another name for it.
    let name = b"\0./stop.c\0";
    let at = bytes.windows(name.len()).position(|part| part == name).expect("the name is there");
    bytes[at + 1] = 0xff;
    bytes
}

#[test]
fn a_file_without_a_name_is_observed() {
    if Target::NATIVE.is_none() {
        eprintln!("skipped: there is no compiler for this machine");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let packs = Packs::builder().observer(GdbJit::new()).observer(JitDump::in_directory(directory.path()));
    let packs = packs.open().expect("packs");
    let stopping = of_object(&packs, &nameless(), |_| ());
    assert_eq!(stopping.run_read_only(&[0, 4, 2, 0, 0, 0, 0, 0]), Ok(16));
    let found = dumped(directory.path());
    assert!(found[0].lines.iter().any(|line| line.line == line_of("packet[1]")), "{found:?}");
    assert!(found[0].lines.iter().all(|line| line.file == "?"), "{found:?}");
}

/// Where gdb stops: by its line, since test programs are built without names of types and functions.
#[inline(never)]
fn stop_here(number: u64) {
    println!("stopped with {number}");
}
const STOP_LINE: u32 = line!() - 3;

/// Not a test by itself: gdb runs it.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let packs = Packs::builder().observer(GdbJit::new()).open().expect("packs");
    assert_eq!(stopping(&packs, stop_here).run_read_only(&[0, 4, 2, 0, 0, 0, 0, 0]), Ok(16));
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn gdb_shows_the_program_and_its_lines() {
    let executable = std::env::current_exe().expect("path of this test");
    let ways = ["-batch", "-nx", "-ex", "set debuginfod enabled off", "-ex", "set breakpoint pending on"];
    let stop = format!("break observed/main.rs:{STOP_LINE}");
    let asked = ["-ex", &stop, "-ex", "run", "-ex", "backtrace", "-ex", "continue", "--args"];
    let child = ["--exact", "child", "--nocapture", "--test-threads=1"];
    let mut gdb = Command::new("gdb");
    let output = match gdb.args(ways).args(asked).arg(executable).args(child).env(CHILD, "1").output() {
        Ok(output) => output,
        Err(error) => return eprintln!("skipped: gdb cannot be started: {error}"),
    };
    let printed = printed(&output);
    let refused = printed.lines().find(|line| line.contains("ptrace: ") || line.contains("Could not trace"));
    if let Some(refused) = refused {
        return eprintln!("skipped: gdb cannot trace: {refused}");
    }
    if !printed.contains("stopped with") {
        // A debugger cannot debug an emulator as the program that it runs.
        return eprintln!("skipped: gdb does not run this test: {}", printed.lines().next().unwrap_or_default());
    }
    // All functions of a program are one in its symbols, as they are one piece of code.
    let frames: Vec<&str> = printed.lines().filter(|line| line.contains(" outermost ")).collect();
    let lines = ["innermost frame", "frame around it"].map(|text| format!("stop.c:{}", line_of(text)));
    assert_eq!(frames.len(), lines.len(), "{printed}");
    for (frame, line) in frames.iter().zip(lines) {
        assert!(frame.ends_with(&line), "{line} in {frame}: {printed}");
    }
    // And the host's frames around them.
    assert!(printed.contains("observed::child"), "{printed}");
}
