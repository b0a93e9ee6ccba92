//! Debug information that was damaged, or made to take long.

use std::fs;

use palimpsest_bpf::dwarf::{DebugInfo, DwarfError, HostTypes};

use super::damage::Random;
use super::{HOST, IN_C};

#[test]
fn damaged_debug_information_is_an_error_or_types() {
    let mut random = Random::new();
    let (mut right, mut wrong) = (0, 0);
    for good in [HOST, IN_C[0], IN_C[1]] {
        for round in 0..300 {
            let bytes = random.damaged(good, round, 12);
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

/// The types called `T` in a file, opened with a limit.
fn limited(file: &[u8], most: u64) -> Result<HostTypes, DwarfError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("host.so");
    fs::write(&path, file).expect("room");
    DebugInfo::open_within(&path, most)?.types(["T"])
}

/// Changes a field of four or eight bytes in the header of the first section.
fn set_first<const LEN: usize>(file: &mut [u8], field: usize, value: [u8; LEN]) {
    let headers = u64::from_le_bytes(file[40..48].try_into().expect("8 bytes")) as usize;
    file[headers + 64 + field..][..LEN].copy_from_slice(&value);
}

#[test]
fn what_has_more_parts_than_btf_can_say_is_not_read_to_its_end() {
    // Passed over without a look, and an error where it is read: a number of more than 64 bits.
    let broken = [[0xff; 11].as_slice(), &[0x7f]].concat();
    let number = |attribute: u8| [[attribute, 0x0f]];
    let abbreviations = [
        abbreviation(1, 0x11, HAS_CHILDREN, &[]),
        abbreviation(2, 0x17, HAS_CHILDREN, &[NAME_IN_PLACE, SIZE]),
        abbreviation(3, 0x0d, 0, &[]),
        abbreviation(4, 0x0d, 0, &number(0x0b)),
        abbreviation(5, 0x04, HAS_CHILDREN, &[NAME_IN_PLACE, SIZE]),
        abbreviation(6, 0x28, 0, &[[0x1c, 0x0b]]),
        abbreviation(7, 0x28, 0, &number(0x1c)),
        abbreviation(8, 0x16, 0, &[NAME_IN_PLACE, OF]),
        abbreviation(9, 0x01, HAS_CHILDREN, &[]),
        abbreviation(10, 0x21, 0, &[]),
        abbreviation(11, 0x21, 0, &number(0x37)),
        abbreviation(12, 0x33, HAS_CHILDREN, &[]),
        abbreviation(13, 0x19, HAS_CHILDREN, &[]),
        vec![0],
    ]
    .concat();
    // The array is at byte 19 of its unit.
    let array = [&[8, b'T', 0][..], &19_u32.to_le_bytes(), &[9]].concat();
    let cases: [(Vec<u8>, &[u8], &[u8]); 4] = [
        (vec![2, b'T', 0, 8], &[3], &[4]),
        (vec![2, b'T', 0, 8, 12], &[13, 3, 0], &[13, 4]),
        (vec![5, b'T', 0, 8], &[6, 1], &[7]),
        (array, &[10], &[11]),
    ];
    let is_refused = cases.map(|(start, part, last)| {
        let read = |parts| {
            let entries = [&[1], &start[..], &part.repeat(parts), last, &broken, &[0; 4]].concat();
            types(unit(&entries), abbreviations.clone(), Vec::new()).expect_err("its last part is broken")
        };
        let most = read(65_535);
        assert!(matches!(most, DwarfError::Damaged(_)), "{start:?}: {most}");
        matches!(read(65_536), DwarfError::Large { .. })
    });
    assert_eq!(is_refused, [true; 4]);
}

#[test]
fn what_is_kept_of_debug_information_has_a_limit() {
    let root = abbreviation(1, 0x11, 0, &[]);
    let units = file(&[(".debug_info", unit(&[1]).repeat(100)), (".debug_abbrev", [&root[..], &[0]].concat())]);
    let table: Vec<u8> = (1..=100).flat_map(|code| abbreviation(code, 0x11, 0, &[])).chain([0]).collect();
    let table = file(&[(".debug_info", unit(&[1])), (".debug_abbrev", table)]);
    // Two bytes in the table, and more in memory.
    let attributes = [abbreviation(1, 0x11, 0, &vec![[0x3c, 0x19]; 1000]), vec![0]].concat();
    let attributes = file(&[(".debug_info", unit(&[1])), (".debug_abbrev", attributes)]);
    let named =
        [abbreviation(1, 0x11, HAS_CHILDREN, &[]), abbreviation(2, 0x24, 0, &[NAME_IN_PLACE]), vec![0]].concat();
    let entries = [&[1], &[2, b'T', 0].repeat(500)[..], &[0]].concat();
    let named = file(&[(".debug_info", unit(&entries)), (".debug_abbrev", named)]);
    // 60 members of one byte each; and 150 types, each of which is the next one, of five bytes.
    let abbreviations = [
        abbreviation(1, 0x11, HAS_CHILDREN, &[]),
        abbreviation(2, 0x17, HAS_CHILDREN, &[NAME_IN_PLACE, SIZE]),
        abbreviation(3, 0x0d, 0, &[]),
        abbreviation(4, 0x16, 0, &[NAME_IN_PLACE, OF]),
        abbreviation(5, 0x26, 0, &[OF]),
        vec![0],
    ]
    .concat();
    let many = [&[1, 2, b'T', 0, 8], &[3; 60][..], &[0, 0]].concat();
    let many = file(&[(".debug_info", unit(&many)), (".debug_abbrev", abbreviations.clone())]);
    let of = |place: u32| place.to_le_bytes();
    let next = (1..=150).flat_map(|number| [&[5], &of(19 + 5 * number)[..]].concat());
    let entries: Vec<u8> = [1, 4, b'T', 0].into_iter().chain(of(19)).chain(next).chain([3, 0]).collect();
    let made = file(&[(".debug_info", unit(&entries)), (".debug_abbrev", abbreviations)]);
    let files = [
        ("units", units),
        ("table", table),
        ("attributes", attributes),
        ("named", named),
        ("made", made),
        ("many", many),
    ];
    let is_refused =
        |file: &[u8], most| matches!(limited(file, most), Err(DwarfError::Memory { most: told }) if told == most);
    let refused = |most| -> Vec<&str> {
        files.iter().filter(|(_, file)| is_refused(file, most)).map(|(what, _)| *what).collect()
    };
    assert_eq!(refused(1 << 20), [""; 0]);
    assert_eq!(refused(4096), ["units", "table", "attributes", "named", "made", "many"]);
}

#[test]
fn names_with_many_paths_are_not_compared_without_end() {
    let abbreviations =
        [abbreviation(1, 0x11, HAS_CHILDREN, &[]), abbreviation(2, 0x24, 0, &[NAME_IN_PLACE]), vec![0]].concat();
    let entries = [&[1], &[2, b'T', 0].repeat(500)[..], &[0]].concat();
    let file = file(&[(".debug_info", unit(&entries)), (".debug_abbrev", abbreviations)]);
    let debug = DebugInfo::parse(&file).expect("an ELF file");
    let types = |paths| debug.types((0..paths).map(|path| format!("a{path}::T")));
    assert_eq!(types(10).expect("few").missing().len(), 10);
    let error = types(1000).expect_err("half a million comparisons for 1500 bytes");
    assert!(matches!(error, DwarfError::Steps { .. }), "{error}");
}

#[test]
fn sections_count_with_as_many_bytes_as_they_have_in_the_file() {
    // Compressed by zlib: says that it has one byte, and has thousands.
    let claimed = [&1_u32.to_le_bytes()[..], &[0; 4], &1_u64.to_le_bytes(), &1_u64.to_le_bytes(), &[0; 8000]];
    let mut bytes = file(&[(".debug_info", claimed.concat())]);
    set_first(&mut bytes, 8, 0x800_u64.to_le_bytes());
    let error = limited(&bytes, 4096).expect_err("8000 bytes");
    assert!(matches!(error, DwarfError::Long { bytes: 8000, most: 4096 }), "{error}");
    // The note that may have the build id.
    let mut bytes = file(&[(".note", vec![0; 12 * 700])]);
    set_first(&mut bytes, 4, 7_u32.to_le_bytes());
    let error = limited(&bytes, 1 << 20).expect_err("no debug information");
    assert!(matches!(error, DwarfError::Absent { .. }), "{error}");
    let error = limited(&bytes, 4096).expect_err("8400 bytes");
    assert!(matches!(error, DwarfError::Memory { most: 4096 }), "{error}");
    assert!(error.to_string().contains("more than 4096 bytes of memory"), "{error}");
}

#[test]
fn sections_that_claim_to_be_longer_than_all_numbers_are_an_error() {
    let claimed = [&1_u32.to_le_bytes()[..], &[0; 4], &u64::MAX.to_le_bytes(), &1_u64.to_le_bytes(), &[0; 8]];
    // Behind one that has a byte.
    let mut bytes = file(&[(".debug_info", claimed.concat()), (".debug_str", vec![0])]);
    let headers = u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes")) as usize;
    set_first(&mut bytes, 8, 0x800_u64.to_le_bytes());
    let (first, second) = bytes[headers + 64..][..128].split_at_mut(64);
    first.swap_with_slice(second);
    let error = DebugInfo::parse(&bytes).map(drop).expect_err("more than there can be");
    assert!(matches!(error, DwarfError::Long { bytes: u64::MAX, .. }), "{error}");
}

#[test]
fn a_long_file_is_not_summed_to_see_whether_it_belongs_to_a_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("host.so");
    let link = [b"debug\0\0\0".as_slice(), &0_u32.to_le_bytes()].concat();
    fs::write(&program, file(&[(".gnu_debuglink", link)])).expect("room");
    fs::write(folder.path().join("debug"), [1; 8000]).expect("room");
    let opened = |most| DebugInfo::open_within(&program, most).map(drop).expect_err("it is another one's");
    let short = opened(8000);
    assert!(matches!(short, DwarfError::Absent { .. }), "{short}");
    let long = opened(7999);
    assert!(matches!(long, DwarfError::Long { bytes: 8000, most: 7999 }), "{long}");
}

/// A unit of a `.dwo` file, or one whose types are there: `attributes` are the rest of its root.
fn numbered(id: u64, attributes: &[u8]) -> Vec<u8> {
    unit(&[&[1][..], &id.to_le_bytes(), attributes].concat())
}

/// `DW_AT_GNU_dwo_id` with 8 bytes, and `DW_AT_GNU_dwo_name` and `DW_AT_comp_dir` in place.
const ID: [&[u8]; 2] = [&[0xb1, 0x42], &[0x07]];
const FILE: [&[u8]; 4] = [&[0xb0, 0x42], &[0x08], &[0x1b], &[0x08]];

/// A program whose units' types are in these files: number, name, folder.
fn skeletons(of: &[(u64, &str, &str)]) -> Vec<u8> {
    let info = of.iter().flat_map(|(id, file, folder)| numbered(*id, format!("{file}\0{folder}\0").as_bytes()));
    let abbreviations = [&[1, 0x11, 0][..], &ID.concat(), &FILE.concat(), &[0, 0, 0]].concat();
    file(&[(".debug_info", info.collect()), (".debug_abbrev", abbreviations)])
}

/// A `.dwo` file with units of these numbers, each of which has a type `T`; and so many bytes more.
fn split(ids: &[u64], more: usize) -> Vec<u8> {
    let info = ids.iter().flat_map(|id| numbered(*id, &[2, b'T', 0, 8, 0, 0]));
    let root = [&[1, 0x11, HAS_CHILDREN][..], &ID.concat(), &[0, 0]].concat();
    let abbreviations = [root, abbreviation(2, 0x13, HAS_CHILDREN, &[NAME_IN_PLACE, SIZE]), vec![0]].concat();
    let (info, texts) = (info.collect(), vec![0; more]);
    file(&[(".debug_info.dwo", info), (".debug_abbrev.dwo", abbreviations), (".debug_str.dwo", texts)])
}

/// The type `T` of a program in a folder with other files; `FOLDER` in the units stands for the folder.
fn apart(units: &[(u64, &str, &str)], files: &[(&str, Vec<u8>)], most: u64) -> Result<HostTypes, DwarfError> {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("in the folder")).expect("room");
        fs::write(path, bytes).expect("room");
    }
    let path = folder.path().join("host.so");
    let whole = folder.path().to_str().expect("a name");
    let named: Vec<_> = units.iter().map(|(id, file, at)| (*id, *file, at.replace("FOLDER", whole))).collect();
    let named: Vec<_> = named.iter().map(|(id, file, at)| (*id, *file, at.as_str())).collect();
    fs::write(&path, skeletons(&named)).expect("room");
    let types = DebugInfo::open_within(&path, most)?.types(["T"])?;
    assert_eq!(types.missing(), [""; 0]);
    Ok(types)
}

