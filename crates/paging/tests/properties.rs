//! Random operations on families of spaces, for every format and way of sharing, compared with a plain model.
//!
//! `PALIMPSEST_PAGING_OPERATIONS` is the total number (60 000 if it is not set), `PALIMPSEST_PAGING_SEED` the first
//! seed. A message names a seed; `PALIMPSEST_PAGING_FAMILY`, that seed minus the first, skips all earlier families.

use palimpsest_paging::format::{AArch64, AArch64Upper, Sv39, Sv48, X86_64, X86_64La57};
use palimpsest_paging::sim::trial::{Case, run};
use palimpsest_paging::sim::{Delivery, Hardware, Marking};
use palimpsest_paging::{Accounting, Level, ShareTables, SpaceOptions};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

const SHARES: [ShareTables; 4] =
    [ShareTables::None, ShareTables::Last, ShareTables::UpTo(Level::new(2)), ShareTables::UpTo(Level::new(3))];

/// Runs all ways. `walkers` are the existing kinds of page walkers.
fn all_ways<F: Hardware>(walkers: &[Marking]) {
    const FORMATS: u64 = 6;
    // A family lives for this many operations.
    const LIFE: u64 = 2000;
    let first = number("PALIMPSEST_PAGING_SEED", 1);
    let families = (number("PALIMPSEST_PAGING_OPERATIONS", 60_000) / FORMATS).div_ceil(LIFE).max(1);
    for family in number("PALIMPSEST_PAGING_FAMILY", 0)..families {
        let of = |n: u64, count: u64| (n % count) as usize;
        let accounting = [Accounting::Exact, Accounting::Deferred][of(family / 4, 2)];
        let case = Case::default()
            .options(SpaceOptions::new().share(SHARES[of(family, 4)]).accounting(accounting))
            .nodes(1 + of(family, 3))
            .delivery([Delivery::Late, Delivery::Random, Delivery::AtOnce][of(family / 2, 3)])
            .marking(walkers[of(family, walkers.len() as u64)])
            .seed(first + family)
            .operations(LIFE as usize)
            .compare_every(if families > 1000 { 500 } else { 100 })
            .refuse_every(if families > 1000 { 64 } else { 16 });
        run::<F>(case);
    }
    println!("{}: {} operations on {families} families", F::NAME, families * LIFE);
}

macro_rules! formats {
    ($($name:ident: $format:ty, $walkers:expr;)*) => {$(
        #[test]
        fn $name() {
            all_ways::<$format>(&$walkers);
        }
    )*};
}

formats! {
    x86_64: X86_64, [Marking::ByFormat];
    x86_64_la57: X86_64La57, [Marking::ByFormat];
    aarch64: AArch64, [Marking::ByFormat];
    aarch64_upper: AArch64Upper, [Marking::ByFormat];
    sv39: Sv39, [Marking::ByFormat, Marking::ByWalker];
    sv48: Sv48, [Marking::ByFormat, Marking::ByWalker];
}
