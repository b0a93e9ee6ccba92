//! Code with many sites for x86-64.

use crate::Generated;

#[path = "../debugger.rs"]
mod debugger;
#[path = "../sigtrap.rs"]
mod sigtrap;

/// Whether some of 56 sites lie across words, so that no single store can change them.
pub(crate) const SITES_CROSS_WORDS: bool = true;

/// A site that lies in one aligned word, if the code is aligned to a cache line.
pub(crate) const FITS_A_WORD: usize = 1;

/// Returns a function of a pointer to one byte per site. At each site it stores 1, runs the site, and stores 2 if the
/// site let it through: sites fall through when old and jump when new.
///
/// Six kinds in turn, at all offsets from cache lines and pages, since paddings of all lengths lie between.
pub(crate) fn generate(sites: usize) -> Generated {
    // xor ecx, ecx: ZF is set, and no store changes it.
    let mut code = vec![0x31, 0xC9];
    let mut places = Vec::new();
    for index in 0..sites {
        let padding = index * 7 % 61;
        code.extend(std::iter::repeat_n(0x90, padding));
        store(&mut code, index, 1);
        let (old, new) = kind(index);
        places.push((code.len(), old.clone(), new));
        code.extend(old);
        store(&mut code, index, 2);
    }
    code.push(0xC3);
    Generated { code, sites: places }
}

/// Length of a store.
const STORE: u8 = 7;

/// mov byte [rdi + index], value
fn store(code: &mut Vec<u8>, index: usize, value: u8) {
    code.extend([0xC6, 0x87]);
    code.extend((index as u32).to_le_bytes());
    code.push(value);
}

fn kind(index: usize) -> (Vec<u8>, Vec<u8>) {
    let pair = |old: &[u8], new: &[u8]| (old.to_vec(), new.to_vec());
    match index % 6 {
        // nop5, jmp rel32
        0 => pair(&[0x0F, 0x1F, 0x44, 0, 0], &[0xE9, STORE, 0, 0, 0]),
        // nop2, jmp rel8
        1 => pair(&[0x66, 0x90], &[0xEB, STORE]),
        // nop5, jmp rel8 and dead bytes that are no instruction
        2 => pair(&[0x0F, 0x1F, 0x44, 0, 0], &[0xEB, STORE + 3, 0x06, 0x06, 0x06]),
        // nop6, jz rel32
        3 => pair(&[0x66, 0x0F, 0x1F, 0x44, 0, 0], &[0x0F, 0x84, STORE, 0, 0, 0]),
        // jnz rel8, jz rel8: the tail stays
        4 => pair(&[0x75, STORE], &[0x74, STORE]),
        // nop9, jmp rel32 and dead bytes
        _ => pair(&[0x66, 0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0], &[0xE9, STORE + 4, 0, 0, 0, 0x06, 0x06, 0x06, 0x06]),
    }
}
