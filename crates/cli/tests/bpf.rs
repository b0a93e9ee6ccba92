//! `palimpsest bpf`, as its users and the runner of the conformance suite see it.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn palimpsest(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_palimpsest"))
        .arg("bpf")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program was built");
    // A program that does not read its input closes it.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("it ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn printed(arguments: &[&str], input: &[u8]) -> String {
    let output = palimpsest(arguments, input);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn refused(arguments: &[&str], input: &[u8]) -> String {
    let output = palimpsest(arguments, input);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output.stdout));
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    text(&output.stderr)
}

const ENGINES: [&str; 2] = ["interpreter", "compiler"];

#[test]
fn the_runner_of_the_suite_gets_r0() {
    // r0 = *(u16 *)(r1 + 1); r0 += r2; exit
    let program = b"69 10 01 00 00 00 00 00 0f 20 00 00 00 00 00 00 95 00 00 00 00 00 00 00\n";
    for engine in ENGINES {
        assert_eq!(printed(&["conformance", "00 34 12 00", "--engine", engine], program), "1238\n");
        assert_eq!(printed(&["conformance", "--engine", engine, "00341200"], program), "1238\n");
        // r1 = -1; r2 = 5; callx r2; r0 = 2; exit, without memory.
        let call = b"b7010000ffffffffb7020000050000008d02000000000000b7000000020000009500000000000000";
        assert_eq!(printed(&["conformance", "", "--engine", engine], call), "2\n");
        assert!(!refused(&["conformance", "", "--engine", engine], program).is_empty());
    }
    assert!(refused(&["conformance", "0g"], program).contains("`g` at character 2"));
    assert!(refused(&["conformance"], b"95 00").contains("slot 0"));
}

/// Some of the public vectors, through the protocol; the crate's own tests run all of them.
#[test]
fn vectors_pass_through_the_protocol() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/bpf/conformance.txt");
    let path = std::env::var_os("PALIMPSEST_BPF_VECTORS").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let Ok(vectors) = std::fs::read_to_string(&path) else {
        eprintln!("skipped: no vectors in {}; name them in PALIMPSEST_BPF_VECTORS", path.display());
        return;
    };
    for line in vectors.lines().filter(|line| !line.starts_with('#')).step_by(9) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, expected, memory, code] = words[..] else { panic!("four words: {line}") };
        let memory = if memory == "-" { "" } else { memory };
        for engine in ENGINES {
            let got = printed(&["conformance", memory, "--engine", engine], code.as_bytes());
            assert_eq!(format!("0x{}", got.trim()), expected, "{name}, {engine}");
        }
    }
}

