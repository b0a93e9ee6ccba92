//! Functions of the host with types, and objects that programs hold.
//!
//! Mutants that are caught: types that are not compared, an object that counts as given back or not, one that stays
//! with a program that was ended.

use std::sync::atomic::AtomicUsize;

use palimpsest_bpf::host::kfunc::{Acquired, Kfunc, Ref, Released};
use palimpsest_bpf::interp::Trap;
use palimpsest_bpf::kfunc;

use super::*;

/// An object; how many there are.
struct Session {
    id: u32,
    hits: AtomicU64,
    count: Arc<AtomicUsize>,
}

impl Session {
    fn new(id: u32, count: &Arc<AtomicUsize>) -> Arc<Self> {
        count.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, hits: AtomicU64::new(0), count: Arc::clone(count) })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Another type of objects.
struct Other;

/// Functions 0 to 9.
fn objects(count: &Arc<AtomicUsize>) -> HostBuilder {
    let made = Arc::clone(count);
    builder()
        .kfunc(kfunc!(
            fn find(id: u32) -> Option<Acquired<Session>> {
                (id != 0).then(|| Acquired::new(Session::new(id, &made)))
            }
        ))
        .kfunc(kfunc!(
            fn hit(session: Ref<Session>, by: u64) -> u64 {
                session.hits.fetch_add(by, Ordering::Relaxed) + by + u64::from(session.id)
            }
        ))
        .kfunc(kfunc!(
            fn put(session: Released<Session>) {
                drop(session.into_inner())
            }
        ))
        .kfunc(kfunc!(
            fn other() -> Acquired<Other> {
                Acquired::new(Arc::new(Other))
            }
        ))
        .kfunc(kfunc!(
            fn put_other(_other: Released<Other>) {}
        ))
        .kfunc(kfunc!(
            fn is_there(session: Option<Ref<Session>>) -> bool {
                session.is_some()
            }
        ))
        .kfunc(kfunc!(
            fn fill(room: &mut [u8], by: i8) -> i64 {
                assert!(room.iter().all(|byte| *byte == 0));
                room.iter_mut().skip(1).for_each(|byte| *byte = by as u8);
                i64::from(by)
            }
        ))
        .kfunc(kfunc!(
            fn sum(bytes: &[u8], times: u16, more: &[u8]) -> u64 {
                bytes.iter().chain(more).map(|byte| u64::from(*byte)).sum::<u64>() * u64::from(times)
            }
        ))
        .kfunc(kfunc!(
            fn fails(panics: bool) -> Result<u32, HelperError> {
                assert!(!panics, "on purpose");
                Err(HelperError::NoArgument { index: 7 })
            }
        ))
}

/// Runs it both ways. Returns what both return; no object is left.
fn both(text: &str) -> u64 {
    let count = Arc::new(AtomicUsize::new(0));
    let result = run_on(|| objects(&count), text);
    assert_eq!(count.load(Ordering::Relaxed), 0, "{text}");
    result
}

fn refused(text: &str) -> Fault {
    let host = objects(&Arc::default()).build();
    let Err(error) = host.verify(contract(), code(text)) else { panic!("{text}") };
    error.fault
}

/// Gets the session 7 into `r6`.
const FIND: &str = "r1 = 7\ncall kernel 0\nif r0 == 0 goto none\nr6 = r0\n";
const PUT: &str = "r1 = r6\ncall kernel 2\n";
const NONE: &str = "\nexit\nnone: r0 = -1\nexit";

#[test]
fn what_a_call_releases_is_none_of_its_later_arguments() {
    let both = |first: &str, then: &str| {
        let taking = builder()
            .kfunc(kfunc!(
                fn get() -> Acquired<Other> {
                    Acquired::new(Arc::new(Other))
                }
            ))
            .kfunc(kfunc!(
                fn change(_old: Released<Other>, _new: Ref<Other>) {}
            ))
            .kfunc(kfunc!(
                fn put(_old: Released<Other>) {}
            ));
        let text = format!("call kernel 0\nr6 = r0\ncall kernel 0\nr7 = r0\nr1 = {first}\nr2 = {then}\ncall kernel 1");
        let text = format!("{text}\nr1 = {}\ncall kernel 2\nr0 = 0\nexit", if first == "r6" { "r7" } else { "r6" });
        taking.build().verify(contract(), code(&text)).map(drop).map_err(|error| error.fault)
    };
    assert_eq!(both("r6", "r7"), Ok(()));
    assert_eq!(both("r6", "r6"), Err(Fault::NoObject { register: Register::R2 }));
}

