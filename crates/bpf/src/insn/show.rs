//! Displays instructions: in the notation of LLVM's disassembler and of bpftool, which
//! [`assemble`](crate::asm::assemble) reads.

use core::fmt::{Display, Formatter, Result};

use super::{
    AluOp, AtomicOp, ByteOrder, Callee, Condition, Extension, Instruction, Operand, Reach, Register, Size, Wide, Width,
};

impl Display for Register {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "r{}", self.number())
    }
}

/// A register, by the name that tells how much of it is used.
struct Named(Width, Register);

impl Display for Named {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let letter = match self.0 {
            Width::W32 => 'w',
            Width::W64 => 'r',
        };
        write!(f, "{letter}{}", self.1.number())
    }
}

struct Right(Width, Operand);

impl Display for Right {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.1 {
            Operand::Register(register) => Named(self.0, register).fmt(f),
            Operand::Immediate(value) => value.fmt(f),
        }
    }
}

/// `r1 + 8`
struct Address(Register, i16);

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let sign = if self.1 < 0 { '-' } else { '+' };
        write!(f, "{} {sign} {}", self.0, self.1.unsigned_abs())
    }
}

impl AluOp {
    /// Its sign, which stands before `=`.
    pub(crate) const fn sign(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::SignedDiv => "s/",
            Self::Mod => "%",
            Self::SignedMod => "s%",
            Self::Or => "|",
            Self::And => "&",
            Self::Xor => "^",
            Self::ShiftLeft => "<<",
            Self::ShiftRight => ">>",
            Self::ShiftRightSigned => "s>>",
            Self::Move => "",
        }
    }
}

impl Condition {
    /// Its sign.
    pub(crate) const fn sign(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::SignedGreater => "s>",
            Self::SignedGreaterEqual => "s>=",
            Self::SignedLess => "s<",
            Self::SignedLessEqual => "s<=",
            Self::Common => "&",
        }
    }
}

impl AtomicOp {
    /// Returns the sign of those that drop the old value, and the name of the others.
    pub(crate) const fn sign(self) -> &'static str {
        match self {
            Self::Add => "+=",
            Self::Or => "|=",
            Self::And => "&=",
            Self::Xor => "^=",
            Self::FetchAdd => "atomic_fetch_add",
            Self::FetchOr => "atomic_fetch_or",
            Self::FetchAnd => "atomic_fetch_and",
            Self::FetchXor => "atomic_fetch_xor",
            Self::Exchange => "xchg",
            Self::CompareExchange => "cmpxchg",
        }
    }
}

impl Width {
    const fn bits(self) -> u32 {
        match self {
            Self::W32 => 32,
            Self::W64 => 64,
        }
    }

    /// Returns what the names of exchanges have between them and the bits.
    const fn mark(self) -> &'static str {
        match self {
            Self::W32 => "32",
            Self::W64 => "",
        }
    }
}

/// Returns the name of the register that a load of `size` bytes fills.
const fn filled(size: Size, register: Register) -> Named {
    Named(if matches!(size, Size::Double) { Width::W64 } else { Width::W32 }, register)
}

