//! One instruction.

use super::AsmError;
use super::cursor::Cursor;
use crate::insn::{
    AluOp, AtomicOp, ByteOrder, Callee, Condition, Extension, Instruction, Operand, Reach, Register, Size, Wide, Width,
};

/// An instruction, whose distance may still be missing.
pub(super) struct Statement<'a> {
    pub(super) instruction: Instruction,
    pub(super) target: Target<'a>,
}

/// Where it goes.
pub(super) enum Target<'a> {
    /// As the instruction says, or nowhere.
    Known,
    /// To a label.
    Label(&'a str),
}

impl From<Instruction> for Statement<'_> {
    fn from(instruction: Instruction) -> Self {
        Self { instruction, target: Target::Known }
    }
}

/// Operations that stand before `=`, longer ones first.
const OPERATIONS: [AluOp; 14] = [
    AluOp::ShiftRightSigned,
    AluOp::SignedDiv,
    AluOp::SignedMod,
    AluOp::ShiftLeft,
    AluOp::ShiftRight,
    AluOp::Add,
    AluOp::Sub,
    AluOp::Mul,
    AluOp::Div,
    AluOp::Mod,
    AluOp::Or,
    AluOp::And,
    AluOp::Xor,
    AluOp::Move,
];

/// Conditions, longer ones first.
const CONDITIONS: [Condition; 11] = [
    Condition::SignedGreaterEqual,
    Condition::SignedLessEqual,
    Condition::SignedGreater,
    Condition::SignedLess,
    Condition::GreaterEqual,
    Condition::LessEqual,
    Condition::Equal,
    Condition::NotEqual,
    Condition::Greater,
    Condition::Less,
    Condition::Common,
];

/// Reads one instruction.
pub(super) fn read<'a>(cursor: &mut Cursor<'a>) -> Result<Statement<'a>, AsmError> {
    if let Some((width, dst)) = cursor.register() {
        return assignment(cursor, width, dst);
    }
    if cursor.eat("*") {
        let Place { letter, size, base, offset } = place(cursor)?;
        if letter == 's' {
            return Err(cursor.expected("a store of bytes without sign, `u8` to `u64`, before this"));
        }
        cursor.must("=", "`=`")?;
        let value = match cursor.register() {
            Some((_, src)) => Operand::Register(src),
            None => Operand::Immediate(cursor.number_of_32_bits()?),
        };
        return Ok(Instruction::Store { size, base, offset, value }.into());
    }
    match cursor.name() {
        Some("exit") => Ok(Instruction::Exit.into()),
        Some("goto") => jump(cursor, Reach::Near),
        Some("gotol") => jump(cursor, Reach::Far),
        Some("may_goto") => {
            let (offset, target) = near(cursor)?;
            Ok(Statement { instruction: Instruction::MayGoto { offset }, target })
        }
        Some("if") => branch(cursor),
        Some("call") => call(cursor),
        Some("callx") => Ok(Instruction::Call(Callee::Register(cursor.whole_register()?)).into()),
        Some("lock") => atomic(cursor),
        Some("store_release") => {
            cursor.must("(", "`(`")?;
            let Place { size, base, offset, .. } = place(cursor)?;
            cursor.must(",", "`,`")?;
            let src = any_register(cursor)?;
            cursor.must(")", "`)`")?;
            Ok(Instruction::StoreRelease { size, base, offset, src }.into())
        }
        _ => Err(cursor.expected("an instruction")),
    }
}

/// A place in memory.
struct Place {
    /// `u` or `s`.
    letter: char,
    size: Size,
    base: Register,
    offset: i16,
}

/// Reads `(u64 *)(r1 + 8)`.
fn place(cursor: &mut Cursor<'_>) -> Result<Place, AsmError> {
    let (letter, size) = cursor.cast()?;
    cursor.must("(", "`(`")?;
    let (base, offset) = cursor.address()?;
    cursor.must(")", "`)`")?;
    Ok(Place { letter, size, base, offset })
}

fn any_register(cursor: &mut Cursor<'_>) -> Result<Register, AsmError> {
    cursor.register().map(|(_, register)| register).ok_or_else(|| cursor.expected("a register"))
}

