//! The arena: blocks keep their bytes, and counters count correctly.

use std::ffi::c_void;
use std::slice;

use super::{Exactly, Input, Step, somewhere};
use crate::arena::{
    Stats, palimpsest_arena_aligned_alloc, palimpsest_arena_calloc, palimpsest_arena_free, palimpsest_arena_freeze,
    palimpsest_arena_malloc, palimpsest_arena_realloc, palimpsest_arena_refreeze, palimpsest_arena_stats,
    palimpsest_arena_trim, palimpsest_arena_usable_size,
};

/// A block's address, and the byte that fills it.
struct Block {
    address: usize,
    len: usize,
    fill: u8,
}

#[derive(Default)]
pub(super) struct Player {
    blocks: Vec<Block>,
}

/// Blocks at a time.
const MOST: usize = 200;
/// The most memory that a test asks for at a time and gets.
const LONGEST: usize = 1 << 20;

fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

impl Block {
    /// Returns what was written to it, while nobody frees it.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a block of the arena of at least this length, which only this owner has.
        unsafe { slice::from_raw_parts_mut(pointer(self.address).cast(), self.len) }
    }

    fn check(&mut self) -> Step {
        let fill = self.fill;
        match self.bytes().iter().position(|&byte| byte != fill) {
            None => Ok(()),
            Some(at) => Err(format!("byte {at} of a block of {} at {:#x} is not {fill}", self.len, self.address)),
        }
    }
}

impl Player {
    pub(super) fn step(&mut self, choice: u8, input: &mut Input<'_>) -> Step {
        match choice {
            0..5 if self.blocks.len() < MOST => self.allocate(choice, input),
            5..8 => self.resize(input),
            8..12 => self.free(input),
            12 => {
                somewhere(input, || palimpsest_arena_trim());
                Ok(())
            }
            13 if input.byte().is_multiple_of(2) => self.refreeze(),
            13 => {
                // Blocks keep their bytes.
                let frozen = somewhere(input, || palimpsest_arena_freeze());
                let refused = std::io::Error::last_os_error();
                if frozen == 0 { Ok(()) } else { Err(format!("palimpsest_arena_freeze: {frozen}, {refused}")) }
            }
            _ => self.stats(input),
        }
    }

    fn allocate(&mut self, choice: u8, input: &mut Input<'_>) -> Step {
        let (len, align, fill) = (input.number(), input.number(), input.byte() as u8);
        let (address, is_zeroed) = somewhere(input, || {
            let (block, is_zeroed) = match choice {
                0 | 1 => (palimpsest_arena_malloc(len), false),
                2 | 3 => (palimpsest_arena_calloc(len, align.min(16)), true),
                _ => (palimpsest_arena_aligned_alloc(align, len), false),
            };
            (block.expose_provenance(), is_zeroed)
        });
        let len = if is_zeroed { len.saturating_mul(align.min(16)) } else { len };
        if address == 0 {
            let is_refused = choice >= 4 && !align.is_power_of_two();
            let is_much = len > LONGEST || align > LONGEST;
            return if is_refused || is_much { Ok(()) } else { Err(format!("no block of {len} bytes")) };
        }
        if choice >= 4 && !address.is_multiple_of(align) {
            return Err(format!("{address:#x} is not aligned to {align}"));
        }
        let mut block = Block { address, len: len.min(LONGEST), fill };
        if is_zeroed && block.bytes().iter().any(|&byte| byte != 0) {
            return Err(format!("a block of calloc at {address:#x} is not zeros"));
        }
        block.bytes().fill(fill);
        self.blocks.push(block);
        Ok(())
    }

    fn resize(&mut self, input: &mut Input<'_>) -> Step {
        let Some(index) = input.pick(self.blocks.len()) else { return Ok(()) };
        let len = input.number();
        let block = &mut self.blocks[index];
        block.check()?;
        let address = block.address;
        let moved = somewhere(input, || {
            // SAFETY: 1. a block, which is not used again unless null is returned.
            unsafe { palimpsest_arena_realloc(pointer(address), len) }.expose_provenance()
        });
        if moved == 0 {
            return if len > LONGEST { Ok(()) } else { Err(format!("a block of {len} bytes cannot be had")) };
        }
        block.address = moved;
        block.len = block.len.min(len);
        block.check()?;
        block.len = len.min(LONGEST);
        let fill = block.fill;
        block.bytes().fill(fill);
        Ok(())
    }

    fn free(&mut self, input: &mut Input<'_>) -> Step {
        let Some(index) = input.pick(self.blocks.len()) else {
            // SAFETY: 1. null.
            unsafe { palimpsest_arena_free(pointer(0)) };
            return Ok(());
        };
        let mut block = self.blocks.swap_remove(index);
        block.check()?;
        let address = block.address;
        // SAFETY: 1. a block.
        let usable = unsafe { palimpsest_arena_usable_size(pointer(address)) };
        if usable < block.len {
            return Err(format!("of {} bytes {usable} are usable", block.len));
        }
        somewhere(input, || {
            // SAFETY: 1. a block, which is not used again.
            unsafe { palimpsest_arena_free(pointer(address)) };
        });
        Ok(())
    }

    /// Blocks keep their bytes, and what was just copied was not written to since.
    fn refreeze(&mut self) -> Step {
        // SAFETY: 1. null. 2. only this thread uses this process's arena.
        if unsafe { palimpsest_arena_refreeze(std::ptr::null_mut()) } != 0 {
            return Err(format!("palimpsest_arena_refreeze: {}", std::io::Error::last_os_error()));
        }
        let mut copied = 1;
        // SAFETY: 1. a local. 2. as above.
        let again = unsafe { palimpsest_arena_refreeze(&raw mut copied) };
        // SAFETY: 1. misaligned, which is refused. 2. nothing is done.
        let refused = unsafe { palimpsest_arena_refreeze((&raw mut copied).wrapping_byte_add(1)) };
        if (again, copied, refused) != (0, 0, -1) {
            return Err(format!("palimpsest_arena_refreeze: {again}, {copied} bytes copied anew, {refused}"));
        }
        self.blocks.iter_mut().try_for_each(Block::check)
    }

    fn stats(&self, input: &mut Input<'_>) -> Step {
        // SAFETY: 1. null.
        if unsafe { palimpsest_arena_stats(std::ptr::null_mut()) } != -1 {
            return Err("palimpsest_arena_stats fills in null".to_owned());
        }
        let len = input.byte() % (2 * size_of::<Stats>());
        let stats = Exactly::of(0_usize, len);
        // SAFETY: 1. as long as it says, and at least its first field.
        let answer = unsafe { palimpsest_arena_stats(stats.as_ptr()) };
        let is_known = len >= size_of::<usize>();
        if (answer == 0) != is_known {
            return Err(format!("palimpsest_arena_stats: {answer} with {len} bytes"));
        }
        if len < 2 * size_of::<usize>() {
            return Ok(());
        }
        // SAFETY: at least two words, which were written.
        let [size, blocks] = unsafe { stats.as_ptr::<[usize; 2]>().read() };
        // Whoever else uses this process's arena has blocks, too.
        if size != len || blocks < self.blocks.len() {
            return Err(format!("{size} bytes tell of {blocks} blocks: there are {}", self.blocks.len()));
        }
        Ok(())
    }

    pub(super) fn end(mut self) -> Step {
        for block in &mut self.blocks {
            block.check()?;
            // SAFETY: 1. a block, which is not used again.
            unsafe { palimpsest_arena_free(pointer(block.address)) };
        }
        Ok(())
    }
}
