//! Suite `pack`: programs packed into shared pages, against a page each, a 128 KiB bucket each and the peers'
//! allocators.

mod call;
mod churn;
mod load;
mod memory;
mod test_tag;
mod threads;

use crate::harness::record::Unit;
use crate::harness::{BenchError, Context, Group, Suite};
use crate::placers::Who;

pub(super) use call::{tour as tour_call, tour_group as tour_call_group};
pub(super) use load::{tour as tour_load, tour_group as tour_load_group};
pub(super) use memory::{MEMORY_PROBE, probe_memory};

/// See the module.
pub(super) struct Pack;

impl Suite for Pack {
    fn id(&self) -> &'static str {
        "pack"
    }

    fn description(&self) -> &'static str {
        "program packs: calling, loading and freeing many small programs"
    }

    fn groups(&self) -> Vec<Group> {
        let mut groups = call::groups();
        groups.push(load::group());
        groups.extend(memory::groups());
        groups.push(test_tag::group());
        groups.push(churn::group());
        groups.extend(threads::groups());
        groups
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        // Memory comes first: the kernel's page cache, free lists and huge pages are least worn at the beginning, which
        // is fair only to figures that every contestant takes in a process of its own.
        memory::run(context)?;
        call::run(context)?;
        load::run(context)?;
        test_tag::run(context)?;
        churn::run(context)?;
        threads::run(context)
    }
}

/// The argument of every measured call; any value will do, since the programs have no loops.
const ARGUMENT: u64 = 0x5eed_0123_4567_89ab;

/// Returns the group of `all` with the common beginning `id`.
fn group_of(id: &str, title: &str, unit: Unit, all: &[Who]) -> Group {
    Group::new(id, title, all.iter().map(|who| who.contestant(all, unit, |who| format!("{id}.{}", who.name()))))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_agreed_ids_exist_once_each() {
        let groups = Pack.groups();
        let ids: Vec<&str> = groups.iter().flat_map(Group::ids).collect();
        let distinct: HashSet<&str> = ids.iter().copied().collect();
        assert_eq!(distinct.len(), ids.len());
        let mut agreed: Vec<String> =
            ["pack.test_tag", "pack.threads.1", "pack.threads.2", "pack.threads.4"].map(String::from).into();
        for count in [160, 1000, 5000, 20_000] {
            for who in ["packed", "page_each", "bucket_128k"] {
                agreed.push(format!("pack.call.{count}.{who}"));
                agreed.push(format!("pack.call.{count}.{who}.random"));
            }
        }
        for figure in ["load", "bytes_per_program", "mappings_per_program"] {
            for who in ["packed", "page_each", "jit_allocator", "cranelift_jit"] {
                agreed.push(format!("pack.{figure}.{who}"));
            }
        }
        for id in agreed {
            assert!(distinct.contains(id.as_str()), "{id} is missing");
        }
    }
}
