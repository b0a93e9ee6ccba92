//! Blocks that come from files which the tests compile and run: `{{#include FILE}}` or `{{#include FILE:REGION}}`, as
//! mdBook writes it. A region lies between lines with `ANCHOR: REGION` and `ANCHOR_END: REGION`.

use std::path::Path;

/// Returns the `markdown` of a file in `folder`, with each line that includes something replaced by what it includes.
///
/// # Errors
///
/// Names each line that includes something missing, and each block of Rust that is not tested.
pub(super) fn expand(folder: &Path, file: &str, markdown: &str) -> Result<String, Vec<String>> {
    let (mut text, mut wrong) = (String::new(), Vec::new());
    for line in markdown.lines() {
        let target = line.trim().strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}"));
        match target {
            Some(target) => match included(folder, target) {
                Some(found) => text.push_str(&found),
                None => wrong.push(format!("docs/src/{file}: {target} is not there")),
            },
            None => {
                if line.starts_with("```rust") && line.contains("ignore") {
                    wrong.push(format!("docs/src/{file}: a block that nothing compiles; include it from examples/"));
                }
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    if wrong.is_empty() { Ok(text) } else { Err(wrong) }
}

/// Returns what is wrong with the blocks of Rust in a file that readers see as it is, such as a readme: each must name
/// its region in its first line (`from=FILE:REGION`, from `root`), and have the same text.
pub(super) fn copies(root: &Path, file: &str, markdown: &str) -> Vec<String> {
    let blocks = markdown.split("\n```rust").skip(1).filter_map(|block| block.split_once('\n'));
    let is_wrong = |(info, rest): &(&str, &str)| {
        let source = info.trim().strip_prefix("from=").and_then(|target| included(root, target));
        let text = rest.split("```").next().unwrap_or_default();
        source.is_none_or(|source| source != text)
    };
    blocks.filter(is_wrong).map(|(info, _)| format!("{file}: a block differs from its file:{info}")).collect()
}

/// Returns a file, or a region of it, without its common indentation and without lines that name regions.
fn included(folder: &Path, target: &str) -> Option<String> {
    let (path, region) = target.split_once(':').map_or((target, None), |(path, region)| (path, Some(region)));
    let text = std::fs::read_to_string(folder.join(path)).ok()?;
    let is_anchor = |line: &&str| line.trim_start().trim_start_matches(['/', '#', ' ']).starts_with("ANCHOR");
    let lines: Vec<&str> = match region {
        None => text.lines().filter(|line| !is_anchor(line)).collect(),
        Some(region) => {
            let (start, end) = (format!("ANCHOR: {region}"), format!("ANCHOR_END: {region}"));
            let after = text.lines().skip_while(|line| !line.trim_end().ends_with(&start)).skip(1);
            let closed = text.lines().any(|line| line.trim_end().ends_with(&end));
            let within = after.take_while(|line| !line.trim_end().ends_with(&end)).filter(|line| !is_anchor(line));
            if closed { within.collect() } else { return None }
        }
    };
    let deep = |line: &&str| line.len() - line.trim_start().len();
    let common = lines.iter().filter(|line| !line.trim().is_empty()).map(deep).min()?;
    Some(lines.iter().map(|line| line.get(common..).unwrap_or_default().to_owned() + "\n").collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_taken_without_its_indentation() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = "fn main() {\n    // ANCHOR: a\n    if b {\n        c();\n    }\n    // ANCHOR_END: a\n}\n";
        std::fs::write(folder.path().join("a.rs"), text).expect("it can be written");
        let expand = |markdown: &str| expand(folder.path(), "x.md", markdown);
        assert_eq!(
            expand("```rust\n{{#include a.rs:a}}\n```\n").expect("it is there"),
            "```rust\nif b {\n    c();\n}\n```\n"
        );
        assert_eq!(expand("{{#include a.rs}}\n").expect("it is there").lines().count(), 5);
        let copy = |block: &str| copies(folder.path(), "R.md", &format!("x\n```rust{block}```\n")).len();
        assert_eq!(copy(" from=a.rs:a\nif b {\n    c();\n}\n"), 0);
        assert_eq!((copy(" from=a.rs:a\nif b {}\n"), copy("\nlet a = 1;\n")), (1, 1));
        for wrong in ["{{#include a.rs:b}}\n", "{{#include b.rs}}\n", "```rust,ignore\n```\n"] {
            assert_eq!(expand(wrong).expect_err(wrong).len(), 1);
        }
    }
}
