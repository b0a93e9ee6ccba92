//! Where the results of `bench` and `tour` go, and in which form.

use std::collections::BTreeSet;
use std::fs::File;
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
    #[error("only one form of the results can go to {}", shown(path))]
    Crowded { path: PathBuf },
}

/// Where the results go, opened before a run that takes minutes: a wrong path is told at once, and a FIFO keeps its
/// reader.
pub(crate) struct Opened<'a> {
    wanted: &'a Outputs,
    files: Vec<(&'a Path, File)>,
}

impl Outputs {
    fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.json, &self.html, &self.svg, &self.markdown, &self.csv].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Opens all files, which keep what is in them until there are results.
    ///
    /// # Errors
    ///
    /// Files that cannot be written, and two forms for one place.
    pub(crate) fn open<'a>(&'a self) -> Result<Opened<'a>, OutputError> {
        let mut places = BTreeSet::new();
        for path in self.paths() {
            let place = if is_stdout(path) { Ok(path.to_owned()) } else { std::path::absolute(path) };
            if !places.insert(place.map_err(|source| OutputError::Write { path: path.to_owned(), source })?) {
                return Err(OutputError::Crowded { path: path.to_owned() });
            }
        }
        let open = |path: &'a Path| match File::options().append(true).create(true).open(path) {
            Ok(file) => Ok((path, file)),
            Err(source) => Err(OutputError::Write { path: path.to_owned(), source }),
        };
        let files = self.paths().filter(|path| !is_stdout(path)).map(open).collect::<Result<_, _>>()?;
        Ok(Opened { wanted: self, files })
    }
}

impl Opened<'_> {
    /// Whether standard output belongs to one of the forms.
    pub(crate) fn take_standard_output(&self) -> bool {
        self.wanted.paths().any(is_stdout)
    }

    /// Writes `report` in each form that was asked for; `title` heads the page.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub(crate) fn write(&self, title: &str, report: &Report, groups: &[Group]) -> Result<(), OutputError> {
        let Outputs { json, html, svg, markdown, csv } = self.wanted;
        if let Some(path) = json {
            self.put(path, &(serde_json::to_string_pretty(report)? + "\n"))?;
        }
        if let Some(path) = html {
            self.put(path, &html::render(title, report, groups))?;
        }
        if let Some(path) = svg {
            self.put(path, &html::picture(report))?;
        }
        if let Some(path) = markdown {
            self.put(path, &export::markdown(report, groups))?;
        }
        if let Some(path) = csv {
            self.put(path, &export::csv(report))?;
        }
        Ok(())
    }

    fn put(&self, path: &Path, text: &str) -> Result<(), OutputError> {
        match self.files.iter().find(|(opened, _)| *opened == path) {
            Some((_, file)) => {
                write_anew(file, text).map_err(|source| OutputError::Write { path: path.to_owned(), source })
            }
            None => io::stdout().lock().write_all(text.as_bytes()).map_err(OutputError::Standard),
        }
    }
}

/// Writes in place of what a file holds.
fn write_anew(mut file: &File, text: &str) -> io::Result<()> {
    // A FIFO or a terminal has nothing to cut off.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns the place as it is told.
fn shown(path: &Path) -> String {
    if is_stdout(path) { "standard output".to_owned() } else { path.display().to_string() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::thread;

    use super::*;
    use crate::bench::format::tests::report;

    /// Fails on: a FIFO that is closed between the first look at it and the results: its reader takes that for the end.
    #[test]
    fn a_fifo_keeps_its_reader_until_there_are_results() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("coreutils are there").success());
        let outputs = Outputs { csv: Some(fifo.clone()), ..Outputs::default() };
        let reader = thread::spawn(|| fs::read_to_string(fifo));
        let opened = outputs.open().expect("it can be written");
        opened.write("title", &report(), &[]).expect("somebody reads");
        drop(opened);
        assert_eq!(reader.join().expect("no panic").expect("it can be read"), export::csv(&report()));
    }

    /// Fails on: results behind what was in the file before, or a file that is empty before there are any.
    #[test]
    fn a_file_keeps_what_it_has_until_there_are_results() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("csv");
        let before = "x".repeat(1 << 20);
        fs::write(&path, &before).expect("it can be written");
        let outputs = Outputs { csv: Some(path.clone()), ..Outputs::default() };
        let opened = outputs.open().expect("it can be written");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), before);
        opened.write("title", &report(), &[]).expect("it can be written");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), export::csv(&report()));
    }

    #[test]
    fn two_forms_for_one_place_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("both");
        for (first, second, place) in [
            ("-".into(), "-".into(), "standard output".to_owned()),
            (folder.path().join("./both"), path.clone(), path.display().to_string()),
        ] {
            let outputs = Outputs { json: Some(first), csv: Some(second), ..Outputs::default() };
            let refused = outputs.open().err().expect("one is too many").to_string();
            assert_eq!(refused, format!("only one form of the results can go to {place}"));
        }
        assert!(!path.exists(), "nothing is made");
    }
}
