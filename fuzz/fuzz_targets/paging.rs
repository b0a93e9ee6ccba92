//! A family of address spaces on the software machine: whatever is done to them in whatever order, they translate as
//! the model says, no CPU remembers anything wrong, and nothing leaks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_paging::format::{AArch64, AArch64Upper, Sv39, Sv48, X86_64, X86_64La57};
use palimpsest_paging::sim::trial::{Case, Source, Trial};
use palimpsest_paging::sim::{Computer, Delivery, Hardware};
use palimpsest_paging::{Accounting, Level, ShareTables, SpaceOptions};

/// Most operations of one input.
const OPERATIONS: usize = 300;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[format, share, rest], operations)) = bytes.split_first_chunk() else { return };
    let shares =
        [ShareTables::None, ShareTables::Last, ShareTables::UpTo(Level::new(2)), ShareTables::UpTo(Level::new(3))];
    let deliveries = [Delivery::AtOnce, Delivery::Late, Delivery::Random];
    let accounting = if rest & 1 == 0 { Accounting::Exact } else { Accounting::Deferred };
    let case = Case::default()
        .options(SpaceOptions::new().share(shares[usize::from(share % 4)]).accounting(accounting))
        .nodes(1 + usize::from(rest >> 1) % 3)
        .delivery(deliveries[usize::from(rest >> 3) % 3])
        .compare_every(32)
        .refuse_every(8);
    match format % 6 {
        0 => run::<X86_64>(case, operations),
        1 => run::<X86_64La57>(case, operations),
        2 => run::<AArch64>(case, operations),
        3 => run::<AArch64Upper>(case, operations),
        4 => run::<Sv39>(case, operations),
        _ => run::<Sv48>(case, operations),
    }
});

fn run<F: Hardware>(case: Case, operations: &[u8]) {
    let computer = Computer::new::<F>(case.config());
    let mut trial = Trial::<F, _>::new(&computer, &computer, case, Source::Bytes(operations));
    while !trial.is_over() && trial.done() < OPERATIONS {
        trial.operate();
    }
    trial.finish();
}
