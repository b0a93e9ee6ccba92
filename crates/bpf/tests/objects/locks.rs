//! Locks in the values of maps.

use super::*;

#[test]
fn values_change_together_under_their_lock() {
    for bytes in objects("lock") {
        let object = Object::parse(&bytes).expect("an object");
        let host = object.host().expect("good measures").build();
        for (way, sum) in WAYS.into_iter().zip([7, 8]) {
            assert_eq!(run(way, &object, &host, "account", &mut packet(100)), 0, "{way:?}");
            assert_eq!(run(way, &object, &host, "take_turns", &mut packet(100)), sum - 1, "{way:?}");
        }
        let map = Arc::clone(host.map("accounts").expect("it is there"));
        assert_eq!((map.definition().lock, map.definition().value_len), (Some(8), 24));
        // ANCHOR: host
        // Packets, the lock and the longest packet, bytes.
        let accounts = HashHandle::<u32, [u64; 3]>::new(map).expect("its types");
        let before = accounts.change_locked(&7, std::mem::take);
        assert_eq!(before, Ok([2, 100 << 32, 200]));
        // ANCHOR_END: host
        assert_eq!(accounts.get(&7), Some([0; 3]));
    }
}
