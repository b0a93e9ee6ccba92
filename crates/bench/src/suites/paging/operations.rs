//! `paging.operation.{…}.{flushes,ipis}`: what one operation demands of other CPUs, counted on the software machine
//! with four of them in the space.

use palimpsest_paging::format::X86_64;
use palimpsest_paging::sim::{Computer, Config, Counts, MapSimulated};
use palimpsest_paging::{Access, AddressSpace, Node, PageSize, PageSizes, Rights, SpaceId, SpaceOptions, VirtAddr};

use super::{READ_WRITE, START, range_of};
use crate::TableError;
use crate::harness::record::Unit;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, failed};

const ID: &str = "paging.operation";

/// CPUs that run the space.
const CPUS: usize = 4;

/// Pages of an operation: four tables.
const PAGES: u64 = 4 * 512;

const NAMES: [&str; 8] = ["map", "protect", "remap", "fork", "break", "copy", "reuse", "unmap"];

pub(super) fn group() -> Group {
    let ids = NAMES.into_iter().flat_map(|name| ["flushes", "ipis"].map(|what| format!("{ID}.{name}.{what}")));
    Group::new(
        ID,
        "flushes, and interrupts to 4 CPUs, of one operation (ranges: 8 MiB)",
        ids.map(|id| Contestant::new(id, Unit::Count).ours()),
    )
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = group();
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(ID);
    let mut samples = Samples::default();
    for (name, flushes, interrupts) in count().map_err(failed(ID, "ours"))? {
        samples.add(&format!("{ID}.{name}.flushes"), flushes as f64);
        samples.add(&format!("{ID}.{name}.ipis"), interrupts as f64);
    }
    context.record(&group, samples);
    Ok(())
}

fn page(number: u64) -> VirtAddr {
    VirtAddr(START + number * PageSize::Small.bytes())
}

/// Returns flushes and interrupts of each operation, in the order of [`NAMES`].
fn count() -> Result<Vec<(&'static str, u64, u64)>, TableError> {
    let computer = Computer::new::<X86_64>(Config::default().cpus(CPUS));
    let options = SpaceOptions::new();
    let space = AddressSpace::<X86_64, _>::new(&computer, SpaceId(1), &[Node(0)], options)?;
    for cpu in 0..CPUS {
        computer.switch(cpu, Some((space.id(), space.root(Node(0)))));
    }
    let Some(first) = computer.allocate(Node(0), PAGES * PageSize::Small.bytes(), PageSize::Small) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::with_capacity(NAMES.len());
    let mut last = computer.counts();
    let mut done = |name| {
        let Counts { flushes, interrupts, .. } = computer.counts();
        found.push((name, flushes - last.flushes, interrupts - last.interrupts));
        last = computer.counts();
    };
    let range = range_of(PageSize::Small, PAGES);
    space.map_simulated(range.clone(), first, READ_WRITE, PageSizes::Only(PageSize::Small))?;
    done("map");
    space.protect(range.clone(), Rights::READ)?.finish();
    done("protect");
    let to = page(1 << 20);
    space.remap(range.clone(), to)?.finish();
    done("remap");
    space.remap(to..page((1 << 20) + PAGES), range.start)?.finish();
    space.protect(range.clone(), READ_WRITE.rights)?.finish();
    done("");
    let (child, flush) = space.fork(SpaceId(2))?;
    flush.finish();
    done("fork");
    let store = |number| space.fault(page(number), Access::USER_WRITE, Node(0));
    store(0)?;
    done("break");
    store(1)?;
    done("copy");
    drop(child);
    done("");
    store(2)?;
    done("reuse");
    space.unmap(range)?.finish();
    done("unmap");
    for cpu in 0..CPUS {
        computer.switch(cpu, None);
    }
    found.retain(|(name, ..)| !name.is_empty());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_flushed_once_and_new_pages_not_at_all() {
        let counts = count().expect("there is memory");
        let of = |name: &str| counts.iter().find(|(of, ..)| *of == name).map(|&(_, flushes, ipis)| (flushes, ipis));
        assert_eq!(of("map"), Some((0, 0)));
        for name in ["protect", "remap", "fork", "unmap"] {
            assert_eq!(of(name), Some((1, 4)), "{name}");
        }
        assert_eq!(counts.iter().map(|(name, ..)| *name).collect::<Vec<_>>(), NAMES);
    }
}
