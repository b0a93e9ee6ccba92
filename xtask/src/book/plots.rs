//! Shows the records of `docs/records` as pages with plots, drawn by the program: `palimpsest bench --from RECORD
//! --html`.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use super::{contents::Chapter, failed, page::Page};
use crate::{process, step::StepError, workspace::Workspace};

/// The chapter that leads to the plots.
const FILE: &str = "figures.md";

/// Makes `program` draw every record into `folder`. Returns the chapter that leads to them, and its page.
pub(super) fn draw(workspace: &Workspace, program: &Path, folder: &Path) -> Result<(Chapter, Page), StepError> {
    let mut text =
        "# Figures\n\nRecords of `palimpsest bench`, as plots.\n\n![The curves that stay flat](figures.svg)\n"
            .to_owned();
    let picture = workspace.root.join("docs/figures.svg");
    fs::copy(&picture, folder.join("figures.svg")).map_err(failed("copy", &picture))?;
    for day in entries(&workspace.root.join("docs/records"))? {
        let day_name = name(&day);
        let records: Vec<PathBuf> =
            entries(&day)?.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
        if !records.is_empty() {
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(text, "\n## {day_name}\n");
        }
        for record in records {
            let page = format!("record-{day_name}-{}.html", name(&record));
            let mut draw = process::program(program, workspace);
            draw.args(["bench", "--from"]).arg(&record).arg("--html").arg(folder.join(&page));
            process::capture(&mut draw)?;
            let _ = writeln!(text, "- [{}]({page})", name(&record));
        }
    }
    let chapter =
        Chapter { title: "Figures".to_owned(), file: FILE.to_owned(), depth: 0, part: Some("Records".to_owned()) };
    Ok((chapter, Page::new(&text)))
}

/// Returns the entries of a folder, sorted by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, StepError> {
    let listed = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> = listed.map_err(failed("list", folder))?;
    paths.retain(|path| !name(path).starts_with("README"));
    paths.sort_unstable();
    Ok(paths)
}

/// Returns the name of a file without its extension, or of a folder.
fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
