//! Programs near the limit: they make a number whose bounds a verifier can know, add it to an address, and load or
//! store close to where that memory ends. More than half of them are wrong.

/// Bytes of context.
pub(crate) const CONTEXT: i64 = 40;
/// Bytes of the only value of the map.
pub(crate) const VALUE: i64 = 104;
/// Bytes of the stack.
const STACK: i64 = 512;

/// Random numbers, the same each time: SplitMix64 by Steele, Lea and Flood.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    pub(crate) fn below(&mut self, count: i64) -> i64 {
        (self.next() % count as u64) as i64
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as i64) as usize]
    }
}

/// A constant, most of them small or near a limit.
fn constant(random: &mut Random) -> i64 {
    let near = random.one_of(&[0, 0, 8, 16, 32, 64, 127, 255, 1 << 15, 1 << 30, i64::from(i32::MAX) - 1]);
    let value = near + random.below(5) - 2;
    if random.below(5) == 0 { -value } else { value }
}

/// A step of arithmetic on `r6` or `w6`, with a constant or the unknown number in `r7`.
fn arithmetic(random: &mut Random) -> String {
    let register = random.one_of(&["r", "r", "r", "w"]);
    let value = match random.below(3) {
        0 => format!("{register}7"),
        _ => constant(random).to_string(),
    };
    let shift = random.below(if register == "w" { 32 } else { 64 });
    match random.below(15) {
        0 => format!("{register}6 += {value}"),
        1 => format!("{register}6 -= {value}"),
        2 => format!("{register}6 *= {}", random.below(9)),
        3 => format!("{register}6 |= {value}"),
        4 => format!("{register}6 ^= {value}"),
        5 => format!("{register}6 &= {value}"),
        6 => format!("{register}6 <<= {}", shift.min(random.below(8))),
        7 => format!("{register}6 >>= {shift}"),
        8 => format!("{register}6 s>>= {shift}"),
        9 => format!("{register}6 %= {}", 1 + random.below(70)),
        10 => format!("{register}6 /= {}", 1 + random.below(70)),
        11 => format!("{register}6 = -{register}6"),
        12 => format!("r6 = ({})r6", random.one_of(&["s8", "s16", "s32"])),
        13 => format!("{register}6 s%= {}", random.one_of(&[-7, 5, 16, 64])),
        _ => format!("{register}6 = {register}7"),
    }
}

/// A comparison that leaves the program unless `r6` is at most, or at least, something; and the same for `r7`.
fn comparison(random: &mut Random, number: usize, most: i64) -> String {
    let register = random.one_of(&["r", "r", "r", "w"]);
    let condition = random.one_of(&[">", ">", ">=", "s>", "s>=", "<", "s<", "s<=", "!=", "==", "&"]);
    let near = most + random.below(3) - 1;
    let value = match random.below(6) {
        0 => format!("{register}7"),
        1 => constant(random).to_string(),
        2 if condition.contains('<') => "0".to_owned(),
        _ => near.to_string(),
    };
    let to = if random.below(3) == 0 { format!("on{number}") } else { "out".to_owned() };
    let left = random.one_of(&["6", "6", "6", "7"]);
    format!("if {register}{left} {condition} {value} goto {to}\n{}\non{number}:", arithmetic_or_nothing(random))
}

fn arithmetic_or_nothing(random: &mut Random) -> String {
    if random.below(4) == 0 { arithmetic(random) } else { "r5 = 0".to_owned() }
}

