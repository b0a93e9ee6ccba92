//! The binary interface is the one on record, `abi.txt`: prototypes, callbacks, constants, and sizes and offsets, both
//! Rust's and those that a C compiler makes of the header. `PALIMPSEST_BLESS=1 cargo test -p palimpsest-paging-capi
//! --test abi` rewrites the record, unless that would break programs: see the same test of palimpsest-capi.

mod library;
#[path = "../../capi/tests/abi/record.rs"]
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use library::library;
use palimpsest_paging_capi::machine::{
    palimpsest_paging_flush, palimpsest_paging_machine, palimpsest_paging_meta, palimpsest_paging_range,
};
use palimpsest_paging_capi::pages::{palimpsest_paging_mapping, palimpsest_paging_resolution};
use palimpsest_paging_capi::result::palimpsest_paging_result;
use palimpsest_paging_capi::space::{palimpsest_paging_space, palimpsest_paging_stats};
use record::{Interface, broken, layouts};

const INTERFACE: Interface = Interface {
    folder: env!("CARGO_MANIFEST_DIR"),
    version: env!("CARGO_PKG_VERSION"),
    package: "palimpsest-paging-capi",
    header: "palimpsest_paging.h",
    result: "palimpsest_paging_result",
    beside: &[],
};

/// Returns Rust's layouts.
fn in_rust() -> BTreeMap<String, String> {
    let mut found = layouts! {
        palimpsest_paging_flush { space, ranges, count, tables, reserved }
        palimpsest_paging_machine {
            size, context, physical_offset, physical_end, allocate_table, free_table, meta, free_tables, flush,
            flush_here, entries_made, relax, page_retain, page_release, page_is_exclusive, page_copy, page_split,
            page_merge
        }
        palimpsest_paging_mapping { size, start, len, physical, attributes, marks }
        palimpsest_paging_range { start, end }
        palimpsest_paging_resolution { size, tables_copied, page_copied, page_reused, reserved }
        palimpsest_paging_stats { size, tables, pages, tables_allocated, tables_freed, flushes }
    };
    found.insert("enum palimpsest_paging_result".to_owned(), size_of::<palimpsest_paging_result>().to_string());
    // Their one field is private.
    for (name, size, align) in [
        ("palimpsest_paging_meta", size_of::<palimpsest_paging_meta>(), align_of::<palimpsest_paging_meta>()),
        ("palimpsest_paging_space", size_of::<palimpsest_paging_space>(), align_of::<palimpsest_paging_space>()),
    ] {
        found.insert(format!("struct {name}"), format!("{size} {align}"));
        found.insert(format!("field {name}.private_words"), format!("0 {size}"));
    }
    found
}

#[test]
fn the_interface_is_the_one_on_record() {
    INTERFACE.check(in_rust());
}

/// A callback with other arguments breaks kernels that have the old one.
#[test]
fn a_callback_that_changes_breaks_the_interface() {
    let record = fs::read_to_string(Path::new(INTERFACE.folder).join("abi.txt")).expect("there is a record");
    let lines = |text: &str| -> BTreeMap<String, String> {
        text.lines().filter_map(|line| line.split_once(": ")).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
    };
    assert_eq!(broken(&record, &lines(&record)), Vec::<String>::new());
    let changed = record.replace("(*free_table)(void *context, uint64_t table)", "(*free_table)(void *context)");
    assert_eq!(broken(&record, &lines(&changed)).len(), 1);
}

/// The library defines the functions of the record, and no other name of ours: a kernel links with nothing else.
#[test]
fn the_library_defines_what_the_record_names() {
    let record = fs::read_to_string(Path::new(INTERFACE.folder).join("abi.txt")).expect("there is a record");
    let names = record.lines().filter_map(|line| line.strip_prefix("function ")?.split_once(':'));
    // Types of callbacks are on record, too, and nobody links them.
    let recorded: BTreeSet<&str> =
        names.filter(|(_, words)| !words.contains("typedef")).map(|(name, _)| name).collect();
    let Ok(told) = Command::new("nm").args(["--defined-only", "--extern-only"]).arg(library()).output() else {
        println!("skipped: no program `nm`");
        return;
    };
    let told = String::from_utf8_lossy(&told.stdout);
    let names = told.lines().filter_map(|line| line.split_whitespace().nth(2));
    let defined: BTreeSet<&str> = names.filter(|name| name.starts_with("palimpsest")).collect();
    assert_eq!(defined, recorded);
}
