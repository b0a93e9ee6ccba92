//! Debug information that was damaged, or made to take long.

use palimpsest_bpf::dwarf::{DebugInfo, DwarfError};

use super::{HOST, IN_C};

/// Random numbers, the same each time: xorshift by Marsaglia.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % count
    }
}

#[test]
fn damaged_debug_information_is_an_error_or_types() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut right, mut wrong) = (0, 0);
    for good in [HOST, IN_C[0], IN_C[1]] {
        for round in 0..300 {
            let mut bytes = good.to_vec();
            if round % 10 == 0 {
                bytes.truncate(random.below(good.len()));
            }
            for _ in 0..1 + random.below(12) {
                if !bytes.is_empty() {
                    let place = random.below(bytes.len());
                    bytes[place] = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
                }
            }
            let types = DebugInfo::parse(&bytes).and_then(|debug| debug.types(["Session", "host", "inner_t"]));
            match types {
                Ok(types) => right += usize::from(types.btf().is_ok()),
                Err(_) => wrong += 1,
            }
        }
    }
    assert!(right > 100 && wrong > 100, "{right} right, {wrong} wrong: the damage tells nothing");
}

/// An ELF file with these sections.
fn file(sections: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut names = vec![0];
    let mut bytes = vec![0; 64];
    let mut headers = vec![[0_u8; 64]];
    let all = sections.iter().map(|(name, data)| (*name, data.clone(), 1_u32)).chain([(".shstrtab", Vec::new(), 3)]);
    for (name, mut data, kind) in all {
        let at = names.len() as u32;
        names.extend(name.bytes().chain([0]));
        if kind == 3 {
            data = names.clone();
        }
        let mut header = [0; 64];
        header[..4].copy_from_slice(&at.to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[24..32].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(data.len() as u64).to_le_bytes());
        bytes.extend(data);
        headers.push(header);
    }
    let start = bytes.len() as u64;
    let count = headers.len() as u16;
    bytes.extend(headers.concat());
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    // A shared object for x86-64.
    bytes[16..20].copy_from_slice(&[3, 0, 62, 0]);
    bytes[20] = 1;
    bytes[40..48].copy_from_slice(&start.to_le_bytes());
    bytes[52..54].copy_from_slice(&64_u16.to_le_bytes());
    bytes[58..60].copy_from_slice(&64_u16.to_le_bytes());
    bytes[60..62].copy_from_slice(&count.to_le_bytes());
    bytes[62..64].copy_from_slice(&(count - 1).to_le_bytes());
    bytes
}

/// A unit of DWARF 4 with these entries.
fn unit(entries: &[u8]) -> Vec<u8> {
    let header = [4, 0, 0, 0, 0, 0, 8];
    let len = (header.len() + entries.len()) as u32;
    [&len.to_le_bytes(), &header[..], entries].concat()
}

const HAS_CHILDREN: u8 = 1;
/// Attributes and forms.
const NAME_IN_PLACE: [u8; 2] = [0x03, 0x08];
const NAME_IN_TEXTS: [u8; 2] = [0x03, 0x0e];
const SIZE: [u8; 2] = [0x0b, 0x0b];
const PLACE: [u8; 2] = [0x38, 0x0b];
const OF: [u8; 2] = [0x49, 0x13];

fn abbreviation(code: u8, tag: u8, children: u8, attributes: &[[u8; 2]]) -> Vec<u8> {
    [&[code, tag, children], attributes.concat().as_slice(), &[0, 0]].concat()
}

fn types(info: Vec<u8>, abbreviations: Vec<u8>, texts: Vec<u8>) -> Result<usize, DwarfError> {
    let file = file(&[(".debug_info", info), (".debug_abbrev", abbreviations), (".debug_str", texts)]);
    DebugInfo::parse(&file).expect("an ELF file").types(["T"]).map(|types| types.section().len())
}

