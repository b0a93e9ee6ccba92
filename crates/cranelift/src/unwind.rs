//! Turns Cranelift's unwind description into the bytes of an `.eh_frame` section.

use cranelift_codegen::gimli::LittleEndian;
use cranelift_codegen::gimli::write::{Address, CommonInformationEntry, EhFrame, EndianVec, FrameTable};
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::isa::unwind::{UnwindInfo, systemv};
use cranelift_codegen::{CodegenError, CompiledCode};

/// Unwind description of one function, without an address yet.
pub(crate) struct Unwind {
    cie: CommonInformationEntry,
    info: systemv::UnwindInfo,
}

impl Unwind {
    /// Returns the description of `code`, or `None` if the target or the flags provide none (`unwind_info=false`,
    /// Windows).
    pub(crate) fn of(isa: &dyn TargetIsa, code: &CompiledCode) -> Result<Option<Self>, CodegenError> {
        // Cranelift describes every prologue that it has emitted; the flag only makes it emit more for this purpose.
        if !isa.flags().unwind_info() {
            return Ok(None);
        }
        let Some(UnwindInfo::SystemV(info)) = code.create_unwind_info(isa)? else {
            return Ok(None);
        };
        Ok(isa.create_systemv_cie().map(|cie| Self { cie, info }))
    }

    /// Returns one CIE and one FDE with the absolute address of the function, without a terminator.
    ///
    /// Returns `None` if the description does not fit the format; then the function has no unwind table.
    pub(crate) fn eh_frame(&self, address: u64) -> Option<Vec<u8>> {
        let mut table = FrameTable::default();
        let cie = table.add_cie(self.cie.clone());
        table.add_fde(cie, self.info.to_fde(Address::Constant(address)));
        let mut section = EhFrame::from(EndianVec::new(LittleEndian));
        table.write_eh_frame(&mut section).ok()?;
        Some(section.0.into_vec())
    }
}

#[cfg(test)]
mod tests {
    use cranelift_codegen::Context;
    use cranelift_codegen::cursor::{Cursor, FuncCursor};
    use cranelift_codegen::gimli::{BaseAddresses, CieOrFde, EhFrame as Section, UnwindSection};
    use cranelift_codegen::ir::{Function, InstBuilder, Signature, UserFuncName};
    use cranelift_codegen::isa::{CallConv, OwnedTargetIsa};
    use cranelift_codegen::settings::{self, Configurable, Flags};

    use super::*;

    fn compiled(unwind_info: &str) -> (OwnedTargetIsa, Context) {
        let mut flags = settings::builder();
        flags.set("unwind_info", unwind_info).unwrap();
        let isa = cranelift_native::builder().unwrap();
        let isa = isa.finish(Flags::new(flags)).unwrap();
        let signature = Signature::new(CallConv::SystemV);
        let mut function = Function::with_name_signature(UserFuncName::default(), signature);
        let block = function.dfg.make_block();
        function.layout.append_block(block);
        FuncCursor::new(&mut function).at_bottom(block).ins().return_(&[]);
        let mut context = Context::for_function(function);
        context.compile(&*isa, &mut Default::default()).unwrap();
        (isa, context)
    }

    #[test]
    fn one_function_at_its_absolute_address() {
        let (isa, context) = compiled("true");
        let code = context.compiled_code().unwrap();
        let unwind = Unwind::of(&*isa, code).unwrap().unwrap();
        let bytes = unwind.eh_frame(0x1234_5678_9abc).unwrap();
        let section = Section::new(&bytes, LittleEndian);
        let bases = BaseAddresses::default();
        let mut ranges = Vec::new();
        let mut entries = section.entries(&bases);
        while let Some(entry) = entries.next().unwrap() {
            if let CieOrFde::Fde(fde) = entry {
                let fde = fde.parse(Section::cie_from_offset).unwrap();
                ranges.push((fde.initial_address(), fde.len()));
            }
        }
        let len = code.code_buffer().len() as u64;
        assert_eq!(ranges, [(0x1234_5678_9abc, len)]);
        assert_ne!(bytes[bytes.len() - 4..], [0; 4], "no terminator");
    }

    #[test]
    fn none_when_the_flags_say_so() {
        let (isa, context) = compiled("false");
        let code = context.compiled_code().unwrap();
        assert!(Unwind::of(&*isa, code).unwrap().is_none());
    }
}
