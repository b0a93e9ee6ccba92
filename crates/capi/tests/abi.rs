//! The binary interface is the one on record, `abi.txt`: prototypes, constants, and sizes and offsets, both Rust's and
//! those that a C compiler makes of the header.
//!
//! `PALIMPSEST_BLESS=1 cargo test -p palimpsest-capi --test abi` rewrites the record. It refuses to change or drop a
//! line unless the crate's version stands for another interface (the minor version, while the major one is 0): programs
//! compiled against the record go on working. Fields may be added at the end of structures that begin with their
//! `size`.

#[path = "abi/record.rs"]
mod record;

use std::collections::BTreeMap;

use palimpsest_capi::allocations::{
    palimpsest_alloc, palimpsest_alloc_found, palimpsest_alloc_part, palimpsest_alloc_place, palimpsest_alloc_places,
    palimpsest_alloc_range, palimpsest_alloc_request, palimpsest_function,
};
use palimpsest_capi::arena::Stats as palimpsest_arena_stats;
use palimpsest_capi::data::{palimpsest_data, palimpsest_staged_data};
use palimpsest_capi::freeze::{palimpsest_fork_status, palimpsest_freeze_options, palimpsest_freeze_report};
use palimpsest_capi::keys::palimpsest_key;
use palimpsest_capi::lines::palimpsest_line;
use palimpsest_capi::packs::{palimpsest_found, palimpsest_packs, palimpsest_packs_options, palimpsest_packs_stats};
use palimpsest_capi::poke::{palimpsest_applied, palimpsest_site};
use palimpsest_capi::programs::{palimpsest_fault, palimpsest_program, palimpsest_staged};
use palimpsest_capi::reports::palimpsest_report_range;
use palimpsest_capi::result::palimpsest_result;
use palimpsest_capi::slices::palimpsest_freeze_progress;
use palimpsest_capi::snapshots::{
    palimpsest_not_taken, palimpsest_range, palimpsest_restored, palimpsest_snapshot, palimpsest_snapshot_extent,
    palimpsest_snapshot_options,
};

use record::{Interface, broken, layouts};

const INTERFACE: Interface = Interface {
    folder: env!("CARGO_MANIFEST_DIR"),
    version: env!("CARGO_PKG_VERSION"),
    package: "palimpsest-capi",
    header: "palimpsest.h",
    result: "palimpsest_result",
    beside: &["palimpsest_key"],
};

/// Returns Rust's layouts.
fn in_rust() -> BTreeMap<String, String> {
    let mut found = layouts! {
        palimpsest_alloc { handle }
        palimpsest_alloc_found { size, part, state, code, read_only, read_write }
        palimpsest_alloc_part { len, align }
        palimpsest_alloc_place { address, len, working }
        palimpsest_alloc_places { size, code, read_only, read_write }
        palimpsest_alloc_range { start, len }
        palimpsest_alloc_request { size, code, read_only, read_write, in_place, reserved }
        palimpsest_applied { size, sites, syncs, mode, reserved }
        palimpsest_arena_stats {
            size, blocks, bytes, shared, frozen, anonymous, free, segments, refused, reserved, longest_free, freezes,
            unsealed, aside
        }
        palimpsest_data { handle }
        palimpsest_fault { offset, landing }
        palimpsest_fork_status {
            size, frozen, extents, hot_pieces, forks, repairs, debt_ns, clean_ns, price_ns
        }
        palimpsest_found { size, start, len, landing, name }
        palimpsest_freeze_options {
            size, least, answers, pays_within, stop_threads, collapse, no_measure, reserved, pause_ns, extent, gather,
            deputy
        }
        palimpsest_freeze_progress {
            size, planned, frozen, gathered, slices, longest_ns, taken_ns, looked_ns, stage, reserved,
            beside_ns
        }
        palimpsest_freeze_report {
            size, frozen, skipped, taken_ns, fork_before_ns, fork_after_ns, pays_after, verdict, is_stopped,
            ranges, extent, extents, collapsed, gathered, peak_extra, once_ns, per_fork_ns, left_once_ns,
            left_per_fork_ns, basis, reserved
        }
        palimpsest_function { name, offset, len }
        palimpsest_line { file, offset, line, column, reserved }
        palimpsest_not_taken { size, start, len, reason }
        palimpsest_packs { handle }
        palimpsest_packs_options {
            size, region_len, near, reclaim_bytes, backing, write_view, fork, observers
        }
        palimpsest_packs_stats {
            size, backing, write_view, packs, programs, used_bytes, reserved_bytes, retired_bytes, largest_free_run,
            mappings, loads, frees, core_syncs, observer_errors, pinned_threads
        }
        palimpsest_program { handle }
        palimpsest_range { start, len }
        palimpsest_report_range { size, start, len, bytes, skip, lost_name }
        palimpsest_restored {
            size, pages, copied_pages, unmapped, remade, protected_bytes, closed, reopened, lost, is_swept, reserved
        }
        palimpsest_site { program, address, old_code, new_code, len }
        palimpsest_snapshot { handle }
        palimpsest_snapshot_extent { size, addresses, saved, not_taken }
        palimpsest_snapshot_options {
            size, ranges, range_count, except, except_count, resident, sweep, sweep_every, trust_layout, others_sleep,
            restore_descriptors, reserved
        }
        palimpsest_staged { handle }
        palimpsest_staged_data { handle }
    };
    found.insert("enum palimpsest_result".to_owned(), size_of::<palimpsest_result>().to_string());
    // Its fields are private.
    let (size, align) = (size_of::<palimpsest_key>(), align_of::<palimpsest_key>());
    found.insert("struct palimpsest_key".to_owned(), format!("{size} {align}"));
    found
}

#[test]
fn the_interface_is_the_one_on_record() {
    INTERFACE.check(in_rust());
}

#[test]
fn what_is_gone_or_moved_breaks_the_interface_and_what_grows_does_not() {
    let lines = |text: &str| -> BTreeMap<String, String> {
        text.lines().filter_map(|line| line.split_once(": ")).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
    };
    let record = "interface 0.1\nfield a.size: 0 8\nfield a.b: 8 8\nfunction f: int f(void)\nstruct a: 16 8\n";
    let with = |from: &str, to: &str| broken(record, &lines(&record.replace(from, to))).len();
    assert_eq!(with("nothing", ""), 0);
    assert_eq!(with("struct a: 16 8", "field a.c: 16 8\nstruct a: 24 8"), 0);
    assert_eq!(with("a.b: 8 8", "a.b: 16 8"), 1);
    assert_eq!(with("field a.b: 8 8\n", ""), 1);
    assert_eq!(with("int f(void)", "int f(int)"), 1);
    assert_eq!(with("struct a: 16 8", "struct a: 8 8"), 1);
    // One that does not give its length must stay as it is.
    assert_eq!(with("field a.size: 0 8\nfield a.b: 8 8", "field a.b: 8 8"), 1);
    assert_eq!(with("struct a: 16 8", "struct a: 24 16"), 1);
}
