//! How a suite tells what it is doing; the command line draws it, tests ignore it.

/// Receives the progress of a run.
pub trait Progress {
    /// `figures` figures will be measured.
    fn begin(&self, figures: usize);
    /// The figure with this id (or common beginning of ids) is being measured.
    fn figure(&self, id: &str);
    /// One figure is done.
    fn figure_done(&self);
    /// The run is over.
    fn end(&self);
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _figures: usize) {}
    fn figure(&self, _id: &str) {}
    fn figure_done(&self) {}
    fn end(&self) {}
}