/// Something that does not bound `r6`, but looks as if it did if halves, signs or overflows are mistaken for the whole.
fn no_bound(random: &mut Random, most: i64) -> String {
    match random.below(16) {
        0 => format!("r4 = {} ll\nif r6 > r4 goto out\nw6 = w6", (1_i64 << 32) + most),
        1 => format!("r6 = (s8)r6\nif r6 s> {most} goto out"),
        2 => format!("if w6 s> {most} goto out\nw6 = w6"),
        3 => format!("r4 = {} ll\nif r6 > r4 goto out\nr6 <<= 2", (1_i64 << 62) + most / 4),
        4 => format!("if r6 < {most} goto out"),
        // Half of it, or one that begins anew at 0.
        5 => format!("w4 = w6\nif r4 > {most} goto out"),
        6 => format!("if w6 s> {most} goto out\nr6 = (s32)r6"),
        7 => format!("r4 = r6\nr4 += 1\nif r4 > {} goto out", most + 1),
        8 => format!("w4 = w6\nw4 += 3\nif w4 > {} goto out\nw6 = w6", most + 3),
        9 => format!("r4 = r6\nr4 <<= 32\nr4 s>>= 32\nif r4 s> {most} goto out"),
        // A copy that is none any more.
        10 => format!("r4 = r6\nr6 = r7\nif r4 > {most} goto out"),
        11 => format!("r4 = r6\nr4 = -r4\nif r4 > {most} goto out"),
        12 => format!("*(u64 *)(r10 - 80) = r6\n*(u8 *)(r10 - 80) = 99\nif r6 > {most} goto out\n{FILL}"),
        13 => format!("*(u64 *)(r10 - 80) = r7\nif r6 > {most} goto out\n{FILL}"),
        14 => format!("*(u32 *)(r10 - 80) = r6\nr4 = *(u32 *)(r10 - 80)\nif r4 > {most} goto out"),
        _ => format!("r6 |= {most}\nr6 = (s16)r6\nif r6 s> {most} goto out\nr6 = -r6"),
    }
}

/// Gets back what was kept on the stack.
const FILL: &str = "r6 = 0\nr6 = *(u64 *)(r10 - 80)";

/// A bound on a copy of `r6`, or on a half of it, which is one on it.
fn bound_on_copy(random: &mut Random, most: i64) -> String {
    let by = 1 + random.below(20);
    match random.below(13) {
        0 => format!("r4 = r6\nif r4 > {most} goto out"),
        1 => format!("r4 = r6\nif r6 > {most} goto out\nr6 = r4"),
        2 => format!("w4 = w6\nif w4 > {most} goto out\nw6 = w6"),
        3 => format!("w4 = w6\nif w6 > {most} goto out\nr6 = r4"),
        4 => format!("r4 = r6\nr4 += {by}\nif r4 > {} goto out\nif r4 < {by} goto out", most + by),
        5 => format!("w4 = w6\nw4 -= {by}\nif r6 > {most} goto out\nr6 = r4\nw6 += {by}"),
        6 => format!("*(u64 *)(r10 - 80) = r6\nif r6 > {most} goto out\n{FILL}"),
        7 => format!("*(u64 *)(r10 - 80) = r6\nr4 = *(u64 *)(r10 - 80)\nif r4 > {most} goto out"),
        8 => format!("*(u32 *)(r10 - 76) = r6\nif w6 > {most} goto out\nr6 = *(u32 *)(r10 - 76)"),
        9 => format!("if w6 s> {most} goto out\nif w6 s< 0 goto out\nw6 = w6"),
        10 => format!("if w6 s< 0 goto out\nif w6 s> {most} goto out\nr6 = (s32)r6"),
        11 => format!("r4 = r6\nr4 <<= 32\nr4 s>>= 32\nif r4 s> {most} goto out\nif r4 s< 0 goto out\nw6 = w6"),
        _ => format!("r4 = r6\nr4 <<= 32\nr4 >>= 32\nif r4 > {most} goto out\nw6 = w6"),
    }
}

