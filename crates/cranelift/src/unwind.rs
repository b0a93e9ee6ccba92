//! From Cranelift's unwind description to the bytes of an `.eh_frame` section.

use cranelift_codegen::gimli::LittleEndian;
use cranelift_codegen::gimli::write::{Address, CommonInformationEntry, EhFrame, EndianVec, FrameTable};
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::isa::unwind::{UnwindInfo, systemv};
use cranelift_codegen::{CodegenError, CompiledCode};

/// Unwind description of one function, still without an address.
pub(crate) struct Unwind {
    cie: CommonInformationEntry,
    info: systemv::UnwindInfo,
}

impl Unwind {
    /// The description of `code`, or `None` where the target or the flags give none (`unwind_info=false`, Windows).
    pub(crate) fn of(isa: &dyn TargetIsa, code: &CompiledCode) -> Result<Option<Self>, CodegenError> {
        let Some(UnwindInfo::SystemV(info)) = code.create_unwind_info(isa)? else {
            return Ok(None);
        };
        Ok(isa.create_systemv_cie().map(|cie| Self { cie, info }))
    }

    /// One CIE and one FDE with the absolute address of the function, without a terminator.
    ///
    /// `None` when the description does not fit the format, in which case the function has no unwind table.
    pub(crate) fn eh_frame(&self, address: u64) -> Option<Vec<u8>> {
        let mut table = FrameTable::default();
        let cie = table.add_cie(self.cie.clone());
        table.add_fde(cie, self.info.to_fde(Address::Constant(address)));
        let mut section = EhFrame::from(EndianVec::new(LittleEndian));
        table.write_eh_frame(&mut section).ok()?;
        Some(section.0.into_vec())
    }
}
