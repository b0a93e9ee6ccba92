//! eBPF instructions as values: RFC 9669, and what Linux has added since.
//!
//! An [`Instruction`] says everything that its bytes say, and only what is valid: decoding is total (every slot gives
//! an instruction or a [`DecodeError`]), and encoding an instruction gives bytes that decode to it again. Legacy packet
//! loads and address-space casts do decode, so that whoever refuses them can name them.

mod codes;
pub(crate) mod common;
mod decode;
mod encode;
mod registers;
mod show;

pub use decode::{DecodeError, Fault, decode};
pub use encode::encode;

/// Bytes of an instruction slot (RFC 9669, section 3.1). Loads of 64-bit immediates take two.
pub const SLOT: usize = 8;

/// A register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Register {
    /// Return value.
    R0 = 0,
    /// First argument; calls do not keep it, nor the next four.
    R1 = 1,
    /// Second argument.
    R2 = 2,
    /// Third argument.
    R3 = 3,
    /// Fourth argument.
    R4 = 4,
    /// Fifth argument.
    R5 = 5,
    /// Kept by calls, like the next three.
    R6 = 6,
    /// Kept by calls.
    R7 = 7,
    /// Kept by calls.
    R8 = 8,
    /// Kept by calls.
    R9 = 9,
    /// End of the stack frame; read-only.
    R10 = 10,
}

impl Register {
    /// All registers, by number.
    pub const ALL: [Self; 11] =
        [Self::R0, Self::R1, Self::R2, Self::R3, Self::R4, Self::R5, Self::R6, Self::R7, Self::R8, Self::R9, Self::R10];

    /// The register with this number.
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < Self::ALL.len() { Some(Self::ALL[number as usize]) } else { None }
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// How many bits an operation works on. Results of 32 bits are extended with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// The low half of a register.
    W32,
    /// The whole register.
    W64,
}

/// How many bytes an access to memory has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Size {
    /// 1 byte.
    Byte,
    /// 2 bytes.
    Half,
    /// 4 bytes.
    Word,
    /// 8 bytes.
    Double,
}

impl Size {
    /// Bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Half => 2,
            Self::Word => 4,
            Self::Double => 8,
        }
    }

    /// Bits.
    pub const fn bits(self) -> u32 {
        self.bytes() as u32 * 8
    }
}

/// What a load does with the bits above the value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Extension {
    /// They become zero.
    Zero,
    /// They become copies of the sign; not for 8 bytes.
    Sign,
}

/// The second operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// A register.
    Register(Register),
    /// A constant, extended with its sign where the operation has 64 bits.
    Immediate(i32),
}

/// An operation on a register and an operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AluOp {
    /// Sum; overflow is ignored.
    Add,
    /// Difference.
    Sub,
    /// Low half of the product.
    Mul,
    /// Quotient without sign; 0 if the divisor is 0.
    Div,
    /// Quotient with signs, towards zero; 0 if the divisor is 0, the dividend if it does not fit.
    SignedDiv,
    /// Remainder without sign; the dividend if the divisor is 0.
    Mod,
    /// Remainder with signs, with the dividend's sign; the dividend if the divisor is 0.
    SignedMod,
    /// Bits in either.
    Or,
    /// Bits in both.
    And,
    /// Bits in one of them.
    Xor,
    /// Shift to the left; only as many low bits of the operand count as the width needs. So in the next two.
    ShiftLeft,
    /// Shift to the right, zeros come in.
    ShiftRight,
    /// Shift to the right, copies of the sign come in.
    ShiftRightSigned,
    /// The operand.
    Move,
}

impl AluOp {
    /// Every operation.
    pub const ALL: [Self; 14] = [
        Self::Add,
        Self::Sub,
        Self::Mul,
        Self::Div,
        Self::SignedDiv,
        Self::Mod,
        Self::SignedMod,
        Self::Or,
        Self::And,
        Self::Xor,
        Self::ShiftLeft,
        Self::ShiftRight,
        Self::ShiftRightSigned,
        Self::Move,
    ];
}

/// Which bytes are exchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ByteOrder {
    /// Between the host's order and the little-endian one.
    Little,
    /// Between the host's order and the big-endian one.
    Big,
    /// Always.
    Swap,
}

/// When a jump is taken. The first operand stands on the left.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Condition {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `>` of numbers without sign.
    Greater,
    /// `>=` of numbers without sign.
    GreaterEqual,
    /// `<` of numbers without sign.
    Less,
    /// `<=` of numbers without sign.
    LessEqual,
    /// `>` of numbers with signs.
    SignedGreater,
    /// `>=` of numbers with signs.
    SignedGreaterEqual,
    /// `<` of numbers with signs.
    SignedLess,
    /// `<=` of numbers with signs.
    SignedLessEqual,
    /// A common bit is set.
    Common,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Self; 11] = [
        Self::Equal,
        Self::NotEqual,
        Self::Greater,
        Self::GreaterEqual,
        Self::Less,
        Self::LessEqual,
        Self::SignedGreater,
        Self::SignedGreaterEqual,
        Self::SignedLess,
        Self::SignedLessEqual,
        Self::Common,
    ];
}

/// An atomic operation on memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOp {
    /// Adds, and drops the old value.
    Add,
    /// Sets bits, and drops the old value.
    Or,
    /// Keeps bits, and drops the old value.
    And,
    /// Flips bits, and drops the old value.
    Xor,
    /// Adds; the source register gets the old value. So in the next four.
    FetchAdd,
    /// Sets bits.
    FetchOr,
    /// Keeps bits.
    FetchAnd,
    /// Flips bits.
    FetchXor,
    /// Stores.
    Exchange,
    /// Stores if the old value equals `r0`; `r0` gets the old value.
    CompareExchange,
}

