//! Copies of a number: what is compared in one place is known in the others, as long as they are copies, and only on
//! the ways on which they are.
//!
//! Mutants that are caught, each planted by itself: links that nobody asks for where ways meet, or only those of three
//! and more numbers; a copy that keeps the link of the number that it replaces; a sum of 64 bits that is still linked
//! with a lower half; in loops, links of registers, of halves of slots or of whole slots that are kept though a round
//! ends them.

use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers};
use palimpsest_bpf::verify::Verified;

use super::Random;
use super::used::{READ, verify};

/// `r9` is the context of 16 bytes, `r6` and `r5` are any numbers, `r8` one of 32 bits, `r4` a byte; `out` ends.
/// Behind that are functions.
fn program(rest: &str) -> String {
    let (rest, functions) =
        rest.split_once("\nf: ").map_or((rest, String::new()), |(rest, f)| (rest, format!("\nf: {f}")));
    format!(
        "r9 = r1\nr6 = *(u64 *)(r1 + 0)\nr5 = *(u64 *)(r1 + 8)\nr8 = *(u32 *)(r1 + 4)\nr4 = *(u8 *)(r1 + 1)\n\
         {rest}\nr0 = *(u8 *)(r9 + 0)\nexit\nout: r0 = 0\nexit{functions}"
    )
}

