//! What is measured, and the helper processes for it.

use crate::harness::progress::Progress;
use crate::harness::record::{Machine, Report};
use crate::harness::{self, BenchError, Request, Suite, host};
use crate::placers::Packed;
use palimpsest_sys::Causes;

mod afl;
mod bpf;
mod fork;
mod keys;
mod numa;
mod pack;
mod paging;
mod programs;
mod tour;

pub use tour::{Part, tour};

/// Returns every suite.
#[must_use]
pub fn all() -> Vec<Box<dyn Suite>> {
    vec![
        Box::new(pack::Pack),
        Box::new(keys::Keys),
        Box::new(fork::Fork),
        Box::new(fork::Reset),
        Box::new(paging::Paging),
        Box::new(bpf::Bpf),
        Box::new(numa::Numa),
        Box::new(afl::Afl),
        Box::new(programs::Redis),
        Box::new(programs::Python),
        Box::new(programs::Mix),
        Box::new(programs::Programs),
    ]
}

/// Runs those of `suites` that `request` asks for, and says where this machine has its packs.
///
/// # Errors
///
/// Those of [`harness::run`].
pub fn run(suites: Vec<Box<dyn Suite>>, request: &Request, progress: &dyn Progress) -> Result<Report, BenchError> {
    harness::run(suites, machine(), request, progress)
}

/// Describes this machine. If packs cannot be opened it has no backing, and the suites that need packs say so.
#[must_use]
pub fn machine() -> Machine {
    let (backing, refused) = match Packed::open() {
        Ok(packs) => (Some(packs.backing()), packs.refused()),
        Err(error) => (None, vec![Causes(&error).to_string()]),
    };
    Machine { backing, refused, ..host::describe() }
}

/// Does the work of a helper: `arguments` are what follows [`harness::HELPER`].
///
/// # Errors
///
/// Fails for unknown helpers and contestants, failed loads, unreadable accounting, and broken pipes.
pub fn serve(arguments: &[String]) -> Result<(), BenchError> {
    match arguments {
        [name, contestant] if name == pack::MEMORY_PROBE => pack::probe_memory(contestant),
        [name, contestant] if name == bpf::MEMORY_PROBE => bpf::probe_memory(contestant),
        [name, group, contestant] if name == bpf::SAMPLER => bpf::serve_samples(group, contestant),
        [name, contestant, bytes] if name == fork::WORKER => fork::work(contestant, bytes),
        [name, way, bytes] if name == fork::PAUSER => fork::work_pause(way, bytes),
        _ => Err(BenchError::Helper { contestant: arguments.join(" "), reason: "there is no such helper".to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn rivals_are_no_contestants_of_ours_and_ours_need_no_rival() {
        let contestants = all().into_iter().flat_map(|suite| suite.groups()).flat_map(|group| group.contestants);
        let ours: HashMap<String, bool> =
            contestants.map(|contestant| (contestant.id.clone(), contestant.is_ours())).collect();
        let rivals = ["plain", "thp", "anonymous", "pool", "persistent", "rbpf", "ubpf", "page_each", "x86_64"];
        let packs = |id: &str| id.starts_with("numa.pack.");
        for (id, is_ours) in &ours {
            let name = id.rsplit('.').next().unwrap_or_default();
            // The packs without replicas are packs, too.
            assert!(!(rivals.contains(&name) && *is_ours) || packs(id), "{id}");
        }
        for id in [
            "paging.map.4k.per_page",
            "bpf.verify.100.palimpsest",
            "bpf.load.20.interp",
            "numa.text.local",
            "keys.traps",
        ] {
            assert!(ours.iter().any(|(known, is_ours)| known.starts_with(id) && *is_ours), "{id}");
        }
    }
}
