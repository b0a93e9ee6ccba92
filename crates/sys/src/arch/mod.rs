//! What differs between instruction sets: a folder for each, with the same file names.
//!
//! All other modules of the project use these items and never name an architecture.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64/mod.rs"]
mod isa;

#[cfg(target_arch = "aarch64")]
#[path = "aarch64/mod.rs"]
mod isa;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("palimpsest-sys knows x86-64 and AArch64; add crates/sys/src/arch/<isa>/ for another one");

pub use isa::icache::{COHERENCE, MERGED_WRITES, flush as flush_instruction_cache};
pub use isa::instructions::{DIRECT_BRANCH_REACH, INSTRUCTION_ALIGN, TRAP, fill_traps};
pub use isa::landing_pads::landing_pad_rights;
pub use isa::pointer_tag::{pointer_tag, untagged};
pub use isa::serialize::serialize_this_core;
pub(crate) use isa::stack::call_on;
pub use isa::system_call::system_call;
pub(crate) use isa::system_call::{AUDIT_ARCH, PAUSE};
pub(crate) use isa::thread_block::thread_word;
pub use isa::thread_pointer::thread_pointer;
pub use isa::trap_frame::{TRAP_CODE, TrapFrame};

/// Fills `bytes` from index `from` on with what [`fill_traps`] would put there. So traps are aligned as `bytes` is; of
/// a trap that begins before `from`, only the last bytes are written.
pub fn fill_traps_from(bytes: &mut [u8], from: usize) {
    for (index, byte) in bytes.iter_mut().enumerate().skip(from) {
        *byte = TRAP[index % TRAP.len()];
    }
}

/// Whether instruction fetch sees stores to code without help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coherence {
    /// It snoops stores by physical address; new code needs no flush and no core sync.
    Coherent,
    /// It does not: new code needs a cache flush, then a core sync, before another core may run it.
    NeedsFlushAndSync,
}

// So that what fills freed code on the other architecture is checked here, too.
#[cfg(all(test, target_arch = "x86_64"))]
#[expect(dead_code, unreachable_pub, reason = "only what fills is looked at, and only here")]
#[path = "aarch64/instructions.rs"]
mod other_instructions;
#[cfg(all(test, target_arch = "aarch64"))]
#[expect(dead_code, unreachable_pub, reason = "only what fills is looked at, and only here")]
#[path = "x86_64/instructions.rs"]
mod other_instructions;

#[cfg(test)]
mod tests {
    use super::*;

    /// Mutants that are caught: a trap that is a NOP, or is stored with its last byte first, and bytes that keep what
    /// was there, each of either architecture.
    #[test]
    fn freed_code_traps_on_every_architecture() {
        const BRK: [u8; 4] = [0x00, 0x00, 0x20, 0xd4];
        let fills: [fn(&mut [u8]); 2] = [fill_traps, other_instructions::fill_traps];
        let [x86_64, aarch64] = if cfg!(target_arch = "x86_64") { fills } else { [fills[1], fills[0]] };
        let mut code = [0x5a; 67];
        aarch64(&mut code);
        assert!(code[..64].chunks(4).all(|word| word == BRK) && code[64..] == BRK[..3], "{code:x?}");
        code.fill(0x5a);
        x86_64(&mut code);
        assert_eq!(code, [0xcc; 67]);
    }

    #[test]
    fn traps_tile_a_chunk() {
        let mut bytes = [0_u8; 64];
        fill_traps(&mut bytes);
        assert!(bytes.chunks(TRAP.len()).all(|chunk| chunk == TRAP));
    }

    #[test]
    fn an_odd_tail_holds_the_start_of_a_trap() {
        let mut bytes = [0_u8; 7];
        fill_traps(&mut bytes);
        assert_eq!(&bytes[..TRAP.len()], TRAP);
        assert!(bytes.chunks(TRAP.len()).all(|chunk| TRAP.starts_with(chunk)));
    }

    #[test]
    fn traps_behind_any_length_are_aligned() {
        let mut filled = [0_u8; 19];
        fill_traps(&mut filled);
        for from in 0..=filled.len() {
            let mut bytes = [0_u8; 19];
            fill_traps_from(&mut bytes, from);
            assert_eq!(bytes[from..], filled[from..], "from {from}");
            assert!(bytes[..from].iter().all(|&byte| byte == 0), "from {from}");
        }
    }

    #[test]
    fn tags_are_taken_off_and_nothing_else() {
        let word = 0_usize;
        let address = (&raw const word).addr();
        assert_eq!(untagged(address), address);
        // An address that belongs to no user.
        assert_eq!(untagged(usize::MAX), usize::MAX);
        let Some(tag) = pointer_tag() else {
            assert_eq!(untagged(address | 1 << 57), address | 1 << 57);
            return eprintln!("skipped: pointers have no tags here");
        };
        assert_eq!(untagged(address | tag), address);
    }

    #[test]
    fn serializing_and_flushing_return() {
        serialize_this_core();
        let code = [0_u8; 256];
        flush_instruction_cache(code.as_ptr().addr()..code.as_ptr().addr() + code.len());
    }
}