#[test]
fn a_type_in_itself_is_an_error() {
    let abbreviations = [
        abbreviation(1, 0x11, HAS_CHILDREN, &[]),
        abbreviation(2, 0x13, HAS_CHILDREN, &[NAME_IN_PLACE, SIZE]),
        abbreviation(3, 0x0d, 0, &[NAME_IN_PLACE, PLACE, OF]),
        vec![0],
    ]
    .concat();
    // The structure is at byte 12 of its unit.
    let own = 12_u32.to_le_bytes();
    let entries = [&[1, 2, b'T', 0, 8, 3, b'm', 0, 0][..], &own, &[0, 0]].concat();
    let error = types(unit(&entries), abbreviations, Vec::new()).expect_err("a circle");
    assert!(matches!(error, DwarfError::Wrong { what: "a type lies in itself" }), "{error}");
}

#[test]
fn entries_of_one_byte_with_thousands_of_attributes_have_a_budget() {
    // Flags that are there without a byte.
    let flags = vec![[0x3c, 0x19]; 10_000];
    let abbreviations = [abbreviation(1, 0x11, HAS_CHILDREN, &[]), abbreviation(2, 0x0b, 0, &flags), vec![0]].concat();
    let entries = [vec![1], vec![2; 100_000]].concat();
    let error = types(unit(&entries), abbreviations, Vec::new()).expect_err("a thousand million attributes");
    assert!(matches!(error, DwarfError::Steps { .. }), "{error}");
}

#[test]
fn structures_in_structures_are_not_read_again_for_each() {
    // Each reads its children, and passes over all theirs: with the square of the depth.
    let abbreviations = [
        abbreviation(1, 0x11, HAS_CHILDREN, &[]),
        abbreviation(2, 0x13, HAS_CHILDREN, &[NAME_IN_PLACE, SIZE]),
        vec![0],
    ]
    .concat();
    let depth = 4000;
    let entries = [vec![1], [2, b'T', 0, 8].repeat(depth), vec![0; depth + 1]].concat();
    let error = types(unit(&entries), abbreviations, Vec::new()).expect_err("8 million entries of 20 KB");
    assert!(matches!(error, DwarfError::Steps { .. }), "{error}");
}

#[test]
fn names_that_are_parts_of_one_text_are_not_copied_without_end() {
    let abbreviations = [
        abbreviation(1, 0x11, HAS_CHILDREN, &[]),
        abbreviation(2, 0x13, HAS_CHILDREN, &[NAME_IN_PLACE, SIZE]),
        abbreviation(3, 0x0d, 0, &[NAME_IN_TEXTS, PLACE]),
        vec![0],
    ]
    .concat();
    let texts = [vec![b'x'; 1 << 18], vec![0]].concat();
    let member = |end: u32| [&[3][..], &((1 << 18) - end).to_le_bytes(), &[0]].concat();
    // A structure has 65 535 members at most.
    let structure = |first: u32| {
        let members: Vec<u8> = (first..first + 60_000).flat_map(member).collect();
        [&[2, b'T', 0, 8][..], &members, &[0]].concat()
    };
    // Most of these names are too long, and none; the others come again.
    let entries = [vec![1], structure(1), structure(60_001), structure(120_001), vec![0]].concat();
    let len = types(unit(&entries), abbreviations, texts).expect("right");
    assert!(len < 5 << 20, "{len} bytes");
}

#[test]
fn sections_that_claim_to_be_long_are_refused_before_they_are_unpacked() {
    // A header of a compressed section: zlib, so many bytes, aligned by one.
    let claimed = [&1_u32.to_le_bytes()[..], &[0; 4], &(1_u64 << 50).to_le_bytes(), &1_u64.to_le_bytes(), &[0; 8]];
    let mut bytes = file(&[(".debug_info", claimed.concat())]);
    // `SHF_COMPRESSED`, in the flags of the section.
    let headers = u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes")) as usize;
    bytes[headers + 64 + 8..][..8].copy_from_slice(&0x800_u64.to_le_bytes());
    let error = DebugInfo::parse(&bytes).map(drop).expect_err("a petabyte");
    assert!(matches!(error, DwarfError::Long { bytes, .. } if bytes == 1 << 50), "{error}");
}
