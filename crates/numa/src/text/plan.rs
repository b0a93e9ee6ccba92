//! The copy of one part, and its stands.

use palimpsest_sys::memory::sealed::{Made, SealError};
use palimpsest_sys::memory::sealed_file::SealedFile;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::numa::NodeId;
use palimpsest_sys::numa::text::{Part, Reach, Stand, TextError};

use super::{Alone, Localized};
use crate::shared::{Folder, Judged, Key, NotShared, Obtained, Origin, Patience, Registered};
use crate::wishes::{lacks_of_text, line, not_shared, passed_over};

/// The position of a part's bytes in the object with its copy.
///
/// In a shared object they have the same offset in a huge page as in the part's file, so that all processes agree; in a
/// private one, the same as at this process's addresses.
struct Layout {
    /// The address of the part's first byte.
    start: usize,
    /// Its offset in the object.
    at: usize,
    /// Length of the object, in bytes.
    size: usize,
}

impl Layout {
    fn shared(part: &Part) -> Self {
        Self::starting(part, part.place_in_a_huge_page())
    }

    fn private(part: &Part) -> Self {
        Self::starting(part, part.span.start % (2 << 20))
    }

    fn starting(part: &Part, at: usize) -> Self {
        Self { start: part.span.start, at, size: at + part.span.len() }
    }

    fn place(&self, address: usize) -> usize {
        self.at + (address - self.start)
    }

    /// Returns a stand for each run.
    fn stands(&self, part: &Part, runs: &[Span], file: &SealedFile) -> Result<Vec<Stand>, TextError> {
        runs.iter().map(|run| Stand::new(part, *run, file, self.place(run.start))).collect()
    }

    /// Makes the object. This process has written the bytes between the runs: other processes get them as in the file.
    fn make(&self, part: &Part, runs: &[Span], node: NodeId) -> Result<(SealedFile, Made), SealError> {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Err(SealError::Empty) };
        let whole = Span::new(first.start, last.end);
        SealedFile::filled(self.size, self.place(whole.start)..self.place(whole.end), Some(node), |bytes| {
            let mut end = whole.start;
            for run in runs {
                let gap = end - whole.start..run.start - whole.start;
                if !gap.is_empty() && part.read_from_file(end, &mut bytes[gap.clone()]).is_err() {
                    // Others compare before they use a copy: they find a difference here, and make their own.
                    bytes[gap].fill(0);
                }
                part.read(run.start, &mut bytes[run.start - whole.start..run.end - whole.start])?;
                end = run.end;
            }
            Ok(())
        })
    }
}

/// What to exchange of a part, and how this process offers it to others.
pub(super) struct Plan {
    pub(super) stands: Vec<Stand>,
    pub(super) offered: Option<Registered>,
}

/// Finds a copy of the runs, or makes one. `patience` is for all parts together.
pub(super) fn of(
    part: &Part,
    runs: &[Span],
    (node, reach): (NodeId, Reach),
    folder: Option<&Folder>,
    patience: &mut Patience,
    told: &mut Localized,
) -> Result<Plan, String> {
    // In small pages only memory would be gained; that is worth it if there are several nodes.
    let can_share = part.is_aligned_as_its_file() || reach == Reach::Everything;
    match folder {
        Some(folder) if can_share => match shared(part, runs, (node, reach), folder, patience, told) {
            Ok(plan) => return Ok(plan),
            Err(why) => told.not_shared = Some(Alone::Refused(why)),
        },
        Some(_) => told.not_shared = Some(Alone::Address),
        None => {}
    }
    told.lacks.extend(told.not_shared.as_ref().map(Alone::to_string));
    let layout = Layout::private(part);
    let (file, made) = layout.make(part, runs, node).map_err(|error| line(&error))?;
    told.not_placed = made.not_placed;
    told.lacks.extend(lacks_of_text(made));
    told.origin = Some(Origin::Private);
    let stands = layout.stands(part, runs, &file).map_err(|error| line(&error))?;
    Ok(Plan { stands, offered: None })
}

fn shared(
    part: &Part,
    runs: &[Span],
    (node, reach): (NodeId, Reach),
    folder: &Folder,
    patience: &mut Patience,
    told: &mut Localized,
) -> Result<Plan, String> {
    let layout = Layout::shared(part);
    // Two builds never have the same key, but an equal key proves nothing: every byte is compared.
    let key = Key::of(format!("text of {}, {reach:?}", part.label()).as_bytes());
    let judge = |file: &SealedFile| match layout.stands(part, runs, file) {
        Ok(stands) => Judged::Same(Some(stands)),
        Err(TextError::Different(_)) => Judged::Different,
        Err(error) => Judged::Unknown(line(&error)),
    };
    let make = || layout.make(part, runs, node).map(|(file, made)| (None, file, made));
    match folder.obtain(&key, node, patience, judge, make).map_err(|why| not_shared(&why))? {
        Obtained::Found { taken, process, registered, passed_over: passed } => {
            told.origin = Some(Origin::Found { process: process.as_raw_nonzero().get() });
            told.lacks.extend(passed_over(&passed));
            Ok(Plan { stands: taken.unwrap_or_default(), offered: registered })
        }
        Obtained::Made { made, registered, passed_over: passed, .. } => {
            told.origin = Some(Origin::Made);
            told.lacks.extend(passed_over(&passed).chain(lacks_of_text(made)));
            let stands = layout.stands(part, runs, registered.file()).map_err(|error| line(&error))?;
            Ok(Plan { stands, offered: Some(registered) })
        }
        Obtained::Misplaced { made, file, passed_over: passed, .. } => {
            let why = not_shared(&NotShared::Misplaced { node });
            (told.origin, told.not_placed) = (Some(Origin::Private), made.not_placed);
            told.lacks.extend(passed_over(&passed).chain([why.clone()]).chain(lacks_of_text(made)));
            told.not_shared = Some(Alone::Refused(why));
            Ok(Plan { stands: layout.stands(part, runs, &file).map_err(|error| line(&error))?, offered: None })
        }
    }
}
