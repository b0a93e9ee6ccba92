//! What a module records of each function and data object.

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::ir::{LibCall, TrapCode};
use cranelift_module::{DataId, FuncId, FuncOrDataId, ModuleReloc, ModuleRelocTarget};
use palimpsest_text::{Data, DataAccess, Program};

use palimpsest_text::link::{Encoder, Reference, Role};

use crate::error::DefineError;
use crate::fields;
use crate::unwind::Unwind;

/// A place in a function's code that may trap, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trap {
    /// Offset in bytes of the trapping instruction from the function's start.
    pub offset: u32,
    /// Cranelift's reason.
    pub code: TrapCode,
}

/// What a relocation refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    Function(FuncId),
    Data(DataId),
    LibCall(LibCall),
    /// An offset in bytes inside a function.
    Inside(FuncId, u32),
}

impl Target {
    pub(crate) fn of(name: &ModuleRelocTarget) -> Option<Self> {
        match *name {
            ModuleRelocTarget::User { namespace: 0, index } => Some(Self::Function(FuncId::from_u32(index))),
            ModuleRelocTarget::User { namespace: 1, index } => Some(Self::Data(DataId::from_u32(index))),
            ModuleRelocTarget::LibCall(call) => Some(Self::LibCall(call)),
            ModuleRelocTarget::FunctionOffset(function, offset) => Some(Self::Inside(function, offset)),
            ModuleRelocTarget::User { .. } | ModuleRelocTarget::KnownSymbol(_) => None,
        }
    }

    /// Returns the definition that must remain while something refers to this.
    pub(crate) fn definition(self) -> Option<FuncOrDataId> {
        match self {
            Self::Function(id) | Self::Inside(id, _) => Some(FuncOrDataId::Func(id)),
            Self::Data(id) => Some(FuncOrDataId::Data(id)),
            Self::LibCall(_) => None,
        }
    }
}

/// A field to fill in when addresses are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixup {
    /// Offset in bytes of the field.
    pub(crate) offset: u32,
    pub(crate) kind: Reloc,
    pub(crate) role: Role,
    pub(crate) target: Target,
    pub(crate) addend: i64,
}

impl Fixup {
    /// Returns what the field refers to.
    pub(crate) fn reference(&self) -> Reference<Target> {
        Reference { role: self.role, target: self.target, addend: self.addend }
    }

    /// Translates `relocs` of the definition called `name`, whose bytes are `code`.
    pub(crate) fn all(
        encoder: &dyn Encoder,
        name: &str,
        code: &[u8],
        relocs: &[ModuleReloc],
    ) -> Result<Vec<Self>, DefineError> {
        relocs
            .iter()
            .map(|reloc| {
                let target = Target::of(&reloc.name)
                    .ok_or_else(|| DefineError::Target { name: name.to_owned(), target: reloc.name.to_string() })?;
                let before = code.get(..reloc.offset as usize).unwrap_or_default();
                let role = fields::role(encoder, reloc.kind, before);
                if role == Role::Unsupported {
                    return Err(DefineError::Relocation {
                        name: name.to_owned(),
                        kind: reloc.kind,
                        offset: reloc.offset,
                    });
                }
                Ok(Self { offset: reloc.offset, kind: reloc.kind, role, target, addend: reloc.addend })
            })
            .collect()
    }
}

/// A function with code, but not placed yet.
pub(crate) struct PendingFunction {
    pub(crate) code: Vec<u8>,
    /// Alignment of the first byte; a power of two.
    pub(crate) align: usize,
    pub(crate) fixups: Vec<Fixup>,
    pub(crate) traps: Vec<Trap>,
    pub(crate) unwind: Option<Unwind>,
}

/// A function in a pack.
pub(crate) struct LiveFunction {
    pub(crate) program: Program,
    /// Bytes of Cranelift's own code; veneers and address slots follow it in the program.
    pub(crate) code_len: usize,
    pub(crate) traps: Vec<Trap>,
}

pub(crate) enum Function {
    Pending(PendingFunction),
    Live(LiveFunction),
}

impl Function {
    /// Returns the address of the first byte, once it has one.
    pub(crate) fn address(&self) -> Option<usize> {
        match self {
            Self::Pending(_) => None,
            Self::Live(live) => Some(live.program.address().get()),
        }
    }
}

/// Contents of a data object; zeros are not materialised before it is placed.
pub(crate) enum Contents {
    Zeros(usize),
    Bytes(Box<[u8]>),
}

impl Contents {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Zeros(len) => *len,
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Writes the contents into `image`, which is zeroed and at least as long.
    pub(crate) fn write(&self, image: &mut [u8]) {
        if let Self::Bytes(bytes) = self {
            image[..bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// A data object that is not placed yet.
pub(crate) struct PendingData {
    pub(crate) access: DataAccess,
    pub(crate) contents: Contents,
    /// Alignment of the first byte; a power of two.
    pub(crate) align: usize,
    pub(crate) fixups: Vec<Fixup>,
}

/// A data object in place.
pub(crate) struct LiveData {
    pub(crate) data: Data,
    /// Bytes of the description; even an empty object occupies one.
    pub(crate) len: usize,
}

pub(crate) enum DataObject {
    Pending(PendingData),
    Live(LiveData),
}

impl DataObject {
    /// Returns the address of the first byte, once it has one.
    pub(crate) fn address(&self) -> Option<usize> {
        match self {
            Self::Pending(_) => None,
            Self::Live(live) => Some(live.data.address()),
        }
    }
}