/// A real bound on `r6`; the result is the greatest value.
fn bound(random: &mut Random) -> (String, i64) {
    let most = random.one_of(&[0, 1, 3, 7, 15, 31, 24, 63]);
    let over = most + 1;
    if random.below(6) == 0 {
        return (no_bound(random, most), most);
    }
    if random.below(3) == 0 {
        return (bound_on_copy(random, most), most);
    }
    let text = match random.below(12) {
        0 | 1 => format!("r6 &= {most}"),
        2 => format!("r6 %= {over}"),
        3 => format!("if r6 > {most} goto out"),
        4 => format!("if r6 s> {most} goto out\nif r6 s< 0 goto out"),
        5 => format!("if w6 > {most} goto out\nw6 = w6"),
        6 => format!("r4 = {most}\nif r4 < r6 goto out"),
        7 => format!("if r6 >= {over} goto out"),
        8 => format!("if r6 s>= {over} goto out\nif r6 s<= -1 goto out"),
        9 => format!("r4 = {over}\nif r6 >= r4 goto out"),
        10 => format!("if w6 >= {over} goto out"),
        _ => format!("if r6 > {over} goto out\nif r6 == {over} goto out"),
    };
    (text, most)
}

/// A step that leaves a number from 0 to `most` bounded. Returns the greatest value that it then has.
fn derived(random: &mut Random, most: i64) -> (String, i64) {
    let (small, bits) = (random.below(9), random.below(4));
    // All bits that numbers up to `most` have.
    let ones = ((most + 1) as u64).next_power_of_two() as i64 - 1;
    let register = random.one_of(&["r", "r", "w"]);
    match random.below(15) {
        0 => (format!("{register}6 += {small}"), most + small),
        1 => (format!("{register}6 *= {}", small.max(1)), most * small.max(1)),
        2 => (format!("{register}6 <<= {bits}"), most << bits),
        3 => (format!("{register}6 >>= {bits}"), most >> bits),
        4 => (format!("{register}6 s>>= {bits}"), most >> bits),
        5 => (format!("{register}6 /= {}", small.max(1)), most / small.max(1)),
        6 => (format!("{register}6 %= {}", small.max(1)), most.min(small.max(1) - 1)),
        7 => (format!("{register}6 |= {small}"), ones | small),
        8 => (format!("{register}6 ^= {small}"), ones | small),
        9 => (format!("{register}6 &= {small}"), most.min(small)),
        10 => (format!("if r6 < {small} goto out\n{register}6 -= {small}"), (most - small).max(0)),
        11 => (format!("r4 = {}\nr4 -= r6\nr6 = r4", most + small), most + small),
        12 => (format!("r6 = -r6\nr6 += {}", most + small), most + small),
        // Divided by a number that is not known exactly.
        13 => (format!("r4 = r7\nr4 &= {bits}\nr4 += 2\nr6 /= r4"), most / 2),
        _ => (format!("r6 = ({})r6", random.one_of(&["s8", "s16", "s32"])), most),
    }
}

/// What an address may point into: the register that has it, how many bytes are behind it, and how many before it.
fn base(random: &mut Random) -> (&'static str, i64, i64) {
    match random.below(4) {
        0 => ("r8 = r1", CONTEXT, 0),
        1 => ("r8 = r10", 0, STACK),
        2 => ("r8 = map[idx:0][0]+0 ll", VALUE, 0),
        // Found by a look-up, which finds nothing for every other number.
        _ => (
            "r4 = r7\nr4 &= 1\n*(u32 *)(r10 - 4) = r4\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nr8 = r0",
            VALUE,
            0,
        ),
    }
}

/// A load or store at `r8` plus `offset`.
fn access(random: &mut Random, size: i64, offset: i64) -> String {
    let bits = size * 8;
    match random.below(6) {
        0..=2 => format!("r0 = *(u{bits} *)(r8 + {offset})"),
        3 if size < 8 => format!("r0 = *(s{bits} *)(r8 + {offset})"),
        4 => format!("*(u{bits} *)(r8 + {offset}) = r9"),
        _ => format!("*(u{bits} *)(r8 + {offset}) = {}", random.below(100)),
    }
}

