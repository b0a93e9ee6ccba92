//! The record of a slab's returned blocks, compared with a set: each block comes back once, none is lost, none is
//! invented.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use palimpsest_fork::fuzzing::Blocks;

fuzz_target!(|bytes: &[u8]| {
    let (blocks, mut model) = (Blocks::default(), BTreeSet::new());
    for &[what, low, high] in bytes.as_chunks::<3>().0 {
        let block = u32::from(low) | u32::from(high) << 8;
        // Numbers a little beyond the last one, too.
        let block = block % (blocks.capacity() + 64);
        match what % 8 {
            0..4 => {
                let is_new = block < blocks.capacity() && model.insert(block);
                assert_eq!(blocks.put_back(block), is_new, "block {block}");
            }
            4..7 => match blocks.take() {
                Some(taken) => assert!(model.remove(&taken), "block {taken} was not given back"),
                None => assert!(model.is_empty(), "{} blocks are lost", model.len()),
            },
            _ if low == 0 => {
                blocks.clear();
                model.clear();
            }
            _ => assert_eq!(blocks.is_returned(block), model.contains(&block), "block {block}"),
        }
    }
});
