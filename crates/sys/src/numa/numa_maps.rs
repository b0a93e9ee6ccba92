//! `/proc/PID/numa_maps`: how many bytes of each mapping are on which node.
//!
//! Format: `numa(7)`, written by `show_numa_map` in `fs/proc/task_mmu.c`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::process::Pid;

use super::{MOST_NODES, NodeId};
use crate::proc::{ParseError, ProcError, address, number, read_with};

/// What a mapping shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shown {
    /// A file, or a memory file (`/memfd:NAME (deleted)`).
    File(PathBuf),
    /// The heap of `brk`.
    Heap,
    /// The stack of the main thread.
    Stack,
    /// Nothing with a name.
    Anonymous,
}

/// One mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NumaMap {
    /// Its first address.
    pub start: usize,
    /// The memory policy, in the kernel's words: `default`, `bind:1`, `prefer:0`, `prefer (many):0-1`, ….
    pub policy: String,
    /// What the mapping shows.
    pub shown: Shown,
    /// Present bytes by node, ascending; without nodes that have none.
    pub present: Vec<(NodeId, u64)>,
    /// Bytes that only this process has: private copies and anonymous memory.
    pub anonymous: u64,
    /// Whether its pages belong to hugetlbfs.
    pub is_hugetlb: bool,
}

/// Reads the mappings of a process.
///
/// # Errors
///
/// There is no such process, or the caller may not inspect it (`ptrace(2)`); the kernel has no NUMA
/// ([`ProcError::is_absent`]); or a line has an unknown form.
pub fn of_process(process: Pid) -> Result<Vec<NumaMap>, ProcError> {
    read_with(format!("/proc/{}/numa_maps", process.as_raw_nonzero()), |text| parse(text))
}

/// Parses the text of such a file.
///
/// # Errors
///
/// The first line of an unknown form. Skips figures with an unknown name.
pub fn parse(text: impl AsRef<[u8]>) -> Result<Vec<NumaMap>, ParseError> {
    let lines = text.as_ref().split(|byte| *byte == b'\n').enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty());
    lines.map(|(index, line)| parse_line(line).map_err(|expected| ParseError::new(index + 1, line, expected))).collect()
}

fn parse_line(line: &[u8]) -> Result<NumaMap, &'static str> {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let start = words.next().and_then(|word| address(word, 16)).ok_or("address in hexadecimal")?;
    let mut words = words.peekable();
    let policy = words.next().ok_or("memory policy")?;
    let mut policy = String::from_utf8_lossy(policy).into_owned();
    // Two have a blank in their names (`policy_modes` in `mm/mempolicy.c`), before flags and nodes.
    let second: &[u8] = match policy.as_str() {
        "prefer" => b"(many)",
        "weighted" => b"interleave",
        _ => b"",
    };
    if let Some(rest) = words.next_if(|word| !second.is_empty() && word.starts_with(second)) {
        policy = format!("{policy} {}", String::from_utf8_lossy(rest));
    }
    let mut map =
        NumaMap { start, policy, shown: Shown::Anonymous, present: Vec::new(), anonymous: 0, is_hugetlb: false };
    // Figures count pages, and the page size comes last.
    let mut page = None;
    for word in words {
        let (name, value) = match word.iter().position(|byte| *byte == b'=') {
            Some(at) => (&word[..at], &word[at + 1..]),
            None => (word, &b""[..]),
        };
        let figure = || number(value, 10).ok_or("decimal number behind =");
        match name {
            b"file" => map.shown = Shown::File(unescaped(value)),
            b"heap" => map.shown = Shown::Heap,
            b"stack" => map.shown = Shown::Stack,
            b"huge" => map.is_hugetlb = true,
            b"anon" => map.anonymous = figure()?,
            b"kernelpagesize_kB" => page = Some(figure()?.checked_mul(1024).ok_or("page size")?),
            [b'N', node @ ..] if !node.is_empty() => {
                let node = number(node, 10).and_then(|node| u32::try_from(node).ok());
                let node = node.filter(|node| *node < MOST_NODES).ok_or("node below 1024")?;
                map.present.push((NodeId(node), figure()?));
            }
            _ => {}
        }
    }
    if map.present.is_empty() && map.anonymous == 0 {
        // Mappings without a page have no figures.
        return Ok(map);
    }
    let page = page.ok_or("size of a page")?;
    let bytes = |pages: u64| pages.checked_mul(page).ok_or("number of pages");
    map.anonymous = bytes(map.anonymous)?;
    for (_, present) in &mut map.present {
        *present = bytes(*present)?;
    }
    map.present.sort_unstable();
    Ok(map)
}

