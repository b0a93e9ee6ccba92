//! What the header declares.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns the names of the functions.
pub(crate) fn functions() -> BTreeSet<String> {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/palimpsest.h");
    let header = fs::read_to_string(header).expect("there is a header");
    let code = header.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = code.flat_map(|line| [line, "\n"]).collect();
    let is_word = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
    let names = code.match_indices('(').map(|(at, _)| code[..at].rsplit(|byte| !is_word(byte)).next());
    names.flatten().filter(|name| name.starts_with("palimpsest_")).map(str::to_owned).collect()
}
