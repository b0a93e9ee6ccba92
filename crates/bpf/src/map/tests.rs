use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn map(kind: Kind, key_len: u32, value_len: u32, max_entries: u32) -> Map {
    let definition = Definition { cpus: Some(2), ..Definition::new("m", kind, key_len, value_len, max_entries) };
    Map::new(definition).expect("good measures")
}

fn get(map: &Map, key: &[u8]) -> Result<u64, OpError> {
    let mut value = [0; 8];
    map.read(key, 0, &mut value).map(|()| u64::from_ne_bytes(value))
}

fn set(map: &Map, key: &[u8], value: u64, update: Update) -> Result<(), OpError> {
    map.update(key, &value.to_ne_bytes(), update)
}

#[test]
fn arrays_have_all_their_elements() {
    let array = map(Kind::Array, 4, 8, 3);
    let key = |index: u32| index.to_ne_bytes();
    assert_eq!(get(&array, &key(2)), Ok(0));
    assert_eq!(set(&array, &key(2), 7, Update::Always), Ok(()));
    assert_eq!(get(&array, &key(2)), Ok(7));
    assert_eq!(get(&array, &key(3)), Err(OpError::NotFound));
    assert_eq!(set(&array, &key(3), 7, Update::Always), Err(OpError::Full));
    assert_eq!(set(&array, &key(1), 7, Update::Insert), Err(OpError::Exists));
    assert_eq!(array.remove(&key(1)), Err(OpError::Unsupported { kind: Kind::Array }));
    assert_eq!(get(&array, &[0; 3]), Err(OpError::Length { len: 4, given: 3 }));
    assert_eq!(array.address_of(&key(3), 0), None);
    assert_eq!(array.address_of(&key(1), 0).map(|address| address - array.first_value().expect("an array")), Some(8));
    assert_eq!(array.keys(), [0, 1, 2].map(|index| Vec::from(key(index))));
}

#[test]
fn odd_values_keep_their_bytes() {
    let array = map(Kind::Array, 4, 13, 2);
    let value: Vec<u8> = (1..14).collect();
    array.update(&[0; 4], &value, Update::Always).expect("there");
    let mut read = [0; 13];
    array.read(&[0; 4], 0, &mut read).expect("there");
    assert_eq!(read[..], value);
    array.read(&1_u32.to_ne_bytes(), 0, &mut read).expect("there");
    assert_eq!(read, [0; 13]);
}

#[test]
fn cpus_have_values_of_their_own() {
    for kind in [Kind::PerCpuArray, Kind::PerCpuHash, Kind::LruPerCpuHash] {
        let map = map(kind, 4, 8, 4);
        let key = [0; 4];
        map.update(&key, &5_u64.to_ne_bytes(), Update::Always).expect("room");
        map.update_here(&key, Value::Near(&6_u64.to_ne_bytes()), Update::Always, 1).expect("there");
        let values = [0, 1].map(|cpu| {
            let mut value = [0; 8];
            map.read(&key, cpu, &mut value).expect("there");
            u64::from_ne_bytes(value)
        });
        assert_eq!(values, [5, 6], "{kind:?}");
    }
}

/// Fails on: a CPU above their number whose program works on another value than the host reads for it.
#[test]
fn a_cpu_above_their_number_has_the_same_value_for_all() {
    for kind in [Kind::PerCpuArray, Kind::PerCpuHash, Kind::LruPerCpuHash] {
        let map = map(kind, 4, 8, 4);
        let key = [0; 4];
        map.update(&key, &5_u64.to_ne_bytes(), Update::Always).expect("room");
        for cpu in [0, 1, 2, 5, 6, u32::MAX] {
            let value = u64::from(cpu) + 100;
            let share = map.share_of(|| cpu);
            map.update_here(&key, Value::Near(&value.to_ne_bytes()), Update::Always, share).expect("there");
            let mut read = [0; 8];
            map.read(&key, cpu, &mut read).expect("there");
            assert_eq!(u64::from_ne_bytes(read), value, "{kind:?} {cpu}");
        }
    }
}

