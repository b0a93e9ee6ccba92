//! The progress bar, on standard error; nothing is drawn where that is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use palimpsest_bench::progress::Progress;

/// Draws one line.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// A bar that appears when the run begins.
    pub(crate) fn new() -> Self {
        Self(ProgressBar::hidden())
    }
}

impl Progress for Bar {
    fn begin(&self, figures: usize) {
        // `stderr` draws nothing by itself when that is no terminal.
        self.0.set_draw_target(ProgressDrawTarget::stderr());
        self.0.set_length(figures as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({elapsed})") {
            self.0.set_style(style);
        }
        self.0.enable_steady_tick(Duration::from_millis(250));
    }

    fn figure(&self, id: &str) {
        self.0.set_message(id.to_owned());
    }

    fn figure_done(&self) {
        self.0.inc(1);
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }
}