impl Display for Instruction {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Self::Alu { width, op, dst, operand } => {
                write!(f, "{} {}= {}", Named(width, dst), op.sign(), Right(width, operand))
            }
            Self::Negate { width, dst } => write!(f, "{0} = -{0}", Named(width, dst)),
            Self::MoveSigned { width, from, dst, src } => {
                write!(f, "{} = (s{}){}", Named(width, dst), from.bits(), Named(width, src))
            }
            Self::Swap { order, size, dst } => {
                let name = match order {
                    ByteOrder::Little => "le",
                    ByteOrder::Big => "be",
                    ByteOrder::Swap => "bswap",
                };
                write!(f, "{dst} = {name}{} {dst}", size.bits())
            }
            Self::Cast { dst, src, to, from } => write!(f, "{dst} = addr_space_cast({src}, {to}, {from})"),
            Self::LoadWide { dst, value } => write!(f, "{dst} = {value} ll"),
            Self::Load { size, extension, dst, base, offset } => {
                let letter = match extension {
                    Extension::Zero => 'u',
                    Extension::Sign => 's',
                };
                write!(f, "{dst} = *({letter}{} *)({})", size.bits(), Address(base, offset))
            }
            Self::Store { size, base, offset, value } => {
                write!(f, "*(u{} *)({}) = {}", size.bits(), Address(base, offset), Right(Width::W64, value))
            }
            Self::Atomic { op, width, base, offset, src } => show_atomic(f, op, width, &Address(base, offset), src),
            Self::LoadAcquire { size, dst, base, offset } => {
                let dst = filled(size, dst);
                write!(f, "{dst} = load_acquire((u{} *)({}))", size.bits(), Address(base, offset))
            }
            Self::StoreRelease { size, base, offset, src } => {
                let src = filled(size, src);
                write!(f, "store_release((u{} *)({}), {src})", size.bits(), Address(base, offset))
            }
            Self::Jump { offset, reach: Reach::Near } => write!(f, "goto {offset:+}"),
            Self::Jump { offset, reach: Reach::Far } => write!(f, "gotol {offset:+}"),
            Self::Branch { width, condition, dst, operand, offset } => {
                let (left, right) = (Named(width, dst), Right(width, operand));
                write!(f, "if {left} {} {right} goto {offset:+}", condition.sign())
            }
            Self::MayGoto { offset } => write!(f, "may_goto {offset:+}"),
            Self::Call(callee) => callee.fmt(f),
            Self::Exit => f.write_str("exit"),
            Self::Packet { size, index: None, offset } => write!(f, "r0 = *(u{} *)skb[{offset}]", size.bits()),
            Self::Packet { size, index: Some(index), offset } => {
                write!(f, "r0 = *(u{} *)skb[{index} + {offset}]", size.bits())
            }
        }
    }
}

fn show_atomic(f: &mut Formatter<'_>, op: AtomicOp, width: Width, address: &Address, src: Register) -> Result {
    let (bits, mark, name) = (width.bits(), width.mark(), op.sign());
    let src = Named(width, src);
    match op {
        AtomicOp::Add | AtomicOp::Or | AtomicOp::And | AtomicOp::Xor => {
            write!(f, "lock *(u{bits} *)({address}) {name} {src}")
        }
        AtomicOp::FetchAdd | AtomicOp::FetchOr | AtomicOp::FetchAnd | AtomicOp::FetchXor => {
            write!(f, "{src} = {name}((u{bits} *)({address}), {src})")
        }
        AtomicOp::Exchange => write!(f, "{src} = {name}{mark}_{bits}({address}, {src})"),
        AtomicOp::CompareExchange => {
            write!(f, "{0} = {name}{mark}_{bits}({address}, {0}, {src})", Named(width, Register::R0))
        }
    }
}

impl Display for Wide {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Self::Value(value) => write!(f, "{value:#x}"),
            Self::MapByDescriptor(map) => write!(f, "map[fd:{map}]"),
            Self::MapValueByDescriptor { map, offset } => write!(f, "map[fd:{map}][0]+{offset}"),
            Self::Variable(id) => write!(f, "var[{id}]"),
            Self::Function(offset) => write!(f, "func[{offset:+}]"),
            Self::MapByIndex(map) => write!(f, "map[idx:{map}]"),
            Self::MapValueByIndex { map, offset } => write!(f, "map[idx:{map}][0]+{offset}"),
        }
    }
}

impl Display for Callee {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Self::Helper(id) => write!(f, "call {id}"),
            Self::Local(offset) => write!(f, "call local {offset:+}"),
            Self::Kernel { id, module: 0 } => write!(f, "call kernel {id}"),
            Self::Kernel { id, module } => write!(f, "call kernel {id} of {module}"),
            Self::Register(register) => write!(f, "callx {register}"),
        }
    }
}