/// Undoes the kernel's escapes for white space and `=` in a name: three octal digits behind a backslash (`mangle_path`
/// in `fs/seq_file.c`).
fn unescaped(name: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        match digits {
            Some(digits) if *first == b'\\' => {
                let code = digits.iter().fold(0_u32, |code, digit| code * 8 + u32::from(digit - b'0'));
                // Of the nine bits the kernel uses eight.
                bytes.push((code & 0xff) as u8);
                rest = &behind[3..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINES: &str = "\
55e3ceb01000 default file=/usr/bin/a\\040b mapped=6 mapmax=2 N0=4 N1=2 kernelpagesize_kB=4
55e408a11000 prefer:1 heap anon=4 dirty=4 active=0 N0=4 kernelpagesize_kB=4
7f0000000000 bind:1 file=/memfd:mf\\040(deleted) huge dirty=4 N1=4 kernelpagesize_kB=2048
7f1000000000 default
7ffd00000000 default stack anon=3 dirty=3 N1=1 N0=2 kernelpagesize_kB=4
";

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let maps = parse(LINES).unwrap();
        assert_eq!(maps.len(), 5);
        assert_eq!(maps[0].shown, Shown::File("/usr/bin/a b".into()));
        assert_eq!(maps[0].present, [(NodeId(0), 4 << 12), (NodeId(1), 2 << 12)]);
        assert_eq!((maps[1].policy.as_str(), &maps[1].shown, maps[1].anonymous), ("prefer:1", &Shown::Heap, 4 << 12));
        assert_eq!((maps[2].is_hugetlb, &maps[2].present), (true, &vec![(NodeId(1), 8 << 20)]));
        assert_eq!(maps[2].shown, Shown::File("/memfd:mf (deleted)".into()));
        assert_eq!((&maps[3].shown, maps[3].present.len()), (&Shown::Anonymous, 0));
        assert_eq!(maps[4].present, [(NodeId(0), 2 << 12), (NodeId(1), 1 << 12)]);
    }

    /// Fails on: a name that is cut at its blank, with the nodes behind it; a figure that is taken for a part of it.
    #[test]
    fn policies_may_have_a_blank_in_their_names() {
        for (line, expected) in [
            ("1000 prefer (many):0-1 heap anon=1 N0=1 kernelpagesize_kB=4", "prefer (many):0-1"),
            ("1000 prefer (many)=static:0-1 heap anon=1 N0=1 kernelpagesize_kB=4", "prefer (many)=static:0-1"),
            ("1000 weighted interleave:0-1 heap anon=1 N0=1 kernelpagesize_kB=4", "weighted interleave:0-1"),
            ("1000 prefer=relative:1 heap anon=1 N0=1 kernelpagesize_kB=4", "prefer=relative:1"),
            ("1000 local heap anon=1 N0=1 kernelpagesize_kB=4", "local"),
            ("1000 prefer heap anon=1 N0=1 kernelpagesize_kB=4", "prefer"),
        ] {
            let maps = parse(line).unwrap();
            assert_eq!((maps[0].policy.as_str(), &maps[0].shown), (expected, &Shown::Heap), "{line}");
        }
        assert_eq!(parse("1000 weighted interleave:0-1").unwrap()[0].policy, "weighted interleave:0-1");
    }

    #[test]
    fn other_forms_are_refused_with_the_line() {
        let error = parse(format!("{LINES}xyz default")).unwrap_err();
        assert_eq!((error.line, error.text.as_str()), (6, "xyz default"));
        assert!(parse("1000").is_err(), "no policy");
        assert!(parse("1000 default N0=4").is_err(), "no page size");
        assert!(parse("1000 default N0=many kernelpagesize_kB=4").is_err());
        assert!(parse("1000 default N1024=1 kernelpagesize_kB=4").is_err());
        assert!(parse("1000 default N0=18446744073709551615 kernelpagesize_kB=4").is_err());
    }

    #[test]
    fn this_process_is_understood() {
        let maps = match of_process(rustix::process::getpid()) {
            Ok(maps) => maps,
            Err(error) if error.is_absent() => return println!("skipped: {error}"),
            Err(error) => panic!("{error:?}"),
        };
        let program = std::env::current_exe().unwrap();
        let text = maps.iter().filter(|map| map.shown == Shown::File(program.clone()));
        assert!(text.flat_map(|map| &map.present).map(|(_, bytes)| bytes).sum::<u64>() > 0);
    }

    proptest! {
        #[test]
        fn no_input_panics(
            text in "(7f00 default|N[0-9]{1,5}=[0-9]{1,20}|file=[\\\\0-9a]{0,6}|anon=| |\n|kernelpagesize_kB=4){0,12}",
        ) {
            let _: Result<_, _> = parse(text);
        }
    }
}
