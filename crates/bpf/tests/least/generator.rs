//! Random programs in which much is known: functions, some of which are verified alone, functions that a helper calls
//! with the caller's stack, `may_goto` and counted loops, spills of all sizes, numbers that are added to the context.

use std::fmt::Write;

/// Bytes of context that programs read as they are.
pub(crate) const READ: u64 = 16;

/// Random numbers, the same each time: `SplitMix64` by Steele, Lea and Flood.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Whether what happens once in so many times happens.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A program.
pub(crate) struct Generated {
    pub(crate) text: String,
    /// Whether each function but the first gets a type, in order.
    pub(crate) typed: Vec<bool>,
}

/// Who calls a function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    Program,
    Helper,
}

/// A function that is still to be written.
#[derive(Clone, Copy)]
struct Function {
    /// How many functions are around it.
    depth: usize,
    caller: Caller,
    /// Whether it gets no address but that of four words of a stack, so that it may have a type.
    is_pure: bool,
}

/// Where statements are.
#[derive(Clone)]
struct Scope {
    /// Where the four words lie: a register, and the distance.
    base: &'static str,
    distance: i64,
    /// Registers with numbers.
    registers: Vec<u8>,
    /// How many functions are around it.
    depth: usize,
    is_pure: bool,
    /// A label behind which the function ends.
    exit: String,
    statements: u32,
}

impl Scope {
    /// Calls leave only these.
    fn lose(&mut self) {
        self.registers.retain(|register| *register >= 6);
    }

    /// Takes away what another way has not put there.
    fn meet(&mut self, other: &Self) {
        self.registers.retain(|register| other.registers.contains(register));
    }
}

const SIZES: [(&str, u64); 4] = [("u64", 8), ("u32", 4), ("u16", 2), ("u8", 1)];
/// Most statements of a program.
const STATEMENTS: u32 = 40;
/// Most functions, and how deep they are at most.
const FUNCTIONS: (usize, usize) = (4, 3);

struct Generator {
    random: Random,
    text: String,
    labels: u32,
    functions: Vec<Function>,
}

/// Writes lines.
macro_rules! put {
    ($generator:ident, $($text:tt)*) => {
        writeln!($generator.text, $($text)*).expect("there is room")
    };
}
pub(crate) use put;

impl Generator {
    fn label(&mut self) -> String {
        self.labels += 1;
        format!("l{}", self.labels)
    }

    fn immediate(&mut self) -> i64 {
        let near = [0, 0, 1, 2, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 1 << 15, (1 << 31) - 1];
        let value = self.random.one_of(&near) + self.random.below(3) as i64 - 1;
        let value = if self.random.once_in(6) { -value } else { value };
        value.clamp(i32::MIN.into(), i32::MAX.into())
    }

    fn register(&mut self, scope: &Scope) -> u8 {
        if scope.registers.is_empty() { 6 } else { self.random.one_of(&scope.registers) }
    }

    /// Returns an aligned place in the four words.
    fn place(&mut self, scope: &Scope, size: u64) -> String {
        let word = self.random.below(4) * 8;
        let at = scope.distance + (word + size * self.random.below(8 / size)) as i64;
        let sign = if at < 0 { '-' } else { '+' };
        format!("({} {sign} {})", scope.base, at.abs())
    }

    fn condition(&mut self, scope: &Scope) -> String {
        let width = self.random.one_of(&["r", "r", "w"]);
        let condition = self.random.one_of(&[">", ">", ">=", "<", "<=", "s>", "s>=", "s<", "s<=", "==", "!=", "&"]);
        let left = self.register(scope);
        let right = if self.random.once_in(3) {
            format!("{width}{}", self.register(scope))
        } else {
            self.immediate().to_string()
        };
        format!("{width}{left} {condition} {right}")
    }

