//! The copies on each node, and where they really are.

use std::fmt;

use palimpsest_sys::Causes;
use palimpsest_sys::numa::NodeId;
use palimpsest_sys::numa::placement::{self, Summary};
use palimpsest_sys::pages::smaps;

use crate::copy::{Copy, CopyError};
use crate::shared::Origin;

/// Where the bytes of a copy are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Placed {
    /// Bytes on the node that the copy is for.
    pub at_home: u64,
    /// Bytes on other nodes, which had memory when this one had none.
    pub elsewhere: Vec<(NodeId, u64)>,
    /// Bytes unknown to the kernel: not mapped by this process yet, or swapped out.
    pub untold: u64,
    /// Bytes, among all these, that this process maps by huge pages.
    pub huge: u64,
}

/// The state of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct NodeStatus {
    /// The node, one of [`Topology::homes`](crate::Topology::homes).
    pub node: NodeId,
    /// The origin of its copy; `None` if there is no copy.
    pub origin: Option<Origin>,
    /// Bytes of the content.
    pub len: usize,
    /// Where the pages are; `None` if there is no copy, or the kernel does not tell.
    pub placed: Option<Placed>,
    /// Wishes that were not fulfilled, with reasons.
    pub lacks: Vec<String>,
}

impl NodeStatus {
    pub(crate) fn of(node: NodeId, copy: Option<&Result<Copy, CopyError>>) -> Self {
        let without = |lacks| Self { node, origin: None, len: 0, placed: None, lacks };
        let copy = match copy {
            None => return without(vec!["no thread of this node has asked for it yet".to_owned()]),
            Some(Err(error)) => return without(vec![Causes(error).to_string()]),
            Some(Ok(copy)) => copy,
        };
        let mut lacks = copy.lacks();
        let placed = placed(copy, node).map_err(|why| lacks.push(why)).ok();
        if let Some(placed) = &placed {
            let elsewhere = placed.elsewhere.iter().map(|(other, bytes)| format!("{bytes} bytes are on {other}"));
            lacks.extend(elsewhere);
        }
        Self { node, origin: Some(copy.origin()), len: copy.as_bytes().len(), placed, lacks }
    }
}

fn placed(copy: &Copy, node: NodeId) -> Result<Placed, String> {
    let range = copy.bytes().area().range();
    let places = placement::of_own_pages(range.clone()).map_err(|error| Causes(&error).to_string())?;
    let Summary { here: at_home, elsewhere, untold } = Summary::of(&places, node);
    let huge = smaps::pmd_mapped_bytes(range).unwrap_or(0) as u64;
    Ok(Placed { at_home, elsewhere, untold, huge })
}

impl fmt::Display for NodeStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.node)?;
        match self.origin {
            None => formatter.write_str("no copy")?,
            Some(origin) => write!(formatter, "{} bytes, {origin}", self.len)?,
        }
        if let Some(placed) = &self.placed {
            write!(formatter, "; {} KiB here, {} KiB of it in huge pages", placed.at_home >> 10, placed.huge >> 10)?;
        }
        self.lacks.iter().try_for_each(|lack| write!(formatter, "; {lack}"))
    }
}
