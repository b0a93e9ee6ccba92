//! `paging.replica.{without,with}`: tables and frames of each of two nodes, and how many instruction fetches reach
//! another node's memory, on the software machine.

use palimpsest_paging::format::X86_64;
use palimpsest_paging::sim::{Computer, Config, MapSimulated};
use palimpsest_paging::{
    Access, Accounting, AddressSpace, Attributes, Node, PAGE, PageSize, PageSizes, Rights, SpaceId, SpaceOptions,
    VirtAddr,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{READ_WRITE, START, expect};
use crate::TableError;
use crate::harness::record::Unit;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, failed};

const ID: &str = "paging.replica";
const WAYS: [&str; 2] = ["without", "with"];

const NODES: usize = 2;
const CPUS: usize = 4;
/// Text: 8 MiB, in pages.
const TEXT: u64 = 2048;
/// Data, which is not replicated: 64 MiB, in pages.
const DATA: u64 = 16384;
/// Fetches of each CPU.
const FETCHES: u64 = 20_000;

pub(super) fn group() -> Group {
    let contestants = WAYS.into_iter().flat_map(ids).map(|id| {
        let unit = if id.ends_with("percent") { Unit::Percent } else { Unit::Count };
        Contestant::new(id, unit).ours()
    });
    Group::new(
        ID,
        "2 nodes, 8 MiB of text and 64 MiB of data: tables and frames per node, fetches of the other's memory",
        contestants,
    )
}

fn ids(way: &str) -> [String; 5] {
    ["remote-pages-percent", "node-0.tables", "node-1.tables", "node-0.frames", "node-1.frames"]
        .map(|what| format!("{ID}.{way}.{what}"))
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = group();
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(ID);
    let mut samples = Samples::default();
    for way in WAYS {
        let layout = measure(way).map_err(failed(ID, way))?;
        let ([tables_0, tables_1], [frames_0, frames_1]) = (layout.tables, layout.frames);
        let counts = [tables_0, tables_1, frames_0, frames_1].map(|count| count as f64);
        let values = std::iter::once(layout.remote_percent).chain(counts);
        ids(way).iter().zip(values).for_each(|(id, value)| samples.add(id, value));
    }
    context.record(&group, samples);
    Ok(())
}

/// Where the tables and pages of a space are, and how many fetches reach another node.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Layout {
    tables: [u64; NODES],
    frames: [u64; NODES],
    remote_percent: f64,
}

fn measure(way: &str) -> Result<Layout, TableError> {
    let computer = Computer::new::<X86_64>(Config::default().nodes(NODES).cpus(CPUS));
    let options = SpaceOptions::new().accounting(Accounting::Exact);
    let replicated = way == "with";
    let nodes: &[Node] = if replicated { &[Node(0), Node(1)] } else { &[Node(0)] };
    let space = AddressSpace::<X86_64, _>::new(&computer, SpaceId(1), nodes, options)?;
    let text = VirtAddr(START)..VirtAddr(START + TEXT * PAGE);
    let data = text.end..VirtAddr(text.end.0 + DATA * PAGE);
    let execute = Attributes::user(Rights::READ | Rights::EXECUTE);
    for (range, attributes) in [(text.clone(), execute), (data.clone(), READ_WRITE)] {
        // The first node has plenty.
        let Some(frame) = computer.allocate(Node(0), range.end.0 - range.start.0, PageSize::Large) else { break };
        space.map_simulated(range, frame, attributes, PageSizes::Only(PageSize::Small))?;
    }
    let mut own = (0, 0);
    if replicated {
        let (done, flush) = space.replicate(text)?;
        flush.finish();
        // The root of the second node exists from the start.
        own = (done.tables as u64 + 1, done.pages as u64);
    }
    for cpu in 0..CPUS {
        computer.switch(cpu, Some((space.id(), space.root(computer.node(cpu)))));
    }
    let remote = remote_fetches(&computer)?;
    let charged = computer.charged(space.id());
    let layout = Layout {
        tables: [charged.tables as u64 - own.0, own.0],
        frames: [charged.pages as u64, own.1],
        remote_percent: remote as f64 * 100.0 / (CPUS as u64 * FETCHES) as f64,
    };
    for cpu in 0..CPUS {
        computer.switch(cpu, None);
    }
    Ok(layout)
}

/// Fetches anywhere in the text, on all CPUs. Returns how many reach the memory of another node.
fn remote_fetches(computer: &Computer) -> Result<u64, TableError> {
    let mut random = SmallRng::seed_from_u64(1);
    let (mut remote, mut trapped) = (0, 0);
    for _ in 0..FETCHES {
        for cpu in 0..CPUS {
            let address = VirtAddr(START + random.random_range(0..TEXT) * PAGE);
            match computer.reach(cpu, address, Access::USER_EXECUTE) {
                Ok(frame) => remote += u64::from(computer.node_of(frame) != computer.node(cpu)),
                Err(_) => trapped += 1,
            }
        }
    }
    expect("the number of fetches that trap", trapped, 0)?;
    Ok(remote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_fetch_is_remote_with_replicas_and_half_of_them_without() {
        let [without, with] = WAYS.map(|way| measure(way).expect("there is memory"));
        assert_eq!((without.remote_percent, with.remote_percent), (50.0, 0.0));
        assert_eq!((without.tables[1], without.frames[1]), (0, 0));
        // Root, two tables on the way, four of pages; data's tables and frames stay where they are.
        assert_eq!((with.tables, with.frames), ([39, 7], [TEXT + DATA, TEXT]));
        assert_eq!(without.tables[0], 39);
    }
}
