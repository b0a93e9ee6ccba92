//! Program names made fit for symbol tables.

use std::borrow::Cow;

/// The symbol of a program whose name is empty.
const UNNAMED: &str = "unnamed";

/// Returns `name` as a symbol: without control characters (a line break would forge a second entry, a NUL would cut the
/// name) and at least three bytes long.
///
/// Shorter names are extended by `()` because `perf` 6.1 skips lines of a perf map whose name has fewer than three
/// bytes (`dso__load_perf_map`, tools/perf/util/symbol.c).
pub(super) fn symbol_name(name: &str) -> Cow<'_, str> {
    let clean = if name.chars().any(char::is_control) {
        Cow::Owned(name.replace(char::is_control, "_"))
    } else {
        Cow::Borrowed(name)
    };
    match clean.len() {
        0 => Cow::Borrowed(UNNAMED),
        1 | 2 => Cow::Owned(format!("{clean}()")),
        _ => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::symbol_name;

    #[test]
    fn ordinary_names_are_kept() {
        assert_eq!(symbol_name("filter tcp port 80"), "filter tcp port 80");
        assert_eq!(symbol_name("größe"), "größe");
    }

    #[test]
    fn control_characters_cannot_forge_an_entry() {
        assert_eq!(symbol_name("a\n0 ffff evil\0\r\u{85}b"), "a_0 ffff evil___b");
    }

    #[test]
    fn short_names_are_extended() {
        assert_eq!(symbol_name(""), "unnamed");
        assert_eq!(symbol_name("f"), "f()");
        assert_eq!(symbol_name("f1"), "f1()");
        assert_eq!(symbol_name("f12"), "f12");
    }
}
