//! x86-64: a site is NOP or `JMP rel32`, 5 bytes each.

/// `nop dword [rax + rax]`
pub(crate) const OFF: [u8; 5] = [0x0F, 0x1F, 0x44, 0x00, 0x00];

/// `jmp` past the counting instruction.
pub(crate) const ON: [u8; 5] = [0xE9, COUNTS.len() as u8, 0, 0, 0];

/// `int3`, and `nop dword [rax]` for what comes after it.
pub(super) const TRAPPING: Option<[u8; 5]> = Some([0xCC, 0x0F, 0x1F, 0x40, 0x00]);

/// `xor eax, eax`
const BEGINS: [u8; 2] = [0x31, 0xC0];

/// `inc rax`
const COUNTS: [u8; 3] = [0x48, 0xFF, 0xC0];

/// `ret`
const ENDS: [u8; 1] = [0xC3];

/// Returns where a site is, in bytes from the program's start. None crosses a cache line if the program starts at one.
pub(crate) fn site_offset(site: usize) -> usize {
    BEGINS.len() + site * (OFF.len() + COUNTS.len())
}

pub(super) fn program(sites: usize, site: &[u8]) -> Vec<u8> {
    let each = [site, &COUNTS].concat();
    [&BEGINS[..], &each.repeat(sites), &ENDS].concat()
}

/// Tables of the peer `page_table_multiarch`, which has only this ISA's format.
#[cfg(feature = "peers")]
pub(crate) type MultiTable<H> = page_table_multiarch::x86_64::X64PageTable<H>;

/// Makes the peer `rbpf` compile, which it does only for this ISA.
#[cfg(feature = "peers")]
pub(crate) fn compile_rbpf(vm: &mut rbpf::EbpfVmRaw<'static>) -> Result<(), String> {
    vm.jit_compile().map_err(|error| error.to_string())
}

/// Makes the peer `solana-sbpf` compile, which it does only for this ISA.
#[cfg(feature = "peers")]
pub(crate) fn compile_sbpf<C: solana_sbpf::vm::ContextObject>(
    executable: &solana_sbpf::elf::Executable<C>,
) -> Result<(), String> {
    executable.jit_compile().map_err(|error| error.to_string())
}
