//! Look-ups in arrays, which are made without a call if the map is known there.

use std::sync::Arc;

use palimpsest_bpf::host::{Host, HostBuilder};
use palimpsest_bpf::map::{Definition, Kind, Map, Update};
use palimpsest_bpf::verify::{Argument, MapUse, Signature};

use super::run_on;

/// Arrays of values whose lengths are and are not powers of 2, one per-CPU array for one CPU, and a hash map.
fn builder() -> HostBuilder {
    let mut builder = Host::builder();
    let map = |kind, len, count| {
        let definition = Definition { cpus: Some(1), ..Definition::new("map", kind, 4, len, count) };
        let map = Map::new(definition).expect("good measures");
        for key in 0..count.min(5000) {
            let mut value = vec![0; len as usize];
            value[0] = (key as u8).wrapping_add(1);
            value[len as usize - 1] = 100 - key as u8 % 100;
            map.update(&key.to_ne_bytes(), &value, Update::Always).expect("there is room");
        }
        Arc::new(map)
    };
    for (kind, len, count) in [
        (Kind::Array, 8, 1),
        (Kind::Array, 20, 3),
        (Kind::Array, 64, 5000),
        (Kind::Array, 3, 4096),
        (Kind::PerCpuArray, 8, 3),
        (Kind::Hash, 8, 3),
    ] {
        builder = builder.map(map(kind, len, count));
    }
    builder
}

const LENGTHS: [u32; 6] = [8, 20, 64, 3, 8, 8];

#[test]
fn the_value_with_the_number_is_found_and_no_other() {
    for (map, len) in LENGTHS.into_iter().enumerate() {
        for key in [0, 1, 2, 3, 4095, 4096, 4999, 5000, -1, i32::MIN] {
            run_on(
                builder,
                &format!(
                    "*(u64 *)(r10 - 8) = -1
                     *(u32 *)(r10 - 4) = {key}
                     r1 = map[idx:{map}] ll
                     r2 = r10
                     r2 += -4
                     call 1
                     if r0 == 0 goto none
                     r3 = *(u8 *)(r0 + 0)
                     r4 = *(u8 *)(r0 + {})
                     *(u8 *)(r0 + 0) = 7
                     r3 <<= 8
                     r0 = r3
                     r0 += r4
                     exit
               none: r0 = -1
                     exit",
                    len - 1
                ),
            );
        }
    }
}

#[test]
fn a_map_that_depends_on_the_way_is_the_right_one() {
    for which in [0, 1] {
        let text = format!(
            "r6 = r1
             *(u32 *)(r10 - 4) = 0
             r3 = {which}
             r1 = map[idx:0] ll
             r4 = *(u8 *)(r6 + 0)
             r4 &= 1
             r4 ^= r3
             if r4 == 0 goto one
             r1 = map[idx:2] ll
        one: r2 = r10
             r2 += -4
             call 1
             if r0 == 0 goto none
             r0 = *(u8 *)(r0 + 7)
             exit
       none: r0 = -1
             exit"
        );
        // The last byte of a value of 8 bytes, or one in the middle of a value of 64.
        assert_eq!(run_on(builder, &text), if which == 0 { 100 } else { 0 });
    }
}

#[test]
fn a_helper_that_replaces_linux_s_is_called() {
    let with_own = || {
        let signature = Signature::new([Argument::Map(MapUse::Find), Argument::Key]);
        builder().helper(1, signature, |_| Ok(77))
    };
    let text = "*(u32 *)(r10 - 4) = 0
                r1 = map[idx:0] ll
                r2 = r10
                r2 += -4
                call 1
                exit";
    assert_eq!(run_on(with_own, text), 77);
}
