//! Linux's helpers: those that read unproven addresses, format text, and ask for CPUs and clocks.

use palimpsest_bpf::verify::Unproven;

use super::*;
use crate::common::packs;

/// Runs it both ways, trying unproven loads. Returns `r0` and the context, which both leave alike.
fn probed(text: &str, context: [u8; LEN]) -> (u64, [u8; LEN]) {
    let linked = builder().build().verify(contract().unproven(Unproven::Probe), code(text)).expect(text);
    let mut interpreted = context;
    let expected = linked.interpret(&Interpreter::default(), &mut interpreted).expect("it ends");
    let Some(packs) = packs() else { return (expected, interpreted) };
    let program = HostedProgram::load(&packs, &linked).expect("room");
    let mut compiled = context;
    assert_eq!(program.run(&mut compiled), Ok(expected), "{text}");
    assert_eq!(compiled, interpreted, "{text}");
    (expected, interpreted)
}

const EFAULT: u64 = -14_i64 as u64;

/// Reads `len` bytes at the read-only map's text plus `behind` to the beginning of the context.
fn read(helper: i32, len: u32, behind: i32) -> String {
    format!("r2 = {len}\nr3 = map[idx:5][0]+0 ll\nr3 += {behind}\ncall {helper}\nexit")
}

#[test]
fn what_is_there_is_read_and_what_is_not_is_an_error() {
    let full = [0xaa; LEN];
    for helper in [4, 112, 113, 148] {
        let (result, context) = probed(&read(helper, 8, 0), full);
        assert_eq!((result, &context[..9]), (0, &b"palimpse\xaa"[..]));
        // A number that is not an address, and one that no machine has: zeros, and no fault.
        for address in ["8", "0", "-1", "0x7fffffff00000000 ll"] {
            let (result, context) = probed(&format!("r2 = 8\nr3 = {address}\ncall {helper}\nexit"), full);
            assert_eq!((result, &context[..9]), (EFAULT, &b"\0\0\0\0\0\0\0\0\xaa"[..]), "{address}");
        }
        assert_eq!(probed(&read(helper, 0, 0), full), (0, full));
        assert_eq!(refused(&read(helper, 8, 0)), Fault::Probes);
    }
    let allowed = |text: &str| {
        let contract = contract().unproven(Unproven::Probe);
        builder().build().verify(contract, code(text)).map(drop).expect_err(text).fault
    };
    assert_eq!(allowed(&read(113, 17, 0)), Fault::Context { min: 0, end: 17, len: 16 });
    assert_eq!(allowed("r1 = map[idx:5][0]+0 ll\nr2 = 8\nr3 = 8\ncall 113\nexit"), Fault::ReadOnlyMap);
}

#[test]
fn texts_are_read_up_to_their_zero() {
    let full = [0xaa; LEN];
    for helper in [45, 114, 115] {
        let (result, context) = probed(&read(helper, 16, 0), full);
        assert_eq!((result, &context), (11, b"palimpsest\0\0\0\0\0\0"));
        // What does not fit is cut off, and the end still has a zero.
        let (result, context) = probed(&read(helper, 5, 0), full);
        assert_eq!((result, &context[..6]), (5, &b"pali\0\xaa"[..]));
        let (result, context) = probed(&read(helper, 1, 0), full);
        assert_eq!((result, &context[..2]), (1, &b"\0\xaa"[..]));
        assert_eq!(probed(&read(helper, 0, 0), full).0, -7_i64 as u64);
        let (result, context) = probed(&format!("r2 = 8\nr3 = 8\ncall {helper}\nexit"), full);
        assert_eq!((result, &context[..9]), (EFAULT, &b"\0\0\0\0\0\0\0\0\xaa"[..]));
        assert_eq!(refused(&read(helper, 8, 0)), Fault::Probes);
    }
}

#[test]
fn reading_stops_where_memory_ends() {
    let Some(packs) = packs() else { return };
    // Nothing is behind the first thread's stack.
    let maps = std::fs::read_to_string("/proc/self/maps").expect("there is /proc");
    let stack = maps.lines().find(|line| line.ends_with("[stack]")).and_then(|line| line.split(['-', ' ']).nth(1));
    let Some(end) = stack.and_then(|end| usize::from_str_radix(end, 16).ok()) else {
        eprintln!("skipped: /proc/self/maps names no stack");
        return;
    };
    let linked = |helper: i32, len: u32| {
        let text = format!("r2 = {len}\nr3 = *(u64 *)(r1 + 0)\ncall {helper}\nexit");
        builder().build().verify(contract().unproven(Unproven::Probe), code(&text)).expect("harmless")
    };
    let run = |helper: i32, len: u32, address: usize| {
        let mut context = [0xaa; LEN];
        context[..8].copy_from_slice(&(address as u64).to_ne_bytes());
        let program = HostedProgram::load(&packs, &linked(helper, len)).expect("room");
        (program.run(&mut context).expect("it ends"), context)
    };
    assert_eq!(run(113, 5, end - 5).0, 0);
    // The end of the program's name comes before the last eight bytes.
    let (result, context) = run(113, 12, end - 12);
    assert!(result == 0 && context[..3] != [0; 3], "{context:?}");
    let (result, context) = run(113, 13, end - 12);
    assert_eq!((result, &context[..13], context[13]), (EFAULT, &[0; 13][..], 0xaa));
    assert_eq!(run(115, 16, end).0, EFAULT);
}

