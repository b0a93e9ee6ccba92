//! Suite `bpf`: eBPF programs compiled into packs, compared with other engines for user space.
//!
//! Every measured program is byte code that all engines accept: the instructions of 2015, without maps or helpers if a
//! peer takes part. Each result is compared with the reference interpreter's before anything is timed.

mod apart;
mod call;
mod counted;
mod engine;
mod hook;
mod load;
mod map;
mod memory;
mod roundrobin;
mod serve;
mod source;
mod stress;
mod test_tag;
mod time;
mod verify;

pub(super) use apart::SAMPLER;
pub(super) use hook::{group as tour_group, tour};
pub(super) use memory::{MEMORY_PROBE, probe_memory};
pub(super) use serve::serve_samples;

use crate::harness::{BenchError, Context, Group, Suite};

/// See the module.
pub(super) struct Bpf;

impl Suite for Bpf {
    fn id(&self) -> &'static str {
        "bpf"
    }

    fn description(&self) -> &'static str {
        "eBPF: loading, verifying and calling programs, maps and hooks"
    }

    fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = load::groups().into();
        groups.extend(memory::groups());
        groups.extend(call::groups());
        groups.push(time::group());
        groups.extend(roundrobin::groups());
        groups.extend(verify::groups());
        groups.extend(map::groups());
        groups.push(hook::group());
        groups.push(test_tag::group());
        groups.push(stress::group());
        groups.push(counted::group());
        groups
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        // Hooks before suites that load much: their loops are the shortest measured here.
        hook::run(context)?;
        memory::run(context)?;
        load::run(context)?;
        call::run(context)?;
        time::run(context)?;
        roundrobin::run(context)?;
        verify::run(context)?;
        map::run(context)?;
        test_tag::run(context)?;
        stress::run(context)?;
        counted::run(context)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_agreed_ids_exist_once_each() {
        let groups = Bpf.groups();
        let ids: Vec<&str> = groups.iter().flat_map(Group::ids).collect();
        let distinct: HashSet<&str> = ids.iter().copied().collect();
        assert_eq!(distinct.len(), ids.len());
        let mut agreed: Vec<String> =
            ["bpf.hook.absent", "bpf.hook.empty", "bpf.hook.one_program", "bpf.test_tag", "bpf.stress160.packed"]
                .map(String::from)
                .into();
        for engine in ["jit", "verify_jit", "rbpf", "solana_sbpf", "ubpf", "async_ebpf"] {
            agreed.extend([20, 100, 200].map(|len| format!("bpf.load.{len}.{engine}")));
            agreed.extend(["bytes", "mappings"].map(|what| format!("bpf.{what}_per_program.{engine}")));
        }
        for program in ["trivial", "fnv1k", "bubble64", "filter"] {
            let engines = ["jit", "rbpf", "solana_sbpf", "solana_sbpf_bare", "ubpf"];
            agreed.extend(engines.map(|engine| format!("bpf.call.{program}.{engine}")));
        }
        agreed.extend(["bpf.call.trivial", "bpf.roundrobin.1000"].map(|group| format!("{group}.async_ebpf")));
        agreed.push("bpf.call.map_lookup.jit".to_owned());
        agreed.extend([1000, 20_000].map(|count| format!("bpf.roundrobin.{count}.jit")));
        agreed.extend([100, 200, 10_000].map(|len| format!("bpf.verify.{len}.palimpsest")));
        for map in ["array", "hash", "lru", "percpu", "ringbuf"] {
            agreed.extend(["update", "lookup"].map(|what| format!("bpf.map.{map}.{what}.program")));
        }
        // What a consumer takes out of a ring is not a program's work.
        agreed.retain(|id| id != "bpf.map.ringbuf.lookup.program");
        agreed.push("bpf.map.ringbuf.lookup.host".to_owned());
        agreed.extend(["packed", "page_each", "bucket_128k"].map(|who| format!("bpf.stress160.counted.{who}")));
        for id in agreed {
            assert!(distinct.contains(id.as_str()), "{id} is missing");
        }
    }
}