fn width_of(cursor: &mut Cursor<'_>, size: Size) -> Result<Width, AsmError> {
    match size {
        Size::Word => Ok(Width::W32),
        Size::Double => Ok(Width::W64),
        Size::Byte | Size::Half => Err(cursor.expected("an access of 32 or 64 bits before this")),
    }
}

/// Reads what begins with a register.
fn assignment<'a>(cursor: &mut Cursor<'a>, width: Width, dst: Register) -> Result<Statement<'a>, AsmError> {
    let operation = OPERATIONS.into_iter().find(|operation| {
        let mut ahead = *cursor;
        let found = (operation.sign().is_empty() || ahead.eat(operation.sign())) && ahead.eat("=");
        if found {
            *cursor = ahead;
        }
        found
    });
    let Some(op) = operation else {
        return Err(cursor.expected("`=` with or without an operation before it"));
    };
    let mut plain = *cursor;
    match plain.register() {
        Some((of, src)) if of == width => {
            *cursor = plain;
            return Ok(Instruction::Alu { width, op, dst, operand: Operand::Register(src) }.into());
        }
        _ if op != AluOp::Move => {
            let operand = Operand::Immediate(cursor.number_of_32_bits()?);
            return Ok(Instruction::Alu { width, op, dst, operand }.into());
        }
        _ => {}
    }
    special(cursor, width, dst)
}

/// Reads what can stand behind `r1 =` alone.
fn special<'a>(cursor: &mut Cursor<'a>, width: Width, dst: Register) -> Result<Statement<'a>, AsmError> {
    let mut ahead = *cursor;
    if ahead.eat("-") && ahead.register() == Some((width, dst)) {
        *cursor = ahead;
        return Ok(Instruction::Negate { width, dst }.into());
    }
    if cursor.eat("*") {
        return load(cursor, dst);
    }
    if cursor.eat("(") {
        let (letter, from) = cursor.kind()?;
        cursor.must(")", "`)`")?;
        let src = any_register(cursor)?;
        if letter == 'u' || (from == Size::Word && width == Width::W32) {
            return Err(cursor.expected("a narrower kind with sign before this"));
        }
        return Ok(Instruction::MoveSigned { width, from, dst, src }.into());
    }
    let mut ahead = *cursor;
    if let Some(name) = ahead.name() {
        return named(cursor, name, width, dst);
    }
    let start = *cursor;
    let Some(number) = cursor.number() else { return Err(cursor.expected(VALUE)) };
    if width == Width::W64 && cursor.eat_word("ll") {
        let value = u64::try_from(number).ok().or_else(|| i64::try_from(number).ok().map(|value| value as u64));
        let value = Wide::Value(value.ok_or_else(|| cursor.expected("a number of 64 bits before this"))?);
        return Ok(Instruction::LoadWide { dst, value }.into());
    }
    *cursor = start;
    let operand = Operand::Immediate(cursor.number_of_32_bits()?);
    Ok(Instruction::Alu { width, op: AluOp::Move, dst, operand }.into())
}

fn load<'a>(cursor: &mut Cursor<'a>, dst: Register) -> Result<Statement<'a>, AsmError> {
    let (letter, size) = cursor.cast()?;
    if cursor.eat_word("skb") {
        cursor.must("[", "`[`")?;
        let index = cursor.register().map(|(_, index)| index);
        if index.is_some() {
            cursor.must("+", "`+`")?;
        }
        let offset = cursor.number_of_32_bits()?;
        cursor.must("]", "`]`")?;
        return Ok(Instruction::Packet { size, index, offset }.into());
    }
    cursor.must("(", "`(`")?;
    let (base, offset) = cursor.address()?;
    cursor.must(")", "`)`")?;
    let extension = if letter == 's' { Extension::Sign } else { Extension::Zero };
    Ok(Instruction::Load { size, extension, dst, base, offset }.into())
}

/// What can stand behind `r1 =`.
const VALUE: &str = "a register, a number, or an operation";

