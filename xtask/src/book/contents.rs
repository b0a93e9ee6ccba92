//! The table of contents: `SUMMARY.md`, in the form that mdBook reads.

/// A chapter in the table of contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Chapter {
    pub(super) title: String,
    /// File name below `docs/src`.
    pub(super) file: String,
    /// How many chapters contain it.
    pub(super) depth: usize,
    /// The heading above it, if it is the first chapter below that heading.
    pub(super) part: Option<String>,
}

impl Chapter {
    /// Returns its page.
    pub(super) fn html(&self) -> String {
        page_of(&self.file)
    }
}

/// Returns the page of a chapter's file.
pub(super) fn page_of(file: &str) -> String {
    file.strip_suffix(".md").unwrap_or(file).to_owned() + ".html"
}

/// Returns the chapters in order: lines `[title](file)`, in a list or not, and the headings between them.
pub(super) fn chapters(summary: &str) -> Vec<Chapter> {
    let mut chapters = Vec::new();
    let mut part = None;
    for line in summary.lines() {
        if let Some(heading) = line.strip_prefix("# ").filter(|heading| *heading != "Summary") {
            part = Some(heading.to_owned());
        }
        let entry = line.trim_start();
        let depth = (line.len() - entry.len()) / 2;
        let link = entry.strip_prefix("- ").unwrap_or(entry).strip_prefix('[');
        let Some((title, rest)) = link.and_then(|link| link.split_once("](")) else { continue };
        let Some(file) = rest.strip_suffix(')') else { continue };
        chapters.push(Chapter { title: title.to_owned(), file: file.to_owned(), depth, part: part.take() });
    }
    chapters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chapters_have_depths_and_parts() {
        let found = chapters("# Summary\n\n[A](a.md)\n\n# Guide\n\n- [B](b.md)\n  - [C](c.md)\n");
        let told: Vec<_> = found.iter().map(|found| (&*found.title, found.depth, found.part.as_deref())).collect();
        assert_eq!(told, [("A", 0, None), ("B", 0, Some("Guide")), ("C", 1, None)]);
        assert_eq!(found[2].html(), "c.html");
    }
}
