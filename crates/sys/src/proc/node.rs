//! `/sys/devices/system/node`: the NUMA nodes of the machine.
//!
//! Format: `Documentation/admin-guide/cputopology.rst` (lists) and `Documentation/ABI/stable/sysfs-devices-node`.

use super::{ParseError, ProcError, number, read_with};

/// More than any kernel supports (`NODES_SHIFT` is at most 10); a bound for absurd input.
const MOST_NODES: u64 = 1 << 16;

/// Reads the numbers of the nodes that are online.
///
/// # Errors
///
/// `/sys` is not mounted, the kernel is built without NUMA, or the list has an unknown form.
pub fn online() -> Result<Vec<u32>, ProcError> {
    read_with("/sys/devices/system/node/online", |text| parse_list(text))
}

/// Parses a list such as `0-3,8`.
///
/// # Errors
///
/// A part is neither a number nor a range, or is a number above 65535.
pub fn parse_list(text: impl AsRef<[u8]>) -> Result<Vec<u32>, ParseError> {
    let text = text.as_ref().trim_ascii();
    let mut all = Vec::new();
    for part in text.split(|byte| *byte == b',').filter(|part| !part.is_empty()) {
        let mut ends = part.splitn(2, |byte| *byte == b'-').map(|end| number(end, 10));
        let first = ends.next().flatten();
        let last = ends.next().unwrap_or(first);
        let (Some(first), Some(last @ ..MOST_NODES)) = (first, last) else {
            return Err(ParseError::new(1, text, "list such as 0-3,8"));
        };
        all.extend((first..=last).filter_map(|node| u32::try_from(node).ok()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(parse_list("0\n"), Ok(vec![0]));
        assert_eq!(parse_list("0-3,8\n"), Ok(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("\n"), Ok(vec![]));
        assert!(parse_list("0-99999999999").is_err());
        assert!(parse_list("0-").is_err());
        assert!(parse_list("all").is_err());
    }

    proptest! {
        #[test]
        fn no_input_panics(list in "[0-9,\\-\n]{0,12}") {
            let _: Result<_, _> = parse_list(list);
        }
    }
}
