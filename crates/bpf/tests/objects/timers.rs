//! Timers in C: a lease that is renewed, used up, given up and revoked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palimpsest_bpf::elf::Object;
use palimpsest_bpf::host::HostedProgram;
use palimpsest_bpf::map::HashHandle;
use palimpsest_bpf::timer::{TimeSource, TimerClock};
use palimpsest_bpf::verify::Fault;

use super::{contract, objects, packet, packs};

/// A clock that is moved by hand.
#[derive(Clone, Debug, Default)]
struct Hand(Arc<AtomicU64>);

impl TimeSource for Hand {
    fn now(&self, _clock: TimerClock) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn timers_are_where_c_puts_them() {
    let Some(packs) = packs() else { return };
    for bytes in objects("timer") {
        let object = Object::parse(&bytes).expect("an object");
        let leases = object.maps().iter().find(|map| map.definition().name == "leases").expect("there");
        assert_eq!((leases.definition().timer, leases.definition().value_len), (Some(16), 32));
        let hand = Hand::default();
        let host = object.host().expect("good measures").time(hand.clone()).build();
        let verified = |name: &str| {
            let program = object.program(name).expect("there");
            host.verify(contract(), program.code().expect("right")).map_err(|error| program.explain(error))
        };
        let load = |name: &str| {
            let linked = verified(name).unwrap_or_else(|error| panic!("{error}"));
            HostedProgram::load(&packs, &linked).expect("room")
        };
        let (limit, revoke) = (load("limit"), load("revoke"));
        let pass = || limit.run_read_only(&packet(0)).expect("it ends");
        let wait = |time: u64| {
            hand.0.fetch_add(time, Ordering::SeqCst);
            host.look_at_time();
        };
        let leases = HashHandle::<u32, [u64; 4]>::new(Arc::clone(host.map("leases").expect("there")));
        let leases = leases.expect("its types");
        assert_eq!([pass(), pass(), pass()], [1, 1, 0]);
        wait(999);
        assert_eq!(pass(), 0);
        wait(1);
        assert_eq!([pass(), pass(), pass()], [1, 1, 0], "it was renewed");
        assert_eq!(leases.get(&7), Some([0, 1, 0, 0]));
        wait(1000);
        wait(1000);
        assert_eq!(leases.get(&7), None, "nobody used it");
        assert_eq!(pass(), 1);
        assert_eq!(revoke.run_read_only(&packet(0)), Ok(1));
        wait(1000);
        assert_eq!([pass(), pass()], [1, 0], "it is not renewed any more");
        assert_eq!(host.timer_failures(), 0);
        let error = verified("forges").map(drop).expect_err("a timer is written to");
        assert_eq!(error.error().fault, Fault::TimerBytes { min: 24, end: 32, at: 16 });
        assert!(error.to_string().contains("opaque[1] = packet->stamp;]"), "{error}");
    }
}
