//! Attributes of maps: programs only read some, and objects share one by its name.
//!
//! Mutants that are caught, here and in `elf/attributes.rs`: a read-only map that is written, an attribute that is read
//! and dropped, a pinned map that is made, an old definition that reads the next one's words.

use palimpsest_bpf::elf::Pinning;
use palimpsest_bpf::map::{Definition, Map, MapError, Update, WhenFull};

use super::*;

/// A map of this name, made as the object wants it.
fn made(object: &Object, name: &str) -> Map {
    let source = object.maps().iter().find(|source| source.definition().name == name);
    source.unwrap_or_else(|| panic!("no map `{name}`")).make().expect("good measures")
}

#[test]
fn programs_only_read_maps_that_say_so() {
    for bytes in objects("attributes") {
        let object = Object::parse(&bytes).expect("an object");
        let shared = Arc::new(made(&object, "shared"));
        for way in WAYS {
            let host = object.host_sharing(&[Arc::clone(&shared)]).expect("it is given").build();
            for (name, number) in [("limits", 1000_u64), ("names", 100), ("first", 1)] {
                let map = host.map(name).expect("it is there");
                assert_eq!(map.definition().access, ValueAccess::Read, "{name}");
                map.update(&1_u32.to_ne_bytes(), &number.to_ne_bytes(), Update::Always).expect("the host may");
            }
            let jobs = host.map("jobs").expect("it is there");
            jobs.push(&10_u64.to_ne_bytes(), WhenFull::Refuse).expect("room");
            assert_eq!(run(way, &object, &host, "reads", &mut packet(1)), 1111, "{way:?}");
            for name in ["stores", "adds", "stores_inside", "updates", "deletes", "pushes", "pops", "each"] {
                let code = object.program(name).expect("it is there").code().expect("right");
                for unproven in [Unproven::Refuse, Unproven::Probe] {
                    let refused = host.verify(contract().unproven(unproven), code.clone()).map(drop);
                    let fault = refused.expect_err(name).fault;
                    assert_eq!(fault, Fault::ReadOnlyMap, "{name}, {unproven:?}");
                }
            }
        }
        // Each host's run was one more.
        let counts = HashHandle::<u32, u64>::new(shared).expect("its types");
        assert_eq!(counts.get(&1), Some(2));
    }
}

#[test]
fn a_bloom_filter_has_the_functions_of_map_extra() {
    for bytes in objects("attributes") {
        let object = Object::parse(&bytes).expect("an object");
        let definition = made(&object, "seen").definition().clone();
        assert_eq!((definition.kind, definition.functions), (Kind::BloomFilter, 3));
    }
}

#[test]
fn a_pinned_map_is_given() {
    for bytes in objects("attributes") {
        let object = Object::parse(&bytes).expect("an object");
        let pinned = object.maps().iter().filter(|source| source.pinning() == Pinning::ByName);
        assert_eq!(pinned.map(|source| source.definition().name.as_str()).collect::<Vec<_>>(), ["shared"]);
        for refused in [object.host(), object.host_within(1 << 20), object.host_sharing(&[])] {
            let name = "shared".to_string();
            assert_eq!(refused.map(drop), Err(MapError::Pinned { name }));
        }
        let wanted = made(&object, "shared").definition().clone();
        let unlike = [
            Definition { kind: Kind::Hash, ..wanted.clone() },
            Definition { key_len: 8, ..wanted.clone() },
            Definition { value_len: 16, ..wanted.clone() },
            Definition { max_entries: 17, ..wanted.clone() },
            Definition { access: ValueAccess::Read, ..wanted.clone() },
            Definition { timer: Some(0), value_len: 16, ..wanted.clone() },
        ];
        for given in unlike {
            let map = Arc::new(Map::new(given.clone()).expect("good measures"));
            let refused = object.host_sharing(&[map]).map(drop).expect_err("another map");
            let (given, wanted, name) = (Box::new(given), Box::new(wanted.clone()), "shared".to_string());
            assert_eq!(refused, MapError::Unlike { name, given, wanted });
        }
        let map = Arc::new(Map::new(Definition { max_entries: 17, ..wanted }).expect("good measures"));
        let message = object.host_sharing(&[map]).map(drop).expect_err("another map").to_string();
        let said = "map `shared`: LruHash of 17 with keys of 4 bytes, values of 8 was given for LruHash of 16 with \
                    keys of 4 bytes, values of 8; give one with the same kind, lengths, entries, access and parts";
        assert_eq!(message, said);
    }
}

#[test]
fn other_maps_may_be_given_and_keep_what_they_have() {
    for bytes in objects("attributes") {
        let object = Object::parse(&bytes).expect("an object");
        let given = ["shared", "outer", "names"].map(|name| Arc::new(made(&object, name)));
        let host = object.host_sharing(&given).expect("all fit").build();
        assert!(given.iter().all(|map| host.maps().iter().any(|found| Arc::ptr_eq(map, found))));
        // What the object begins with is for maps that it makes.
        assert!(given[1].maps().expect("a map of maps").get(&[0; 4]).is_none());
    }
    // Variables are the object's own.
    let object = Object::parse(&objects("count")[0]).expect("an object");
    let data = Arc::new(made(&object, ".data"));
    let host = object.host_sharing(&[Arc::clone(&data)]).expect("it is left alone").build();
    assert!(!host.maps().iter().any(|map| Arc::ptr_eq(map, &data)));
}
