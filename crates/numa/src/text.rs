//! The text and constants of the running program and its libraries, in huge pages on one node.
//!
//! At one address all threads of a process see the same page, whatever node they run on: so a process has its text on
//! one node. That suits programs that run one process per node (`numactl --cpunodebind`); on a machine with one node
//! the gain of 2 MiB pages remains.

mod file;
mod plan;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

pub use file::{FileText, FileTextError, Piece};
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::numa::placement::{self, Place};
use palimpsest_sys::numa::policy::NumaError;
pub use palimpsest_sys::numa::text::Reach;
use palimpsest_sys::numa::text::{self, ExchangeError, Part, Stand};
use palimpsest_sys::numa::{NodeId, current_node};
use palimpsest_sys::pages::smaps;
use palimpsest_sys::proc::ProcError;
use palimpsest_sys::{Causes, Loads};

use crate::shared::{Folder, Origin, Patience, Registered, Sharing, Step, step};
use crate::topology::{Basis, Topology};
use crate::wishes::line;

/// How text is localised.
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    node: Option<NodeId>,
    sharing: Sharing,
    reach: Option<Reach>,
    pages: Pages,
    since: Option<Loads>,
}

/// Which huge pages to use on a machine with one node. With several nodes only copies are used, since only they can be
/// on the wanted node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pages {
    /// The file's own, where the kernel has them or can make them. For these nothing is copied or compared, and all
    /// processes that map the file share them. The rest gets copies; but with [`Sharing::User`] a part that is not all
    /// in huge pages of its file is copied as a whole.
    #[default]
    OfTheFile,
    /// The file's own, after the kernel has dropped the small pages of the file from its cache, except those that a
    /// process maps. It then reads the file again from the disk, into huge pages, which the next process finds.
    ReadAnew,
    /// Only copies.
    Copied,
}

impl TextOptions {
    /// Returns options for the calling thread's node and only this process.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the node; by default the calling thread's.
    #[must_use]
    pub fn node(mut self, node: impl Into<Option<NodeId>>) -> Self {
        self.node = node.into();
        self
    }

    /// Sets who uses the copies. Parts that have the same offset in a huge page as in their file are shared in huge
    /// pages: those of programs that are not position-independent, and of libraries that the kernel has aligned. Others
    /// are shared in small pages on a machine with several nodes; on a machine with one node, where that gains nothing,
    /// each process has its own copy in huge pages.
    #[must_use]
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// Sets how much of each part to localise; by default everything on a machine with several nodes, and whole huge
    /// pages on one with a single node.
    #[must_use]
    pub fn reach(mut self, reach: impl Into<Option<Reach>>) -> Self {
        self.reach = reach.into();
        self
    }

    /// Leaves out objects that were loaded before; by default none. Takes a moment if none was loaded since.
    #[must_use]
    pub fn loaded_since(mut self, since: Loads) -> Self {
        self.since = Some(since);
        self
    }

    /// Sets which huge pages to use on a machine with one node; by default the file's own, where possible.
    #[must_use]
    pub fn pages(mut self, pages: Pages) -> Self {
        self.pages = pages;
        self
    }
}

/// The running program's text after [`localize`](Self::localize). It offers copies to other processes until it is
/// dropped; the text stays where it is.
#[derive(Debug)]
pub struct ProgramText {
    node: NodeId,
    among: Among,
    parts: Vec<Localized>,
    _offered: Vec<Registered>,
}

/// How many nodes have memory: also those that this process may not use, where its file may be.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Among {
    One,
    /// Nothing is known of others.
    AssumedOne {
        /// Why not.
        why: String,
    },
    Several,
}

impl Among {
    fn of(topology: &Topology) -> Self {
        match (topology.is_one_node(), topology.basis()) {
            (true, Basis::Assumed { why }) => Self::AssumedOne { why: why.clone() },
            (true, Basis::Sysfs) => Self::One,
            (false, _) => Self::Several,
        }
    }

    fn is_several(&self) -> bool {
        *self == Self::Several
    }
}

/// The outcome for one part of the program or a library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Localized {
    /// Its file.
    pub path: PathBuf,
    /// Its addresses.
    pub span: Span,
    /// Bytes that are mapped by huge pages of the file itself: they stay where they are.
    pub in_place: usize,
    /// Exchanged bytes.
    pub exchanged: usize,
    /// Exchanged bytes that are now mapped by huge pages.
    pub huge: usize,
    /// Why the wanted node was not asked for the memory of a copy made here, so that it may be on others; also among
    /// `lacks`.
    pub not_placed: Option<NumaError>,
    /// Bytes of a copy that are on other nodes than the wanted one, since that has no room; `lacks` says on which.
    /// Nobody asks on a machine with one node.
    pub elsewhere: usize,
    /// The origin of the copies; `None` if nothing was exchanged.
    pub origin: Option<Origin>,
    /// Why other processes do not use the same copy, if they should; also among `lacks`.
    pub not_shared: Option<Alone>,
    /// Wishes that were not fulfilled, with reasons.
    pub lacks: Vec<String>,
}

