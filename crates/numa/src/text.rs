//! The text and constants of the running program and its libraries, in huge pages on one node.
//!
//! An address of a process shows one page, whatever node a thread runs on: so a process has its text on one node. That
//! is right for programs that are kept on a node (`numactl --cpunodebind`), one process for each; on a machine with one
//! node what remains is the gain of 2 MiB pages.

use std::fmt;
use std::path::PathBuf;

use palimpsest_sys::memory::sealed::SealedBytes;
use palimpsest_sys::memory::sealed_file::SealedFile;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::numa::text::{self, ExchangeError, Part, Stand};
use palimpsest_sys::numa::{NodeId, current_node};
use palimpsest_sys::pages::smaps;
use palimpsest_sys::proc::ProcError;

use crate::shared::{Key, Obtained, Origin, Registered, Sharing};
use crate::topology::Topology;
use crate::wishes::{lacks, line, not_shared};

/// How text is localised.
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    /// The node; that of the calling thread by default.
    pub node: Option<NodeId>,
    /// Who uses the copies. Processes share those parts that lie at the same place in a huge page, whatever their
    /// addresses are besides: programs that are not position-independent, and objects that are aligned to 2 MiB.
    pub sharing: Sharing,
}

/// The running program's text after [`localize`](Self::localize). What it offers to other processes it offers until it
/// is dropped; the text stays where it is.
#[derive(Debug)]
pub struct ProgramText {
    node: NodeId,
    parts: Vec<Localized>,
    _offered: Vec<Registered>,
}

/// What became of one part of the program or a library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Localized {
    /// Its file.
    pub path: PathBuf,
    /// Its addresses.
    pub span: Span,
    /// Bytes of it that were exchanged.
    pub exchanged: usize,
    /// Bytes of those that are mapped by huge pages now.
    pub huge: usize,
    /// Where the copies come from; none if nothing was exchanged.
    pub origin: Option<Origin>,
    /// What was wished for and is not so, with reasons.
    pub lacks: Vec<String>,
}

/// Why the program runs from its own file.
#[derive(Debug, thiserror::Error)]
pub enum TextRefusal {
    /// Its mappings are not told.
    #[error("the mappings of this process are not told")]
    Maps(#[source] ProcError),
    /// Nothing could be exchanged.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

/// Something that is to be exchanged.
struct Planned {
    /// Which of the parts it belongs to.
    part: usize,
    stand: Stand,
}

impl ProgramText {
    /// Puts the text and the constants of the program and the libraries that it has loaded into memory objects that
    /// nobody can change: on one node, in huge pages, and with the same bytes, rights and addresses. Whole 2 MiB of a
    /// part are exchanged, the rest of it and smaller parts stay as they are; so do pages that were written, such as
    /// those with breakpoints or switched keys. Libraries that are loaded later are left alone until this is called
    /// again.
    ///
    /// Other threads are held still for the moment in which mappings are exchanged. Libraries that take part are kept
    /// loaded until the process ends.
    ///
    /// # Errors
    ///
    /// [`TextRefusal`]: the program goes on from its own file. What single parts lack is told by
    /// [`parts`](Self::parts).
    pub fn localize(options: &TextOptions) -> Result<Self, TextRefusal> {
        let node = options.node.unwrap_or_else(|| Topology::read().home(current_node()));
        let found = text::parts().map_err(TextRefusal::Maps)?;
        let (mut planned, mut offered) = (Vec::new(), Vec::new());
        let mut parts = Vec::new();
        for (index, part) in found.iter().enumerate() {
            let mut told = Localized {
                path: part.path.clone(),
                span: part.span,
                exchanged: 0,
                huge: 0,
                origin: None,
                lacks: Vec::new(),
            };
            match part.clean_runs() {
                Ok(runs) => {
                    for run in runs {
                        match plan(part, run, node, &options.sharing, &mut told) {
                            Ok((stand, registered)) => {
                                planned.push(Planned { part: index, stand });
                                offered.extend(registered);
                            }
                            Err(error) => told.lacks.push(error),
                        }
                    }
                }
                Err(error) => told.lacks.push(line(&error)),
            }
            parts.push(told);
        }
        let (indices, mut stands): (Vec<usize>, Vec<Stand>) =
            planned.into_iter().map(|Planned { part, stand }| (part, stand)).unzip();
        if !stands.is_empty() {
            text::exchange(&mut stands)?;
        }
        for (index, stand) in indices.into_iter().zip(stands) {
            let told = &mut parts[index];
            let place = stand.place();
            match stand.into_outcome() {
                Some(Ok(())) => {
                    told.exchanged += place.len();
                    told.huge += smaps::pmd_mapped_bytes(place.range()).unwrap_or(0);
                }
                Some(Err(error)) => told.lacks.push(line(&error)),
                None => {}
            }
        }
        for told in &mut parts {
            if told.exchanged == 0 {
                told.origin = None;
            }
        }
        Ok(Self { node, parts, _offered: offered })
    }

    /// The node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// What became of each part.
    pub fn parts(&self) -> &[Localized] {
        &self.parts
    }
}

impl fmt::Display for ProgramText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |of: fn(&Localized) -> usize| self.parts.iter().map(of).sum::<usize>();
        let (exchanged, huge) = (sum(|part| part.exchanged), sum(|part| part.huge));
        write!(formatter, "{} KiB of text on {}, {} KiB of it in huge pages", exchanged >> 10, self.node, huge >> 10)
    }
}

/// Makes or finds a copy of a run.
fn plan(
    part: &Part,
    run: Span,
    node: NodeId,
    sharing: &Sharing,
    told: &mut Localized,
) -> Result<(Stand, Option<Registered>), String> {
    let bytes = part.bytes(run).map_err(|error| line(&error))?;
    let obtained = sharing.folder().map(|folder| folder.obtain(&Key::of(&bytes), node, &bytes));
    let (registered, private): (Option<Registered>, Option<SealedFile>) = match obtained {
        Some(Ok(Obtained::Found { process, registered: Some(registered), .. })) => {
            told.origin = Some(Origin::Found { process: process.as_raw_nonzero().get() });
            (Some(registered), None)
        }
        Some(Ok(Obtained::Made { made, registered, .. })) => {
            told.lacks.extend(lacks(&made));
            told.origin = Some(Origin::Made);
            (Some(registered), None)
        }
        refused => {
            if let Some(Err(why)) = refused {
                told.lacks.push(not_shared(&why));
            }
            let (_, file, made) = SealedBytes::with_file(&bytes, Some(node)).map_err(|error| line(&error))?;
            told.lacks.extend(lacks(&made));
            told.origin = Some(Origin::Private);
            (None, Some(file))
        }
    };
    let file = registered.as_ref().map(Registered::file).or(private.as_ref());
    // One of both was set above.
    let file = file.ok_or_else(|| "no copy".to_owned())?;
    let stand = Stand::new(part, run, file).map_err(|error| line(&error))?;
    Ok((stand, registered))
}
