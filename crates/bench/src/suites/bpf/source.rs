//! The measured programs: byte code, and what it must return.

use std::error::Error;
use std::fmt::Write;

use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers};
use palimpsest_bpf::verify::{ContextAccess, Contract};
use palimpsest_bpf::{Code, asm};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Why something was not done.
pub(super) type Refusal = Box<dyn Error + Send + Sync>;

/// Returns what a program with this many bytes of context may do.
pub(super) fn contract(context: u32) -> Contract {
    Contract::new().context(context, ContextAccess::Write)
}

/// Byte code, with the context that it gets.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The program.
    pub(super) bytes: Vec<u8>,
    /// How many bytes of context it needs.
    pub(super) context: u32,
}

/// Bytes of context of a generated program.
const CONTEXT: u32 = 64;

impl Source {
    fn assembled(text: &str, context: u32) -> Result<Self, Refusal> {
        Ok(Self { bytes: asm::assemble(text)?, context })
    }

    /// Returns what the context holds before a call: any bytes will do.
    pub(super) fn fresh_context(&self) -> Vec<u8> {
        (0..self.context).map(|index| (index * 37 + 11) as u8).collect()
    }

    /// Returns what it returns for that context, by the reference interpreter.
    pub(super) fn expected(&self) -> Result<u64, Refusal> {
        /// The interpreter's address of the context.
        const PLACE: u64 = 0x10_0000;
        let code = Code::new(&self.bytes)?;
        let mut context = self.fresh_context();
        let mut memory = Memory::new();
        let len = context.len() as u64;
        memory.add(PLACE, &mut context)?;
        Ok(Interpreter::default().run(&code, [PLACE, len, 0, 0, 0], &mut memory, &mut NoHelpers)?)
    }

    /// Generates a program of this many instructions, a different one for each `number`: arithmetic on values of its
    /// context, stores, and jumps over an instruction.
    pub(super) fn generated(instructions: usize, number: u64) -> Result<Self, Refusal> {
        let mut rng = SmallRng::seed_from_u64(number);
        let mut text = String::new();
        // Loads first, so that nothing is known beforehand, and one register that says which program it is.
        for (register, offset) in [(0, 0), (3, 8), (4, 16)] {
            writeln!(text, "r{register} = *(u64 *)(r1 + {offset})")?;
        }
        writeln!(text, "r5 = {}", number as u32 as i32)?;
        const BEFORE: usize = 4;
        // A jump must not skip the last instruction.
        let body = instructions.saturating_sub(BEFORE + 1);
        for place in 0..body {
            let mut register = || [0, 3, 4, 5][rng.random_range(0..4)];
            let (dst, src) = (register(), register());
            let offset = 8 * rng.random_range(0..u64::from(CONTEXT) / 8);
            let value: i32 = rng.random_range(1..i32::MAX);
            match rng.random_range(0..12) {
                0 => writeln!(text, "r{dst} = r{src}")?,
                1 | 2 => writeln!(text, "r{dst} += r{src}")?,
                3 => writeln!(text, "r{dst} ^= r{src}")?,
                4 => writeln!(text, "r{dst} ^= {value}")?,
                5 => writeln!(text, "r{dst} += {value}")?,
                6 => writeln!(text, "r{dst} <<= {}", value % 13 + 1)?,
                7 => writeln!(text, "r{dst} >>= {}", value % 13 + 1)?,
                8 => writeln!(text, "r{dst} &= {value}")?,
                9 => writeln!(text, "r{dst} = *(u64 *)(r1 + {offset})")?,
                10 => writeln!(text, "*(u64 *)(r1 + {offset}) = r{src}")?,
                _ if place + 1 < body => writeln!(text, "if r{dst} > {value} goto +1")?,
                _ => writeln!(text, "r{dst} -= r{src}")?,
            }
        }
        text.push_str("exit\n");
        Self::assembled(&text, CONTEXT)
    }