#[test]
fn what_is_assembled_is_shown_and_run() {
    let program = "r0 = *(u8 *)(r1 + 0)\nif r0 != 7 goto out\nr0 = 0x1122334455667788 ll\nout: exit\n";
    let bytes = palimpsest(&["asm"], program.as_bytes()).stdout;
    assert_eq!(bytes.len(), 5 * 8);
    let hex = printed(&["asm", "--hex"], program.as_bytes());
    assert_eq!(hex.trim().len(), 2 * bytes.len());
    let listing = printed(&["disasm"], &bytes);
    assert_eq!(listing.lines().nth(1), Some("     1: if r0 != 7 goto +2"));
    assert_eq!(printed(&["disasm", "--from", "hex"], hex.as_bytes()), listing);
    let json: serde_json::Value = serde_json::from_str(&printed(&["disasm", "--json"], &bytes)).expect("it is JSON");
    assert_eq!((&json[3]["slot"], &json[3]["text"]), (&4.into(), &"exit".into()));

    // Machine code stands behind each instruction, for either machine.
    for (machine, load, ret) in [("x86-64", "movzx eax, byte ptr [rdi]", "ret"), ("aarch64", "ldrb w", "ret")] {
        let native = printed(&["disasm", "--native", machine], &bytes);
        if cfg!(feature = "disassemblers") {
            let of_first: Vec<&str> = native.lines().take_while(|line| !line.starts_with("     1:")).collect();
            assert!(of_first.iter().any(|line| line.contains(load)), "{native}");
            assert!(native.lines().last().is_some_and(|line| line.trim_end().ends_with(ret)), "{native}");
        }
        let slots: Vec<&str> = native.lines().filter(|line| listing.lines().any(|known| known == *line)).collect();
        assert_eq!(slots, listing.lines().collect::<Vec<_>>());
        let json = printed(&["disasm", "--native", machine, "--json"], &bytes);
        let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
        assert_eq!(json[0]["native"][0]["offset"], 0);
    }

    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("input");
    std::fs::write(&input, [7]).expect("it can be written");
    let input = input.to_str().expect("UTF-8");
    for engine in ENGINES {
        let line = ["run", "--from", "asm", "--input", input, "--engine", engine];
        assert_eq!(printed(&line, program.as_bytes()), "0x1122334455667788\n");
    }
    assert!(printed(&["verify", "--context", "1"], &bytes).starts_with("verified: 5 slots"));
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let reads = b"r0 = *(u8 *)(r1 + 0)\nexit\n";
    let stores = b"*(u8 *)(r1 + 0) = 1\nr0 = 0\nexit\n";
    for (arguments, input, reason) in [
        (
            &["verify", "--from", "asm"][..],
            &reads[..],
            "`r0 = *(u8 *)(r1 + 0)`: this may reach bytes 0 to 1 of the context",
        ),
        (&["verify", "--from", "asm", "--context", "4", "--read-only"], stores, "the context is read-only"),
        (&["run", "--from", "asm"], reads, "`--engine interpreter` runs it"),
        (&["run", "--from", "asm", "--engine", "interpreter"], reads, "cannot read 1 bytes at 0x0"),
        (&["asm"], b"r0 = r11\n", "line 1, column 6"),
        (&["disasm"], b"\x95\0\0", "slot"),
        (&["disasm"], b"r0 = 1\nexit\n", "`--from asm`"),
        (&["disasm", "--from", "hex"], b"zz", "no hexadecimal digit"),
        (&["disasm", "--from", "asm"], b"\xff", "standard input is not text"),
        (&["disasm", "/nonexistent/file"], b"", "/nonexistent/file"),
        // As `verify` does, which has no host.
        (&["verify", "--from", "asm", "--context", "8"], b"call 7\nexit\n", "call 7"),
        (&["disasm", "--from", "asm", "--context", "8", "--native", "x86-64"], b"call 7\nexit\n", "call 7"),
    ] {
        let error = refused(arguments, input);
        assert!(error.starts_with("palimpsest: ") && error.contains(reason), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    for line in [&[][..], &["conformance", "--engine", "llvm"], &["run", "--nosuch"], &["conformance", "00", "00"]] {
        assert_eq!(palimpsest(line, b"").status.code(), Some(2), "{line:?}");
    }
}

fn object() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../bpf/tests/objects/golden/count.o").to_owned()
}

#[test]
fn programs_of_objects_are_shown_verified_and_run() {
    let object = object();
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("it can be written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let native = printed(&["disasm", &object, "--program", "wrong", "--native", "aarch64"], b"");
    assert!(native.contains("count.c:124"), "{native}");
    assert_eq!(native.contains("blr"), cfg!(feature = "disassemblers"), "{native}");
    let listing = printed(&["disasm", &object, "--program", "wrong"], b"");
    assert!(listing.starts_with("wrong:\n; "), "{listing}");
    assert!(listing.contains("return found->packets;") && listing.contains("call 1\n"), "{listing}");
    let json = printed(&["disasm", &object, "--json"], b"");
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(json[0]["program"], "count");
    let input = file("input", &[2, 0, 100, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // Two values for the array; the program adds up all, including those that it puts there itself.
    for engine in ENGINES {
        let run = |program: &str| {
            printed(&["run", &object, "--program", program, "--input", &input, "--engine", engine], b"")
        };
        assert_eq!(run("count"), "0x0\n");
        assert_eq!(run("sum"), "0x2c\n");
        // The limit, which is a constant: a length of 100 exceeds 99.
        let limit = file("limit", &99_u32.to_le_bytes());
        let rodata = format!(".rodata={limit}");
        let line = ["run", &object, "--program", "count", "--input", &input, "--engine", engine, "--map", &rodata];
        let said = refused(&line, b"");
        assert!(said.contains("must have elements of"), "{said}");
    }
    let verified = printed(&["verify", &object, "--program", "count", "--context", "16"], b"");
    assert!(verified.starts_with("count: verified: "), "{verified}");
    let counts = format!("counts={}", file("counts", &[[7, 0, 0, 0].as_slice(), &[1; 16]].concat()));
    printed(&["run", &object, "--program", "count", "--input", &input, "--map", &counts], b"");
    for (line, reason) in [
        (&["verify", &object, "--context", "16"][..], "program `wrong`: the program is refused: slot"),
        (&["verify", &object, "--context", "16"], "return found->packets;]"),
        (&["run", &object], "choose one by --program: count, "),
        (&["run", &object, "--program", "nosuch"], "has no program `nosuch`; it has count, "),
        (&["run", &object, "--program", "sum", "--input", &input, "--map", "nosuch=/dev/null"], "has no map `nosuch`"),
        (&["run", "--from", "asm", "--map", "a=b"], "--map fills maps of an object file"),
        (&["disasm", "--from", "asm", "--program", "a"], "--program chooses among"),
    ] {
        let output = palimpsest(line, b"exit\n");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line:?}: {error}");
        assert!(error.contains(reason), "{line:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    assert_eq!(palimpsest(&["run", &object, "--map", "a"], b"").status.code(), Some(2));
}

fn json(arguments: &[&str], input: &[u8], code: i32) -> serde_json::Value {
    let output = palimpsest(arguments, input);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!((document["version"].as_u64(), &document["palimpsest"]), (Some(1), &env!("CARGO_PKG_VERSION").into()));
    document
}

#[test]
fn documents_say_what_the_verifier_says() {
    let verify = ["verify", "--json", "--from", "asm", "--context", "8"];
    let right = json(&verify, b"call local f\nexit\nf: r0 = *(u8 *)(r1 + 7)\nexit", 0);
    let measures = serde_json::json!({
        "slots": 4, "functions": 2, "frames": 2, "followed": 4, "fuel": null, "probes": 0,
        "checked_stores": 0
    });
    let program = serde_json::json!({ "program": null, "verified": true, "measures": measures });
    assert_eq!((&right["verified"], &right["programs"]), (&true.into(), &serde_json::json!([program])));
    let wrong = json(&verify, b"r0 = *(u8 *)(r1 + 8)\nexit", 1);
    assert_eq!(wrong["verified"], false);
    let refusal = &wrong["programs"][0]["refusal"];
    assert_eq!((&refusal["slot"], &refusal["instruction"]), (&0.into(), &"r0 = *(u8 *)(r1 + 8)".into()));
    assert!(refusal["reason"].as_str().is_some_and(|reason| reason.contains("bytes 8 to 9 of the context")), "{wrong}");
    assert!(refusal["line"].is_null());
    // An object's programs, also those behind one that is refused, with its lines.
    let calls = concat!(env!("CARGO_MANIFEST_DIR"), "/../bpf/tests/objects/golden/calls.o");
    if !std::path::Path::new(calls).is_file() {
        eprintln!("skipped: {calls} is not here");
        return;
    }
    let object = json(&["verify", "--json", calls, "--context", "16"], b"", 1);
    let programs = object["programs"].as_array().expect("a list");
    assert_eq!(programs.iter().map(|one| one["program"].as_str()).collect::<Vec<_>>(), [Some("weighs"), Some("lacks")]);
    let line = &programs[1]["refusal"]["line"];
    assert_eq!((&line["file"], &line["line"]), (&"./calls.c".into(), &24.into()), "{object}");
    // What is no program is no document.
    assert!(refused(&["verify", "--json", "/nowhere"], b"").contains("cannot read /nowhere"));
}

#[test]
fn the_log_that_the_book_shows_is_what_is_printed() {
    let line = ["verify", &object(), "--program", "wrong", "--context", "16", "--log"];
    let output = palimpsest(&line, b"");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), include_str!("shown/log.txt"));
    assert!(text(&output.stderr).contains("r0 may be 0 here"), "{}", text(&output.stderr));
}

#[test]
fn logs_tell_what_verification_took_and_how_it_came_to_a_refusal() {
    let verify = ["verify", "--from", "asm", "--context", "8", "--log"];
    let right = printed(&verify, b"*(u16 *)(r10 - 12) = 1\nr0 = *(u8 *)(r1 + 7)\nexit");
    let lines: Vec<&str> = right.lines().collect();
    let statistics = "instructions followed: 3; ways: 1, ended where others had been: 0, waiting at most: 1; \
                      states kept: 0; stack: 16 bytes";
    assert_eq!(lines[1], statistics, "{right}");
    // Two instructions that do not matter, and a way that is longer than the log.
    let wrong = b"r6 = 1\nr2 = *(u8 *)(r1 + 0)\nr7 = 1\nr1 += r2\nr0 = *(u8 *)(r1 + 0)\nexit";
    let slots = |more: &[&str]| {
        let log = json(&[&verify[..], &["--json"], more].concat(), wrong, 1)["programs"][0]["log"].clone();
        let slots = log["steps"].as_array().expect("steps").iter().map(|step| step["slot"].as_u64().expect("a slot"));
        (slots.collect::<Vec<_>>(), log)
    };
    let (way, log) = slots(&[]);
    assert_eq!((&way[..], &log["left_out"], &log["passed_over"]), (&[1, 3, 4][..], &0.into(), &2.into()), "{log}");
    assert_eq!(log["before"], serde_json::json!([{ "place": "r1", "value": "context" }]));
    let change = serde_json::json!([{ "place": "r1", "value": "context + (0 to 255)" }]);
    assert_eq!(log["steps"][1]["changes"], change, "{log}");
    assert_eq!(log["statistics"]["followed"], 5, "{log}");
    let all: [&str; 6] = ["verify", "--from", "asm", "--context", "8", "--log=all"];
    let output = palimpsest(&all, wrong);
    assert_eq!(text(&output.stdout).lines().filter(|line| line.get(6..8) == Some(": ")).count(), 5, "{output:?}");
    let (way, log) = slots(&["--log-steps", "2"]);
    assert_eq!((&way[..], &log["left_out"]), (&[3, 4][..], &3.into()), "{log}");
    assert!(json(&["verify", "--json", "--from", "asm"], b"r0 = 0\nexit", 0)["programs"][0]["log"].is_null());
    assert_eq!(palimpsest(&["verify", "--log-steps", "2"], b"").status.code(), Some(2));
}

/// Counts down from the number in the context.
const COUNTS: &[u8] = b"r3 = *(u64 *)(r1 + 0)\nr0 = 0\nagain: r0 += 1\nr3 += -1\nif r3 != 0 goto again\nexit\n";

#[test]
fn fuel_and_budget_are_what_the_line_says() {
    let verify = ["verify", "--from", "asm", "--context", "8"];
    let budget = refused(&[&verify[..], &["--budget", "1000"]].concat(), COUNTS);
    assert!(budget.contains("after 1000 instructions"), "{budget}");
    let fuelled = [&verify[..], &["--fuel", "10"]].concat();
    assert!(printed(&fuelled, COUNTS).contains("; it may jump back 10 times"));
    let document = json(&[&fuelled[..], &["--json"]].concat(), COUNTS, 0);
    assert_eq!(document["programs"][0]["measures"]["fuel"], 10, "{document}");
    // A loop that is proven takes none.
    let document = json(&[&fuelled[..], &["--json"]].concat(), b"r0 = 0\nexit", 0);
    assert!(document["programs"][0]["measures"]["fuel"].is_null(), "{document}");
    let folder = tempfile::tempdir().expect("a folder");
    for (number, enough) in [(11_u64, true), (12, false)] {
        let path = folder.path().join(number.to_string());
        std::fs::write(&path, number.to_ne_bytes()).expect("it can be written");
        let path = path.to_str().expect("UTF-8");
        for engine in ENGINES {
            let run = ["run", "--from", "asm", "--input", path, "--fuel", "10", "--engine", engine];
            if enough {
                assert_eq!(printed(&run, COUNTS), "0xb\n", "{engine}");
                let measured = json(
                    &["bench", "--json", "--loads", "3", "--from", "asm", "--input", path, "--fuel", "10"],
                    COUNTS,
                    0,
                );
                assert_eq!(measured["loads"], 3);
            } else {
                assert!(refused(&run, COUNTS).contains("fuel of 10 jumps back is spent"), "{}", refused(&run, COUNTS));
            }
        }
    }
}

#[test]
fn machine_code_is_shown_as_it_would_be_loaded_if_the_line_says_on_which_terms() {
    let program = b"r3 = *(u64 *)(r1 + 0)\nr0 = 0x11223344\nagain: r3 += -1\nif r3 != 0 goto again\nexit\n";
    let code = |more: &[&str]| {
        let shown = printed(&[&["disasm", "--from", "asm", "--native", "x86-64"], more].concat(), program);
        let bytes = shown.lines().filter_map(|line| line.get(14..)?.strip_prefix(": ")?.split(' ').next());
        bytes.collect::<String>()
    };
    let constant = "44332211";
    let (plain, fuelled) = (code(&[]), code(&["--context", "8", "--fuel", "5"]));
    let blinded = code(&["--context", "8", "--fuel", "5", "--untrusted"]);
    assert!(plain.contains(constant) && fuelled.contains(constant) && !blinded.contains(constant), "{blinded}");
    assert!(plain.len() < fuelled.len() && fuelled.len() < blinded.len(), "{plain}\n{fuelled}\n{blinded}");
    let short = refused(&["disasm", "--from", "asm", "--native", "x86-64", "--untrusted"], program);
    assert!(short.contains("bytes 0 to 8 of the context, which has 0"), "{short}");
    assert!(refused(&["disasm", "--from", "asm", "--untrusted"], program).contains("`--native`"));
}

#[test]
fn unproven_loads_are_tried_and_stores_checked_if_the_line_says_so() {
    // Nothing is mapped there.
    let program = b"r1 = 4096\nr0 = *(u8 *)(r1 + 0)\nr0 += 7\nexit\n";
    assert!(refused(&["verify", "--from", "asm"], program).contains("is a number here"));
    let probe = ["--from", "asm", "--unproven", "probe"];
    let with = |words: &[&'static str]| [words, &probe].concat();
    let verified = printed(&with(&["verify"]), program);
    assert!(verified.contains("; 1 loads may find nothing"), "{verified}");
    let document = json(&with(&["verify", "--json"]), program, 0);
    assert_eq!(document["programs"][0]["measures"]["probes"], 1, "{document}");
    for engine in ENGINES {
        assert!(refused(&["run", "--from", "asm", "--engine", engine], program).starts_with("palimpsest: "));
        assert_eq!(printed(&with(&["run", "--engine", engine]), program), "0x7\n", "{engine}");
    }
    // A store that is not proven, to the context: inside, and behind it.
    let store = b"r2 = *(u8 *)(r1 + 0)\nr1 += r2\n*(u8 *)(r1 + 0) = 1\nr0 = 3\nexit\n";
    let document = json(&with(&["verify", "--json", "--context", "4"]), store, 0);
    assert_eq!(document["programs"][0]["measures"]["checked_stores"], 1, "{document}");
    assert!(printed(&with(&["verify", "--context", "4"]), store).contains("; 1 stores are checked"));
    for (byte, expected) in [(3_u8, Ok("0x3\n")), (4, Err("slot 2"))] {
        let input = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(input.path(), [byte, 0, 0, 0]).expect("a file");
        let path = input.path().to_str().expect("a name");
        for engine in ENGINES {
            let words = ["run", "--engine", engine, "--input", path].map(str::to_owned);
            let words: Vec<&str> = words.iter().map(String::as_str).chain(probe).collect();
            match expected {
                Ok(result) => assert_eq!(printed(&words, store), result, "{engine}"),
                Err(place) => assert!(refused(&words, store).contains(place), "{engine}: {}", refused(&words, store)),
            }
        }
    }
    let measured = json(&with(&["bench", "--json", "--loads", "3"]), program, 0);
    assert_eq!(measured["loads"], 3, "{measured}");
    // A program of an object that forgets to look whether there is something.
    let object = object();
    for engine in ENGINES {
        let line = ["run", &object, "--program", "wrong", "--unproven", "probe", "--engine", engine];
        assert_eq!(printed(&line, b""), "0x0\n", "{engine}");
    }
}

#[test]
fn documents_say_what_a_run_gave() {
    for engine in ENGINES {
        let run = ["run", "--json", "--from", "asm", "--engine", engine];
        let ran = json(&run, b"r0 = 0xfedcba9876543210 ll\nexit", 0);
        assert_eq!((&ran["engine"], &ran["r0"]), (&engine.into(), &"0xfedcba9876543210".into()));
        assert!(ran["error"].is_null() && ran["refusal"].is_null() && ran["program"].is_null(), "{ran}");
        let ended = json(&run, b"r1 = 1\ncall 77\nexit", 1);
        assert!(ended["r0"].is_null());
        match engine {
            "compiler" => assert_eq!(ended["refusal"]["slot"], 1, "{ended}"),
            _ => assert!(ended["error"].as_str().is_some_and(|error| error.contains("call of helper 77")), "{ended}"),
        }
    }
}

#[test]
fn a_program_of_ones_own_is_measured() {
    let bench = ["bench", "--json", "--from", "asm", "--loads", "3"];
    let measured = json(&bench, b"r0 = 3\nexit", 0);
    assert_eq!((&measured["loads"], measured["program"].is_null()), (&3.into(), true));
    for field in ["verify_us", "load_us", "compiled_ns", "interpreted_ns"] {
        let [low, median, high] = ["low", "median", "high"].map(|name| measured[field][name].as_f64().expect(field));
        assert!(0.0 < low && low <= median && median <= high, "{field}: {measured}");
    }
    assert!(measured["core_syncs"].is_u64() && measured["loads_per_second"].is_f64(), "{measured}");
    let shown = printed(&["bench", "--from", "asm", "--loads", "3"], b"r0 = 3\nexit");
    assert!(shown.contains(" ns a call") && shown.contains("core syncs"), "{shown}");
    assert!(refused(&bench, b"r0 = *(u8 *)(r1 + 0)\nexit").contains("the program is refused"));
}
