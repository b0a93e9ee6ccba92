//! Maps inside maps.

use palimpsest_bpf::map::NestError;

use super::*;

fn numbers(name: &str, entries: u32) -> Arc<Map> {
    Arc::new(Map::new(Definition::new(name, Kind::Array, 4, 8, entries)).expect("good measures"))
}

/// A hash and an array of arrays; the first has an array under 7, the second has one in place 1.
fn nested() -> HostBuilder {
    let outer = |name: &str, kind, key| {
        let inner = Some(Box::new(Definition::new("inner", Kind::Array, 4, 8, 1)));
        let map = Map::new(Definition { inner, ..Definition::new(name, kind, key, 4, 4) }).expect("good measures");
        Arc::new(map)
    };
    let (hash, array) = (outer("hash of maps", Kind::HashOfMaps, 8), outer("array of maps", Kind::ArrayOfMaps, 4));
    hash.maps().expect("it has maps").set(&7_u64.to_ne_bytes(), Some(numbers("a", 2))).expect("room");
    array.maps().expect("it has maps").set(&1_u32.to_ne_bytes(), Some(numbers("b", 4))).expect("room");
    builder().map(hash).map(array)
}

/// Adds 5 to the second value of the map that `outer` has under `key`, and returns it.
fn counts(outer: i32, key: &str) -> String {
    format!(
        "{key}\nr1 = map[idx:{outer}] ll\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto none\n\
         r1 = r0\n*(u32 *)(r10 - 12) = 1\nr2 = r10\nr2 += -12\ncall 1\nif r0 == 0 goto none\n\
         r1 = *(u64 *)(r0 + 0)\nr1 += 5\n*(u64 *)(r0 + 0) = r1\nr0 = r1\nexit\nnone: r0 = -1\nexit"
    )
}

const SEVEN: &str = "*(u64 *)(r10 - 8) = 7";
const ONE: &str = "*(u32 *)(r10 - 8) = 1";

#[test]
fn values_of_maps_in_maps_are_found() {
    assert_eq!(run_on(nested, &counts(8, SEVEN)), 5);
    assert_eq!(run_on(nested, &counts(9, ONE)), 5);
    assert_eq!(run_on(nested, &counts(8, "*(u64 *)(r10 - 8) = 8")), u64::MAX);
    for place in [0, 3, 4, -1] {
        assert_eq!(run_on(nested, &counts(9, &format!("*(u32 *)(r10 - 8) = {place}"))), u64::MAX);
    }
    // Other helpers take inner maps, too.
    let each = format!(
        "{SEVEN}\nr1 = map[idx:8] ll\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto none\nr1 = r0\nr2 = func[f] ll\n\
         *(u64 *)(r10 - 16) = 0\nr3 = r10\nr3 += -16\nr4 = 0\ncall 164\nexit\nnone: r0 = -1\nexit\n\
         f: r5 = *(u64 *)(r3 + 0)\nr5 += 1\n*(u64 *)(r3 + 0) = r5\nr0 = 0\nexit"
    );
    assert_eq!(run_on(nested, &each), 2);
}

