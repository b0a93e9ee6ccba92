//! `cargo xtask book`: writes the chapters of `docs/src` as HTML pages that need nothing else. Fails if a link leads
//! nowhere.
//!
//! Why not mdBook: it takes ten minutes to build here, and would add only a table of contents and a page around each
//! chapter.

mod contents;
mod include;
mod page;
mod plots;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{step::StepError, workspace::Workspace};

use contents::Chapter;
use page::Page;

/// Name below the target folder.
pub(crate) const FOLDER: &str = "book";
const STYLE: &str = include_str!("page.css");

/// Writes the book to `folder` and returns the number of its chapters. With a `program`, the last chapter is the plots
/// of the records, which it draws.
pub(crate) fn build(workspace: &Workspace, folder: &Path, program: Option<&Path>) -> Result<usize, StepError> {
    let sources = workspace.root.join("docs/src");
    let read = |path: &Path| fs::read_to_string(path).map_err(failed("read", path));
    let mut chapters = contents::chapters(&read(&sources.join("SUMMARY.md"))?);
    let (mut pages, mut stray) = (BTreeMap::new(), Vec::new());
    for Chapter { file, .. } in &chapters {
        match include::expand(&sources, file, &read(&sources.join(file))?) {
            Ok(text) => drop(pages.insert(file.clone(), Page::new(&text))),
            Err(wrong) => stray.extend(wrong),
        }
    }
    let readme = workspace.root.join("README.md");
    if readme.is_file() {
        stray.extend(include::copies(&workspace.root, "README.md", &read(&readme)?));
    }
    if stray.is_empty() {
        stray = broken(workspace, &sources, &pages)?;
    }
    if !stray.is_empty() {
        stray.iter().for_each(|link| println!("{link}"));
        return Err(StepError::Book { links: stray.len() });
    }
    fs::create_dir_all(folder).map_err(failed("make", folder))?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(failed("write", &path))
    };
    write("page.css", STYLE)?;
    if let Some(program) = program {
        let (chapter, page) = plots::draw(workspace, program, folder)?;
        pages.insert(chapter.file.clone(), page);
        chapters.push(chapter);
    }
    for (place, chapter) in chapters.iter().enumerate() {
        let Some(page) = pages.get(&chapter.file) else { continue };
        let neighbours = (place.checked_sub(1).and_then(|before| chapters.get(before)), chapters.get(place + 1));
        let html = page::document(&chapters, chapter, page, neighbours);
        write(&chapter.html(), &html)?;
        if place == 0 {
            write("index.html", &html)?;
        }
    }
    Ok(chapters.len())
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StepError {
    let path = path.to_owned();
    move |source| StepError::File { action, path, source }
}

/// Returns an error that names chapters missing in the table of contents, and links that lead nowhere.
fn broken(workspace: &Workspace, sources: &Path, pages: &BTreeMap<String, Page>) -> Result<Vec<String>, StepError> {
    let mut stray = Vec::new();
    for entry in fs::read_dir(sources).map_err(failed("list", sources))? {
        let name = entry.map_err(failed("list", sources))?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") && name != "SUMMARY.md" && !pages.contains_key(&name) {
            stray.push(format!("docs/src/{name}: SUMMARY.md does not name it"));
        }
    }
    for (file, page) in pages {
        for link in page.links() {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { file } else { path };
            let leads = match pages.get(target) {
                Some(found) => anchor.is_empty() || found.has_anchor(anchor),
                None => sources.join(path).exists() && inside(workspace, &sources.join(path)),
            };
            if !leads {
                stray.push(format!("docs/src/{file}: {link} leads nowhere"));
            }
        }
    }
    Ok(stray)
}

/// Returns whether a file is inside the tree.
fn inside(workspace: &Workspace, path: &Path) -> bool {
    let canonical = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
    canonical(path).starts_with(canonical(&workspace.root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_of_this_tree_has_a_page_for_each_chapter() {
        let folder = tempfile::tempdir().expect("a folder");
        let count = build(&Workspace::find(), folder.path(), None).expect("see the list above");
        let pages = fs::read_dir(folder.path()).expect("it was made").count();
        // The style and the index.
        assert_eq!(pages, count + 2);
        let run = fs::read_to_string(folder.path().join("run.html")).expect("a chapter");
        assert!(run.contains("id=\"options\"") && run.contains("href=\"redis.html\"") && !run.contains(".md\""));
    }

    #[test]
    fn a_link_that_leads_nowhere_and_a_lost_chapter_fail() {
        let tree = tempfile::tempdir().expect("a folder");
        let sources = tree.path().join("docs/src");
        fs::create_dir_all(&sources).expect("a folder");
        let write = |name: &str, text: &str| fs::write(sources.join(name), text).expect("it can be written");
        let workspace = Workspace { root: tree.path().into(), target: tree.path().join("target") };
        let out = tree.path().join("out");
        write("SUMMARY.md", "# Summary\n\n[One](one.md)\n- [Two](two.md)\n");
        write("two.md", "# Two\n\n## A Part\n");
        write("one.md", "# One\n\n[fine](two.md#a-part), [too](two.md), [outside](https://example.org)\n");
        assert_eq!(build(&workspace, &out, None).expect("all is there"), 2);
        for bad in ["[x](three.md)", "[x](two.md#b-part)", "[x](../../../../../etc/hostname)"] {
            write("one.md", bad);
            assert!(matches!(build(&workspace, &out, None), Err(StepError::Book { links: 1 })), "{bad}");
        }
        write("one.md", "# One\n");
        write("three.md", "# Three\n");
        assert!(matches!(build(&workspace, &out, None), Err(StepError::Book { links: 1 })));
    }
}
