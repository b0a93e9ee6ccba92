//! Suite `keys`: changing running code in batches against site by site, and the cost of a branch on a static key.

mod branch;
mod handler;
mod load;
mod syncs;
mod text_key;
mod toggle;

pub(super) use toggle::{tour, tour_group};

use palimpsest_text::Packs;

use crate::PlaceError;
use crate::harness::{BenchError, Context, Group, Suite, failed};

/// See the module.
pub(super) struct Keys;

impl Suite for Keys {
    fn id(&self) -> &'static str {
        "keys"
    }

    fn description(&self) -> &'static str {
        "poke and static keys: switching many sites of running code, and passing them"
    }

    fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = branch::groups().into();
        groups.extend(toggle::groups());
        groups.extend(syncs::groups());
        groups.push(handler::group());
        groups
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        // Branches first: a page of text that was written to leaves its huge page.
        branch::run(context)?;
        toggle::run(context)?;
        syncs::run(context)?;
        handler::run(context)
    }
}

/// How the sites are switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Way {
    /// All in one batch.
    Batched,
    /// One batch for each site.
    OneByOne,
}

impl Way {
    const ALL: [Self; 2] = [Self::Batched, Self::OneByOne];

    /// Returns the name in ids.
    fn name(self) -> &'static str {
        match self {
            Self::Batched => "batched",
            Self::OneByOne => "one_by_one",
        }
    }
}

fn open_packs(id: &str) -> Result<Packs, BenchError> {
    Packs::new().map_err(PlaceError::from).map_err(failed(id, "packs"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_agreed_ids_exist_once_each() {
        let groups = Keys.groups();
        let ids: Vec<&str> = groups.iter().flat_map(Group::ids).collect();
        let distinct: HashSet<&str> = ids.iter().copied().collect();
        assert_eq!(distinct.len(), ids.len());
        let mut agreed = vec!["keys.traps_hit".to_owned(), "keys.toggle.56.static_keys.t0".to_owned()];
        agreed.extend(["off", "on", "atomic_load", "tracing_event", "none"].map(|who| format!("keys.branch.{who}")));
        agreed.extend([1, 56, 10_000].map(|sites| format!("keys.handler.{sites}")));
        for way in ["one_by_one", "batched"] {
            agreed.extend([56, 10_000].map(|sites| format!("keys.syncs.{sites}.{way}")));
            for sites in [1, 56, 1000, 10_000] {
                agreed.extend([0, 1, 2].map(|threads| format!("keys.toggle.{sites}.{way}.t{threads}")));
            }
        }
        for id in agreed {
            assert!(distinct.contains(id.as_str()), "{id} is missing");
        }
    }
}