#[test]
fn copies_learn_together() {
    for rest in [
        "r7 = r6\nif r6 > 15 goto out\nr9 += r7",
        "r7 = r6\nif r7 > 15 goto out\nr9 += r6",
        "r7 = r6\nr3 = r7\nr2 = r6\nif r3 > 15 goto out\nr9 += r2",
        "r7 = r6\nr3 = 15\nif r3 < r6 goto out\nr9 += r7",
        "r7 = r6\nif r6 != 9 goto out\nr9 += r7",
        "r7 = r6\nif r6 s> 15 goto out\nif r7 s< 0 goto out\nr9 += r6",
        "r7 = r6\nif r6 & -16 goto out\nr9 += r7",
        // Where both have copies.
        "r7 = r6\nr3 = r4\nif r4 > 15 goto out\nif r6 > r3 goto out\nr9 += r7",
        "r7 = r6\nr3 = r4\nif r6 > 15 goto out\nif r4 != r6 goto out\nr9 += r3",
        // On the stack.
        "*(u64 *)(r10 - 8) = r6\nif r6 > 15 goto out\nr7 = *(u64 *)(r10 - 8)\nr9 += r7",
        "*(u64 *)(r10 - 8) = r6\nr7 = *(u64 *)(r10 - 8)\nif r7 > 15 goto out\nr9 += r6",
        "*(u64 *)(r10 - 8) = r6\n*(u64 *)(r10 - 16) = r6\nr7 = *(u64 *)(r10 - 16)\nif r7 > 15 goto out\n\
         r3 = *(u64 *)(r10 - 8)\nr9 += r3",
        // In half a slot, and from half of one.
        "*(u32 *)(r10 - 4) = r8\nif r8 > 15 goto out\nr7 = *(u32 *)(r10 - 4)\nr9 += r7",
        "*(u32 *)(r10 - 8) = r8\nr7 = *(u32 *)(r10 - 8)\nif w7 > 15 goto out\nr9 += r8",
        "*(u32 *)(r10 - 8) = r6\nif w6 > 15 goto out\nr7 = *(u32 *)(r10 - 8)\nr9 += r7",
        "*(u64 *)(r10 - 8) = r6\nr7 = *(u32 *)(r10 - 8)\nif r7 > 15 goto out\nw6 = w6\nr9 += r6",
        "*(u32 *)(r10 - 8) = r8\n*(u8 *)(r10 - 4) = 1\nif r8 > 15 goto out\nr7 = *(u32 *)(r10 - 8)\nr9 += r7",
        // Halves, with zeros above them and without.
        "w7 = w8\nif r7 > 15 goto out\nr9 += r8",
        "w7 = w6\nif w6 > 15 goto out\nr9 += r7",
        "w7 = w6\nif r7 > 15 goto out\nw6 = w6\nr9 += r6",
        "w7 = w6\nif w7 s> 15 goto out\nif w6 s< 0 goto out\nr9 += r7",
        // Shifted, and then extended with zeros and with the sign.
        "r6 <<= 32\nr7 = r6\nr7 >>= 32\nif r7 > 15 goto out\nr6 s>>= 32\nr9 += r6",
        "r7 = r6\nr7 <<= 32\nr7 s>>= 32\nif r7 > 15 goto out\nw6 = w6\nr9 += r6",
        // Constants added.
        "r7 = r6\nr7 += 100\nif r7 > 115 goto out\nif r7 < 100 goto out\nr9 += r6",
        "r7 = r6\nr7 -= 3\nr3 = r7\nr3 += 7\nif r6 > 11 goto out\nr9 += r3",
        "r7 = r6\nr6 += 8\nr7 += 8\nif r6 > 15 goto out\nr9 += r7",
        "w7 = w8\nw7 += -1\nif w7 > 14 goto out\nr9 += r8",
        "w7 = w6\nw7 += -1\nw3 = w6\nw3 += 1\nif w7 > 13 goto out\nr9 += r3",
        "r7 = r8\nw7 -= 5\nif r7 > 3 goto out\nr9 += r8",
        "w7 = w6\nw7 += 2147483647\nw7 += 2147483647\nif r7 > 13 goto out\nw6 = w6\nr9 += r6",
        // Through functions: an argument, a result, the stack of the caller.
        "r1 = r6\ncall local f\nif r0 != 0 goto out\nr9 += r6\n\
         f: r0 = 0\nif r1 < 16 goto in\nr0 = 1\nin: exit",
        "r1 = r6\ncall local f\nif r0 > 15 goto out\nr9 += r6\nf: r0 = r1\nexit",
        "*(u64 *)(r10 - 8) = r6\nr1 = r10\ncall local f\nif r0 != 0 goto out\nr9 += r6\n\
         f: r2 = *(u64 *)(r1 - 8)\nr0 = 0\nif r2 < 16 goto in\nr0 = 1\nin: exit",
        // In a loop that only its count ends, which does not change them.
        "*(u64 *)(r10 - 8) = r6\nr3 = 0\nhead: may_goto end\nr3 += 1\ngoto head\nend: if r6 > 15 goto out\n\
         r7 = *(u64 *)(r10 - 8)\nr9 += r7",
    ] {
        let text = program(rest);
        let verified = verify(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        run(&verified, &text, &mut Random(7));
    }
}

#[test]
fn what_is_no_copy_any_more_learns_nothing() {
    for rest in [
        // One of them is another number since.
        "r7 = r6\nr6 += r4\nif r6 > 15 goto out\nr9 += r7",
        "r7 = r6\nr7 = r5\nif r6 > 15 goto out\nr9 += r7",
        "r7 = r6\nr7 <<= 1\nr7 >>= 1\nif r6 > 15 goto out\nr9 += r7",
        "r7 = r6\nr7 = -r7\nif r7 > 15 goto out\nr9 += r6",
        "r7 = r6\nr7 = be64 r7\nif r7 > 15 goto out\nr9 += r6",
        "r7 = (s32)r6\nif r7 > 15 goto out\nr9 += r6",
        "r7 = r6\nr7 ^= 1\nif r6 > 14 goto out\nr9 += r7",
        "r7 = r6\nr7 = *(u64 *)(r9 + 8)\nif r6 > 15 goto out\nr9 += r7",
        "r7 = r6\nlock *(u64 *)(r9 + 0) += r7\nr7 = xchg_64(r9 + 0, r7)\nif r6 > 15 goto out\nr9 += r7",
        // The other way.
        "r7 = r6\nif r6 > 15 goto in\ngoto out\nin: r9 += r7",
        "r7 = r6\nif r6 < 16 goto out\nr9 += r7",
        // Only the lower half, or another one.
        "w7 = w6\nif w7 > 15 goto out\nr9 += r6",
        "w7 = w6\nw7 += 5\nif w7 > 15 goto out\nr9 += r6",
        "*(u64 *)(r10 - 8) = r6\nr7 = *(u32 *)(r10 - 4)\nif r7 > 15 goto out\nr9 += r6",
        "*(u32 *)(r10 - 8) = r6\nr7 = *(u32 *)(r10 - 8)\nif r7 > 15 goto out\nr9 += r6",
        "*(u64 *)(r10 - 8) = r6\nr7 = *(s32 *)(r10 - 8)\nif r7 > 15 goto out\nr9 += r6",
        "*(u16 *)(r10 - 8) = r8\nr7 = *(u16 *)(r10 - 8)\nif r7 > 15 goto out\nr9 += r8",
        "r7 = r6\nr7 <<= 32\nr7 >>= 32\nif r7 > 15 goto out\nr9 += r6",
        "r6 <<= 31\nr7 = r6\nr7 >>= 32\nif r7 > 15 goto out\nr6 s>>= 31\nr9 += r6",
        "r7 = r6\nr7 >>= 32\nr7 <<= 32\nr7 >>= 32\nif r7 > 15 goto out\nw6 = w6\nr9 += r6",
        // Sums that begin anew at 0.
        "r7 = r6\nr7 += 1\nif r7 > 16 goto out\nr9 += r6",
        "w7 = w8\nw7 += 1\nif r7 > 16 goto out\nr9 += r8",
        "r7 = r8\nw7 -= 1\nif r7 > 15 goto out\nr9 += r8",
        "w7 = w6\nw7 += 2147483647\nw7 += 2147483647\nif r7 > 14 goto out\nw6 = w6\nr9 += r6",
        "w7 = w8\nr7 += 1\nw7 = w7\nif r7 > 16 goto out\nr9 += r8",
        "w7 = w8\nr7 += -1\nif r8 != 0 goto out\nr7 >>= 59\nr9 += r7",
        // Half of it, which leaves that half.
        "w7 = w6\nr7 += -1\nif w6 > 3 goto out\nr7 >>= 59\nr9 += r7",
        "r7 = (s32)r6\nr7 += -1\nif w6 > 3 goto out\nr7 >>= 59\nr9 += r7",
        "r7 = r6\nr7 += 2147483647\nr7 += 2147483647\nr7 += 2147483647\nif r7 > 15 goto out\nr9 += r6",
        // Overwritten on the stack: as a whole, in part, by a number that nobody knows, by a function, wherever.
        "*(u64 *)(r10 - 8) = r6\n*(u64 *)(r10 - 8) = r5\nif r6 > 15 goto out\nr7 = *(u64 *)(r10 - 8)\nr9 += r7",
        "*(u64 *)(r10 - 8) = r6\n*(u8 *)(r10 - 1) = 1\nif r6 > 15 goto out\nr7 = *(u64 *)(r10 - 8)\nr9 += r7",
        "*(u32 *)(r10 - 8) = r8\n*(u8 *)(r10 - 8) = 99\nif r8 > 15 goto out\nr7 = *(u32 *)(r10 - 8)\nr9 += r7",
        "*(u32 *)(r10 - 8) = r8\n*(u16 *)(r10 - 9) = 99\nif r8 > 15 goto out\nr7 = *(u32 *)(r10 - 8)\nr9 += r7",
        "*(u64 *)(r10 - 8) = r6\nlock *(u64 *)(r10 - 8) += r4\nif r6 > 15 goto out\nr7 = *(u64 *)(r10 - 8)\nr9 += r7",
        "*(u64 *)(r10 - 8) = r6\n*(u64 *)(r10 - 16) = 0\nr3 = r10\nr3 -= 16\nr4 &= 15\nr3 += r4\n*(u8 *)(r3 + 0) = 99\n\
         if r6 > 15 goto out\nr7 = *(u64 *)(r10 - 8)\nr9 += r7",
        "*(u64 *)(r10 - 8) = r6\nr1 = r10\ncall local f\nif r6 > 15 goto out\nr7 = *(u64 *)(r10 - 8)\nr9 += r7\n\
         f: *(u64 *)(r1 - 8) = 99\nr0 = 0\nexit",
        // A function changes its argument before it compares.
        "r1 = r6\ncall local f\nif r0 != 0 goto out\nr9 += r6\n\
         f: r0 = 0\nr1 &= 15\nif r1 < 16 goto in\nr0 = 1\nin: exit",
        // Each round has another number.
        "r7 = r6\nhead: may_goto end\nr6 = *(u64 *)(r9 + 8)\ngoto head\nend: if r6 > 15 goto out\nr9 += r7",
        "*(u64 *)(r10 - 8) = r6\nhead: may_goto end\nr7 = *(u64 *)(r9 + 8)\n*(u64 *)(r10 - 8) = r7\ngoto head\n\
         end: if r6 > 15 goto out\nr7 = *(u64 *)(r10 - 8)\nr9 += r7",
    ] {
        let text = program(rest);
        assert!(verify(&text).is_err(), "accepted:\n{text}");
    }
}

#[test]
fn loops_that_end_links_are_known_after_few_rounds() {
    // Where a round begins, the numbers are copies the first time only.
    for (link, body, rest) in [
        ("r7 = r6", "r6 = *(u64 *)(r9 + 8)", "r0 = r6\nr0 += r7"),
        ("*(u64 *)(r10 - 8) = r6", "r7 = *(u64 *)(r9 + 8)\n*(u64 *)(r10 - 8) = r7", "r0 = *(u64 *)(r10 - 8)\nr0 += r6"),
        ("*(u32 *)(r10 - 8) = r8", "r7 = *(u32 *)(r9 + 8)\n*(u32 *)(r10 - 8) = r7", "r0 = *(u32 *)(r10 - 8)\nr0 += r8"),
    ] {
        let text = program(&format!("{link}\nhead: may_goto end\n{body}\ngoto head\nend: {rest}"));
        let verified = verify(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert!(verified.followed() < 60, "{} instructions were followed\n{text}", verified.followed());
    }
}

/// What makes `r7`, or a place on the stack, a copy of `r6`; and what then compares one and uses the other.
const LINKED: [(&str, &str); 12] = [
    ("r7 = r6", "if r6 > 15 goto out\nr9 += r7"),
    ("r7 = r6", "if r7 > 15 goto out\nr9 += r6"),
    ("w7 = w6", "if r7 > 15 goto out\nw6 = w6\nr9 += r6"),
    ("r7 = r6\nr7 += 2", "if r6 > 13 goto out\nr9 += r7"),
    ("w7 = w6\nw7 += 2", "if w6 > 13 goto out\nr9 += r7"),
    ("*(u64 *)(r10 - 8) = r6", "if r6 > 15 goto out\nr7 = *(u64 *)(r10 - 8)\nr9 += r7"),
    ("*(u64 *)(r10 - 8) = r6", "r7 = *(u64 *)(r10 - 8)\nif r7 > 15 goto out\nr9 += r6"),
    ("*(u32 *)(r10 - 8) = r6", "if w6 > 15 goto out\nr7 = *(u32 *)(r10 - 8)\nr9 += r7"),
    ("*(u32 *)(r10 - 8) = r6", "r7 = *(u32 *)(r10 - 8)\nif w6 > 15 goto out\nr9 += r7"),
    // Behind another place where ways meet.
    ("r7 = r6", "r3 = r7\nif r4 > 7 goto on\nr2 = 1\non: if r6 > 15 goto out\nr9 += r3"),
    ("*(u64 *)(r10 - 8) = r6", "r3 = *(u64 *)(r10 - 8)\nif r4 > 7 goto on\nr2 = 1\non: if r6 > 15 goto out\nr9 += r3"),
    // A function compares, and ways meet in it.
    (
        "r7 = r6",
        "r1 = r6\nr2 = r4\ncall local f\nif r0 != 0 goto out\nr9 += r7\n\
         f: r0 = 0\nif r2 > 7 goto on\nr3 = 1\non: if r1 < 16 goto in\nr0 = 1\nin: exit",
    ),
];

/// Two ways, on both of which the numbers are linked, or only on the first; the same numbers are known on both.
fn meeting(link: &str, otherwise: &str, rest: &str) -> String {
    program(&format!(
        "*(u64 *)(r10 - 8) = r5\nr7 = r5\nr3 = *(u8 *)(r1 + 3)\n{otherwise}\nif r3 > 5 goto meet\n{link}\nmeet: {rest}"
    ))
}

#[test]
fn a_link_that_is_used_is_asked_for_on_each_way() {
    for (link, rest) in LINKED {
        let right = meeting(link, link, rest);
        verify(&right).unwrap_or_else(|error| panic!("{error}\n{right}"));
        let others = [
            String::new(),
            link.replace("r6", "r5").replace("w6", "w5"),
            format!("{link}\nr6 = *(u64 *)(r1 + 8)"),
            // The same numbers, but further apart.
            format!("{link}\nr6 += 9"),
        ];
        for other in &others {
            let wrong = meeting(link, other, rest);
            assert!(verify(&wrong).is_err(), "accepted:\n{wrong}");
            // The other way first.
            let turned = wrong.replace("if r3 > 5 goto meet", "if r3 > 5 goto on0\ngoto meet\non0: r2 = 0");
            assert!(verify(&turned).is_err(), "accepted:\n{turned}");
        }
    }
}

#[test]
fn links_that_nobody_uses_are_not_asked_for() {
    const BRANCHES: usize = 40;
    // On each way other registers are copies.
    let branches: String = (0..BRANCHES)
        .map(|n| {
            format!(
                "r3 = *(u8 *)(r1 + {})\n{}\nif r3 > {n} goto l{n}\n{}\nl{n}: r2 = 0\n",
                n % 16,
                ["r7 = r6", "r7 = r8", "w7 = w6\nw7 += 5"][n % 3],
                ["r8 = r6", "r6 = r7\nr6 += 1", "*(u64 *)(r10 - 8) = r6", "w8 = w7"][n % 4],
            )
        })
        .collect();
    let text = program(&format!("r7 = r5\n*(u64 *)(r10 - 8) = r6\n{branches}r0 = r7\nr0 += r8"));
    let verified = verify(&text).unwrap_or_else(|error| panic!("{error}"));
    let most = 12 * BRANCHES;
    assert!(verified.followed() <= most, "{} instructions were followed", verified.followed());
}

/// Runs an accepted program with contexts near its limits.
fn run(verified: &Verified, text: &str, random: &mut Random) {
    for _ in 0..16 {
        let word = |random: &mut Random| match random.below(5) {
            0 => random.below(20),
            1 => random.below(20).wrapping_neg(),
            2 => (random.below(3) << 32) + random.below(20),
            3 => (random.below(3) << 32).wrapping_sub(random.below(20)),
            _ => random.next(),
        };
        let mut context = [word(random).to_le_bytes(), word(random).to_le_bytes()].concat();
        let mut memory = Memory::new();
        memory.add(0x10_0000, &mut context).expect("nothing else is there");
        let arguments = [0x10_0000, 16, 0, 0, 0];
        let result = Interpreter::default().run(verified.code(), arguments, &mut memory, &mut NoHelpers);
        assert!(result.is_ok(), "{result:?}\n{text}");
    }
}

/// A step that makes, breaks, compares or keeps copies among `r2` to `r8` and three slots.
fn step(random: &mut Random, number: usize) -> String {
    let register = |random: &mut Random| 2 + random.below(7);
    let (one, other) = (register(random), register(random));
    let constant = random.one_of(&[0, 1, 2, 7, 8, 14, 15, 16, -1, -8, i32::MAX, i32::MIN]);
    let slot = 8 * (1 + random.below(3));
    let half = slot - 4 * random.below(2);
    let width = random.one_of(&["r", "w"]);
    let condition = random.one_of(&[">", ">=", "<", "<=", "s>", "s>=", "s<", "s<=", "==", "!=", "&"]);
    let with = if random.below(3) == 0 { format!("{width}{other}") } else { constant.to_string() };
    match random.below(19) {
        0..=2 => format!("r{one} = r{other}"),
        3 | 4 => format!("w{one} = w{other}"),
        5 => format!("{width}{one} += {constant}"),
        6 => format!("{width}{one} -= {constant}"),
        7 => format!("*(u64 *)(r10 - {slot}) = r{one}"),
        8 => format!("r{one} = *(u64 *)(r10 - {slot})"),
        9 => format!("*(u32 *)(r10 - {half}) = r{one}"),
        10 => format!("r{one} = *({} *)(r10 - {half})", random.one_of(&["u32", "u32", "s32"])),
        11 => format!("*(u8 *)(r10 - {}) = r{one}", 1 + random.below(24)),
        12 => format!("r{one} = *({} *)(r9 + {})", random.one_of(&["u64", "u32", "u8"]), 8 * random.below(2)),
        13 => format!("{width}{one} {} {width}{other}", random.one_of(&["+=", "-=", "^=", "&="])),
        14 => format!("{width}{one} &= {}", random.one_of(&[7, 15, -16, 0xffff])),
        // Somewhere on the stack.
        15 => format!("r1 = r{one}\nr1 &= {}\nr1 += r10\n*(u8 *)(r1 - 24) = 3", random.one_of(&[7, 8, 16, 15])),
        16 => format!("r1 = r{one}\nr1 &= {}\nr1 += r10\nr{other} = *(u8 *)(r1 - 24)", random.one_of(&[7, 8, 16, 15])),
        // Only on one way.
        17 => {
            format!("if {width}{one} {condition} {with} goto on{number}\n{}\non{number}:", step(random, number + 100))
        }
        _ => format!("if {width}{one} {condition} {with} goto out"),
    }
}

/// A program of such steps, which then reads where one of the registers says, compared through another or not.
fn mixing(random: &mut Random) -> String {
    let mut lines = vec![format!("r2 = r{}\nr3 = {}\nr7 = r6", random.one_of(&[5, 6]), random.below(16))];
    lines.push("*(u64 *)(r10 - 8) = r6\n*(u64 *)(r10 - 16) = r5\n*(u64 *)(r10 - 24) = r8".to_owned());
    for number in 0..2 + random.below(7) as usize {
        lines.push(step(random, number));
    }
    let (one, other, width) = (2 + random.below(7), 2 + random.below(7), random.one_of(&["r", "r", "w"]));
    if random.below(4) > 0 {
        lines.push(format!("if {width}{one} > {} goto out", random.one_of(&[7, 8, 14, 15, 15, 15, 16])));
    }
    if random.below(3) == 0 {
        lines.push(step(random, 50));
    }
    if random.below(4) == 0 {
        lines.push(format!("w{other} = w{other}"));
    }
    lines.push(format!("r9 += r{other}"));
    program(&lines.join("\n"))
}

#[test]
fn what_is_learned_of_copies_is_true() {
    let mut random = Random(0x0dd_ba11);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..programs() {
        let text = mixing(&mut random);
        match verify(&text) {
            Ok(verified) => {
                accepted += 1;
                run(&verified, &text, &mut random);
            }
            Err(_) => refused += 1,
        }
    }
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted * 20 > refused && refused > 100, "{accepted} accepted, {refused} refused");
}

/// Returns how many programs to try.
fn programs() -> u32 {
    super::programs() / 5
}

/// Reads behind the end are errors of the interpreter: otherwise nothing above could fail.
#[test]
fn the_interpreter_ends_what_reads_elsewhere() {
    let bytes = palimpsest_bpf::asm::assemble(&format!("r9 = r1\nr9 += 16\n{READ}")).expect("a program");
    let code = palimpsest_bpf::Code::new(&bytes).expect("its structure is right");
    let mut memory = Memory::new();
    let mut context = [0; 16];
    memory.add(0x10_0000, &mut context).expect("nothing else is there");
    assert!(Interpreter::default().run(&code, [0x10_0000, 16, 0, 0, 0], &mut memory, &mut NoHelpers).is_err());
}
