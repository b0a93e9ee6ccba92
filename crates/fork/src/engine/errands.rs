//! Who asks for huge pages in a slice: the thread itself, or a [deputy](palimpsest_sys::threads::deputy), so that the
//! thread goes on meanwhile.
//!
//! A slice that has sent a deputy ends. The next one comes when the deputy is done, and looks at the same pieces again:
//! it finds them huge. Only if the kernel has refused, the thread asks itself, and so learns what became of each.

use palimpsest_sys::threads::deputy::{Desk, Errand};

use super::registry::Shared;
use super::span::Span;

/// Most pieces for one errand. If the program forks meanwhile, the deputy copies the rest of them beside the child,
/// which takes memory that a plain fork does not.
const MOST: usize = 8;

/// The errands of one slice.
#[derive(Debug)]
pub(crate) struct Errands {
    /// `None` if the thread itself asks.
    desk: Option<&'static Desk>,
    /// What the last deputy could not do.
    failed: Span,
}

impl Errands {
    /// The thread itself asks.
    pub(crate) const fn own() -> Self {
        Self { desk: None, failed: Span::new(0, 0) }
    }

    /// Deputies ask. None may be at work.
    pub(crate) fn deputies(shared: &'static Shared) -> Self {
        let failed = |Errand { span, answer }| answer.is_err().then_some(span);
        let failed = shared.desk.answered().and_then(failed).unwrap_or_default();
        Self { desk: Some(&shared.desk), failed }
    }

    /// Returns for how many pieces to ask at once, where the thread itself would ask for `own`.
    pub(super) fn room(&self, own: usize) -> usize {
        if self.desk.is_some() { MOST } else { own }
    }

    /// Whether a deputy is to ask for this piece, unless none can be made.
    pub(super) fn sends(&self, piece: Span) -> bool {
        self.desk.is_some() && self.failed.intersection(piece).is_empty()
    }

    /// Sends a deputy to ask for huge pages. Returns false if the thread must ask itself.
    pub(super) fn send(&self, run: Span) -> bool {
        let is_new = self.failed.intersection(run).is_empty();
        self.desk.filter(|_| is_new).is_some_and(|desk| desk.send(run).is_ok_and(|is_sent| is_sent))
    }
}
