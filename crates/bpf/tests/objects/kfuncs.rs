//! Functions of the host with types.

use palimpsest_bpf::host::kfunc::{Acquired, Ref, Released};
use palimpsest_bpf::kfunc;

use super::*;

// ANCHOR: session
/// What the host knows of a source.
struct Session {
    bytes: AtomicU64,
}
// ANCHOR_END: session

#[test]
fn programs_hold_objects_of_the_host() {
    for bytes in objects("kfunc") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            let session = Arc::new(Session { bytes: AtomicU64::new(0) });
            let known = Arc::clone(&session);
            // ANCHOR: host
            let host = object
                .host()
                .expect("good measures")
                .kfunc(kfunc!(
                    fn session_find(source: u32) -> Option<Acquired<Session>> {
                        (source == 7).then(|| Acquired::new(Arc::clone(&known)))
                    }
                ))
                .kfunc(kfunc!(
                    fn session_count(session: Ref<Session>, bytes: &[u8]) -> u64 {
                        let len = bytes.len() as u64;
                        session.bytes.fetch_add(len, Ordering::Relaxed) + len
                    }
                ))
                .kfunc(kfunc!(
                    fn session_put(_session: Released<Session>) {}
                ))
                .build();
            // ANCHOR_END: host
            for sum in [16, 32] {
                assert_eq!(run(way, &object, &host, "counted", &mut packet(100)), sum, "{way:?}");
            }
            assert_eq!(run(way, &object, &host, "counted", &mut [0; LEN]), 0, "{way:?}");
            assert_eq!((session.bytes.load(Ordering::Relaxed), Arc::strong_count(&session)), (32, 2));
        }
        // What C declares must fit: here a number.
        let host = object.host().expect("good measures").kfunc(kfunc!(
            fn session_find(source: u32) -> u64 {
                source.into()
            }
        ));
        let program = object.program("counted").expect("it is there");
        let Err(error) = host.build().verify(contract(), program.code().expect("right")) else { panic!("an address") };
        assert!(program.explain(error).to_string().contains("(`session_find`)"));
    }
}