#[test]
fn hash_maps_do_what_the_flags_say() {
    let hash = map(Kind::Hash, 5, 8, 3);
    let key = |number: u8| [number, 0, 0, 0, 9];
    assert_eq!(get(&hash, &key(1)), Err(OpError::NotFound));
    assert_eq!(set(&hash, &key(1), 1, Update::Replace), Err(OpError::NotFound));
    assert_eq!(set(&hash, &key(1), 1, Update::Insert), Ok(()));
    assert_eq!(set(&hash, &key(1), 2, Update::Insert), Err(OpError::Exists));
    assert_eq!(set(&hash, &key(1), 2, Update::Replace), Ok(()));
    assert_eq!(get(&hash, &key(1)), Ok(2));
    assert_eq!(set(&hash, &key(2), 1, Update::Always), Ok(()));
    assert_eq!(set(&hash, &key(3), 1, Update::Always), Ok(()));
    assert_eq!(set(&hash, &key(4), 1, Update::Always), Err(OpError::Full));
    // Existing keys can be written although the map is full.
    assert_eq!(set(&hash, &key(3), 9, Update::Always), Ok(()));
    assert_eq!(hash.remove(&key(2)), Ok(()));
    assert_eq!(hash.remove(&key(2)), Err(OpError::NotFound));
    assert_eq!(set(&hash, &key(4), 4, Update::Always), Ok(()));
    let mut keys = hash.keys();
    keys.sort_unstable();
    assert_eq!(keys, [1, 3, 4].map(|number| Vec::from(key(number))));
    assert_eq!(hash.address_of(&key(2), 0), None);
    assert!(hash.address_of(&key(4), 0).is_some());
}

#[test]
fn what_nobody_uses_makes_room() {
    let lru = map(Kind::LruHash, 4, 8, 8);
    let key = |number: u32| number.to_ne_bytes();
    for number in 0..1000 {
        assert_eq!(set(&lru, &key(number), number.into(), Update::Always), Ok(()));
        // One that is used all the time.
        assert_eq!(get(&lru, &key(0)), Ok(0), "after {number}");
    }
    assert_eq!(lru.keys().len(), 8);
    assert_eq!(get(&lru, &key(999)), Ok(999));
    assert_eq!(get(&lru, &key(500)), Err(OpError::NotFound));
}

#[test]
fn the_longest_prefix_is_found() {
    let trie = map(Kind::LpmTrie, 8, 8, 16);
    let key = |bits: u32, address: [u8; 4]| {
        let mut key = Vec::from(bits.to_ne_bytes());
        key.extend(address);
        key
    };
    for (bits, address, value) in
        [(8, [10, 9, 9, 9], 1), (16, [10, 1, 0, 0], 2), (20, [10, 1, 0x70, 0], 3), (32, [10, 1, 0x70, 5], 4)]
    {
        assert_eq!(set(&trie, &key(bits, address), value, Update::Always), Ok(()));
    }
    assert_eq!(get(&trie, &key(32, [10, 1, 0x70, 5])), Ok(4));
    assert_eq!(get(&trie, &key(32, [10, 1, 0x7f, 5])), Ok(3));
    assert_eq!(get(&trie, &key(32, [10, 1, 0x80, 5])), Ok(2));
    assert_eq!(get(&trie, &key(32, [10, 2, 0, 0])), Ok(1));
    assert_eq!(get(&trie, &key(16, [10, 1, 0x70, 5])), Ok(2));
    assert_eq!(get(&trie, &key(32, [11, 0, 0, 0])), Err(OpError::NotFound));
    assert_eq!(get(&trie, &key(33, [10, 0, 0, 0])), Err(OpError::NotFound));
    assert_eq!(set(&trie, &key(33, [10, 0, 0, 0]), 1, Update::Always), Err(OpError::Prefix { most: 32 }));
    assert_eq!(trie.remove(&key(33, [10, 0, 0, 0])), Err(OpError::Prefix { most: 32 }));
    assert_eq!(trie.remove(&key(20, [10, 1, 0x7f, 1])), Ok(()));
    assert_eq!(get(&trie, &key(32, [10, 1, 0x7f, 5])), Ok(2));
    assert_eq!(trie.remove(&key(20, [10, 1, 0x70, 0])), Err(OpError::NotFound));
    assert_eq!(set(&trie, &key(0, [1, 2, 3, 4]), 7, Update::Always), Ok(()));
    assert_eq!(get(&trie, &key(32, [11, 0, 0, 0])), Ok(7));
    let full = (0..16).find_map(|last| set(&trie, &key(32, [12, 0, 0, last]), 1, Update::Always).err());
    // `ENOSPC`, where other maps say `E2BIG`.
    assert_eq!(full.map(|error| (error, error.errno())), Some((OpError::NoSpace, 28)));
}

