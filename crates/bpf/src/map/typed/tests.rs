use alloc::sync::Arc;
use alloc::vec::Vec;

use super::super::{Update, Value, WhenFull};
use super::*;
use crate::map::Wake;

fn definition(kind: Kind, key_len: u32, value_len: u32, max_entries: u32) -> Definition {
    Definition { cpus: Some(3), ..Definition::new("m", kind, key_len, value_len, max_entries) }
}

fn map(kind: Kind, key_len: u32, value_len: u32, max_entries: u32) -> Arc<Map> {
    Arc::new(Map::new(definition(kind, key_len, value_len, max_entries)).expect("good measures"))
}

/// A map of each kind that has handles: keys of 4 bytes, in tries 8, and values of 8.
fn maps() -> Vec<Arc<Map>> {
    let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Programs);
    let map = |kind: Kind| {
        let (key, value, entries) = match kind {
            Kind::RingBuffer | Kind::UserRingBuffer => (0, 0, 4096),
            Kind::Queue | Kind::Stack | Kind::BloomFilter => (0, 8, 4),
            Kind::LpmTrie => (8, 8, 4),
            _ if kind.has_maps() => (4, 4, 4),
            _ => (4, 8, 4),
        };
        let inner = kind.has_maps().then(|| Box::new(definition(Kind::Array, 4, 8, 2)));
        Arc::new(Map::new(Definition { inner, ..definition(kind, key, value, entries) }).expect("good measures"))
    };
    kinds.map(map).collect()
}

/// Fails on: a handle that takes another kind.
#[test]
fn each_kind_has_one_handle() {
    type Fits = fn(&Definition) -> Result<(), TypeError>;
    let handles: [Fits; 9] = [
        ArrayHandle::<u64>::fits,
        HashHandle::<u32, u64>::fits,
        PerCpuArrayHandle::<u64>::fits,
        PerCpuHashHandle::<u32, u64>::fits,
        TrieHandle::<[u8; 4], u64>::fits,
        QueueHandle::<u64>::fits,
        BloomHandle::<u64>::fits,
        RingHandle::<u64>::fits,
        UserRingHandle::<u64>::fits,
    ];
    for map in maps() {
        let kind = map.definition().kind;
        let wrong = Err(TypeError::Kind { kind });
        let fitting = handles.iter().map(|fits| fits(map.definition())).filter(|result| *result != wrong);
        let nested = MapsHandle::<u32, ArrayHandle<u64>>::fits(map.definition());
        assert_eq!(nested == wrong, !kind.has_maps(), "{kind:?}");
        assert_eq!(fitting.collect::<Vec<_>>(), if kind.has_maps() { alloc::vec![] } else { alloc::vec![Ok(())] });
    }
}

#[test]
fn lengths_are_compared() {
    let length = |what, len, given| Some(TypeError::Length { what, len, given });
    assert_eq!(HashHandle::<u64, u64>::new(map(Kind::Hash, 4, 8, 1)).err(), length("keys", 4, 8));
    assert_eq!(HashHandle::<u32, u32>::new(map(Kind::Hash, 4, 8, 1)).err(), length("values", 8, 4));
    assert_eq!(PerCpuArrayHandle::<u32>::new(map(Kind::PerCpuArray, 4, 8, 1)).err(), length("values", 8, 4));
    assert_eq!(TrieHandle::<[u8; 16], u64>::new(map(Kind::LpmTrie, 8, 8, 1)).err(), length("keys", 8, 20));
    assert_eq!(BloomHandle::<u32>::new(map(Kind::BloomFilter, 0, 8, 1)).err(), length("values", 8, 4));
}

#[test]
fn each_cpu_has_a_value() {
    let array = PerCpuArrayHandle::<u64>::new(map(Kind::PerCpuArray, 4, 8, 2)).expect("its type");
    array.set(1, &5).expect("there");
    let two = 1_u32.to_ne_bytes();
    array.map().update_here(&two, Value::Near(&7_u64.to_ne_bytes()), Update::Always, 2).expect("there");
    assert_eq!([0, 1, 2, 3].map(|cpu| array.get(1, cpu)), [Some(5), Some(5), Some(7), None]);
    assert_eq!(
        (array.fold(1, 0, |sum, value| sum + value), array.fold(2, 0, |sum, value| sum + value)),
        (Some(17), None)
    );
    for kind in [Kind::PerCpuHash, Kind::LruPerCpuHash] {
        let hash = PerCpuHashHandle::<u32, u64>::new(map(kind, 4, 8, 2)).expect("its types");
        assert_eq!(hash.fold(&9, 0, |sum, value| sum + value), None);
        hash.set(&9, &4, Update::Insert).expect("room");
        assert_eq!((hash.get(&9, 2), hash.get(&9, 3), hash.keys()), (Some(4), None, alloc::vec![9]));
        assert_eq!(hash.fold(&9, 0, |sum, value| sum + value), Some(12));
        hash.remove(&9).expect("there");
        assert_eq!(hash.get(&9, 0), None);
    }
}

