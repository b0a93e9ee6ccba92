//! On x86-64, where both assemblers work.

use dynasmrt::{DynasmApi, DynasmError, DynasmLabelApi, VecAssembler, dynasm};
use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, qword_ptr, r12, rax, rcx, rdi, rsp};
use palimpsest_assemblers::place;
use palimpsest_text::{Packs, Program};

// ANCHOR: dynasm
/// Assembles `extern "C" fn(u64) -> u64`: the sum of all numbers up to its argument.
fn sum(address: usize) -> Result<Vec<u8>, DynasmError> {
    let mut code = VecAssembler::<dynasmrt::x64::X64Relocation>::new(address);
    dynasm!(code
        ; .arch x64
        ; xor eax, eax
        ; ->again:
        ; add rax, rdi
        ; dec rdi
        ; jnz ->again
        ; ret
    );
    code.finalize()
}
// ANCHOR_END: dynasm

/// Returns an assembler of a function that calls the one at `callee`, over the distance between them, and doubles its
/// result.
fn twice(callee: usize) -> impl Fn(usize) -> Result<Vec<u8>, DynasmError> {
    move |address| {
        let mut code = VecAssembler::<dynasmrt::x64::X64Relocation>::new(address);
        dynasm!(code
            ; .arch x64
            ; sub rsp, 8
            ; call extern callee
            ; add rax, rax
            ; add rsp, 8
            ; ret
        );
        code.finalize()
    }
}

// ANCHOR: iced
/// Returns an assembler like [`twice`], by iced-x86: its function calls the one at `callee` as often as `rdi` says, and
/// sums the results.
fn repeated(callee: usize) -> impl Fn(usize) -> Result<Vec<u8>, IcedError> {
    move |address| {
        let mut code = CodeAssembler::new(64)?;
        let mut again = code.create_label();
        code.push(r12)?;
        code.push(rdi)?;
        code.sub(rsp, 8)?;
        code.xor(r12, r12)?;
        code.set_label(&mut again)?;
        code.mov(rdi, 10_u64)?;
        code.call(callee as u64)?;
        code.add(r12, rax)?;
        code.mov(rcx, qword_ptr(rsp + 8))?;
        code.dec(rcx)?;
        code.mov(qword_ptr(rsp + 8), rcx)?;
        code.jnz(again)?;
        code.mov(rax, r12)?;
        code.add(rsp, 16)?;
        code.pop(r12)?;
        code.ret()?;
        code.assemble(address as u64)
    }
}
// ANCHOR_END: iced

fn call(program: &Program, argument: u64) -> u64 {
    // SAFETY: the bytes are a function of that type, and `program` outlives the call.
    let function = unsafe { program.function::<extern "C" fn(u64) -> u64>() };
    function(argument)
}

#[test]
fn code_of_both_runs_in_packs_and_calls_its_like() -> Result<(), Box<dyn std::error::Error>> {
    let packs = Packs::new()?;
    let sums = place(&packs, "sum", 16, sum)?.finalize()?;
    assert_eq!(call(&sums, 10), 55);
    let twice = place(&packs, "twice", 16, twice(sums.address().get()))?.finalize()?;
    assert_eq!(call(&twice, 10), 110);
    let repeated = place(&packs, "repeated", 16, repeated(twice.address().get()))?.finalize()?;
    assert_eq!(call(&repeated, 3), 330);
    let name = packs.lookup(repeated.address().get() + 5).map(|found| found.name().to_owned());
    assert_eq!(name.as_deref(), Some("repeated"));
    Ok(())
}

#[test]
fn a_thousand_functions_share_a_pack() -> Result<(), Box<dyn std::error::Error>> {
    let packs = Packs::new()?;
    let all = (0..1000).map(|_| place(&packs, "sum", 16, sum)).collect::<Result<Vec<_>, _>>()?;
    let programs = packs.finalize_all(all)?;
    assert!(programs.iter().enumerate().all(|(number, program)| {
        let number = number as u64 + 1;
        call(program, number) == number * (number + 1) / 2
    }));
    let stats = packs.stats();
    assert_eq!((stats.packs, stats.programs), (1, 1000), "{stats:?}");
    Ok(())
}

#[test]
fn code_of_another_length_at_its_place_is_refused() -> Result<(), Box<dyn std::error::Error>> {
    let packs = Packs::new()?;
    let mut lengths = [8, 9].into_iter();
    let other = place(&packs, "other", 16, |_| Ok::<_, IcedError>(vec![0xcc; lengths.next().unwrap_or(0)]));
    let error = other.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("has 9 bytes") && error.contains("8 nearby"), "{error}");
    assert_eq!(packs.stats().programs, 0);
    Ok(())
}
