//! Finds modules of a crate that use each other in a circle.
//!
//! A module is a file. It uses the modules that its paths name (`crate::…`, `super::…`). Uses between a module and its
//! own ancestors do not count, since a parent lists its children and they use what it holds.

use std::collections::{BTreeMap, BTreeSet};

use super::Source;

/// The modules of one crate by their paths, `["snapshot", "take"]`, each with its file.
type Modules<'a> = BTreeMap<Vec<String>, &'a Source>;

/// Returns the file and a description of each module that is part of a circle.
pub(super) fn of_crates(sources: &[Source]) -> Vec<(String, String)> {
    let mut crates: BTreeMap<&str, Modules<'_>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_rust() && source.is_product()) {
        if let (Some(krate), Some(path)) = (source.krate(), module(&source.path)) {
            crates.entry(krate).or_default().insert(path, source);
        }
    }
    crates.values().flat_map(of_crate).collect()
}

/// Returns the path of the module in `file`, `crates/NAME/src/…`.
fn module(file: &str) -> Option<Vec<String>> {
    let inner = file.strip_suffix(".rs")?.split('/').skip(3);
    let mut path: Vec<String> = inner.map(str::to_owned).collect();
    if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        path.pop();
    }
    Some(path)
}

fn of_crate(modules: &Modules<'_>) -> Vec<(String, String)> {
    let uses: BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> =
        modules.iter().map(|(path, source)| (path, uses(path, source, modules))).collect();
    let mut found = Vec::new();
    for (path, source) in modules {
        // Breadth first, from what it uses back to itself.
        let mut seen: BTreeMap<&Vec<String>, Option<&Vec<String>>> = BTreeMap::new();
        let mut front: Vec<&Vec<String>> = vec![path];
        while !front.is_empty() && !seen.contains_key(path) {
            let mut next = Vec::new();
            for from in front {
                for to in &uses[from] {
                    if !seen.contains_key(to) {
                        seen.insert(to, Some(from));
                        next.push(*to);
                    }
                }
            }
            front = next;
        }
        if seen.contains_key(path) {
            let mut way = vec![path];
            while let Some(Some(from)) = seen.get(way[way.len() - 1]) {
                way.push(from);
                if *from == path {
                    break;
                }
            }
            let names: Vec<String> = way.iter().rev().map(|path| path.join("::")).collect();
            found.push((source.path.clone(), format!("circle: {}", names.join(" → "))));
        }
    }
    found
}

/// Returns the modules of the same crate that `source` uses, except its ancestors and descendants.
fn uses<'a>(own: &[String], source: &Source, modules: &'a Modules<'_>) -> BTreeSet<&'a Vec<String>> {
    let code: String = source.code().map(|(_, line)| format!("{line}\n")).collect();
    let mut found = BTreeSet::new();
    for named in paths(&code, own) {
        // The longest prefix that is a module.
        let prefixes = (1..=named.len()).rev().map(|len| named[..len].to_vec());
        let Some((module, _)) = prefixes.filter_map(|prefix| modules.get_key_value(&prefix)).next() else { continue };
        if !module.starts_with(own) && !own.starts_with(module) {
            found.insert(module);
        }
    }
    found
}

/// Returns the paths, from the crate's root, that `code` of the module `own` names; lists in braces are expanded.
fn paths(code: &str, own: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (start, root) in [("crate::", &[][..]), ("super::", &own[..own.len().saturating_sub(1)])] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            // `super::super::` is read from its last part, `$crate::` is another crate's macro.
            if before.is_some_and(|letter| letter.is_alphanumeric() || "_:$".contains(letter)) {
                continue;
            }
            let (mut rest, mut root) = (&code[at + start.len()..], root.to_vec());
            while let Some(further) = rest.strip_prefix("super::") {
                root.pop();
                rest = further;
            }
            expand(rest, &root, &mut found);
        }
    }
    found
}

/// Reads one path, or a list of them in braces, below `root`; returns what follows.
fn expand<'a>(text: &'a str, root: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    let mut text = text.trim_start();
    if let Some(list) = text.strip_prefix('{') {
        text = list;
        loop {
            text = expand(text, root, found).trim_start();
            match text.strip_prefix(',') {
                Some(more) if !more.trim_start().starts_with('}') => text = more,
                Some(end) => return end.trim_start().strip_prefix('}').unwrap_or(end),
                None => return text.strip_prefix('}').unwrap_or(text),
            }
        }
    }
    let name = super::word(text);
    if name.is_empty() {
        // A glob, or something that is no path.
        found.push(root.to_vec());
        return text.strip_prefix('*').unwrap_or(text);
    }
    let path = [root, &[name.to_owned()]].concat();
    let rest = &text[name.len()..];
    if let Some(deeper) = rest.strip_prefix("::") {
        return expand(deeper, &path, found);
    }
    found.push(path);
    // `as other`
    rest.trim_start().strip_prefix("as ").map_or(rest, |alias| &alias[super::word(alias).len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<(String, String)> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(&format!("crates/a/src/{path}"), text)).collect();
        of_crates(&sources)
    }

    #[test]
    fn a_circle_of_two_is_found_and_shown() {
        let found = circles(&[("lib.rs", "mod b; mod c;"), ("b.rs", "use crate::c::C;"), ("c.rs", "use super::b;")]);
        let ways: Vec<&str> = found.iter().map(|(_, way)| way.as_str()).collect();
        assert_eq!(ways, ["circle: b → c → b", "circle: c → b → c"]);
    }

    #[test]
    fn parents_and_children_are_no_circle() {
        let files =
            [("b/mod.rs", "mod c; use c::C; use crate::b::c::D;"), ("b/c.rs", "use super::B; use crate::b::E;")];
        assert!(circles(&files).is_empty());
        assert!(circles(&[("b.rs", "use crate::c::C;"), ("c.rs", "// crate::b")]).is_empty());
    }

    #[test]
    fn lists_are_taken_apart() {
        let own = ["b".to_owned(), "c".to_owned()];
        let found = paths("use crate::{d::{E, f::G as H}, i}; super::super::j::k(); super::l", &own);
        let found: Vec<String> = found.iter().map(|path| path.join("::")).collect();
        assert_eq!(found, ["d::E", "d::f::G", "i", "j::k", "b::l"]);
    }
}
