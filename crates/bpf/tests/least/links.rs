//! Random programs in which numbers are linked with each other on one of two ways that meet: by copies of all of them
//! or of a half, by spills, by sums. Then one of them is compared, and another one used.

use super::generator::{Generated, READ, Random, put};
use std::fmt::Write;

struct Generator {
    random: Random,
    text: String,
    labels: u32,
}

impl Generator {
    fn label(&mut self) -> String {
        self.labels += 1;
        format!("l{}", self.labels)
    }

    fn load(&mut self, register: u8) {
        let (name, size) = self.random.one_of(&[("u8", 1), ("u8", 1), ("u16", 2), ("s8", 1)]);
        let at = size * self.random.below(READ / size);
        put!(self, "r{register} = *({name} *)(r9 + {at})");
        if name == "s8" {
            let mask = self.random.one_of(&[255, 511, 1023]);
            put!(self, "r{register} &= {mask}");
        }
    }

    /// Returns what links numbers, or ends that.
    fn change(&mut self) -> String {
        let [by, other] = [(); 2].map(|()| self.random.one_of(&[0, 1, -1, 3, 7, 100, 255]));
        match self.random.below(16) {
            0 | 1 => "r7 = r6".to_owned(),
            2 => "w7 = w6".to_owned(),
            3 => "r7 = (s32)r6".to_owned(),
            4 => format!("r7 = r6\nr7 += {by}"),
            5 => format!("w7 = w6\nw7 += {by}"),
            6 => "r7 = r6\nr7 <<= 32\nr7 s>>= 32".to_owned(),
            7 => "r7 = r4".to_owned(),
            8 => "r8 = 0".to_owned(),
            9 => "*(u64 *)(r10 - 64) = r6".to_owned(),
            10 => "*(u32 *)(r10 - 64) = r6".to_owned(),
            11 => "*(u32 *)(r10 - 60) = r6".to_owned(),
            12 => "*(u64 *)(r10 - 64) = r7".to_owned(),
            13 => format!("r7 = r6\nr6 += {by}"),
            14 => format!("r7 = r6\nr7 += {by}\nr6 += {other}"),
            _ => "r7 = r6\n*(u64 *)(r10 - 64) = r7".to_owned(),
        }
    }

    /// Two ways that part and meet.
    fn ways(&mut self) {
        let (other, end, at) = (self.label(), self.label(), self.random.below(READ));
        let most = self.random.one_of(&[0, 5, 127, 250]);
        let (first, second) = (self.change(), self.change());
        put!(self, "r2 = *(u8 *)(r9 + {at})\nif r2 > {most} goto {other}\n{first}\ngoto {end}\n{other}: {second}");
        put!(self, "{end}: r2 = 0");
        for _ in 0..self.random.below(3) {
            // States are kept only so far apart.
            put!(self, "{}goto +0", "r2 += 1\n".repeat(4));
        }
        if self.random.once_in(3) {
            let change = self.change();
            put!(self, "{change}");
        }
    }

    fn comparison(&mut self) {
        match self.random.below(5) {
            0 => put!(self, "r7 = *(u64 *)(r10 - 64)"),
            1 => put!(self, "r7 = *(u32 *)(r10 - 64)"),
            2 => put!(self, "r7 = *(s32 *)(r10 - 64)"),
            3 => put!(self, "r7 = *(u32 *)(r10 - 60)"),
            _ => {}
        }
        if self.random.once_in(5) {
            let (width, by) = (self.random.one_of(&["r", "w"]), self.random.one_of(&[1, -1, 100]));
            put!(self, "{width}7 += {by}");
        }
        let width = self.random.one_of(&["r", "r", "w"]);
        let condition = self.random.one_of(&[">", ">", ">=", "s>", "<", "s<", "==", "!=", "&"]);
        let left = self.random.one_of(&[7, 7, 7, 6, 4]);
        let right = if self.random.once_in(6) {
            format!("{width}{}", self.random.one_of(&[4, 6, 7]))
        } else {
            self.random.one_of(&[0, 1, 7, 15, 63, 100, 107, 200]).to_string()
        };
        put!(self, "if {width}{left} {condition} {right} goto out");
    }
}

/// Makes a program.
pub(crate) fn program(seed: u64) -> Generated {
    const WORDS: &str = "r8 = 0\n*(u64 *)(r10 - 64) = r8\n*(u64 *)(r10 - 56) = r8";
    let mut generator = Generator { random: Random(seed), text: String::new(), labels: 0 };
    put!(generator, "r9 = r1\n{WORDS}");
    let in_function = generator.random.once_in(4);
    for register in [6, 7, 4] {
        generator.load(register);
    }
    if generator.random.once_in(2) {
        let spilled = generator.random.one_of(&[6, 7]);
        put!(generator, "*(u64 *)(r10 - 64) = r{spilled}");
    }
    if in_function {
        put!(generator, "r1 = r9\nr2 = r6\nr3 = r7\ncall local f0\nr0 = 0\nexit\nf0: r9 = r1\nr6 = r2\nr7 = r3");
        put!(generator, "{WORDS}\nr4 = *(u8 *)(r9 + 3)");
    }
    for _ in 0..1 + generator.random.below(2) {
        generator.ways();
    }
    for _ in 0..1 + generator.random.below(2) {
        generator.comparison();
    }
    match generator.random.below(6) {
        0 => put!(generator, "r6 = *(u64 *)(r10 - 64)"),
        1 => put!(generator, "r6 = *(u32 *)(r10 - 64)"),
        2 => put!(generator, "r6 = r7"),
        _ => {}
    }
    put!(generator, "r5 = r9\nr5 += r6\nr0 = *(u8 *)(r5 + 0)\nr0 = 1\nexit\nout: r0 = 5\nexit");
    Generated { text: generator.text, typed: Vec::new() }
}
