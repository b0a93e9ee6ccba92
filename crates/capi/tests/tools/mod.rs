//! What debuggers and profilers learn of code that a C program makes.

use std::fs;
use std::process::Command;

use super::{Compiled, built};

/// Frames of `lines.c`, innermost first, where it stops: function, file and line.
const STOPS: [&[(&str, &str)]; 2] = [
    &[("made", "a_program.made:11"), ("calls", "lines.c"), ("a_program", "lines.c"), ("main", "lines.c")],
    &[
        ("inner_made", "inner.made:31"),
        ("outer_made", "outer.made:21"),
        ("calls", "lines.c"),
        ("an_allocation", "lines.c"),
        ("main", "lines.c"),
    ],
];

/// What `lines.c` tells of each function: file and line.
const DUMPED: [(&str, &[(&str, u32)]); 3] = [
    ("made", &[("a_program.made", 10), ("a_program.made", 11), ("a_program.made", 12), ("?", 0)]),
    ("outer_made", &[("outer.made", 20), ("outer.made", 21), ("outer.made", 22)]),
    ("inner_made", &[("inner.made", 30), ("inner.made", 31), ("inner.made", 32)]),
];

/// Fails on: lines that are not handed on, or belong to another function or offset.
#[test]
fn gdb_and_the_dump_for_perf_have_the_lines() {
    let library = built("libpalimpsest_capi.so");
    let Some(compiled) = Compiled::new("tests/lines.c", &library, &["-g"]) else { return };
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-nx"]);
    for command in
        ["set debuginfod enabled off", "break lines_stop", "run", "backtrace", "continue", "backtrace", "continue"]
    {
        gdb.args(["-ex", command]);
    }
    gdb.arg("--args").arg(&compiled.program).arg("observed");
    gdb.env("LD_LIBRARY_PATH", library.parent().expect("a file is in a folder"));
    let folder = compiled.folder.path();
    gdb.env("JITDUMPDIR", folder).env("HOME", folder).current_dir(folder);
    let Ok(ran) = gdb.output() else { return println!("skipped: no gdb") };
    let printed = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    if printed.contains("ptrace: ") || printed.contains("Could not trace") {
        return println!("skipped: gdb may not trace: {printed}");
    }
    assert!(printed.contains("exited normally"), "{printed}");
    let frames: Vec<_> = printed.lines().filter(|line| line.starts_with('#')).collect();
    let stops: Vec<_> = frames.split(|line| line.starts_with("#0 ")).filter(|frames| !frames.is_empty()).collect();
    assert_eq!(stops.len(), STOPS.len(), "{printed}");
    for (frames, wanted) in stops.iter().zip(STOPS) {
        assert_eq!(frames.len(), wanted.len(), "{printed}");
        for (frame, (function, place)) in frames.iter().zip(wanted) {
            assert!(
                frame.contains(&format!("{function} (")) && frame.contains(place),
                "{function} at {place}: {printed}"
            );
        }
    }

    let dump = fs::read_dir(&compiled.folder).expect("it is ours").map(|entry| entry.expect("as above").path());
    let dump = dump.filter(|path| path.extension().is_some_and(|form| form == "dump")).collect::<Vec<_>>();
    let [dump] = &*dump else { panic!("one dump, and not {dump:?}") };
    let dumped = dumped(&fs::read(dump).expect("it can be read"));
    let wanted = DUMPED.map(|(name, lines)| {
        (name.to_owned(), lines.iter().map(|&(file, line)| (file.to_owned(), line)).collect::<Vec<_>>())
    });
    assert_eq!(dumped, wanted);
}

type Lines = Vec<(String, u32)>;

/// Reads a dump as its specification says (tools/perf/Documentation/jitdump-specification.txt): each function with its
/// lines.
fn dumped(bytes: &[u8]) -> Vec<(String, Lines)> {
    let word = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().expect("four bytes"));
    let long = |at: usize| u64::from_ne_bytes(*bytes[at..].first_chunk().expect("eight bytes"));
    let text = |at: usize| {
        let text = bytes[at..].split(|byte| *byte == 0).next().expect("there is a first part");
        String::from_utf8(text.to_vec()).expect("text")
    };
    let (mut functions, mut lines) = (Vec::new(), Lines::new());
    let mut at = word(8) as usize;
    while at < bytes.len() {
        match word(at) {
            // Code: the name is behind eight words.
            0 => functions.push((text(at + 56), std::mem::take(&mut lines))),
            // Lines: of which address, how many; each: address, line, column, file.
            2 => {
                let mut entry = at + 32;
                for _ in 0..long(at + 24) {
                    let file = text(entry + 16);
                    let line = word(entry + 8);
                    entry += 16 + file.len() + 1;
                    lines.push((file, line));
                }
            }
            _ => {}
        }
        at += word(at + 4) as usize;
    }
    functions
}