#[test]
fn a_dwo_file_with_many_units_is_read_once() {
    let units = [1, 2, 3, 4].map(|id| (id, "all.dwo", ""));
    apart(&units, &[("all.dwo", split(&[1, 2, 3, 4], 60_000))], 100_000).expect("it has 60 KB, not 240");
}

#[test]
fn dwo_files_that_are_read_in_vain_count() {
    // Each of these names is that of the same file, which has other units.
    let names = ["a.dwo", "./a.dwo", "././a.dwo", "./././a.dwo"].map(|name| (1, name, ""));
    let files = [("a.dwo", split(&[7], 60_000))];
    let error = apart(&names, &files, 1 << 20).expect_err("it is another build's");
    assert!(matches!(error, DwarfError::Split { .. }), "{error}");
    let error = apart(&names, &files, 100_000).expect_err("it is read only once");
    let DwarfError::Apart { source, .. } = error else { panic!("{error}") };
    assert!(matches!(*source, DwarfError::Long { .. }), "{source}");
    // So do lists of sections: also those of a file without any debug information.
    let files = [("a.dwo", file(&vec![("", Vec::new()); 1000]))];
    let error = apart(&names, &files, 1 << 20).expect_err("it is another one");
    assert!(matches!(error, DwarfError::Split { .. }), "{error}");
    let error = apart(&names, &files, 100_000).expect_err("it has 64 KB");
    let DwarfError::Apart { source, .. } = error else { panic!("{error}") };
    assert!(matches!(*source, DwarfError::Memory { .. }), "{source}");
}