#[test]
fn numbers_are_formatted_into_room() {
    // The read-only map's text is the format, and has no numbers in it.
    let text = "r6 = r1\n*(u64 *)(r10 - 8) = 5\nr2 = 16\nr3 = map[idx:5][0]+0 ll\nr4 = r10\nr4 += -8\nr5 = 8\n\
                call 165\nexit";
    let (result, context) = probed(text, [0xaa; LEN]);
    assert_eq!((result, &context), (11, b"palimpsest\0\0\0\0\0\0"));
    let (result, context) = probed(&text.replace("r2 = 16", "r2 = 4"), [0xaa; LEN]);
    assert_eq!((result, &context[..5]), (11, &b"pal\0\xaa"[..]));
    let (result, context) = probed(&text.replace("r5 = 8", "r5 = 7"), [0xaa; LEN]);
    assert_eq!((result, context), (-22_i64 as u64, [0; LEN]));
    assert_eq!(refused(&text.replace("map[idx:5]", "map[idx:0]")), Fault::NoText { register: Register::R3 });
    assert_eq!(refused(&text.replace("r2 = 16", "r2 = 17")), Fault::Context { min: 0, end: 17, len: 16 });
    let traced = "*(u64 *)(r10 - 8) = 5\nr1 = map[idx:5][0]+0 ll\nr2 = 11\nr3 = r10\nr3 += -8\nr4 = 8\ncall 177\nexit";
    assert_eq!(run(traced), 10);
}

/// Runs it in a thread of this name.
fn in_thread(name: &str, run: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, run);
        thread.expect("a thread").join().expect("it ends");
    });
}

/// Fails on: a name without its zero, room that keeps what was there.
#[test]
fn threads_have_names_and_owners() {
    let (full, name) = ([0xaa; LEN], |len: u32| format!("r2 = {len}\ncall 16\nexit"));
    in_thread("fifteen letters", || {
        assert_eq!(probed(&name(16), full), (0, *b"fifteen letters\0"));
        assert_eq!(probed(&name(5), full).1[..6], *b"fift\0\xaa");
        assert_eq!(probed(&name(1), full).1[..2], *b"\0\xaa");
        assert_eq!(probed(&name(0), full), (-22_i64 as u64, full));
    });
    in_thread("one", || assert_eq!(probed(&name(16), full), (0, *b"one\0\0\0\0\0\0\0\0\0\0\0\0\0")));
    assert_eq!(refused(&name(17)), Fault::Context { min: 0, end: 17, len: 16 });
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("there is /proc");
    let real = |what: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("the kernel tells it");
        line.split_whitespace().next().and_then(|id| id.parse::<u64>().ok()).expect("a number")
    };
    assert_eq!(run("call 15\nexit"), real("Gid:") << 32 | real("Uid:"));
}

#[test]
fn clocks_and_nodes_are_asked() {
    for helper in [5, 42, 125, 160, 208] {
        let linked = builder().build().verify(contract(), code(&format!("call {helper}\nexit"))).expect("harmless");
        linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect("it ends");
    }
    // What the coarse one says the other has said before, and the boot clock is never behind that.
    assert_eq!(run("call 160\nr6 = r0\ncall 5\nr1 = 1\nif r0 >= r6 goto out\nr1 = 0\nout: r0 = r1\nexit"), 1);
    assert_eq!(run("call 5\nr6 = r0\ncall 125\nr1 = 1\nif r0 >= r6 goto out\nr1 = 0\nout: r0 = r1\nexit"), 1);
}

#[test]
fn values_of_other_cpus_are_found() {
    let host = || {
        let definition = Definition { cpus: Some(3), ..Definition::new("cpus", Kind::PerCpuArray, 4, 8, 2) };
        let map = Arc::new(Map::new(definition).expect("good measures"));
        let plain = Arc::new(Map::new(Definition::new("plain", Kind::Array, 4, 8, 2)).expect("good measures"));
        Host::builder().map(map).map(plain)
    };
    let looked_up = |cpu: &str| {
        format!(
            "*(u32 *)(r10 - 4) = 1\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\nr3 = {cpu}\ncall 195\n\
             if r0 == 0 goto none\nr1 = *(u64 *)(r0 + 0)\nr1 += 5\n\
             *(u64 *)(r0 + 0) = r1\nr0 = r1\nexit\nnone: r0 = -1\nexit"
        )
    };
    assert_eq!(run_on(host, &looked_up("2")), 5);
    for cpu in ["3", "-1", "0x100000000 ll"] {
        assert_eq!(run_on(host, &looked_up(cpu)), u64::MAX, "{cpu}");
    }
    let linked = host().build();
    let verified = linked.verify(contract(), code(&looked_up("2"))).expect("harmless");
    verified.interpret(&Interpreter::default(), &mut [0; LEN]).expect("it ends");
    let mut value = [0; 8];
    for (cpu, expected) in [(0, 0), (1, 0), (2, 5)] {
        linked.maps()[0].read(&1_u32.to_ne_bytes(), cpu, &mut value).expect("it is there");
        assert_eq!(u64::from_ne_bytes(value), expected, "CPU {cpu}");
    }
    let refused = |text: &str| host().build().verify(contract(), code(text)).map(drop).expect_err(text).fault;
    assert_eq!(
        refused(&looked_up("2").replace("idx:0", "idx:1")),
        Fault::MapKind { register: Register::R1, kind: Kind::Array }
    );
    assert_eq!(
        refused(&looked_up("2").replace("if r0 == 0 goto none", "")),
        Fault::MaybeNull { register: Register::R0 }
    );
}

