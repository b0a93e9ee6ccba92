//! Serialising instructions: chooses the cheapest that this core and thread allow.
//!
//! The unprivileged ones are CPUID, IRET, and SERIALIZE if CPUID leaf 7 reports it in EDX bit 14 (Intel SDM vol. 3A,
//! "Serializing Instructions", and vol. 2, "SERIALIZE"; AMD APM vol. 2, 7.6.4). Every CPUID takes an exit to the
//! hypervisor; the other two stay in the guest.
//!
//! | way | where | price of one |
//! |---|---|---|
//! | SERIALIZE | Intel since Alder Lake and Sapphire Rapids | tens of ns |
//! | IRET to the next instruction | threads without a shadow stack | 150 ns |
//! | CPUID | everywhere | 1.7 µs under a hypervisor |
//!
//! **Shadow stack.** With one in user mode IRET compares the address that it returns to with what lies on the shadow
//! stack, and faults (Intel SDM vol. 2, "IRET"). `rdsspq` tells: without a shadow stack, and on CPUs that do not know
//! it, it is a NOP and leaves the zero in its register.
//!
//! **Red zone.** IRET needs its frame on the stack. It is put below the 128 bytes that a leaf function may use without
//! moving the stack pointer (System V ABI, 3.2.2).

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicU8, Ordering};

/// How to serialise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Way {
    Serialize = 1,
    /// By IRET if the thread has no shadow stack, else by CPUID.
    Iret = 2,
}

/// The chosen [`Way`]; zero before the choice. Any thread writes the same.
static WAY: AtomicU8 = AtomicU8::new(0);

/// Drops all that this core has fetched and decoded ahead, and orders all its memory accesses. It may be called from a
/// signal handler.
#[inline]
pub fn serialize_this_core() {
    // Relaxed: it publishes nothing.
    match WAY.load(Ordering::Relaxed) {
        way if way == Way::Serialize as u8 => by_serialize(),
        way if way == Way::Iret as u8 && !has_shadow_stack() => by_iret(),
        0 => find_way(),
        _ => by_cpuid(),
    }
}

/// Chooses the way. Serialises, since it uses CPUID.
#[cold]
fn find_way() {
    const EXTENDED_FEATURES: u32 = 7;
    const SERIALIZE: u32 = 1 << 14;
    let knows = __cpuid(0).eax >= EXTENDED_FEATURES && __cpuid_count(EXTENDED_FEATURES, 0).edx & SERIALIZE != 0;
    // Relaxed: as above.
    WAY.store(if knows { Way::Serialize } else { Way::Iret } as u8, Ordering::Relaxed);
}

fn by_serialize() {
    // Encodes `serialize` in bytes, since assemblers may not know it. No `nomem`: it orders memory accesses. SAFETY:
    // the CPU knows the instruction (`find_way`); it changes no register, flag or memory.
    unsafe { asm!(".byte 0x0f, 0x01, 0xe8", options(nostack, preserves_flags)) };
}

fn by_iret() {
    // SAFETY: the frame is that of an interrupt between the last two instructions here: own segments, flags and stack
    // pointer, and the address behind them. It lies below the red zone, on this thread's stack, which has room for more
    // than a signal frame. There is no shadow stack.
    unsafe {
        asm!(
            "mov {stack}, rsp",
            "lea rsp, [rsp - 128]",
            "mov {scratch:e}, ss",
            "push {scratch}",
            "push {stack}",
            "pushfq",
            "mov {scratch:e}, cs",
            "push {scratch}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "iretq",
            "2:",
            stack = out(reg) _,
            scratch = out(reg) _,
            options(preserves_flags)
        );
    }
}

fn by_cpuid() {
    let _ = __cpuid(0);
}

fn has_shadow_stack() -> bool {
    let pointer: u64;
    // Encodes `rdsspq rax` in bytes. SAFETY: reads a register into `rax`, or does nothing.
    unsafe {
        asm!(
            ".byte 0xf3, 0x48, 0x0f, 0x1e, 0xc8",
            inlateout("rax") 0_u64 => pointer,
            options(nomem, nostack, preserves_flags),
        );
    }
    pointer != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Is a leaf, whose locals may lie in the red zone, with a condition that is live across `way`.
    #[inline(never)]
    fn leaf(way: fn(), seed: u64) -> u64 {
        let values: [u64; 12] =
            core::array::from_fn(|index| core::hint::black_box(seed.wrapping_mul(index as u64 + 3)));
        let stack_before: u64;
        // SAFETY: reads a register.
        unsafe { asm!("mov {}, rsp", out(reg) stack_before, options(nomem, nostack, preserves_flags)) };
        way();
        let stack_after: u64;
        // SAFETY: as above.
        unsafe { asm!("mov {}, rsp", out(reg) stack_after, options(nomem, nostack, preserves_flags)) };
        assert_eq!(stack_before, stack_after);
        values.iter().fold(0, |sum, value| sum ^ value)
    }

    #[test]
    fn every_way_comes_back_and_leaves_the_stack_alone() {
        serialize_this_core();
        let knows = WAY.load(Ordering::Relaxed) == Way::Serialize as u8;
        for (name, way, works) in [
            ("serialize", by_serialize as fn(), knows),
            ("iret", by_iret as fn(), !has_shadow_stack()),
            ("cpuid", by_cpuid as fn(), true),
        ] {
            if !works {
                eprintln!("skipped: {name} is not for this CPU or thread");
                continue;
            }
            let start = std::time::Instant::now();
            for seed in 0..1000 {
                assert_eq!(leaf(way, seed), leaf(|| {}, seed), "{name}");
            }
            eprintln!("{name}: {} ns", start.elapsed().as_nanos() / 1000);
        }
    }
}