/// Why only this process uses a copy, although it should be shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Alone {
    /// The part's address is random, and has another offset in a huge page than in its file.
    Address,
    /// It could not be shared, for this reason.
    Refused(String),
}

impl fmt::Display for Alone {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => formatter.write_str(
                "not shared: its address is random, and not at the same place in a huge page as in its file",
            ),
            Self::Refused(why) => formatter.write_str(why),
        }
    }
}

/// Why the program runs from its own file.
#[derive(Debug, thiserror::Error)]
pub enum TextRefusal {
    /// Its mappings cannot be listed.
    #[error("the mappings of this process cannot be listed")]
    Maps(#[source] ProcError),
    /// Nothing could be exchanged.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

impl TextRefusal {
    /// Returns it with its sources, to be shown in one line.
    // Not inlined: its sources are many types, of which the caller's crate would have tables and code of its own.
    #[inline(never)]
    pub fn causes(&self) -> Causes<'_> {
        Causes(self)
    }
}

/// A planned exchange.
struct Planned {
    /// The index of its part.
    part: usize,
    stand: Stand,
}

impl ProgramText {
    /// Moves the text and the constants of the program and its loaded libraries into constant memory objects: on one
    /// node, in huge pages if they fill them, with the same bytes, rights and addresses. On a machine with one node,
    /// has the kernel use huge pages of the file itself where it can, and copies only the rest. Written pages, such as
    /// those with breakpoints or switched keys, stay as they are. Leaves libraries that are loaded later alone until it
    /// is called again; that call also moves what was put on another node.
    ///
    /// Holds other threads still for the moment in which mappings are exchanged, and libraries loaded until it returns:
    /// if another thread has closed one meanwhile, its destructors run in this one. Do not call it from a constructor
    /// of a library that others need: to hold these runs their constructors, before that one has ended.
    ///
    /// # Errors
    ///
    /// [`TextRefusal`]: the program keeps running from its own file. [`parts`](Self::parts) tells what single parts
    /// lack.
    pub fn localize(options: &TextOptions) -> Result<Self, TextRefusal> {
        let topology = Topology::read();
        let node = options.node.unwrap_or_else(|| topology.home(current_node()));
        let among = Among::of(&topology);
        let usual = if among.is_several() { Reach::Everything } else { Reach::HugePages };
        let reach = options.reach.unwrap_or(usual);
        let stays = !among.is_several() && reach == Reach::HugePages && options.pages != Pages::Copied;
        let found = text::parts(options.since.unwrap_or(Loads::NONE), reach).map_err(TextRefusal::Maps)?;
        let (mut planned, mut offered) = (Vec::new(), Vec::new());
        let mut parts = Vec::new();
        let (wanted, folder, mut patience) = ((node, reach), options.sharing.folder(), Patience::default());
        for (index, part) in found.iter().enumerate() {
            let mut told = Localized {
                path: part.path.clone(),
                span: part.span,
                in_place: 0,
                exchanged: 0,
                huge: 0,
                not_placed: None,
                elsewhere: 0,
                origin: None,
                not_shared: None,
                lacks: Vec::new(),
            };
            let runs = part.clean_runs(reach).map(|runs| match stays {
                true => without_huge(part, runs, (options.pages, folder), &mut told),
                false => runs,
            });
            match runs {
                Ok(runs) if runs.is_empty() || is_there(part, node) => {}
                Ok(runs) => match plan::of(part, &runs, wanted, folder, &mut patience, &mut told) {
                    Ok(plan) => {
                        planned.extend(plan.stands.into_iter().map(|stand| Planned { part: index, stand }));
                        offered.extend(plan.offered);
                    }
                    Err(error) => told.lacks.push(error),
                },
                Err(error) => told.lacks.push(line(&error)),
            }
            parts.push(told);
        }
        let (indices, mut stands): (Vec<usize>, Vec<Stand>) =
            planned.into_iter().map(|Planned { part, stand }| (part, stand)).unzip();
        step(Step::Standing);
        if !stands.is_empty() {
            text::exchange(&mut stands)?;
        }
        step(Step::Exchanged);
        for (index, stand) in indices.into_iter().zip(stands) {
            let told = &mut parts[index];
            let place = stand.place();
            match stand.into_outcome() {
                Some(Ok(())) => {
                    told.exchanged += place.len();
                    if among.is_several() {
                        tell_elsewhere(place, node, told);
                    }
                }
                Some(Err(error)) => told.lacks.push(line(&error)),
                None => {}
            }
        }
        count_huge(&mut parts);
        for told in &mut parts {
            told.huge = told.huge.saturating_sub(told.in_place);
            told.origin = told.origin.filter(|_| told.exchanged > 0);
            told.not_placed = told.not_placed.filter(|_| told.exchanged > 0);
        }
        Ok(Self { node, among, parts, _offered: offered })
    }