    /// Reads the context at a number, if its address is there.
    fn use_number(&mut self, scope: &Scope, register: u8) {
        match scope {
            Scope { is_pure: true, .. } => return,
            Scope { depth: 0, .. } => put!(self, "r5 = r9"),
            // The caller has put it below the four words.
            _ => put!(self, "r5 = *(u64 *)(r9 - 8)"),
        }
        put!(self, "r5 += r{register}\nr0 = *(u8 *)(r5 + 0)");
    }

    fn block(&mut self, scope: &mut Scope, statements: u64) {
        for _ in 0..statements {
            scope.statements += 1;
            if scope.statements <= STATEMENTS {
                self.statement(scope);
            }
        }
    }

    fn statement(&mut self, scope: &mut Scope) {
        let (x, y) = (self.register(scope), self.register(scope));
        match self.random.below(34) {
            0..=3 => self.operation(x, y),
            4..=7 => self.copy(scope, x),
            8 => {
                let back = self.random.one_of(&["s>>=", ">>="]);
                put!(self, "r{x} <<= 32\nr{x} {back} 32");
            }
            9..=11 => {
                let (name, size) = self.random.one_of(&SIZES);
                let place = self.place(scope, size);
                let stored = if self.random.once_in(6) { self.immediate().to_string() } else { format!("r{x}") };
                put!(self, "*({name} *){place} = {stored}");
            }
            12..=14 => {
                let (name, size) = self.random.one_of(&[SIZES[0], SIZES[0], SIZES[1], ("s32", 4), SIZES[3], ("s8", 1)]);
                let place = self.place(scope, size);
                put!(self, "r{x} = *({name} *){place}");
            }
            15..=18 => self.ways(scope),
            19..=21 => self.bound(scope, x),
            22..=24 => self.use_number(scope, x),
            25 | 26 if scope.depth == 0 => {
                let (name, size) = self.random.one_of(&[SIZES[3], SIZES[3], SIZES[2], SIZES[1], SIZES[0], ("s8", 1)]);
                let at = size * self.random.below(READ / size);
                put!(self, "r{x} = *({name} *)(r9 + {at})");
            }
            27..=29 if scope.depth < FUNCTIONS.1 && self.functions.len() < FUNCTIONS.0 => self.call(scope, x, y),
            30 => self.endless_loop(scope),
            31 => self.counted_loop(scope, x),
            32 => {
                let (name, size) = self.random.one_of(&SIZES[..2]);
                let (place, op) = (self.place(scope, size), self.random.one_of(&["+", "|", "&", "^"]));
                put!(self, "lock *({name} *){place} {op}= r{x}");
            }
            _ if self.random.once_in(2) => put!(self, "r{x} = -r{x}"),
            _ => {
                let swap = self.random.one_of(&["le16", "be16", "bswap32", "le32"]);
                put!(self, "r{x} = {swap} r{x}");
            }
        }
    }

    fn operation(&mut self, x: u8, y: u8) {
        let (width, bits) = self.random.one_of(&[("r", 64), ("r", 64), ("w", 32)]);
        let ops = ["+", "+", "+", "-", "*", "|", "&", "&", "^", "<<", ">>", "s>>", "%", "/", "s%", "s/"];
        let op = self.random.one_of(&ops);
        let operand = if self.random.once_in(4) {
            format!("{width}{y}")
        } else if op.ends_with("<<") || op.ends_with(">>") {
            let most = self.random.one_of(&[4, bits]);
            self.random.below(most).to_string()
        } else {
            self.immediate().to_string()
        };
        put!(self, "{width}{x} {op}= {operand}");
    }

    fn copy(&mut self, scope: &mut Scope, x: u8) {
        let targets: Vec<u8> = scope.registers.iter().copied().chain([2, 3, 4]).collect();
        let target = self.random.one_of(&targets);
        match self.random.below(8) {
            0..=3 => put!(self, "r{target} = r{x}"),
            4 | 5 => put!(self, "w{target} = w{x}"),
            _ => {
                let from = self.random.one_of(&["s8", "s16", "s32", "s32"]);
                put!(self, "r{target} = ({from})r{x}");
            }
        }
        if !scope.registers.contains(&target) {
            scope.registers.push(target);
        }
    }

