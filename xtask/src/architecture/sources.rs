//! The files of the tree, as git lists them, and which of their lines are code.

use std::fs;

use super::{process, under_test};
use crate::{step::StepError, workspace::Workspace};

/// A text file of the tree.
pub(super) struct Source {
    /// Path from the root.
    pub(super) path: String,
    pub(super) text: String,
}

/// The files that are checked, as patterns of git. Only the rule for long lines is for other languages than Rust, too.
const PATTERNS: [&str; 9] = ["*.rs", "*.md", "*.c", "*.h", "*.cpp", "*.hpp", "*.toml", "*.sh", "*.py"];

/// Returns every file that [`PATTERNS`] name, except records, which stay as they were written.
pub(super) fn all(workspace: &Workspace) -> Result<Vec<Source>, StepError> {
    let mut git = process::program("git", workspace);
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"]).args(PATTERNS);
    let mut sources = Vec::new();
    for path in process::capture(&mut git)?.lines().filter(|path| !path.starts_with("docs/records/")) {
        // A file that git lists may be gone from the folder.
        if let Ok(text) = fs::read_to_string(workspace.root.join(path)) {
            sources.push(Source::new(path, &text));
        }
    }
    Ok(sources)
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Returns the folder of its crate, if that is in `crates/` or `adapters/`.
    pub(super) fn krate(&self) -> Option<&str> {
        ["crates/", "adapters/"].iter().find_map(|root| self.path.strip_prefix(root))?.split('/').next()
    }

    /// Returns whether it is part of what users run.
    pub(super) fn is_product(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let inside = self.path.split('/').nth(2) == Some("src") && !self.path.contains("/tests/");
        inside && !name.ends_with("tests.rs") && !name.starts_with("test_")
    }

    /// Returns its lines of code with their numbers, from 1: without comments, and of a product without its items for
    /// tests.
    pub(super) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = if self.is_product() { under_test::items(&self.text) } else { Vec::new() };
        let lines = self.text.lines().enumerate().map(|(index, line)| (index + 1, line));
        let shipped = lines.filter(move |(number, _)| !tests.iter().any(|item| item.contains(number)));
        shipped.filter_map(|(number, line)| {
            let code = line.split("//").next().unwrap_or_default();
            (!code.trim().is_empty()).then_some((number, code))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_all_languages_are_read_and_records_are_not() {
        let all = all(&Workspace::find()).expect("git lists the tree");
        for end in [".rs", ".md", ".c", ".h", ".cpp", ".toml", ".py"] {
            assert!(all.iter().any(|source| source.path.ends_with(end)), "{end}");
        }
        assert!(!all.iter().any(|source| source.path.starts_with("docs/records/")));
    }

    #[test]
    fn no_product_has_tests_in_its_code() {
        let mut lines = 0;
        for source in all(&Workspace::find()).expect("git lists the tree") {
            // Some files are of tests as a whole, as the module says that declares them.
            let shipped = source.krate().is_some() && source.is_rust() && source.is_product();
            if shipped && !under_test::items(&source.text).is_empty() {
                let is_test = |line: &str| line.trim_start().starts_with("#[test]");
                let found = source.code().find(|(_, line)| is_test(line));
                assert_eq!(found, None, "{}", source.path);
                lines += source.code().count();
            }
        }
        assert!(lines > 0);
    }

    #[test]
    fn code_is_what_is_compiled_for_users() {
        let source = Source::new("crates/a/src/b.rs", "//! words\nfn a() {} // words\n\n#[cfg(test)]\nmod tests {}\n");
        assert_eq!(source.code().collect::<Vec<_>>(), [(2, "fn a() {} ")]);
        assert!(source.is_product() && source.krate() == Some("a"));
        let source = Source::new("crates/a/src/b.rs", "fn a() {}\n#[cfg(all(test, not(loom)))]\nmod tests {}\n");
        assert_eq!(source.code().count(), 1);
        let source = Source::new("crates/a/src/b.rs", "#[cfg(test)]\nuse x;\nfn a() {}\n");
        assert_eq!(source.code().collect::<Vec<_>>(), [(3, "fn a() {}")]);
        assert!(!Source::new("crates/a/src/b_tests.rs", "").is_product());
        assert!(!Source::new("crates/a/tests/b.rs", "").is_product());
    }
}