#[test]
fn queues_and_stacks_have_their_order() {
    for (kind, order) in [(Kind::Queue, [1, 2, 3]), (Kind::Stack, [3, 2, 1])] {
        let queue = QueueHandle::<u64>::new(Arc::new(map(kind, 0, 8, 3))).expect("its types");
        assert_eq!(queue.pop(), None);
        for round in 0..3 {
            for value in 1..=3_u64 {
                assert_eq!(queue.push(&value, WhenFull::Refuse), Ok(()), "{kind:?}, {round}");
            }
            assert_eq!(queue.push(&4, WhenFull::Refuse), Err(OpError::Full));
            let mut peeked = [0; 8];
            queue.map().peek(&mut peeked).expect("there is something");
            assert_eq!(u64::from_ne_bytes(peeked), order[0]);
            assert_eq!([queue.pop(), queue.pop(), queue.pop()], order.map(Some), "{kind:?}, {round}");
        }
        for value in 1..=5 {
            queue.push(&value, WhenFull::DropOldest).expect("it makes room");
        }
        let mut left = [queue.pop(), queue.pop(), queue.pop()];
        left.sort_unstable();
        assert_eq!((left, queue.pop()), ([Some(3), Some(4), Some(5)], None));
    }
}

#[test]
fn bloom_filters_forget_nothing() {
    let bloom = map(Kind::BloomFilter, 0, 4, 500);
    let may_have = |value: u32| bloom.peek(&mut value.to_ne_bytes()).is_ok();
    for value in 0..500_u32 {
        bloom.push(&value.to_ne_bytes(), WhenFull::Refuse).expect("always");
    }
    assert!((0..500).all(may_have));
    let dropping = bloom.push(&500_u32.to_ne_bytes(), WhenFull::DropOldest);
    assert_eq!(dropping.map_err(OpError::errno), Err(22));
    let wrong = (1000..11_000).filter(|value| may_have(*value)).count();
    assert!(wrong < 1000, "{wrong} of 10000 are taken for such that were put in");
}

#[test]
fn records_come_in_order_and_room_is_used_again() {
    let map = map(Kind::RingBuffer, 0, 0, 4096);
    let ring = map.ring().expect("it is one");
    let mut consumer = ring.take_consumer().expect("the first");
    assert!(ring.take_consumer().is_none());
    let mut random = 1_u64;
    let mut seen = Vec::new();
    let mut expected = Vec::new();
    for number in 0..20_000_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let len = (random >> 40) as usize % 300;
        let record: Vec<u8> = (0..len).map(|byte| (byte as u64 ^ number) as u8 | 1).collect();
        if ring.output(&record, Wake::Never) {
            expected.push(record);
        } else {
            consumer.drain(|record| seen.push(Vec::from(record)));
        }
        // Room that is taken, and given up.
        if number % 7 == 0
            && let Some(record) = ring.reserve(len as u64)
        {
            ring.finish(record, Fate::Discard, Wake::Never);
        }
    }
    consumer.drain(|record| seen.push(Vec::from(record)));
    // Not `assert_eq`, which would print all of it.
    assert!(seen == expected, "{} of {} records", seen.len(), expected.len());
    assert!(ring.dropped() > 100 && ring.pending() == 0);
    assert_eq!(ring.reserve(4096), None);
    assert_eq!(ring.reserve(u64::MAX), None);
    // What lies behind the ring is something else's, and no record has its address, not even one without bytes.
    let end = cells::address(ring.words()) + 8192 + 4096;
    for _ in 0..1000 {
        let record = ring.reserve(0).expect("room");
        assert!(record < end);
        let last = || ring.words().last().map(|word| word.load(Ordering::Relaxed));
        let before = last();
        ring.finish(end, Fate::Discard, Wake::Never);
        assert_eq!(last(), before);
        assert_eq!(consumer.drain(|_| ()), 0, "it is being written");
        ring.finish(record, Fate::Submit, Wake::Never);
        assert_eq!(consumer.drain(|bytes| assert!(bytes.is_empty())), 1);
    }
    // An address that is not a record's.
    ring.finish(0, Fate::Submit, Wake::Always);
    ring.finish(u64::MAX, Fate::Submit, Wake::Always);
}

#[test]
fn a_record_that_is_not_finished_holds_back_later_ones() {
    let woken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&woken);
    let map = map(Kind::RingBuffer, 0, 0, 4096).waking(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let ring = map.ring().expect("it is one");
    let mut consumer = ring.take_consumer().expect("the first");
    let first = ring.reserve(8).expect("room");
    assert!(ring.output(&[2; 8], Wake::IfWaiting));
    assert_eq!(woken.load(Ordering::Relaxed), 0, "it waits for the first");
    assert_eq!(consumer.drain(|_| panic!("the first is not finished")), 0);
    ring.finish(first, Fate::Submit, Wake::IfWaiting);
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    let mut records = Vec::new();
    assert_eq!(consumer.drain(|record| records.push(record[0])), 2);
    assert_eq!(records, [0, 2]);
    assert!(ring.output(&[3], Wake::Never) && ring.output(&[3], Wake::Always));
    assert_eq!(woken.load(Ordering::Relaxed), 2);
}