    /// Two ways that part and meet.
    fn ways(&mut self, scope: &mut Scope) {
        let (condition, label) = (self.condition(scope), self.label());
        put!(self, "if {condition} goto {label}");
        let (mut first, mut second) = (scope.clone(), scope.clone());
        let statements = self.random.below(4);
        self.block(&mut first, statements);
        if self.random.once_in(2) {
            let end = self.label();
            put!(self, "goto {end}\n{label}:");
            second.statements = first.statements;
            let statements = 1 + self.random.below(3);
            self.block(&mut second, statements);
            put!(self, "r5 = 0\n{end}:");
        } else {
            put!(self, "{label}:");
        }
        scope.statements = first.statements.max(second.statements);
        scope.meet(&first);
        scope.meet(&second);
    }

    fn bound(&mut self, scope: &Scope, x: u8) {
        let width = self.random.one_of(&["r", "r", "w"]);
        let most = self.random.one_of(&[0, 1, 3, 7, 15, 31, 63, 100, 255]) + self.random.below(2);
        let exit = &scope.exit;
        match self.random.below(5) {
            0..=2 => put!(self, "if {width}{x} > {most} goto {exit}"),
            3 => put!(self, "if {width}{x} s> {most} goto {exit}\nif {width}{x} s< 0 goto {exit}"),
            _ => put!(self, "r{x} &= {most}"),
        }
    }

    fn call(&mut self, scope: &mut Scope, x: u8, y: u8) {
        let new = self.functions.len();
        let Scope { base, distance, depth, is_pure, .. } = *scope;
        let depth = depth + 1;
        if self.random.once_in(3) {
            self.functions.push(Function { depth, caller: Caller::Helper, is_pure });
            if self.random.once_in(3) {
                put!(self, "r1 = r{x}\nr1 &= 3");
            } else {
                let times = self.random.below(4);
                put!(self, "r1 = {times}");
            }
            put!(self, "r3 = {base}\nr3 += {distance}\nr2 = func[f{new}] ll\nr4 = 0\ncall 181");
            scope.lose();
            return;
        }
        let fits = |function: &Function| {
            function.depth == depth && function.caller == Caller::Program && (function.is_pure || !is_pure)
        };
        let known: Vec<usize> = (0..new).filter(|index| fits(&self.functions[*index])).collect();
        let callee = if !known.is_empty() && self.random.once_in(3) { self.random.one_of(&known) } else { new };
        if callee == new {
            let is_pure = is_pure || self.random.once_in(3);
            self.functions.push(Function { depth, caller: Caller::Program, is_pure });
        }
        let third = if y == 2 { x } else { y };
        put!(self, "r2 = r{x}\nr3 = r{third}\nr1 = {base}\nr1 += {distance}\ncall local f{callee}");
        scope.lose();
        if self.random.once_in(2) {
            let target = self.register(scope);
            put!(self, "r{target} = r0");
        }
    }

    /// A loop that a `may_goto` ends.
    fn endless_loop(&mut self, scope: &mut Scope) {
        let (head, out) = (self.label(), self.label());
        put!(self, "{head}: may_goto {out}");
        let mut inside = scope.clone();
        let statements = 1 + self.random.below(4);
        self.block(&mut inside, statements);
        if self.random.once_in(2) {
            let condition = self.condition(&inside);
            put!(self, "if {condition} goto {out}");
        }
        put!(self, "goto {head}\n{out}:");
        scope.statements = inside.statements;
        scope.meet(&inside);
    }