    /// Returns a number.
    pub(super) fn trivial() -> Result<Self, Refusal> {
        Self::assembled("r0 = 7\nexit", 8)
    }

    /// FNV-1a of its context, 1024 bytes.
    pub(super) fn fnv1k() -> Result<Self, Refusal> {
        let text = "
                   r0 = 0xcbf29ce484222325 ll
                   r3 = 0x100000001b3 ll
                   r4 = r1
                   r5 = 0
            again: r2 = *(u8 *)(r4 + 0)
                   r0 ^= r2
                   r0 *= r3
                   r4 += 1
                   r5 += 1
                   if r5 != 1024 goto again
                   exit";
        Self::assembled(text, 1024)
    }

    /// Fills its context with 64 numbers of a linear congruential generator, sorts them, and returns the middle one.
    pub(super) fn bubble64() -> Result<Self, Refusal> {
        let text = "
                   r3 = 12345
                   r4 = 6364136223846793005 ll
                   r5 = r1
                   r2 = 64
            fill:  r3 *= r4
                   r3 += 1442695
                   *(u64 *)(r5 + 0) = r3
                   r5 += 8
                   r2 -= 1
                   if r2 != 0 goto fill
                   r2 = 63
            outer: r5 = r1
                   r4 = 0
            inner: r0 = *(u64 *)(r5 + 0)
                   r3 = *(u64 *)(r5 + 8)
                   if r0 <= r3 goto next
                   *(u64 *)(r5 + 0) = r3
                   *(u64 *)(r5 + 8) = r0
            next:  r5 += 8
                   r4 += 1
                   if r4 < r2 goto inner
                   r2 -= 1
                   if r2 != 0 goto outer
                   r0 = *(u64 *)(r1 + 256)
                   exit";
        Self::assembled(text, 512)
    }

    /// Does what a filter for TCP to port 443 does with a packet that matches: the context has its 54 bytes.
    pub(super) fn filter() -> Result<Self, Refusal> {
        let text = "
                   r0 = 0
                   r3 = *(u16 *)(r1 + 12)
                   r3 = be16 r3
                   if r3 != 0xc7ec goto out       ; as the context has it
                   r4 = *(u8 *)(r1 + 23)
                   if r4 > 250 goto out
                   r5 = *(u16 *)(r1 + 20)
                   r5 = be16 r5
                   r5 &= 0x1fff
                   if r5 == 0 goto out
                   r3 = *(u32 *)(r1 + 26)
                   r3 = be32 r3
                   r3 >>= 8
                   if r3 == 0x0a0000 goto out
                   r4 = *(u16 *)(r1 + 36)
                   r4 = be16 r4
                   if r4 == 443 goto out
                   r0 = 262144
            out:   exit";
        Self::assembled(text, 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_programs_have_their_length_are_distinct_and_verified() -> Result<(), Refusal> {
        let mut results = std::collections::HashSet::new();
        for number in 0..50 {
            for len in [20, 100, 200] {
                let source = Source::generated(len, number)?;
                assert_eq!(source.bytes.len(), len * 8);
                contract(source.context).verify(Code::new(&source.bytes)?)?;
            }
            results.insert(Source::generated(200, number)?.bytes);
        }
        assert_eq!(results.len(), 50);
        Ok(())
    }

    #[test]
    fn the_named_programs_compute_what_they_say() -> Result<(), Refusal> {
        assert_eq!(Source::trivial()?.expected()?, 7);
        let fnv = Source::fnv1k()?;
        let by_hand = fnv
            .fresh_context()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
        assert_eq!(fnv.expected()?, by_hand);
        let step = |state: u64| state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        let mut numbers: Vec<u64> =
            std::iter::successors(Some(step(12_345)), |state| Some(step(*state))).take(64).collect();
        numbers.sort_unstable();
        assert_eq!(Source::bubble64()?.expected()?, numbers[32]);
        // It goes all the way.
        assert_eq!(Source::filter()?.expected()?, 262_144);
        Ok(())
    }
}