impl AtomicOp {
    /// Every operation.
    pub const ALL: [Self; 10] = [
        Self::Add,
        Self::Or,
        Self::And,
        Self::Xor,
        Self::FetchAdd,
        Self::FetchOr,
        Self::FetchAnd,
        Self::FetchXor,
        Self::Exchange,
        Self::CompareExchange,
    ];
}

/// What a 64-bit immediate stands for (RFC 9669, section 5.4). Indexes refer to the object that the program comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wide {
    /// Itself.
    Value(u64),
    /// A map, by descriptor.
    MapByDescriptor(i32),
    /// The value of a map, by descriptor, and an offset into it.
    MapValueByDescriptor {
        /// Descriptor of the map.
        map: i32,
        /// Bytes into its value.
        offset: u32,
    },
    /// A variable of the platform, by id.
    Variable(i32),
    /// A function of this program, by the distance in slots from the next instruction.
    Function(i32),
    /// A map, by index.
    MapByIndex(i32),
    /// The value of a map, by index, and an offset into it.
    MapValueByIndex {
        /// Index of the map.
        map: i32,
        /// Bytes into its value.
        offset: u32,
    },
}

/// What is called.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Callee {
    /// A helper, by number.
    Helper(i32),
    /// A function of this program, by the distance in slots from the next instruction.
    Local(i32),
    /// A function of the platform, by the id of its type.
    Kernel {
        /// Id in the platform's BTF.
        id: i32,
        /// Which BTF: 0 for the platform's own, others for its modules'.
        module: i16,
    },
    /// The helper whose number is in a register.
    Register(Register),
}

/// One instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Instruction {
    /// `dst = dst op operand`
    Alu {
        /// Bits.
        width: Width,
        /// Operation.
        op: AluOp,
        /// First operand and result.
        dst: Register,
        /// Second operand.
        operand: Operand,
    },
    /// `dst = -dst`
    Negate {
        /// Bits.
        width: Width,
        /// Operand and result.
        dst: Register,
    },
    /// `dst = src`, with the low bits extended by their sign.
    MoveSigned {
        /// Bits of the result.
        width: Width,
        /// Bits taken: 8, 16, or 32 where the result has 64.
        from: Size,
        /// Result.
        dst: Register,
        /// Operand.
        src: Register,
    },
    /// Exchanges bytes; bits above become zero.
    Swap {
        /// Which.
        order: ByteOrder,
        /// 16, 32 or 64 bits.
        size: Size,
        /// Operand and result.
        dst: Register,
    },
    /// `dst = src` as a pointer into another address space (Linux: arenas).
    Cast {
        /// Result.
        dst: Register,
        /// Operand.
        src: Register,
        /// Address space of the result.
        to: u16,
        /// Address space of the operand.
        from: u16,
    },
    /// `dst = value`, in two slots.
    LoadWide {
        /// Result.
        dst: Register,
        /// Value.
        value: Wide,
    },
    /// `dst = *(base + offset)`
    Load {
        /// Bytes.
        size: Size,
        /// What the other bits become.
        extension: Extension,
        /// Result.
        dst: Register,
        /// Address.
        base: Register,
        /// Bytes added to it.
        offset: i16,
    },
    /// `*(base + offset) = value`
    Store {
        /// Bytes.
        size: Size,
        /// Address.
        base: Register,
        /// Bytes added to it.
        offset: i16,
        /// What is stored.
        value: Operand,
    },
    /// An atomic operation on memory.
    Atomic {
        /// Operation.
        op: AtomicOp,
        /// 4 or 8 bytes.
        width: Width,
        /// Address.
        base: Register,
        /// Bytes added to it.
        offset: i16,
        /// Operand, and result of the fetching operations.
        src: Register,
    },
    /// `dst = *(base + offset)`; no later access comes before it.
    LoadAcquire {
        /// Bytes.
        size: Size,
        /// Result.
        dst: Register,
        /// Address.
        base: Register,
        /// Bytes added to it.
        offset: i16,
    },
    /// `*(base + offset) = src`; no earlier access comes after it.
    StoreRelease {
        /// Bytes.
        size: Size,
        /// Address.
        base: Register,
        /// Bytes added to it.
        offset: i16,
        /// What is stored.
        src: Register,
    },
    /// Goes on `offset` slots behind the next instruction.
    Jump {
        /// Slots.
        offset: i32,
        /// How it is written: with 32 bits (`gotol`) or with 16.
        reach: Reach,
    },
    /// Goes on there if the condition holds.
    Branch {
        /// Bits compared.
        width: Width,
        /// When.
        condition: Condition,
        /// Left.
        dst: Register,
        /// Right.
        operand: Operand,
        /// Slots.
        offset: i16,
    },
    /// Goes on there if the program has run for too long (Linux: `may_goto`).
    MayGoto {
        /// Slots.
        offset: i16,
    },
    /// Calls.
    Call(Callee),
    /// Returns from the function.
    Exit,
    /// A load from the present packet (RFC 9669, section 5.5): obsolete.
    Packet {
        /// Bytes.
        size: Size,
        /// Register that is added to the offset.
        index: Option<Register>,
        /// Bytes into the packet.
        offset: i32,
    },
}

/// How far a jump can go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reach {
    /// 16 bits.
    Near,
    /// 32 bits.
    Far,
}

impl Instruction {
    /// Returns how many slots its bytes take.
    pub const fn slots(&self) -> usize {
        match self {
            Self::LoadWide { .. } => 2,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests;
