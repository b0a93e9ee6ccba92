//! A process's memory as a picture made of letters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use palimpsest_numa::NodeId;

use super::process::{Mapping, Process};

/// Columns of a bar, and pages of a row.
const COLUMNS: usize = 64;

/// Returns a table of kinds by nodes, with a bar for each kind; and every page, if that was asked for.
pub(super) fn of(process: &Process) -> String {
    let kinds = process.by_kind();
    let nodes: BTreeSet<NodeId> = kinds.values().flat_map(BTreeMap::keys).copied().collect();
    let mut text = format!("process {}: KiB by node\n\n  {:<10}", process.process, "");
    // Writing to a string cannot fail, here and below.
    for node in &nodes {
        let _ = write!(text, "{:>12}", node.to_string());
    }
    text.push('\n');
    for (kind, bytes) in &kinds {
        let _ = write!(text, "  {:<10}", kind.name());
        for node in &nodes {
            let _ = write!(text, "{:>12}", bytes.get(node).copied().unwrap_or(0) >> 10);
        }
        let _ = writeln!(text, "  {}", bar(bytes));
    }
    process.mappings.iter().for_each(|mapping| pages(&mut text, mapping));
    text
}

/// Returns the shares of the nodes, as that many of their numbers.
fn bar(bytes: &BTreeMap<NodeId, u64>) -> String {
    let total = bytes.values().sum::<u64>().max(1);
    let mut so_far = 0;
    let mut bar = String::new();
    for (node, bytes) in bytes {
        so_far += bytes;
        let columns = usize::try_from(u128::from(so_far) * COLUMNS as u128 / u128::from(total)).unwrap_or(COLUMNS);
        let sign = char::from_digit(node.0, 36).unwrap_or('#');
        bar.extend(std::iter::repeat_n(sign, columns.saturating_sub(bar.chars().count())));
    }
    bar
}

/// Adds the pages of a mapping in rows; equal rows are shown once.
fn pages(text: &mut String, mapping: &Mapping) {
    let Some(signs) = &mapping.pages else { return };
    let Mapping { start, end, kind, name, policy, .. } = mapping;
    // Whoever named the file must not talk to the terminal.
    let name = if name.is_empty() { kind.name().to_owned() } else { name.escape_debug().to_string() };
    let _ = writeln!(text, "\n{start:x}-{end:x} {name} ({policy})");
    if signs.is_empty() {
        let _ = writeln!(text, "  {} GiB, too much to draw", (end - start) >> 30);
        return;
    }
    let page = (end - start) / signs.len();
    let mut same = 0;
    // One byte per sign.
    let rows: Vec<&[u8]> = signs.as_bytes().chunks(COLUMNS).collect();
    for (index, row) in rows.iter().enumerate() {
        if index > 0 && rows[index - 1] == *row && index + 1 < rows.len() {
            same += 1;
            continue;
        }
        if same > 0 {
            let _ = writeln!(text, "  … {same} more such rows");
            same = 0;
        }
        let _ = writeln!(text, "  {:>12x} {}", start + index * COLUMNS * page, String::from_utf8_lossy(row));
    }
}

#[cfg(test)]
mod tests {
    use super::super::process::Kind;
    use super::*;

    #[test]
    fn a_bar_has_the_shares_of_the_nodes() {
        let bytes = |shares: &[(u32, u64)]| shares.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect();
        let drawn = bar(&bytes(&[(0, 3 << 20), (1, 1 << 20)]));
        assert_eq!(drawn, format!("{}{}", "0".repeat(48), "1".repeat(16)));
        assert_eq!(bar(&bytes(&[(11, u64::MAX / 2)])), "b".repeat(64));
        assert_eq!(bar(&bytes(&[])), "");
    }

    #[test]
    fn rows_that_are_the_same_are_told_once() {
        let signs = format!("{}{}{}", "0".repeat(64 * 4), "1".repeat(64), "..");
        let mapping = Mapping {
            start: 0x10_0000,
            end: 0x10_0000 + 4096 * signs.len(),
            kind: Kind::Text,
            name: "/bin/\u{1b}[1ma".to_owned(),
            policy: "default".to_owned(),
            present: vec![(NodeId(0), 4 << 18), (NodeId(1), 1 << 18)],
            pages: Some(signs),
        };
        let picture = of(&Process { process: 7, mappings: vec![mapping] });
        let expected = format!(
            "process 7: KiB by node\n\n                  node 0      node 1\n  text              1024         256  {}{}\
             \n\n\
             100000-242000 /bin/\\u{{1b}}[1ma (default)\n        100000 {zeros}\n  … 3 more such rows\n        \
             200000 {ones}\n        240000 ..\n",
            "0".repeat(51),
            "1".repeat(13),
            zeros = "0".repeat(64),
            ones = "1".repeat(64),
        );
        assert_eq!(picture, expected);
    }

    #[test]
    fn what_is_too_much_is_said_to_be() {
        let mapping = Mapping {
            start: 0,
            end: 1 << 40,
            kind: Kind::Anonymous,
            name: String::new(),
            policy: "default".to_owned(),
            present: vec![(NodeId(0), 4096)],
            pages: Some(String::new()),
        };
        let picture = of(&Process { process: 7, mappings: vec![mapping] });
        assert!(picture.ends_with("0-10000000000 anonymous (default)\n  1024 GiB, too much to draw\n"), "{picture}");
    }
}