#[test]
fn arguments_and_results_are_values() {
    assert_eq!(both(&format!("{FIND}r1 = r6\nr2 = 5\ncall kernel 1\nr7 = r0\n{PUT}r0 = r7{NONE}")), 12);
    let none = FIND.replace("r1 = 7", "r1 = 0");
    assert_eq!(both(&format!("{none}{PUT}r0 = 1{NONE}")), u64::MAX);
    // C leaves the upper half of a number undefined.
    let wide = FIND.replace("r1 = 7", "r1 = 0x100000000 ll");
    assert_eq!(both(&format!("{wide}{PUT}r0 = 1{NONE}")), u64::MAX);
    assert_eq!(both("r1 = 0\ncall kernel 5\nexit"), 0);
    assert_eq!(both(&format!("{FIND}r1 = r6\ncall kernel 5\nr7 = r0\n{PUT}r0 = r7{NONE}")), 1);
    // One that may be 0 is passed where it may be.
    let maybe = "r1 = 7\ncall kernel 0\nr6 = r0\nr1 = r0\ncall kernel 5\nr7 = r0\nif r6 == 0 goto +2\nr1 = r6\n\
                 call kernel 2\nr0 = r7\nexit";
    assert_eq!(both(maybe), 1);
    assert_eq!(both("r1 = r10\nr1 += -8\nr2 = 8\nr3 = -2\ncall kernel 6\nr1 = *(u64 *)(r10 - 8)\nr0 += r1\nexit"), {
        u64::from_ne_bytes([0, 254, 254, 254, 254, 254, 254, 254]).wrapping_sub(2)
    });
    let sum = "*(u64 *)(r10 - 8) = 0x01010101\nr1 = r10\nr1 += -8\nr2 = 3\nr3 = 0x10002\nr4 = r1\nr4 += 2\nr5 = 2\n\
               call kernel 7\nexit";
    assert_eq!(both(sum), 10);
    // One call gets one object after the other.
    let thrice = format!("r8 = 0\nagain: {FIND}{PUT}r8 += 1\nif r8 < 3 goto again\nr0 = r8{NONE}");
    assert_eq!(both(&thrice), 3);
    let plain = "call kernel 3\nr1 = r0\ncall kernel 4\nexit";
    assert_eq!(both(plain), 0, "it is never 0, and need not be compared");
}

#[test]
fn an_ended_program_gives_its_objects_back() {
    let count = Arc::new(AtomicUsize::new(0));
    let host = objects(&count).build();
    for (body, trap) in [
        ("r1 = 0\ncall kernel 8\n", Trap::HostFunction { index: 8, error: HelperError::NoArgument { index: 7 } }),
        ("r1 = 1\ncall kernel 8\n", Trap::HostFunction { index: 8, error: HelperError::Panicked }),
        ("on: if r6 != 0 goto on\n", Trap::Fuel { fuel: 10 }),
    ] {
        let body = if body.starts_with("on") { "r7 = 1\non: if r7 != 0 goto on\n" } else { body };
        let text = format!("{FIND}{body}{PUT}r0 = 0{NONE}");
        let linked =
            host.verify(contract().budget(2000).fuel(10), code(&text)).unwrap_or_else(|error| panic!("{error}"));
        let interpret = || linked.interpret(&Interpreter::default(), &mut [0; LEN]).map_err(|error| error.trap);
        // The interpreter lets panics through.
        let panicked = Err(Trap::HostFunction { index: 8, error: HelperError::Panicked });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(interpret)).unwrap_or(panicked);
        assert_eq!((result, count.load(Ordering::Relaxed)), (Err(trap), 0));
        let Some(packs) = packs() else { continue };
        let program = HostedProgram::load(&packs, &linked).expect("room");
        let expected = match trap {
            Trap::HostFunction { index, error } => HostedError::Function { index, error },
            _ => HostedError::Fuel { fuel: 10 },
        };
        assert_eq!((program.run(&mut [0; LEN]), count.load(Ordering::Relaxed)), (Err(expected), 0));
    }
}