#[test]
fn whoever_maps_a_ring_breaks_nothing_else() {
    let map = map(Kind::RingBuffer, 0, 0, 4096);
    let ring = map.ring().expect("it is one");
    let mut consumer = ring.take_consumer().expect("the first");
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..20_000 {
        let word = next() as usize % ring.words().len();
        let place = [0, 512, word][next() as usize % 3];
        ring.words()[place].store(next() >> (next() % 64), Ordering::Relaxed);
        if let Some(record) = ring.reserve(next() % 64) {
            ring.finish(record, Fate::Submit, Wake::IfWaiting);
        }
        // It may go on for ever, or nearly so: a few records.
        for _ in 0..4 {
            consumer.next();
        }
    }
}

#[test]
fn measures_are_checked() {
    let error = |kind, key, value, entries| {
        Map::new(Definition::new("m", kind, key, value, entries)).expect_err("wrong measures").to_string()
    };
    let array = error(Kind::Array, 8, 8, 1);
    assert_eq!(array, "map `m`: the length of keys is 8, and must be 4 for Array");
    for (kind, key, value, entries) in [
        (Kind::Hash, 0, 8, 1),
        (Kind::Hash, 513, 8, 1),
        (Kind::Hash, 8, 0, 1),
        (Kind::Hash, 8, 8, 0),
        (Kind::Queue, 4, 8, 1),
        (Kind::LpmTrie, 4, 8, 1),
        (Kind::RingBuffer, 0, 0, 5000),
        (Kind::RingBuffer, 0, 0, 2048),
        (Kind::RingBuffer, 0, 8, 4096),
        (Kind::Array, 4, u32::MAX, 1),
        (Kind::Programs, 4, 8, 1),
    ] {
        error(kind, key, value, entries);
    }
    assert!(error(Kind::Array, 4, 1 << 20, 1 << 20).contains("bytes are more than the"));
    assert!(HashHandle::<u32, u64>::new(Arc::new(map(Kind::Hash, 8, 8, 1))).is_err());
    assert!(ArrayHandle::<u64>::new(Arc::new(map(Kind::Hash, 4, 8, 1))).is_err());
}

/// Has another thread do `work`, and calls `meanwhile` where that calls what it gets.
pub(crate) fn in_the_middle(work: impl FnOnce(&dyn Fn()) + Send, meanwhile: impl FnOnce()) {
    let (come, has_come) = std::sync::mpsc::channel();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            work(&|| {
                come.send(()).expect("somebody listens");
                let _ = is_done.recv();
            });
        });
        has_come.recv().expect("it gets there");
        meanwhile();
        drop(done);
    });
}

/// Asserts that `check` is true in a child of `fork`, and does not panic there.
#[expect(unsafe_code, reason = "processes are forked")]
pub(crate) fn in_a_child(check: impl FnOnce() -> bool) {
    // SAFETY: the child makes the check, and leaves.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "a child");
    if child == 0 {
        let is_right = std::panic::catch_unwind(core::panic::AssertUnwindSafe(check)).unwrap_or(false);
        let status = i32::from(is_right) + 7;
        // SAFETY: nothing of the parent's is run any more.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: `status` is there to be written.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 8, "{status:#x}");
}

/// Has another thread hold what `hold` returns, and asserts that `check` is true in a child of `fork`, which does not
/// have that thread.
pub(crate) fn beside<T, E: core::fmt::Debug>(hold: impl FnOnce() -> Result<T, E> + Send, check: impl FnOnce() -> bool) {
    let hold = |is_held: &dyn Fn()| {
        let _kept = hold().expect("it is free");
        is_held();
    };
    in_the_middle(hold, || in_a_child(check));
}

#[test]
fn a_child_has_a_consumer_and_a_producer_of_its_own() {
    let [records, samples] = [Kind::RingBuffer, Kind::UserRingBuffer].map(|kind| map(kind, 0, 0, 4096));
    let (ring, user_ring) = (records.ring().expect("one"), samples.user_ring().expect("one"));
    let drained = |consumer: &mut Consumer<'_>| {
        assert!(ring.output(&[1; 8], Wake::Never));
        consumer.drain(|_| ())
    };
    let consumes = || {
        let consumer = ring.take_consumer();
        consumer.is_some_and(|mut consumer| drained(&mut consumer) == 1 && ring.take_consumer().is_none())
    };
    beside(|| ring.take_consumer().ok_or("taken"), consumes);
    let produces = || {
        let drain = user_ring.begin();
        assert_eq!((user_ring.take(), user_ring.begin().is_none()), (Ok(Next::Nothing), true), "it is not finished");
        let mut producer = user_ring.take_producer().expect("that of the parent is not there");
        assert!(user_ring.take_producer().is_none());
        producer.put(&[7; 8]).expect("room");
        assert_eq!(user_ring.take(), Ok(Next::Skipped));
        let is_there = matches!(user_ring.take(), Ok(Next::Sample(_)));
        drain.is_some_and(|drain| {
            user_ring.end(&drain, false);
            is_there && user_ring.begin().is_some()
        })
    };
    let hold = || {
        let mut producer = user_ring.take_producer().ok_or("taken")?;
        core::mem::forget(producer.reserve(8).map_err(|_| "no room")?);
        Ok::<_, &str>((user_ring.begin().ok_or("drained")?, producer))
    };
    beside(hold, produces);
}

