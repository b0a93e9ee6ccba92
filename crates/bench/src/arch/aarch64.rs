//! AArch64: a site is NOP or `B`, 4 bytes each, and changes by one store.

/// `nop`
pub(crate) const OFF: [u8; 4] = 0xD503_201F_u32.to_le_bytes();

/// `b` past the counting instruction.
pub(crate) const ON: [u8; 4] = 0x1400_0002_u32.to_le_bytes();

/// There are no traps to compare with.
pub(super) const TRAPPING: Option<[u8; 4]> = None;

/// `mov x0, #0`
const BEGINS: [u8; 4] = 0xD280_0000_u32.to_le_bytes();

/// `add x0, x0, #1`
const COUNTS: [u8; 4] = 0x9100_0400_u32.to_le_bytes();

/// `ret`
const ENDS: [u8; 4] = 0xD65F_03C0_u32.to_le_bytes();

/// Where a site is, in bytes from the program's start.
pub(crate) fn site_offset(site: usize) -> usize {
    BEGINS.len() + site * (OFF.len() + COUNTS.len())
}

pub(super) fn program(sites: usize, site: &[u8]) -> Vec<u8> {
    let each = [site, &COUNTS].concat();
    [&BEGINS[..], &each.repeat(sites), &ENDS].concat()
}

/// Tables of the peer `page_table_multiarch`, which has only this ISA's format.
#[cfg(feature = "peers")]
pub(crate) type MultiTable<H> = page_table_multiarch::aarch64::A64PageTable<H>;

/// The peer `rbpf` compiles only for another ISA.
#[cfg(feature = "peers")]
pub(crate) fn compile_rbpf(_vm: &mut rbpf::EbpfVmRaw<'static>) -> Result<(), String> {
    Err("rbpf compiles for x86-64 alone".to_owned())
}

/// The peer `solana-sbpf` compiles only for another ISA.
#[cfg(feature = "peers")]
pub(crate) fn compile_sbpf<C: solana_sbpf::vm::ContextObject>(
    _executable: &solana_sbpf::elf::Executable<C>,
) -> Result<(), String> {
    Err("solana-sbpf compiles for x86-64 alone".to_owned())
}