#[test]
fn objects_are_neither_kept_nor_forged() {
    let (r1, slot) = (Register::R1, 1);
    let body = |body: &str| refused(&format!("{FIND}{body}{NONE}"));
    // Not given back, or twice, or used behind it.
    assert_eq!(body("r0 = 0"), Fault::Unreleased { slot });
    assert_eq!(body(&format!("{PUT}{PUT}r0 = 0")), Fault::Unset { register: Register::R6 });
    assert_eq!(body(&format!("{PUT}r1 = r6\nr2 = 1\ncall kernel 1")), Fault::Unset { register: Register::R6 });
    let copied = format!("*(u64 *)(r10 - 8) = r6\nr7 = r6\n{PUT}r1 = r7\nr2 = 1\ncall kernel 1");
    assert_eq!(body(&copied), Fault::Unset { register: Register::R7 });
    let again = "r1 = 7\nagain: call kernel 0\nif r0 == 0 goto out\nr6 = r0\nr1 = 7\ngoto again\nout: r0 = 0\nexit";
    assert_eq!(refused(again), Fault::Reserved);
    // It may be 0.
    let unchecked = FIND.replace("if r0 == 0 goto none\n", "");
    assert_eq!(refused(&format!("{unchecked}{PUT}r0 = 0\nexit")), Fault::MaybeNull { register: r1 });
    let dropped = "r1 = 7\ncall kernel 0\nr0 = 0\nexit";
    assert_eq!(refused(dropped), Fault::Unreleased { slot });
    // Another type, another thing, a place beside it, a number.
    assert_eq!(body("r1 = r6\ncall kernel 4\nr0 = 0"), Fault::NoObject { register: r1 });
    assert_eq!(body("r1 = r10\nr2 = 1\ncall kernel 1"), Fault::NoObject { register: r1 });
    assert_eq!(body("r1 = r6\nr1 += 1\nr2 = 1\ncall kernel 1"), Fault::NoObject { register: r1 });
    assert_eq!(refused("r1 = 5\ncall kernel 2\nexit"), Fault::NoObject { register: r1 });
    assert_eq!(refused("r1 = 5\ncall kernel 5\nexit"), Fault::NoObject { register: r1 });
    assert_eq!(refused("call kernel 3\nr6 = r0\nr1 = r0\ncall kernel 5\nexit"), Fault::NoObject { register: r1 });
    assert_eq!(refused("r2 = 1\ncall kernel 1\nexit"), Fault::NoObject { register: r1 }, "the context");
    // It is no memory, and no number.
    assert_eq!(body("r0 = *(u8 *)(r6 + 0)"), Fault::Outside { what: "the object", min: 0, end: 1, len: 0 });
    assert_eq!(body("*(u8 *)(r6 + 0) = 1\nr0 = 0"), Fault::Outside { what: "the object", min: 0, end: 1, len: 0 });
    assert_eq!(
        body("r1 = r6\nr2 = 1\nr3 = 0\ncall kernel 6"),
        Fault::Outside { what: "the object", min: 0, end: 1, len: 0 }
    );
    assert_eq!(body("r0 = r6"), Fault::ReturnedAddress);
    assert!(matches!(body("r6 *= 2\nr0 = 0"), Fault::Address { .. }));
    let leaked = format!("r9 = r1\n{FIND}*(u64 *)(r9 + 0) = r6\n{PUT}r0 = 0{NONE}");
    assert_eq!(refused(&leaked), Fault::StoredAddress { register: Register::R6 });
    // A function that a helper calls gives it back in every round, or none.
    let callback = format!(
        "{FIND}*(u64 *)(r10 - 8) = r6\nr1 = 2\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\n{PUT}r0 = 0\
         {NONE}\nf: r1 = *(u64 *)(r2 + 0)\ncall kernel 2\nr0 = 0\nexit"
    );
    assert!(matches!(refused(&callback), Fault::Unset { .. } | Fault::StackUnset { .. } | Fault::Unreleased { .. }));
    let kept = "r1 = 2\nr2 = func[f] ll\nr3 = 0\nr4 = 0\ncall 181\nr0 = 0\nexit\n\
                f: r1 = 7\ncall kernel 0\nr0 = 0\nexit";
    assert!(matches!(refused(kept), Fault::Reserved | Fault::Unreleased { .. }));
    // And not across a tail call.
    let tail = format!("r9 = r1\n{FIND}r1 = r9\nr2 = map[idx:4] ll\nr3 = 0\ncall 12\n{PUT}r0 = 0{NONE}");
    assert_eq!(refused(&tail), Fault::TailCall);
}