/// Reads what begins with `name` behind `r1 =`.
fn named<'a>(cursor: &mut Cursor<'a>, name: &str, width: Width, dst: Register) -> Result<Statement<'a>, AsmError> {
    let start = *cursor;
    cursor.eat_word(name);
    let orders = [("bswap", ByteOrder::Swap), ("le", ByteOrder::Little), ("be", ByteOrder::Big)];
    let swap = orders.into_iter().find_map(|(prefix, order)| {
        let size = match name.strip_prefix(prefix)? {
            "16" => Size::Half,
            "32" => Size::Word,
            "64" => Size::Double,
            _ => return None,
        };
        Some(Instruction::Swap { order, size, dst })
    });
    if let Some(swap) = swap {
        if cursor.whole_register()? != dst {
            return Err(cursor.expected("the register that is assigned to before this"));
        }
        return Ok(swap.into());
    }
    let fetches = [AtomicOp::FetchAdd, AtomicOp::FetchOr, AtomicOp::FetchAnd, AtomicOp::FetchXor];
    if let Some(op) = fetches.into_iter().find(|op| op.sign() == name) {
        cursor.must("(", "`(`")?;
        let Place { size, base, offset, .. } = place(cursor)?;
        let width = width_of(cursor, size)?;
        same_source(cursor, dst)?;
        return Ok(Instruction::Atomic { op, width, base, offset, src: dst }.into());
    }
    match name {
        "xchg_64" | "xchg32_32" => {
            cursor.must("(", "`(`")?;
            let (base, offset) = cursor.address()?;
            same_source(cursor, dst)?;
            Ok(Instruction::Atomic { op: AtomicOp::Exchange, width, base, offset, src: dst }.into())
        }
        "cmpxchg_64" | "cmpxchg32_32" => {
            cursor.must("(", "`(`")?;
            let (base, offset) = cursor.address()?;
            cursor.must(",", "`,`")?;
            if any_register(cursor)? != Register::R0 || dst != Register::R0 {
                return Err(cursor.expected("r0 before this, with which memory is compared"));
            }
            cursor.must(",", "`,`")?;
            let src = any_register(cursor)?;
            cursor.must(")", "`)`")?;
            Ok(Instruction::Atomic { op: AtomicOp::CompareExchange, width, base, offset, src }.into())
        }
        "load_acquire" => {
            cursor.must("(", "`(`")?;
            let Place { size, base, offset, .. } = place(cursor)?;
            cursor.must(")", "`)`")?;
            Ok(Instruction::LoadAcquire { size, dst, base, offset }.into())
        }
        "addr_space_cast" => {
            cursor.must("(", "`(`")?;
            let src = cursor.whole_register()?;
            cursor.must(",", "`,`")?;
            let to = cursor.number_of("an address space of 16 bits")?;
            cursor.must(",", "`,`")?;
            let from = cursor.number_of("an address space of 16 bits")?;
            cursor.must(")", "`)`")?;
            Ok(Instruction::Cast { dst, src, to, from }.into())
        }
        "map" => map(cursor, dst),
        "var" => {
            cursor.must("[", "`[`")?;
            let value = Wide::Variable(cursor.number_of_32_bits()?);
            cursor.must("]", "`]`")?;
            cursor.must("ll", "`ll`")?;
            Ok(Instruction::LoadWide { dst, value }.into())
        }
        "func" => {
            cursor.must("[", "`[`")?;
            let (offset, target) = far(cursor)?;
            cursor.must("]", "`]`")?;
            cursor.must("ll", "`ll`")?;
            Ok(Statement { instruction: Instruction::LoadWide { dst, value: Wide::Function(offset) }, target })
        }
        _ => {
            *cursor = start;
            Err(cursor.expected(VALUE))
        }
    }
}

/// Reads `, r2)`, where `r2` is the register that is assigned to.
fn same_source(cursor: &mut Cursor<'_>, dst: Register) -> Result<(), AsmError> {
    cursor.must(",", "`,`")?;
    if any_register(cursor)? != dst {
        return Err(cursor.expected("the register that is assigned to before this"));
    }
    cursor.must(")", "`)`")
}

