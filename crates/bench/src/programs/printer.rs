//! The programs of the kernel's stress tool for its own packs.

use palimpsest_bpf::jit::{Helper, Target, compile};
use palimpsest_bpf::{Code, asm};

use crate::PlaceError;

/// A compiled program that asks who runs it, and prints that with a text of its own; it returns 0.
///
/// # Invariants
///
/// `code` is what the compiler made, for this machine, of a program without loops that reaches only its own stack and
/// calls only [`nothing`], which ignores the registers that it gets: a function with the C calling convention from
/// `u64` to `u64`, which ignores its argument. The field is private to this module, which alone makes values of this
/// type.
#[derive(Clone, Debug)]
pub(crate) struct Printer {
    code: Vec<u8>,
}

impl Printer {
    /// Machine code that runs wherever it is placed in this process; the entry is its first byte.
    pub(crate) fn code(&self) -> &[u8] {
        &self.code
    }
}

/// What both helpers do.
extern "C" fn nothing(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    0
}

/// Compiles `count` different ones.
pub(crate) fn compile_printers(count: usize) -> Result<Vec<Printer>, PlaceError> {
    (0..count as u64).map(compile_printer).collect()
}

fn compile_printer(number: u64) -> Result<Printer, PlaceError> {
    let refused = |reason: &dyn std::fmt::Display| PlaceError::Compile { reason: reason.to_string() };
    let target = Target::NATIVE.ok_or_else(|| refused(&"there is no compiler for this machine"))?;
    let helpers: [(i32, Helper); 2] = [(6, nothing), (14, nothing)];
    let text = format!(
        "call 14
         r3 = r0
         r1 = {} ll
         *(u64 *)(r10 - 16) = r1
         r1 = 0x0a7525 ll
         *(u64 *)(r10 - 8) = r1
         r1 = r10
         r1 += -16
         r2 = 16
         call 6
         r0 = 0
         exit",
        0x6769_705f_7465_6700_u64 + number
    );
    let bytes = asm::assemble(&text).map_err(|error| refused(&error))?;
    let code = Code::new(&bytes).map_err(|error| refused(&error))?;
    let compiled = compile(&code, target, &helpers[..]).map_err(|error| refused(&error))?;
    Ok(Printer { code: compiled.bytes().to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_one_is_compiled_and_they_differ() {
        let printers = compile_printers(2).expect("this host has a compiler");
        assert_ne!(printers[0].code(), printers[1].code());
    }
}
