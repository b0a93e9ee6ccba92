//! Code with many sites for AArch64.

use crate::Generated;

/// Whether some of 56 sites lie across words, so that no single store can change them: instructions are aligned.
pub(crate) const SITES_CROSS_WORDS: bool = false;

/// A site that lies in one aligned word, if the code is aligned to a cache line.
pub(crate) const FITS_A_WORD: usize = 0;

/// Returns a function of a pointer to one byte per site. At each site it stores 1, runs the site, and stores 2 if the
/// site let it through: sites are NOPs when old and jump when new.
pub(crate) fn generate(sites: usize) -> Generated {
    const NOP: u32 = 0xD503_201F;
    // B over two instructions.
    const SKIP: u32 = 0x1400_0003;
    let mut code = Vec::new();
    let mut places = Vec::new();
    let push = |instruction: u32, code: &mut Vec<u8>| code.extend(instruction.to_le_bytes());
    for index in 0..sites {
        for _ in 0..index % 15 {
            push(NOP, &mut code);
        }
        for value in [1, 2] {
            if value == 2 {
                places.push((code.len(), NOP.to_le_bytes().to_vec(), SKIP.to_le_bytes().to_vec()));
                push(NOP, &mut code);
            }
            // mov w1, value; strb w1, [x0, index]
            push(0x5280_0001 | value << 5, &mut code);
            push(0x3900_0001 | (index as u32) << 10, &mut code);
        }
    }
    push(0xD65F_03C0, &mut code);
    Generated { code, sites: places }
}