    fn counted_loop(&mut self, scope: &mut Scope, x: u8) {
        let (head, start, end) = (self.label(), self.random.below(2), 1 + self.random.below(6));
        put!(self, "r{x} = {start}\n{head}:");
        let mut inside = scope.clone();
        if inside.registers.len() > 1 {
            inside.registers.retain(|register| *register != x);
        }
        let statements = 1 + self.random.below(3);
        self.block(&mut inside, statements);
        let (width, condition) = (self.random.one_of(&["r", "w"]), self.random.one_of(&["<", "<", "!=", "s<"]));
        put!(self, "{width}{x} += 1\nif {width}{x} {condition} {end} goto {head}");
        scope.statements = inside.statements;
        scope.registers.retain(|register| *register == x || inside.registers.contains(register));
    }

    /// Writes a function that is called.
    fn function(&mut self, number: usize) {
        let Function { depth, caller, is_pure } = self.functions[number];
        match caller {
            Caller::Program => put!(self, "f{number}: r9 = r1\nr6 = r2\nr7 = r3"),
            Caller::Helper => put!(self, "f{number}: r9 = r2\nr6 = r1\nr7 = *(u64 *)(r9 + 0)"),
        }
        let (registers, exit) = (vec![6, 7], format!("x{number}"));
        let mut scope = Scope { base: "r9", distance: 0, registers, depth, is_pure, exit, statements: STATEMENTS - 15 };
        let statements = 1 + self.random.below(6);
        self.block(&mut scope, statements);
        let x = self.register(&scope);
        match (caller, self.random.below(3)) {
            (Caller::Program, _) | (Caller::Helper, 0) => put!(self, "r0 = r{x}"),
            (Caller::Helper, 1) => put!(self, "r0 = 0"),
            (Caller::Helper, _) => put!(self, "r0 = r{x}\nr0 &= 1"),
        }
        put!(self, "exit\n{}: r0 = 1\nexit", scope.exit);
    }
}

/// Makes a program.
pub(crate) fn program(seed: u64) -> Generated {
    let (text, functions) = (String::new(), Vec::new());
    let mut generator = Generator { random: Random(seed), text, labels: 0, functions };
    put!(generator, "r9 = r1\n*(u64 *)(r10 - 72) = r9");
    for at in [64, 56, 48, 40, 32, 24, 16, 8] {
        if generator.random.once_in(2) {
            let value = generator.random.below(20);
            put!(generator, "*(u64 *)(r10 - {at}) = {value}");
        } else {
            let from = generator.random.below(READ);
            put!(generator, "r2 = *(u8 *)(r9 + {from})\n*(u64 *)(r10 - {at}) = r2");
        }
    }
    for register in [6, 7, 8] {
        if generator.random.once_in(4) {
            let value = generator.random.below(40);
            put!(generator, "r{register} = {value}");
        } else {
            let (name, size) = generator.random.one_of(&[SIZES[3], SIZES[3], SIZES[2], SIZES[1], SIZES[0]]);
            let at = size * generator.random.below(READ / size);
            put!(generator, "r{register} = *({name} *)(r9 + {at})");
        }
    }
    let (registers, exit) = (vec![6, 7, 8], "out".to_owned());
    let mut scope = Scope { base: "r10", distance: -64, registers, depth: 0, is_pure: false, exit, statements: 0 };
    let statements = 4 + generator.random.below(14);
    generator.block(&mut scope, statements);
    for _ in 0..1 + generator.random.below(2) {
        let x = generator.register(&scope);
        if generator.random.once_in(3) {
            let most = generator.random.one_of(&[7, 15, 63]);
            put!(generator, "if r{x} > {most} goto out");
        }
        generator.use_number(&scope, x);
    }
    let x = generator.register(&scope);
    put!(generator, "r0 = r{x}\nexit\nout: r0 = 5\nexit");
    let mut number = 0;
    while number < generator.functions.len() {
        generator.function(number);
        number += 1;
    }
    // Half of the programs have no types.
    let has_type =
        |function: &Function| seed.is_multiple_of(2) && function.is_pure && function.caller == Caller::Program;
    let typed = generator.functions.iter().map(has_type).collect();
    Generated { text: generator.text, typed }
}