/// Reads `[fd:3]` or `[idx:3]`, with or without `[0]+8`.
fn map<'a>(cursor: &mut Cursor<'a>, dst: Register) -> Result<Statement<'a>, AsmError> {
    cursor.must("[", "`[`")?;
    let by_descriptor = cursor.eat("fd:");
    if !by_descriptor {
        cursor.must("idx:", "`fd:` or `idx:`")?;
    }
    let map = cursor.number_of_32_bits()?;
    cursor.must("]", "`]`")?;
    let value = if cursor.eat("[0]+") {
        let offset = cursor.number_of("an offset of 32 bits")?;
        if by_descriptor { Wide::MapValueByDescriptor { map, offset } } else { Wide::MapValueByIndex { map, offset } }
    } else if by_descriptor {
        Wide::MapByDescriptor(map)
    } else {
        Wide::MapByIndex(map)
    };
    cursor.must("ll", "`ll`")?;
    Ok(Instruction::LoadWide { dst, value }.into())
}

/// Reads where a jump with 32 bits goes.
fn far<'a>(cursor: &mut Cursor<'a>) -> Result<(i32, Target<'a>), AsmError> {
    match cursor.name() {
        Some(label) => Ok((0, Target::Label(label))),
        None => Ok((cursor.number_of("a label, or a number of 32 bits")?, Target::Known)),
    }
}

/// Reads where a jump with 16 bits goes.
fn near<'a>(cursor: &mut Cursor<'a>) -> Result<(i16, Target<'a>), AsmError> {
    match cursor.name() {
        Some(label) => Ok((0, Target::Label(label))),
        None => Ok((cursor.number_of("a label, or a number of 16 bits")?, Target::Known)),
    }
}

fn jump<'a>(cursor: &mut Cursor<'a>, reach: Reach) -> Result<Statement<'a>, AsmError> {
    let (offset, target) = match reach {
        Reach::Near => near(cursor).map(|(offset, target)| (offset.into(), target))?,
        Reach::Far => far(cursor)?,
    };
    Ok(Statement { instruction: Instruction::Jump { offset, reach }, target })
}

/// Reads `r1 > 5 goto +3`.
fn branch<'a>(cursor: &mut Cursor<'a>) -> Result<Statement<'a>, AsmError> {
    let Some((width, dst)) = cursor.register() else { return Err(cursor.expected("a register")) };
    let Some(condition) = CONDITIONS.into_iter().find(|condition| cursor.eat(condition.sign())) else {
        return Err(cursor.expected("a condition"));
    };
    let operand = match cursor.register() {
        Some((of, src)) if of == width => Operand::Register(src),
        Some(_) => return Err(cursor.expected("a register of the same width before this")),
        None => Operand::Immediate(cursor.number_of_32_bits()?),
    };
    if !cursor.eat_word("goto") {
        return Err(cursor.expected("`goto`"));
    }
    let (offset, target) = near(cursor)?;
    Ok(Statement { instruction: Instruction::Branch { width, condition, dst, operand, offset }, target })
}

fn call<'a>(cursor: &mut Cursor<'a>) -> Result<Statement<'a>, AsmError> {
    if cursor.eat_word("local") {
        let (offset, target) = far(cursor)?;
        return Ok(Statement { instruction: Instruction::Call(Callee::Local(offset)), target });
    }
    if cursor.eat_word("kernel") {
        let id = cursor.number_of_32_bits()?;
        let module = if cursor.eat_word("of") { cursor.number_of("a number of 16 bits")? } else { 0 };
        return Ok(Instruction::Call(Callee::Kernel { id, module }).into());
    }
    Ok(Instruction::Call(Callee::Helper(cursor.number_of_32_bits()?)).into())
}

/// Reads `*(u64 *)(r1 + 0) += r2`.
fn atomic<'a>(cursor: &mut Cursor<'a>) -> Result<Statement<'a>, AsmError> {
    cursor.must("*", "`*`")?;
    let Place { size, base, offset, .. } = place(cursor)?;
    let width = width_of(cursor, size)?;
    let drops = [AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor];
    let Some(op) = drops.into_iter().find(|op| cursor.eat(op.sign())) else {
        return Err(cursor.expected("`+=`, `|=`, `&=` or `^=`"));
    };
    let src = any_register(cursor)?;
    Ok(Instruction::Atomic { op, width, base, offset, src }.into())
}