#[test]
fn a_signature_gives_one_object_back_at_most() {
    let two = || {
        kfunc!(
            fn two(_one: Released<Other>, _another: Released<Other>) {}
        )
    };
    std::panic::catch_unwind(two).map(drop).expect_err("the verifier would count one");
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[test]
fn an_object_that_panics_when_it_is_dropped_keeps_nothing_else() {
    let Some(packs) = packs() else { return };
    let bombs = || {
        builder()
            .kfunc(kfunc!(
                fn bomb() -> Acquired<Bomb> {
                    Acquired::new(Arc::new(Bomb))
                }
            ))
            .kfunc(kfunc!(
                fn put_bomb(bomb: Released<Bomb>) {
                    std::mem::forget(bomb.into_inner())
                }
            ))
            .helper(1000, Signature::new([]), |_| Err(HelperError::NoArgument { index: 7 }))
    };
    let output = "*(u64 *)(r10 - 8) = 7\nr1 = map[idx:2] ll\nr2 = r10\nr2 += -8\nr3 = 8\nr4 = 0\ncall 130\n";
    let text = "call kernel 0\nr6 = r0\nr1 = map[idx:2] ll\nr2 = 16\nr3 = 0\ncall 131\nr7 = r0\n\
         call 1000\nif r7 == 0 goto none\nr1 = r7\nr2 = 0\ncall 132\nnone: r1 = r6\ncall kernel 1\nr0 = 0\nexit";
    let host = bombs().build();
    let load = |host: &Arc<Host>, text: &str| {
        let linked = host.verify(contract(), code(text)).unwrap_or_else(|error| panic!("{error}"));
        Arc::new(HostedProgram::load(&packs, &linked).expect("room"))
    };
    let inner = load(&host, text);
    let nested = Arc::clone(&inner);
    let run = move || nested.run(&mut [0; LEN]);
    let outer_host = builder().helper(1001, Signature::new([]), move |_| Ok(run().map_or(1, |_| 0))).build();
    let outer = load(&outer_host, "call 1001\nr0 = 5\nexit");
    for _ in 0..2 {
        assert_eq!(outer.run(&mut [0; LEN]), Err(HostedError::Helper { id: 1001, error: HelperError::Panicked }));
    }
    assert_eq!(load(&outer_host, "r0 = 3\nexit").run(&mut [0; LEN]), Ok(3), "nothing of the inner run is left");
    // The consumer comes to the record behind those of the ended runs.
    assert_eq!(load(&host, &format!("{output}r0 = 0\nexit")).run(&mut [0; LEN]), Ok(0));
    let ring = host.map("ring").and_then(|map| map.ring()).expect("there");
    let mut records = Vec::new();
    ring.take_consumer().expect("the only one").drain(|record| records.push(record.to_vec()));
    assert_eq!((records, ring.pending()), (vec![7_u64.to_ne_bytes().to_vec()], 0));
}

/// Plays itself in a child, which a second panic would end by SIGABRT.
#[test]
fn what_panics_while_a_panic_unwinds_ends_no_process() {
    const NAME: &str = "kfuncs::what_panics_while_a_panic_unwinds_ends_no_process";
    const CHILD: &str = "PALIMPSEST_BPF_PANICS";

    if std::env::var_os(CHILD).is_none() {
        let own = std::env::current_exe().expect("a test has a path");
        let child = std::process::Command::new(own).args(["--exact", NAME]).env(CHILD, "1").output();
        let output = child.expect("it starts");
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        return;
    }
    let ring = Map::new(Definition::new("ring", Kind::RingBuffer, 0, 0, 4096)).expect("good measures");
    let host = Host::builder()
        .map(Arc::new(ring.waking(|| panic!("the waker"))))
        .kfunc(kfunc!(
            fn bomb() -> Acquired<Bomb> {
                Acquired::new(Arc::new(Bomb))
            }
        ))
        .kfunc(kfunc!(
            fn put_bomb(bomb: Released<Bomb>) {
                std::mem::forget(bomb.into_inner())
            }
        ))
        .helper(1000, Signature::new([]), |_| panic!("the helper"))
        .build();
    let text = "call kernel 0\nr6 = r0\ncall kernel 0\nr8 = r0\nr1 = map[idx:0] ll\nr2 = 16\nr3 = 0\ncall 131\n\
                r7 = r0\ncall 1000\nif r7 == 0 goto none\nr1 = r7\nr2 = 0\ncall 132\n\
                none: r1 = r6\ncall kernel 1\nr1 = r8\ncall kernel 1\nr0 = 0\nexit";
    let linked = host.verify(contract(), code(text)).unwrap_or_else(|error| panic!("{error}"));
    let raised = |run: &dyn Fn()| {
        let raised = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).expect_err("it panics");
        let ring = host.map("ring").and_then(|map| map.ring()).expect("there");
        assert_eq!(ring.take_consumer().expect("the only one").drain(|_| ()), 0);
        assert_eq!(ring.pending(), 0);
        raised.downcast_ref::<&str>().copied()
    };
    let interpret = || {
        let _ = linked.interpret(&Interpreter::default(), &mut [0; LEN]);
    };
    assert_eq!(raised(&interpret), Some("the helper"));
    let Some(packs) = packs() else { return };
    let program = HostedProgram::load(&packs, &linked).expect("room");
    // The runner of compiled programs has caught the helper's.
    let run = || {
        let _ = program.run(&mut [0; LEN]);
    };
    assert_eq!(raised(&run), Some("the waker"));
}

#[test]
#[should_panic(expected = "take no records and dynptrs")]
fn a_function_made_by_hand_takes_nothing_of_linuxs_helpers() {
    let unlock = Kfunc::new("unlock", &[&[Argument::Unlock]], |_| Ok(0), || std::marker::PhantomData::<u64>);
    drop(builder().kfunc(unlock));
}
