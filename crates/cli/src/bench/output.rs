//! Where the results of `bench` and `tour` go, and in which form.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use palimpsest_bench::harness::Group;
use palimpsest_bench::harness::record::Report;

use super::{export, html};

/// Files for the results; `-` is standard output, which then gets nothing else.
#[derive(Debug, Default, Args)]
pub(crate) struct Outputs {
    /// Write the results as JSON to this file, `-` for standard output and nothing else there.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the results as one self-contained HTML page to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write what is measured against numbers and sizes as one picture (SVG) to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Write the results as tables in Markdown to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Write the results as comma-separated values to this file, a line for each figure.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
}

/// Why results were not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write to standard output")]
    Standard(#[source] io::Error),
    #[error("cannot turn the results into JSON")]
    Json(#[from] serde_json::Error),
    #[error("only one form of the results can go to standard output")]
    Crowded,
}

impl Outputs {
    fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.json, &self.html, &self.svg, &self.markdown, &self.csv].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Whether standard output belongs to one of the forms.
    pub(crate) fn take_standard_output(&self) -> bool {
        self.paths().any(is_stdout)
    }

    /// Reports a wrong path now: a run takes minutes.
    ///
    /// # Errors
    ///
    /// Files that cannot be written, and two forms on standard output.
    pub(crate) fn ensure_writable(&self) -> Result<(), OutputError> {
        if self.paths().filter(|path| is_stdout(path)).count() > 1 {
            return Err(OutputError::Crowded);
        }
        for path in self.paths().filter(|path| !is_stdout(path)) {
            let opened = fs::OpenOptions::new().append(true).create(true).open(path);
            opened.map_err(|source| OutputError::Write { path: path.to_owned(), source })?;
        }
        Ok(())
    }

    /// Writes `report` in each form that was asked for; `title` heads the page.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub(crate) fn write(&self, title: &str, report: &Report, groups: &[Group]) -> Result<(), OutputError> {
        if let Some(path) = &self.json {
            put(path, &(serde_json::to_string_pretty(report)? + "\n"))?;
        }
        if let Some(path) = &self.html {
            put(path, &html::render(title, report, groups))?;
        }
        if let Some(path) = &self.svg {
            put(path, &html::picture(report))?;
        }
        if let Some(path) = &self.markdown {
            put(path, &export::markdown(report, groups))?;
        }
        if let Some(path) = &self.csv {
            put(path, &export::csv(report))?;
        }
        Ok(())
    }
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

fn put(path: &Path, text: &str) -> Result<(), OutputError> {
    if is_stdout(path) {
        return io::stdout().lock().write_all(text.as_bytes()).map_err(OutputError::Standard);
    }
    fs::write(path, text).map_err(|source| OutputError::Write { path: path.to_owned(), source })
}
