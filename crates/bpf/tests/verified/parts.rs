//! Numbers in less than 8 bytes of the stack: they are known again where they are loaded as they were stored, and
//! forgotten where anything else was written.
//!
//! Mutants that are caught: a part from another place, a part that an overwritten number leaves in the wrong half, a
//! number that is kept though it was overwritten.

use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers};

use super::Random;
use super::used::{READ, meeting, verify};

/// `r9` is the context of 16 bytes, `r4` an unknown byte; `r7` is loaded by `rest`.
fn loading(rest: &str) -> String {
    format!("r9 = r1\nr4 = *(u8 *)(r1 + 1)\n{rest}\nr9 += r7\n{READ}")
}

#[test]
fn a_number_in_part_of_a_slot_is_known_again() {
    for rest in [
        "*(u32 *)(r10 - 4) = 15\nr7 = *(u32 *)(r10 - 4)",
        "*(u32 *)(r10 - 8) = 15\n*(u32 *)(r10 - 4) = -1\nr7 = *(u32 *)(r10 - 8)",
        "*(u32 *)(r10 - 508) = 15\nr7 = *(u32 *)(r10 - 508)",
        "*(u16 *)(r10 - 6) = 15\n*(u8 *)(r10 - 4) = 200\n*(u8 *)(r10 - 7) = 200\nr7 = *(u16 *)(r10 - 6)",
        "*(u8 *)(r10 - 3) = 15\n*(u8 *)(r10 - 2) = 200\n*(u8 *)(r10 - 4) = 200\nr7 = *(u8 *)(r10 - 3)",
        "r4 &= 15\n*(u32 *)(r10 - 4) = r4\nr7 = *(u32 *)(r10 - 4)",
        "r4 &= 15\n*(u8 *)(r10 - 1) = r4\nr7 = *(u8 *)(r10 - 1)",
        "*(u32 *)(r10 - 4) = 0x7fff000f\nr7 = *(u32 *)(r10 - 4)\nr7 -= 0x7fff0000",
        "*(u8 *)(r10 - 4) = -1\nr7 = *(s8 *)(r10 - 4)\nr7 += 2",
        // The lowest bits of what was stored.
        "r5 = 0x10f\n*(u8 *)(r10 - 4) = r5\nr7 = *(u8 *)(r10 - 4)",
        // Part of 8 bytes that were stored as such.
        "*(u64 *)(r10 - 8) = 15\nr7 = *(u32 *)(r10 - 8)",
        "*(u64 *)(r10 - 8) = 15\nr7 = *(u32 *)(r10 - 4)\nr7 += 15",
        "*(u64 *)(r10 - 8) = -1\nr7 = *(u32 *)(r10 - 4)\nr7 -= 0x7ffffff8\nr7 -= 0x7ffffff8",
        "*(u64 *)(r10 - 8) = 0xf00ff\nr7 = *(u16 *)(r10 - 6)",
        "*(u64 *)(r10 - 8) = 0xf00ff\nr7 = *(u8 *)(r10 - 6)",
        "*(u64 *)(r10 - 8) = -1\nr7 = *(s8 *)(r10 - 1)\nr7 += 1",
        "r4 &= 15\n*(u64 *)(r10 - 8) = r4\nr7 = *(u32 *)(r10 - 8)",
        "r4 &= 15\nr4 <<= 32\n*(u64 *)(r10 - 8) = r4\nr7 = *(u8 *)(r10 - 4)",
        "*(u32 *)(r10 - 8) = 0xf00ff\nr7 = *(u16 *)(r10 - 6)",
        "*(u16 *)(r10 - 8) = 0xf00\nr7 = *(u8 *)(r10 - 7)",
        // What other stores have left of it.
        "*(u64 *)(r10 - 8) = 15\n*(u8 *)(r10 - 2) = r4\nr7 = *(u32 *)(r10 - 8)",
        "r5 = 0xf0000ffff ll\n*(u64 *)(r10 - 8) = r5\n*(u8 *)(r10 - 1) = r4\nr7 = *(u16 *)(r10 - 4)",
        "r5 = 0xf0000ffff ll\n*(u64 *)(r10 - 8) = r5\n*(u16 *)(r10 - 2) = r4\nr7 = *(u8 *)(r10 - 4)",
        "*(u32 *)(r10 - 8) = 0xf00ff\n*(u8 *)(r10 - 8) = r4\nr7 = *(u16 *)(r10 - 6)",
        "*(u32 *)(r10 - 8) = 0xf00ff\n*(u8 *)(r10 - 5) = r4\nr7 = *(u8 *)(r10 - 6)",
        "*(u16 *)(r10 - 8) = 15\n*(u8 *)(r10 - 7) = r4\nr7 = *(u8 *)(r10 - 8)",
        "r4 &= 15\n*(u64 *)(r10 - 8) = r4\n*(u8 *)(r10 - 1) = -1\nr7 = *(u32 *)(r10 - 8)",
        // A loop that counts there, whose key a helper could read.
        "*(u32 *)(r10 - 4) = 0\nhead: r7 = *(u32 *)(r10 - 4)\nif r7 > 14 goto out\nr7 += 1\n\
         *(u32 *)(r10 - 4) = r7\ngoto head\nout: r7 = *(u32 *)(r10 - 4)",
    ] {
        let text = loading(rest);
        verify(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

#[test]
fn what_was_overwritten_is_forgotten() {
    for rest in [
        // Too great, as it was stored.
        "*(u32 *)(r10 - 4) = 16\nr7 = *(u32 *)(r10 - 4)",
        "*(u8 *)(r10 - 4) = -1\nr7 = *(u8 *)(r10 - 4)",
        "r5 = 0x110\n*(u8 *)(r10 - 4) = r5\nr7 = *(u8 *)(r10 - 4)",
        "r4 -= 1\n*(u32 *)(r10 - 4) = r4\nr7 = *(u32 *)(r10 - 4)",
        "*(u64 *)(r10 - 8) = 0x10000f\nr7 = *(u32 *)(r10 - 8)",
        "*(u64 *)(r10 - 8) = 0x100f\nr7 = *(u16 *)(r10 - 8)",
        "*(u64 *)(r10 - 8) = 0x10000f\nr7 = *(u8 *)(r10 - 6)",
        "r4 <<= 32\n*(u64 *)(r10 - 8) = r4\nr7 = *(u8 *)(r10 - 4)",
        // Another size, and another place.
        "*(u32 *)(r10 - 8) = 1\n*(u32 *)(r10 - 4) = 1\nr7 = *(u64 *)(r10 - 8)",
        "*(u32 *)(r10 - 8) = 0x10001\nr7 = *(u16 *)(r10 - 8)\nr7 += 15",
        "*(u16 *)(r10 - 8) = 1\n*(u16 *)(r10 - 6) = 1\nr7 = *(u32 *)(r10 - 8)",
        "*(u8 *)(r10 - 8) = 1\n*(u8 *)(r10 - 7) = 1\nr7 = *(u16 *)(r10 - 8)",
        "*(u64 *)(r10 - 8) = 1\n*(u8 *)(r10 - 2) = r4\nr7 = *(u32 *)(r10 - 4)",
        "*(u64 *)(r10 - 8) = 1\n*(u8 *)(r10 - 2) = r4\nr7 = *(u8 *)(r10 - 2)",
        "*(u64 *)(r10 - 8) = 1\n*(u8 *)(r10 - 5) = r4\nr7 = *(u32 *)(r10 - 8)",
        "*(u64 *)(r10 - 8) = 1\n*(u8 *)(r10 - 6) = r4\nr7 = *(u16 *)(r10 - 6)",
        "*(u64 *)(r10 - 8) = 1\n*(u32 *)(r10 - 6) = r4\nr7 = *(u16 *)(r10 - 6)",
        // Overwritten: in part, from across the end of a slot, as a whole, by an atomic operation.
        "*(u32 *)(r10 - 8) = 1\n*(u8 *)(r10 - 7) = 1\nr7 = *(u32 *)(r10 - 8)",
        "*(u32 *)(r10 - 8) = 1\n*(u16 *)(r10 - 6) = 1\nr7 = *(u32 *)(r10 - 8)",
        "*(u32 *)(r10 - 8) = 1\n*(u32 *)(r10 - 12) = 1\n*(u32 *)(r10 - 10) = -1\nr7 = *(u32 *)(r10 - 8)",
        "*(u32 *)(r10 - 4) = 1\n*(u32 *)(r10 - 8) = 1\n*(u64 *)(r10 - 8) = -1\nr7 = *(u32 *)(r10 - 4)",
        "*(u16 *)(r10 - 4) = 1\n*(u32 *)(r10 - 4) = 0x12345\nr7 = *(u16 *)(r10 - 4)",
        "*(u32 *)(r10 - 4) = 1\nlock *(u32 *)(r10 - 4) += r4\nr7 = *(u32 *)(r10 - 4)",
    ] {
        let text = loading(rest);
        assert!(verify(&text).is_err(), "accepted:\n{text}");
    }
    // By a function, in its caller's stack.
    let by_function = |at: i32| {
        let rest = "r1 = r10\nr2 = r4\ncall local f\nr7 = *(u32 *)(r10 - 4)";
        let text = format!("*(u32 *)(r10 - 4) = 1\n{rest}");
        format!("{}\nf: *(u8 *)(r1 - {at}) = r2\nr0 = 0\nexit", loading(&text))
    };
    assert!(verify(&by_function(8)).is_ok() && verify(&by_function(4)).is_err());
}

#[test]
fn a_number_there_that_is_used_is_followed_on_each_way() {
    // Stored behind the branch, so that only the stack differs where the ways meet.
    let stored = |size: &str, other: u32, rest: &str| {
        format!(
            "r9 = r1\nr3 = *(u8 *)(r1 + 0)\nr4 = *(u8 *)(r1 + 1)\nr8 = 0\n*({size} *)(r10 - 8) = {other}\n\
             if r3 > 5 goto meet\n*({size} *)(r10 - 8) = 1\nmeet: {rest}"
        )
    };
    for size in ["u8", "u16", "u32"] {
        let load = format!("r7 = *({size} *)(r10 - 8)");
        for rest in [
            format!("{load}\nr9 += r7\n{READ}"),
            format!("{load}\nif r7 > 60 goto bad\nr0 = 0\nexit\nbad: r0 = *(u64 *)(r10 - 16)\nexit"),
            format!("{load}\nr5 = r4\nif r5 > r7 goto out\nr9 += r5\n{READ}\nout: r0 = 0\nexit"),
            format!("if r4 > 7 goto again\nr8 = 1\nagain: {load}\nr9 += r7\n{READ}"),
            format!("{load}\nif r4 > 7 goto again\nr8 = 1\nagain: r9 += r7\n{READ}"),
            format!(
                "{load}\n*(u32 *)(r10 - 4) = r7\nif r4 > 7 goto again\nr8 = 1\nagain: \
                 r7 = *(u32 *)(r10 - 4)\nr9 += r7\n{READ}"
            ),
            // In a function, and in its caller while ways meet in it.
            format!(
                "r1 = r10\nr2 = r9\ncall local f\nexit\n\
                 f: r7 = *({size} *)(r1 - 8)\nr2 += r7\nr0 = *(u8 *)(r2 + 0)\nexit"
            ),
            format!(
                "r1 = r4\ncall local f\n{load}\nr9 += r7\n{READ}\nf: r0 = 1\nif r1 > 7 goto again\nr0 = 2\nagain: exit"
            ),
            format!("{load}\nr6 = r7\nr1 = r4\ncall local f\nr9 += r6\n{READ}\nf: goto again\nagain: r0 = 1\nexit"),
            format!("r6 = 1\nhead: may_goto out\n{load}\nr6 = r7\ngoto head\nout: r9 += r6\n{READ}"),
        ] {
            let (right, wrong) = (stored(size, 1, &rest), stored(size, 100, &rest));
            verify(&right).unwrap_or_else(|error| panic!("{error}\n{right}"));
            assert!(verify(&wrong).is_err(), "accepted:\n{wrong}");
        }
    }
    // One of the ways has stored 8 bytes.
    let load = format!("meet: r7 = *(u32 *)(r10 - 8)\nr9 += r7\n{READ}");
    for (size, other) in [("u64", "u32"), ("u32", "u64"), ("u64", "u64")] {
        let stored = |number: u32| {
            let start = format!("r9 = r1\nr3 = *(u8 *)(r1 + 0)\n*({size} *)(r10 - 8) = {number}\nif r3 > 5 goto meet");
            verify(&format!("{start}\n*({other} *)(r10 - 8) = 1\n{load}"))
        };
        assert!(stored(2).is_ok() && stored(100).is_err(), "{size} {other}");
    }
    let rest = format!("*(u32 *)(r10 - 8) = r6\nr7 = *(u32 *)(r10 - 8)\nr9 += r7\n{READ}");
    assert!(verify(&meeting(1, &rest)).is_ok() && verify(&meeting(100, &rest)).is_err());
}

#[test]
fn numbers_there_that_nobody_loads_are_followed_once() {
    const BRANCHES: usize = 40;
    let branches: String = (0..BRANCHES)
        .map(|n| {
            format!(
                "*(u32 *)(r10 - {at}) = 0\nr5 = *(u8 *)(r1 + {byte})\nif r5 > 9 goto l{n}\n\
                 *(u32 *)(r10 - {at}) = {n}1\nl{n}: r3 = 0\n",
                at = 4 * (n + 1),
                byte = n % 16
            )
        })
        .collect();
    let text = format!("{branches}r0 = 0\nexit");
    let verified = verify(&text).unwrap_or_else(|error| panic!("{error}"));
    assert!(verified.followed() <= 10 * BRANCHES, "{} instructions were followed", verified.followed());
}

/// A program that stores numbers of all sizes over each other, on several ways, and then goes as far into the context
/// as one of them says.
fn scribbling(random: &mut Random) -> String {
    let mut text = "r9 = r1\nr8 = *(u8 *)(r1 + 0)\nr4 = *(u8 *)(r1 + 1)\nr4 &= 15\nr5 = *(u64 *)(r1 + 8)\n\
                    *(u64 *)(r10 - 8) = 3\n*(u64 *)(r10 - 16) = 0xf000f\n"
        .to_owned();
    let sizes = [("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)];
    let place = |random: &mut Random| {
        let (size, bytes) = random.one_of(&sizes);
        (size, 16 - random.below(16 / bytes) * bytes)
    };
    for step in 0..2 + random.below(5) {
        let (size, at) = place(random);
        let shift = 8 * random.below(8);
        let is_skipped = random.below(4) == 0;
        if is_skipped {
            text += &format!("if r8 > {} goto l{step}\n", random.below(200));
        }
        text += &match random.below(6) {
            0 => format!("*({size} *)(r10 - {at}) = {}\n", random.one_of(&[0, 1, 2, 0xf_000f, 0x0d0e, -1])),
            1 => format!("r3 = {} ll\n*({size} *)(r10 - {at}) = r3\n", random.next() & 0x0707_0707_0707_0707),
            2 => format!("*({size} *)(r10 - {at}) = r5\n"),
            3 => format!("r3 = {}\nlock *(u32 *)(r10 - {}) += r3\n", random.below(3), 16 - random.below(4) * 4),
            _ => format!("r3 = r4\nr3 <<= {shift}\n*({size} *)(r10 - {at}) = r3\n"),
        };
        if is_skipped {
            text += &format!("l{step}: r2 = 0\n");
        }
    }
    let (size, at) = place(random);
    text + &format!("r7 = *({size} *)(r10 - {at})\nr9 += r7\n{READ}")
}

#[test]
fn what_is_known_of_parts_is_true() {
    let mut random = Random(0x5ca1_ab1e);
    let mut accepted = 0;
    for _ in 0..3000 {
        let text = scribbling(&mut random);
        let Ok(verified) = verify(&text) else { continue };
        accepted += 1;
        for _ in 0..8 {
            let mut context = [random.next().to_le_bytes(), random.next().to_le_bytes()].concat();
            let mut memory = Memory::new();
            memory.add(0x10_0000, &mut context).expect("nothing else is there");
            let arguments = [0x10_0000, 16, 0, 0, 0];
            let result = Interpreter::default().run(verified.code(), arguments, &mut memory, &mut NoHelpers);
            assert!(result.is_ok(), "{result:?}\n{text}");
        }
    }
    assert!((600..2900).contains(&accepted), "{accepted} were accepted");
}