    /// Returns the node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns whether no other node is known to have memory, so that only huge pages are gained.
    pub fn is_on_the_only_node(&self) -> bool {
        !self.among.is_several()
    }

    /// Returns why some of it is, or may be, on other nodes than [`node`](Self::node).
    pub fn not_on_the_node(&self) -> Option<String> {
        let (node, elsewhere) = (self.node, self.parts.iter().map(|part| part.elsewhere).sum::<usize>());
        match self.parts.iter().find_map(|part| part.not_placed.as_ref()) {
            Some(why) => Some(format!("text is not kept on {node}: {}", line(why))),
            None if elsewhere > 0 => Some(format!("{} KiB of text are not on {node}: it has no room", elsewhere >> 10)),
            None => None,
        }
    }

    /// Returns the outcome for each part.
    pub fn parts(&self) -> &[Localized] {
        &self.parts
    }
}

impl fmt::Display for ProgramText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |of: fn(&Localized) -> usize| self.parts.iter().map(of).sum::<usize>();
        let (exchanged, huge, in_place) =
            (sum(|part| part.exchanged), sum(|part| part.huge), sum(|part| part.in_place));
        let (all, all_huge) = (exchanged + in_place, huge + in_place);
        let (all, all_huge, node) = (all >> 10, all_huge >> 10, self.node);
        let on = if self.not_on_the_node().is_some() { "meant for" } else { "on" };
        write!(formatter, "{all} KiB of text {on} {node}, ")?;
        match &self.among {
            Among::One => formatter.write_str("the only one, ")?,
            Among::AssumedOne { why } => write!(formatter, "taken for the only one ({why}), ")?,
            Among::Several => {}
        }
        write!(formatter, "{all_huge} KiB of it in huge pages")?;
        match in_place {
            0 => Ok(()),
            _ => write!(formatter, ", {} KiB of these the file's own", in_place >> 10),
        }
    }
}

/// Counts what of the parts with copies is mapped by huge pages; if the kernel does not tell, nothing. Once for all of
/// them, since the kernel walks the page tables for it.
fn count_huge(parts: &mut [Localized]) {
    let exchanged = || parts.iter().filter(|told| told.exchanged > 0).map(|told| told.span);
    let start = exchanged().map(|span| span.start).min().unwrap_or_default();
    let end = exchanged().map(|span| span.end).max().unwrap_or_default();
    if start >= end {
        return;
    }
    let _ = smaps::each_overlapping(start..end, &mut |entry| {
        let in_part = |told: &Localized| entry.pmd_mapped().min(entry.map.overlap(&told.span.range()));
        parts.iter_mut().filter(|told| told.exchanged > 0).for_each(|told| told.huge += in_part(told));
    });
}

/// Returns the runs that need a copy, since the kernel cannot map them by huge pages of the file. Processes that share
/// a copy must agree on its extent: so with a folder, that is all or nothing.
fn without_huge(
    part: &Part,
    runs: Vec<Span>,
    (pages, folder): (Pages, Option<&Folder>),
    told: &mut Localized,
) -> Vec<Span> {
    if pages == Pages::ReadAnew
        && !runs.is_empty()
        && let Err(error) = part.forget_small(&runs)
    {
        told.lacks.push(format!("its file is not read anew: {error}"));
    }
    let found = part.huge_in_place(&runs);
    if folder.is_some() && !found.rest.is_empty() {
        return runs;
    }
    told.in_place = found.huge;
    found.rest
}

/// Tells how much of an exchanged run is on which other nodes, as far as the kernel tells.
fn tell_elsewhere(run: Span, node: NodeId, told: &mut Localized) {
    let mut elsewhere = BTreeMap::new();
    let page = rustix::param::page_size();
    // Uses no heap: who finds a copy takes next to no memory of its own. If the kernel does not tell, nothing is known.
    let _ = placement::each_own_page(run.range(), &mut |place| {
        if let Place::On(other) = place
            && other != node
        {
            *elsewhere.entry(other).or_insert(0) += page;
        }
    });
    for (other, bytes) in elsewhere {
        told.elsewhere += bytes;
        told.lacks.push(format!("{} KiB at {:#x} are on {other}: {node} has no room", bytes >> 10, run.start));
    }
}

/// Returns whether a part is a copy already, completely on the node, as far as the kernel tells.
fn is_there(part: &Part, node: NodeId) -> bool {
    let elsewhere = |place: &Place| matches!(place, Place::On(other) if *other != node);
    part.is_copy() && placement::of_own_pages(part.span.range()).map_or(true, |places| !places.iter().any(elsewhere))
}

#[cfg(test)]
mod tests;
