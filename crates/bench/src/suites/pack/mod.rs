//! Suite `pack`: programs packed into shared pages, against a page each, a 128 KiB bucket each and the peers'
//! allocators.

mod call;
mod churn;
mod load;
mod memory;
mod test_tag;
mod threads;

use crate::placers::Contestant;
use crate::suite::Group;
use crate::{BenchError, Context, PlaceError, Suite};

pub use memory::{MemoryProbe, probe_memory};

/// See the module.
pub struct Pack;

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
        // The kernel's page cache, free lists and huge pages are least worn at the beginning, which is fair only to
        // figures that every contestant takes in a process of its own: memory comes first.
        memory::run(context)?;
        call::run(context)?;
        load::run(context)?;
        test_tag::run(context)?;
        churn::run(context)?;
        threads::run(context)
    }
}

/// Argument of every measured call; any value does, as the programs have no loops.
const ARGUMENT: u64 = 0x5eed_0123_4567_89ab;

/// The error of a contestant that has to work.
fn failed(id: &str, contestant: Contestant) -> impl FnOnce(PlaceError) -> BenchError {
    let (id, contestant) = (id.to_owned(), contestant.name().to_owned());
    move |source| BenchError::Contestant { id, contestant, source }
}

/// The group of `contestants` under the common beginning `id`.
fn group_of(id: &str, title: &str, contestants: &[Contestant]) -> Group {
    Group {
        id: id.to_owned(),
        title: title.to_owned(),
        figures: contestants.iter().map(|who| format!("{id}.{}", who.name())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_agreed_ids_exist_once_each() {
        let ids: Vec<String> = Pack.groups().into_iter().flat_map(|group| group.figures).collect();
        let distinct: HashSet<&String> = ids.iter().collect();
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
            assert!(distinct.contains(&id), "{id} is missing");
        }
    }
}