#[test]
fn names_of_dwo_files_count() {
    // Each is a part of one long text.
    let info = (0..100_u32).flat_map(|at| numbered(at.into(), &at.to_le_bytes())).collect();
    let abbreviations = [&[1, 0x11, 0][..], &ID.concat(), &[0xb0, 0x42, 0x0e], &[0, 0, 0]].concat();
    let texts = [vec![b'x'; 4000], vec![0]].concat();
    let file = file(&[(".debug_info", info), (".debug_abbrev", abbreviations), (".debug_str", texts)]);
    let error = limited(&file, 1 << 20).expect_err("they are absent");
    assert!(matches!(error, DwarfError::Split { .. }), "{error}");
    let error = limited(&file, 1 << 18).expect_err("100 names of 4000 bytes");
    assert!(matches!(error, DwarfError::Memory { .. }), "{error}");
}

#[test]
fn a_wrong_file_does_not_hide_the_right_one() {
    let right = ("built/a.dwo", split(&[1], 0));
    let long = ("a.dwo", split(&[1], 1 << 20));
    for wrong in [("a.dwo", b"no ELF file".to_vec()), ("a.dwo", Vec::new()), long, ("host.so.dwp", Vec::new())] {
        let units = [(1, "a.dwo", "FOLDER/built")];
        apart(&units, &[right.clone(), wrong.clone()], 1 << 19).expect("the compiler's folder has it");
        // If there is no other, the error says what is wrong.
        let error = apart(&units, &[wrong], 1 << 19).map(drop).expect_err("it is not there");
        assert!(matches!(error, DwarfError::Apart { .. }), "{error}");
    }
}

#[test]
fn folders_that_are_not_whole_begin_at_the_program() {
    apart(&[(1, "b/a.dwo", "built")], &[("built/b/a.dwo", split(&[1], 0))], 1 << 20).expect("below the program");
    // The tests' own folder has one, too, which has another unit.
    let here = tempfile::Builder::new().prefix("dwarf").tempdir_in(".").expect("room");
    fs::write(here.path().join("a.dwo"), split(&[1], 0)).expect("room");
    let name = here.path().file_name().and_then(|name| name.to_str()).expect("a name");
    let error = apart(&[(1, "a.dwo", name)], &[], 1 << 20).expect_err("it is where the test runs");
    assert!(matches!(error, DwarfError::Split { .. }), "{error}");
}