#[test]
fn maps_in_maps_are_no_values() {
    let refused = |text: &str| nested().build().verify(contract(), code(text)).map(drop).expect_err(text).fault;
    let unchecked = counts(8, SEVEN).replacen("if r0 == 0 goto none\n", "", 1);
    assert_eq!(refused(&unchecked), Fault::NoMap { register: Register::R1 });
    let read = counts(8, SEVEN).replacen("r1 = r0\n", "r1 = *(u64 *)(r0 + 0)\n", 1);
    assert_eq!(refused(&read), Fault::NoAddress { register: Register::R0 });
    let returned = counts(8, SEVEN).replacen("r1 = r0\n", "exit\nr1 = r0\n", 1);
    assert_eq!(refused(&returned), Fault::ReturnedAddress);
    let outside = counts(8, SEVEN).replace("*(u64 *)(r0 + 0) = r1", "*(u64 *)(r0 + 8) = r1");
    assert_eq!(refused(&outside), Fault::Outside { what: "the value", min: 8, end: 16, len: 8 });
    // Programs add and remove no maps, and do not iterate over them.
    for (helper, kind) in [(2, Kind::HashOfMaps), (3, Kind::HashOfMaps)] {
        let text =
            format!("{SEVEN}\nr1 = map[idx:8] ll\nr2 = r10\nr2 += -8\nr3 = r2\nr4 = 0\ncall {helper}\nr0 = 0\nexit");
        assert_eq!(refused(&text), Fault::MapKind { register: Register::R1, kind });
    }
    // How far apart two maps are is nobody's business.
    let distance = counts(8, SEVEN).replace("r1 = *(u64 *)(r0 + 0)\n", "r1 = r0\nr1 -= r0\n");
    assert_eq!(refused(&distance), Fault::Address { register: Register::R1 });
    // Nor which of two is higher, or whether one is where the other is with a number added: asked often enough, that
    // tells the distance.
    let compared = |condition: &str| {
        let first = counts(8, SEVEN)
            .replace("r1 = *(u64 *)(r0 + 0)\nr1 += 5\n*(u64 *)(r0 + 0) = r1\nr0 = r1\nexit\n", "r6 = r0\n");
        let second = counts(9, ONE).replace("r1 = *(u64 *)(r0 + 0)\n", &format!("r6 += 8\nif {condition} goto none\n"));
        first.replace("none: r0 = -1\nexit", "") + &second
    };
    let both_inner = |condition| refused(&compared(condition).replace("map[idx:9]", "map[idx:8]"));
    for condition in ["r6 > r0", "r6 == r0", "r0 s< r6"] {
        assert!(matches!(both_inner(condition), Fault::Address { .. }), "{condition}");
    }
    let own = "*(u32 *)(r10 - 4) = 0\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto none\n\
               r1 = r0\nr1 += 8\nif r1 > r0 goto none\nnone: r0 = 0\nexit";
    assert!(nested().build().verify(contract(), code(own)).is_ok(), "it is one map");
    // What stands for inner maps cannot be named.
    assert_eq!(refused("r1 = map[idx:10] ll\nr0 = 0\nexit"), Fault::Map { index: 10 });
}

#[test]
fn maps_are_exchanged_under_programs() {
    let host = nested().build();
    let maps = host.map("hash of maps").and_then(|map| map.maps()).expect("it has maps");
    let key = 7_u64.to_ne_bytes();
    let linked = host.verify(contract(), code(&counts(8, SEVEN))).expect("harmless");
    let interpret = || linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect("it ends");
    let compiled = Target::NATIVE.map(|_| HostedProgram::load(&Packs::new().expect("packs"), &linked).expect("room"));
    let run = || compiled.as_ref().map_or_else(interpret, |program| program.run(&mut [0; LEN]).expect("it ends"));
    assert_eq!((run(), interpret()), (5, 10));
    let first = maps.get(&key).expect("it is there");
    let other = numbers("other", 9);
    maps.set(&key, Some(Arc::clone(&other))).expect("the same shape");
    assert_eq!((interpret(), run()), (5, 10));
    maps.set(&key, Some(first)).expect("it was there");
    assert_eq!(run(), 15);
    maps.set(&key, None).expect("it is there");
    assert_eq!((run(), interpret()), (u64::MAX, u64::MAX));
    // One that was put in is kept, since a program may be using it.
    let weak = Arc::downgrade(&other);
    drop(other);
    assert!(weak.upgrade().is_some());
    let wrong = Arc::new(Map::new(Definition::new("wrong", Kind::Array, 4, 16, 1)).expect("good measures"));
    assert!(matches!(maps.set(&key, Some(wrong)), Err(NestError::Shape { .. })));
    let read_only = Definition { access: ValueAccess::Read, ..Definition::new("read", Kind::Array, 4, 8, 1) };
    let read_only = Arc::new(Map::new(read_only).expect("good measures"));
    assert!(matches!(maps.set(&key, Some(read_only)), Err(NestError::Shape { .. })));
    assert!(matches!(maps.set(&[1], None), Err(NestError::Op(_))));
    // Each key has its own, however many were put in before.
    for round in 0..20_u64 {
        let map = numbers("one of many", 1);
        maps.set(&(round % 4 + 100).to_ne_bytes(), Some(Arc::clone(&map))).expect("room for four");
        for key in (0..4).filter(|key| *key <= round) {
            let found = maps.get(&(key + 100).to_ne_bytes()).expect("it is there");
            assert_eq!(Arc::ptr_eq(&found, &map), key == round % 4, "round {round}, key {key}");
        }
    }
    assert!(matches!(maps.set(&key, Some(numbers("a fifth", 1))), Err(NestError::Op(_))));
    // Maps in maps in maps, and maps that hold no values, are refused.
    for inner in [None, Some(Kind::HashOfMaps), Some(Kind::Programs), Some(Kind::RingBuffer)] {
        let inner = inner.map(|kind| Box::new(Definition::new("inner", kind, 4, 4, 4096)));
        let definition = Definition { inner, ..Definition::new("outer", Kind::HashOfMaps, 4, 4, 4) };
        assert!(Map::new(definition).is_err());
    }
}
