//! Which lines of a source are items under `#[cfg(test)]`, which users do not run.

use std::ops::RangeInclusive;

/// Attributes that leave an item to tests.
const MARKS: [&str; 2] = ["#[cfg(test)]", "#[cfg(all(test,"];

/// Words with which an item begins that a comma does not end.
const ITEMS: [&str; 15] = [
    "async", "const", "enum", "extern", "fn", "impl", "let", "mod", "static", "struct", "trait", "type", "union",
    "unsafe", "use",
];

/// Returns the lines, from 1, of each item under such an attribute: up to its semicolon or its closing brace; of a
/// field, a variant or an arm, up to its comma.
pub(super) fn items(text: &str) -> Vec<RangeInclusive<usize>> {
    let bare = without_literals(text);
    let mut items: Vec<RangeInclusive<usize>> = Vec::new();
    let mut start = 0;
    for (index, line) in bare.lines().enumerate() {
        let first = index + 1;
        let mark = MARKS.iter().find(|mark| line.trim_start().starts_with(*mark));
        if mark.is_some() && items.last().is_none_or(|item| !item.contains(&first)) {
            let at = start + line.len() - line.trim_start().len();
            let lines = bare[at..at + len(&bare[at..])].matches('\n').count();
            items.push(first..=first + lines);
        }
        start += line.len() + 1;
    }
    items
}

/// Returns the length of the item, without literals, that `text` begins with, its attributes included.
fn len(text: &str) -> usize {
    let mut depth = 0_usize;
    // Where the item begins behind its attributes.
    let mut begins = None;
    for (at, letter) in text.char_indices() {
        let attribute = letter.is_whitespace() || "#[]".contains(letter) || depth > 0;
        if begins.is_none() && !attribute {
            begins = Some(at);
        }
        match letter {
            '(' | '[' | '{' => depth += 1,
            // The end of what is around it.
            ')' | ']' | '}' if depth == 0 => return at,
            ')' | ']' | '}' => {
                depth -= 1;
                // A list of imports goes on to its semicolon.
                if letter == '}' && depth == 0 && begins.is_some_and(|begin| first_word(&text[begin..]) != "use") {
                    return at + 1;
                }
            }
            ';' if depth == 0 => return at + 1,
            ',' if depth == 0 && begins.is_some_and(|begin| !ITEMS.contains(&first_word(&text[begin..]))) => {
                return at + 1;
            }
            _ => {}
        }
    }
    text.len()
}

/// Returns the first word of an item, behind its visibility.
fn first_word(item: &str) -> &str {
    let rest = match item.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')').map_or("", |(_, rest)| rest),
        Some(rest) if rest.starts_with(char::is_whitespace) => rest,
        _ => item,
    };
    super::word(rest.trim_start())
}

/// Returns `text` with the contents of its comments, strings and characters as spaces, in the same lines.
fn without_literals(text: &str) -> String {
    let mut bare = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let after_word = bare.chars().next_back().is_some_and(|before| before.is_alphanumeric() || before == '_');
        let end = match literal(rest).filter(|_| !after_word || !letter.is_alphanumeric()) {
            Some(end) => {
                bare.extend(rest[..end].chars().map(|letter| if letter == '\n' { '\n' } else { ' ' }));
                end
            }
            None => {
                bare.push(letter);
                letter.len_utf8()
            }
        };
        rest = &rest[end..];
    }
    bare
}

/// Returns the length of the comment, string or character that `text` begins with.
fn literal(text: &str) -> Option<usize> {
    let up_to = |open: usize, close: &str| text[open..].find(close).map_or(text.len(), |at| open + at + close.len());
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(up_to(2, "*/"));
    }
    let plain = text.strip_prefix(['b', 'c']).unwrap_or(text);
    let prefix = text.len() - plain.len();
    if let Some(raw) = plain.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            return Some(up_to(prefix + 1 + hashes + 1, &format!("\"{}", "#".repeat(hashes))));
        }
    }
    if plain.starts_with('"') {
        return Some(prefix + closed(plain, '"'));
    }
    // `'a` is a lifetime, `'a'` and `'\''` are characters.
    let mut letters = plain.strip_prefix('\'')?.chars();
    let first = letters.next()?;
    (first == '\\' || letters.next() == Some('\'')).then(|| prefix + closed(plain, '\''))
}

/// Returns the length of the literal that `text` begins with, up to the closing `quote`.
fn closed(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if letter == quote => return at + letter.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_ends_at_its_semicolon_its_brace_or_its_comma() {
        for (text, lines) in [
            ("#[cfg(test)]\nuse x;\nfn f() {}\n", 1..=2),
            ("a;\n#[cfg(test)]\n#[allow(dead_code)]\npub(crate) fn f<A, B>(a: [A; 2])\n{\n    b;\n}\nc;\n", 2..=7),
            ("struct A {\n    #[cfg(test)]\n    a: B<C>,\n    d: E,\n}\n", 2..=3),
            ("match a {\n    #[cfg(test)]\n    A => b(c, d),\n    _ => {}\n}\n", 2..=3),
            ("#[cfg(all(test, not(loom)))] mod tests;\nfn f() {}\n", 1..=1),
            ("#[cfg(test)]\nuse a::{\n    b,\n};\nfn f() {}\n", 1..=4),
            (
                "#[cfg(test)]\nfn f() {\n    \"}\"; '}'; r#\"\"}\"#; b'}'; // }\n    /* } */ '\\''; f::<'a>();\n}\nb\n",
                1..=5,
            ),
            ("fn f() {\n    #[cfg(test)]\n    g()\n}\nfn h() {}\n", 2..=4),
        ] {
            assert_eq!(items(text), [lines], "{text}");
        }
        assert!(items("// #[cfg(test)]\n#[cfg(any(test, feature = \"a\"))]\nfn f() {}\n").is_empty());
    }

    #[test]
    fn an_attribute_in_an_item_begins_no_other() {
        let text = "#[cfg(test)]\nmod tests {\n    #[cfg(test)]\n    use a;\n}\n#[cfg(test)]\nmod more;\n";
        assert_eq!(items(text), [1..=5, 6..=7]);
    }
}