#[test]
fn loads_of_nothing_give_zero_interpreted_as_well() {
    let text = "r6 = r1\nr3 = *(u64 *)(r1 + 0)\nr0 = *(u64 *)(r3 + 8)\nr0 += 7\n*(u64 *)(r6 + 8) = r0\nexit";
    let (result, context) = probed(text, [0; LEN]);
    assert_eq!((result, context[8]), (7, 7));
}

#[test]
fn texts_are_numbers_and_compared() {
    let number = |text: u64, helper: i32| {
        format!(
            "r1 = {text} ll\n*(u64 *)(r10 - 8) = r1\nr1 = r10\nr1 += -8\nr2 = 8\nr3 = 0\nr4 = r10\nr4 += -16\n\
                 call {helper}\nr1 = *(u64 *)(r10 - 16)\nr0 <<= 48\nr1 <<= 16\nr1 >>= 16\nr0 |= r1\nexit"
        )
    };
    let bytes = |text: &[u8; 8]| u64::from_le_bytes(*text);
    assert_eq!(run(&number(bytes(b"-12 abcd"), 105)), 3 << 48 | (-12_i64 as u64) << 16 >> 16);
    assert_eq!(run(&number(bytes(b"0x1fg\0\0\0"), 106)), 4 << 48 | 0x1f);
    assert_eq!(run(&number(bytes(b"-5\0\0\0\0\0\0"), 106)), (-22_i64 as u64) << 48);
    // A number, and text behind it.
    assert_eq!(run(&number(bytes(b"0xg\0\0\0\0\0"), 105)), 1 << 48);
    assert_eq!(run(&number(bytes(b"\x0b\xa0 017\0\0"), 106)), 6 << 48 | 15);
    assert_eq!(run(&number(bytes(b"x\0\0\0\0\0\0\0"), 105)), (-22_i64 as u64) << 48);
    // Only a number has 63 bytes at most: blanks come before it. Its end is the text's.
    let last = "r2 = r10\nr2 += -80\nr1 = 0x2020202020202020 ll\n";
    let blanks: String = (0..9).map(|word| format!("*(u64 *)(r2 + {}) = r1\n", 8 * word)).collect();
    let long = |end: &str, base: u32| {
        format!(
            "{last}{blanks}{end}r1 = r2\nr2 = 72\nr3 = {base}\nr4 = r10\nr4 += -8\ncall 106\n\
             r1 = *(u64 *)(r10 - 8)\nr0 <<= 48\nr1 <<= 16\nr1 >>= 16\nr0 |= r1\nexit"
        )
    };
    assert_eq!(run(&long("*(u8 *)(r2 + 71) = 0x37\n", 10)), 72 << 48 | 7);
    assert_eq!(run(&long("", 10)), (-22_i64 as u64) << 48);
    assert_eq!(run(&long("*(u16 *)(r2 + 70) = 0x782d\n", 16)), (-22_i64 as u64) << 48);
    assert_eq!(run(&long("*(u8 *)(r2 + 71) = 0x2d\n", 10)), (-22_i64 as u64) << 48);
    // An error of the number comes before one of the sign.
    let huge = "r1 = 0x3939393939393939 ll\n*(u64 *)(r2 + 48) = r1\n*(u64 *)(r2 + 56) = r1\n\
                *(u64 *)(r2 + 64) = r1\n*(u8 *)(r2 + 47) = 0x2d\n";
    assert_eq!(run(&long(huge, 10)), (-34_i64 as u64) << 48);
    let compared = |text: u64| {
        format!(
            "r1 = {text} ll\n*(u64 *)(r10 - 8) = r1\nr1 = r10\nr1 += -8\nr2 = 8\nr3 = map[idx:5][0]+0 ll\ncall 182\n\
                 exit"
        )
    };
    assert_eq!(run(&compared(bytes(b"palimpse"))), 0);
    assert_eq!(run(&compared(bytes(b"palimpsf"))), 1);
    assert_eq!(run(&compared(bytes(b"pal\0\0\0\0\0"))), u64::MAX);
    let writable = compared(0).replace("idx:5", "idx:0");
    assert_eq!(refused(&writable), Fault::NoText { register: Register::R3 });
}