#[test]
fn what_a_thread_has_when_it_forks_it_has_in_the_child_until_another_takes_it() {
    let [records, samples] = [Kind::RingBuffer, Kind::UserRingBuffer].map(|kind| map(kind, 0, 0, 4096));
    let (ring, user_ring) = (records.ring().expect("one"), samples.user_ring().expect("one"));
    let mut consumer = ring.take_consumer().expect("the first");
    let mut producer = user_ring.take_producer().expect("the first");
    let drained = |consumer: &mut Consumer<'_>| {
        assert!(ring.output(&[1; 8], Wake::Never));
        consumer.drain(|_| ())
    };
    in_a_child(|| {
        let goes_on = (drained(&mut consumer), producer.put(&[1; 8]).is_ok());
        goes_on == (1, true) && ring.take_consumer().is_none() && user_ring.take_producer().is_none()
    });
    let sample = producer.reserve(8).expect("room");
    in_a_child(|| {
        let mut other = user_ring.take_producer().expect("nobody has used it here");
        // Skipped meanwhile.
        sample.submit();
        other.put(&[2; 8]).expect("room");
        let is_skipped = user_ring.take() == Ok(Next::Skipped);
        is_skipped && matches!(user_ring.take(), Ok(Next::Sample(_))) && user_ring.take() == Ok(Next::Nothing)
    });
    in_a_child(|| {
        let mut second = ring.take_consumer().expect("nobody has used it here");
        assert_eq!([drained(&mut consumer), drained(&mut second)], [0, 2]);
        let _other = user_ring.take_producer().expect("nobody has used it here");
        assert_eq!(producer.put(&[1; 8]), Err(ReserveError::Full { len: 8 }));
        // Neither is the child's to give back.
        drop((consumer, producer));
        ring.take_consumer().is_none() && user_ring.take_producer().is_none()
    });
}

#[test]
fn of_memory_that_others_map_a_parent_keeps_both_ends() {
    let shared = |kind| map(kind, 0, 0, 4096).shared_with_processes().expect("memory");
    let (records, samples) = (shared(Kind::RingBuffer), shared(Kind::UserRingBuffer));
    let (ring, user_ring) = (records.ring().expect("one"), samples.user_ring().expect("one"));
    let mut both = Some((ring.take_consumer().expect("the first"), user_ring.take_producer().expect("the first")));
    let nobody_takes = || ring.take_consumer().is_none() && user_ring.take_producer().is_none();
    assert!(ring.output(&[1; 8], Wake::Never));
    in_a_child(|| {
        let (mut consumer, mut producer) = both.take().expect("inherited");
        assert_eq!((consumer.drain(|_| ()), producer.put(&[1; 8])), (0, Err(ReserveError::Full { len: 8 })));
        let is_taken = nobody_takes();
        drop((consumer, producer));
        is_taken && nobody_takes()
    });
    let (mut consumer, mut producer) = both.expect("the child had a copy");
    assert_eq!(consumer.drain(|_| ()), 1);
    let mut sample = Some(producer.reserve(8).expect("room"));
    in_a_child(|| {
        sample.as_mut().expect("inherited").write(&[1; 8]);
        drop(sample.take());
        user_ring.take() == Ok(Next::Nothing)
    });
    sample.expect("the child had a copy").submit();
    assert!(matches!(user_ring.take(), Ok(Next::Sample(_))));
    assert_eq!(user_ring.words()[2].load(Ordering::Relaxed), 0, "the child has written nothing");
}