/// One access through an address and a bounded number.
fn part(random: &mut Random, number: &mut usize) -> String {
    let mut lines = Vec::new();
    let size = random.one_of(&["u8", "u16", "u32", "u64"]);
    // An unknown number of the context, whose register `base` may have taken.
    lines.push(format!("r1 = *(u64 *)(r10 - 256)\nr6 = *({size} *)(r1 + {})", random.below(5) * 8));
    let (address, behind, before) = base(random);
    lines.push(address.to_owned());
    if address.contains("call") {
        *number += 1;
        match random.below(16) {
            0 => {}
            1 => lines.push("if r8 != 0 goto out".to_owned()),
            2..=5 => lines.push(format!("if r8 != 0 goto on{number}\ngoto out\non{number}:")),
            _ => lines.push("if r8 == 0 goto out".to_owned()),
        }
    }
    // Numbers that are still known after a look-up: below the part of the frame that it uses.
    for _ in 0..random.below(4) {
        lines.push(arithmetic(random));
    }
    let (text, mut most) = bound(random);
    lines.push(text);
    for _ in 0..random.below(3) {
        let (text, then) = derived(random, most);
        lines.push(text);
        most = then;
    }
    if random.below(4) == 0 {
        *number += 1;
        let line = if random.below(2) == 0 { comparison(random, *number, most) } else { arithmetic(random) };
        lines.push(line);
    }
    match random.below(8) {
        // Spilled and filled again, sometimes with a byte of it written in between.
        0 => {
            lines.push("*(u64 *)(r10 - 64) = r8".to_owned());
            if random.below(3) == 0 {
                lines.push(format!("*(u8 *)(r10 - {}) = 1", 57 + random.below(8)));
            }
            lines.push("r8 = *(u64 *)(r10 - 64)".to_owned());
        }
        1 => {
            lines.push("*(u64 *)(r10 - 72) = r6\nr6 = 0\nr6 = *(u64 *)(r10 - 72)".to_owned());
        }
        // Two ways; on one of them the number is different.
        2 => {
            *number += 1;
            lines.push(format!("if r7 & 1 goto on{number}\nr6 = {}\non{number}:", most + random.below(3) - 1));
        }
        // Counted up to the bound.
        3 => {
            *number += 1;
            let most = most.min(15);
            let end = most + random.below(3) - 1;
            lines.push(format!("r6 = 0\non{number}: r6 += 1\nif r6 < {end} goto on{number}"));
        }
        _ => {}
    }
    let size = random.one_of(&[1, 2, 4, 8]);
    let slack = random.one_of(&[-1, 0, 0, 0, 0, 1, 2, 7]);
    let (sum, offset) = if random.below(4) == 0 {
        // Downwards: the lowest byte is `before` bytes below the base.
        ("r8 -= r6", most - before - slack)
    } else {
        ("r8 += r6", behind - most - size + slack)
    };
    if random.below(8) > 0 {
        lines.push(sum.to_owned());
    }
    lines.push(access(random, size, offset));
    if address == "r8 = r10" && random.below(2) == 0 {
        // What may have been written there, or not.
        let from_end = 1 + random.below(most + 8);
        let byte = if sum == "r8 += r6" { from_end } else { STACK + 1 - from_end };
        lines.push(format!("r0 = *(u8 *)(r10 - {byte})"));
    }
    lines.join("\n")
}

/// A program as text.
pub(crate) fn program(seed: u64) -> String {
    let random = &mut Random::new(seed);
    // The context's address is kept in the middle of the stack.
    let mut lines = vec!["*(u64 *)(r10 - 256) = r1\nr0 = 0\nr5 = 0\nr9 = 77".to_owned()];
    // Most often both ends of the stack have contents.
    for first in [8, STACK - 56] {
        let len = random.one_of(&[0, 64, 64, 64, 32]);
        lines.extend((first..first + len).step_by(8).map(|at| format!("*(u64 *)(r10 - {at}) = {}", 7 * at)));
    }
    lines.push(format!("r7 = *({} *)(r1 + 8)", random.one_of(&["u8", "u16", "u32", "u64"])));
    let mut number = 0;
    for _ in 0..1 + random.below(3) {
        lines.push(part(random, &mut number));
    }
    lines.push("r0 = r6\nout: r0 = 5\nexit".to_owned());
    lines.join("\n")
}