#[test]
fn addresses_have_prefixes() {
    let trie = TrieHandle::<[u8; 4], u64>::new(map(Kind::LpmTrie, 8, 8, 8)).expect("its types");
    let prefix = |bits, data| Prefix { bits, data };
    for (bits, data, value) in [(8, [10, 9, 9, 9], 1), (20, [10, 1, 0x70, 0], 2), (32, [10, 1, 0x70, 5], 3)] {
        trie.set(&prefix(bits, data), &value, Update::Insert).expect("room");
    }
    let found = [[10, 1, 0x70, 5], [10, 1, 0x7f, 5], [10, 2, 0, 0], [11, 0, 0, 0]].map(|data| trie.get(&data));
    assert_eq!(found, [Some(3), Some(2), Some(1), None]);
    assert_eq!(trie.get_within(&prefix(19, [10, 1, 0x70, 5])), Some(1));
    assert_eq!(trie.set(&prefix(33, [0; 4]), &1, Update::Always), Err(OpError::Prefix { most: 32 }));
    trie.remove(&prefix(20, [10, 1, 0x7f, 0xff])).expect("the same bits");
    assert_eq!(trie.remove(&prefix(21, [10, 1, 0x70, 0])), Err(OpError::NotFound));
    let mut left = trie.prefixes();
    left.sort_by_key(|prefix| prefix.bits);
    assert_eq!(left, [prefix(8, [10, 0, 0, 0]), prefix(32, [10, 1, 0x70, 5])]);
}

#[test]
fn a_filter_has_what_was_put_in() {
    let filter = BloomHandle::<u64>::new(map(Kind::BloomFilter, 0, 8, 64)).expect("its type");
    (0..8).for_each(|number| filter.insert(&number));
    assert!((0..8).all(|number| filter.may_contain(&number)));
    assert!((8..1000).any(|number| !filter.may_contain(&number)));
}

#[test]
fn queues_are_looked_at() {
    let queue = QueueHandle::<u64>::new(map(Kind::Queue, 0, 8, 4)).expect("its type");
    assert_eq!(queue.peek(), None);
    [4, 5].iter().for_each(|value| queue.push(value, WhenFull::Refuse).expect("room"));
    assert_eq!([queue.peek(), queue.pop(), queue.pop(), queue.pop()], [Some(4), Some(4), Some(5), None]);
}

/// Fails on: a record of another length that is left out, or whose length is told wrongly.
#[test]
fn records_of_another_length_are_told() {
    let ring = RingHandle::<u64>::new(map(Kind::RingBuffer, 0, 0, 4096)).expect("its kind");
    assert!(ring.output(&4, Wake::Never));
    for bytes in [&b"short"[..], b"a record that is longer", b""] {
        assert!(ring.map().ring().expect("one").output(bytes, Wake::Never));
    }
    assert!(ring.output(&5, Wake::Never));
    let mut consumer = ring.take_consumer().expect("the only one");
    assert!(ring.take_consumer().is_none());
    let mut seen = Vec::new();
    assert_eq!(consumer.drain(|record| seen.push(record)), 5);
    let other = |len| Err(RecordLength { len, wanted: 8 });
    assert_eq!(seen, [Ok(4), other(5), other(23), other(0), Ok(5)]);
}

#[test]
fn samples_are_sent_until_there_is_no_room() {
    let ring = UserRingHandle::<[u64; 255]>::new(map(Kind::UserRingBuffer, 0, 0, 4096)).expect("its kind");
    let mut producer = ring.take_producer().expect("the only one");
    assert!(ring.take_producer().is_none());
    producer.send(&[7; 255]).expect("room");
    producer.send(&[8; 255]).expect("room");
    assert_eq!((producer.pending(), producer.send(&[9; 255]).is_err()), (4096, true));
}

/// Fails on: inner maps that are not compared with the inner handle.
#[test]
fn maps_have_maps_of_their_type() {
    type Inner = ArrayHandle<u64>;
    let inner = |value_len| definition(Kind::Array, 4, value_len, 2);
    let outer = |kind| {
        let definition = Definition { inner: Some(Box::new(inner(8))), ..definition(kind, 4, 4, 2) };
        Arc::new(Map::new(definition).expect("good measures"))
    };
    for kind in [Kind::ArrayOfMaps, Kind::HashOfMaps] {
        let maps = MapsHandle::<u32, Inner>::new(outer(kind)).expect("its types");
        let first = Inner::new(Arc::new(Map::new(inner(8)).expect("good measures"))).expect("its type");
        first.set(1, &42).expect("there");
        assert!(maps.get(&1).is_none());
        maps.set(&1, &first).expect("its shape");
        assert_eq!(maps.get(&1).and_then(|map| map.get(1)), Some(42));
        maps.remove(&1).expect("there");
        assert!(maps.get(&1).is_none());
        let wrong = TypeError::Length { what: "values", len: 8, given: 4 };
        let other = MapsHandle::<u32, ArrayHandle<u32>>::new(outer(kind)).err();
        assert_eq!(other, Some(TypeError::Inner(Box::new(wrong))));
        let other = MapsHandle::<u64, Inner>::new(outer(kind)).err();
        assert_eq!(other, Some(TypeError::Length { what: "keys", len: 4, given: 8 }));
    }
}
