//! On AArch64, where dynasm-rs works.

use dynasmrt::{DynasmError, DynasmLabelApi, VecAssembler, dynasm};
use palimpsest_assemblers::place;
use palimpsest_text::{Packs, Program};

/// Assembles `extern "C" fn(u64) -> u64`: the sum of all numbers up to its argument.
fn sum(address: usize) -> Result<Vec<u8>, DynasmError> {
    let mut code = VecAssembler::<dynasmrt::aarch64::Aarch64Relocation>::new(address);
    dynasm!(code
        ; .arch aarch64
        ; mov x1, xzr
        ; ->again:
        ; add x1, x1, x0
        ; subs x0, x0, #1
        ; b.ne ->again
        ; mov x0, x1
        ; ret
    );
    code.finalize()
}

/// Returns an assembler of a function that jumps to the one at `callee`, over the distance between them.
fn same(callee: usize) -> impl Fn(usize) -> Result<Vec<u8>, DynasmError> {
    move |address| {
        let mut code = VecAssembler::<dynasmrt::aarch64::Aarch64Relocation>::new(address);
        dynasm!(code
            ; .arch aarch64
            ; b extern callee
        );
        code.finalize()
    }
}

fn call(program: &Program, argument: u64) -> u64 {
    // SAFETY: the bytes are a function of that type, and `program` outlives the call.
    let function = unsafe { program.function::<extern "C" fn(u64) -> u64>() };
    function(argument)
}

#[test]
fn code_runs_in_packs_and_jumps_to_its_like() -> Result<(), Box<dyn std::error::Error>> {
    let packs = Packs::new()?;
    let sums = place(&packs, "sum", 16, sum)?.finalize()?;
    let same = place(&packs, "same", 16, same(sums.address().get()))?.finalize()?;
    assert_eq!((call(&sums, 10), call(&same, 10)), (55, 55));
    Ok(())
}
