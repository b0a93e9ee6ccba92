//! Locks in the values of maps: programs and the host take them in turn, and nobody keeps one.
//!
//! Mutants that are caught: bytes of a lock that are read or copied over, a lock of another value that is given back,
//! two values of one look-up that count as one, a lock that is held where a helper goes on, one that an ended program
//! keeps.

use palimpsest_bpf::interp::Trap;
use palimpsest_bpf::map::OpError;
use palimpsest_bpf::verify::Unproven;

use super::*;

/// A value: a count, the lock and a number beside it, and the count again.
type Value = [u64; 3];

/// An array and a hash map with locks (8 and 9), of which the hash map has the key 1.
fn locked() -> HostBuilder {
    let map = |name: &str, kind| {
        let definition = Definition { lock: Some(8), ..Definition::new(name, kind, 4, 24, 2) };
        Arc::new(Map::new(definition).expect("good measures"))
    };
    let hash = map("locked hash", Kind::Hash);
    hash.update(&1_u32.to_ne_bytes(), &[0; 24], Update::Always).expect("room");
    builder().map(map("locked array", Kind::Array)).map(hash)
}

/// Finds the value with the key 1 in a map; `r6` is its address, and `r7` that of its lock.
fn found(map: i32, body: &str) -> String {
    format!(
        "*(u32 *)(r10 - 4) = 1\nr1 = map[idx:{map}] ll\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto none\nr6 = r0\n\
         r7 = r6\nr7 += 8\n{body}\nexit\nnone: r0 = -1\nexit"
    )
}

const LOCK: &str = "r1 = r7\ncall 93\n";
const UNLOCK: &str = "r1 = r7\ncall 94\n";
/// Counts in both places.
const COUNT: &str = "r2 = *(u64 *)(r6 + 0)\nr2 += 1\n*(u64 *)(r6 + 0) = r2\n*(u32 *)(r6 + 12) = 7\n\
                     r2 = *(u64 *)(r6 + 16)\nr2 += 1\n*(u64 *)(r6 + 16) = r2\n";

fn counts(map: i32) -> String {
    found(map, &format!("{LOCK}{COUNT}{UNLOCK}r0 = *(u64 *)(r6 + 0)"))
}

fn array(host: &Host) -> ArrayHandle<Value> {
    ArrayHandle::new(Arc::clone(host.map("locked array").expect("it is there"))).expect("its type")
}

#[test]
fn who_holds_a_lock_is_alone() {
    for map in [8, 9] {
        assert_eq!(run_on(locked, &counts(map)), 1);
    }
    // A function may take it for another.
    let parts = found(8, &format!("r1 = r7\ncall local take\n{COUNT}r1 = r7\ncall local give\nr0 = 5"));
    let parts = format!("{parts}\ntake: call 93\nr0 = 0\nexit\ngive: call 94\nr0 = 0\nexit");
    assert_eq!(run_on(locked, &parts), 5);
    let Some(packs) = packs() else { return };
    const ROUNDS: u64 = 2000;
    let host = locked().build();
    let linked = host.verify(contract(), code(&counts(8))).expect("it is right");
    let program = HostedProgram::load(&packs, &linked).expect("room");
    let values = array(&host);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    assert!(program.run(&mut [0; LEN]).is_ok());
                }
            });
        }
        for _ in 0..ROUNDS {
            let change = |value: &mut Value| {
                assert_eq!(value[0], value[2], "somebody was here meanwhile");
                *value = [value[0] + 1, 7 << 32, value[2] + 1];
            };
            values.change_locked(1, change).expect("it is there");
        }
    });
    assert_eq!(values.get(1), Some([3 * ROUNDS, 7 << 32, 3 * ROUNDS]));
}

#[test]
fn a_program_that_is_ended_gives_its_lock_back() {
    let endless = found(8, &format!("{LOCK}{COUNT}r0 = 1\non: if r0 != 0 goto on\n{UNLOCK}r0 = 0"));
    let host = locked().build();
    let linked = host.verify(contract().budget(2000).fuel(10), code(&endless)).expect("it has fuel");
    let values = array(&host);
    let error = linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect_err("it has not enough");
    assert_eq!(error.trap, Trap::Fuel { fuel: 10 });
    assert_eq!(values.change_locked(1, |value| value[0]), Ok(1), "nobody waits");
    let error = linked.interpret(&Interpreter::default().budget(12), &mut [0; LEN]).expect_err("it takes more");
    assert_eq!(error.trap, Trap::Budget { budget: 12 });
    assert_eq!(values.change_locked(1, |value| value[0]), Ok(1));
    let Some(packs) = packs() else { return };
    let program = HostedProgram::load(&packs, &linked).expect("room");
    for runs in 2..4 {
        assert_eq!(program.run(&mut [0; LEN]), Err(HostedError::Fuel { fuel: 10 }));
        assert_eq!(values.change_locked(1, |value| value[0]), Ok(runs), "nobody waits");
    }
}

#[test]
fn who_waits_for_itself_gets_an_error() {
    let host = locked().build();
    let linked = host.verify(contract(), code(&counts(8))).expect("it is right");
    let update = "*(u32 *)(r10 - 4) = 1\n*(u64 *)(r10 - 32) = 5\n*(u64 *)(r10 - 24) = 5\n*(u64 *)(r10 - 16) = 5\n\
                  r1 = map[idx:8] ll\nr2 = r10\nr2 += -4\nr3 = r10\nr3 += -32\nr4 = 4\ncall 2\nexit";
    let update = host.verify(contract(), code(update)).expect("it is right");
    let values = array(&host);
    let interpret = |linked: &palimpsest_bpf::host::Linked| linked.interpret(&Interpreter::default(), &mut [0; LEN]);
    let packs = packs();
    let nested = |value: &mut Value| {
        assert_eq!(values.change_locked(1, |_| ()), Err(OpError::Deadlock));
        let failed = |id| Trap::Helper { id, error: HelperError::Deadlock };
        assert_eq!(interpret(&linked).map_err(|error| error.trap), Err(failed(93)));
        assert_eq!(interpret(&update).map_err(|error| error.trap), Err(failed(2)));
        if let Some(packs) = &packs {
            let program = HostedProgram::load(packs, &linked).expect("room");
            let error = HostedError::Helper { id: 93, error: HelperError::Deadlock };
            assert_eq!(program.run(&mut [0; LEN]), Err(error));
        }
        assert_eq!(values.change_locked(0, |value| value[0]), Ok(0), "another one's is free");
        value[0] = 9;
    };
    assert_eq!(values.change_locked(1, nested), Ok(()));
    let raised = std::panic::AssertUnwindSafe(|| {
        values.change_locked(1, |value| {
            value[0] = 10;
            panic!("under a lock")
        })
    });
    std::panic::catch_unwind(raised).map(drop).expect_err("it panics");
    assert_eq!(values.get(1), Some([9, 0, 0]), "nothing was changed");
    assert_eq!(interpret(&update), Ok(0));
    assert_eq!(values.get(1), Some([5, 0, 5]));
    assert_eq!(interpret(&linked), Ok(6));
    // The other half of the word is the program's.
    assert_eq!(values.get(1), Some([6, 7 << 32, 6]));
}

#[test]
fn what_could_keep_or_break_a_lock_is_refused() {
    let refused = |text: &str| {
        let linked = locked().build().verify(contract(), code(text)).map(drop);
        linked.expect_err(text).fault
    };
    let body = |body: &str| refused(&found(8, body));
    let register = Register::R1;
    // Its bytes.
    for (text, min, end) in [
        ("r0 = *(u32 *)(r6 + 8)", 8, 12),
        ("r0 = *(u64 *)(r6 + 4)", 4, 12),
        ("*(u8 *)(r6 + 11) = 1\nr0 = 0", 11, 12),
        ("r0 = 1\nr0 = atomic_fetch_add((u64 *)(r6 + 8), r0)", 8, 16),
        ("r1 = r6\nr2 = 24\nr3 = 0\nr4 = r10\nr4 += -24\ncall 197\nr0 = 0", 0, 24),
        ("r1 = map[idx:8] ll\nr2 = r10\nr2 += -4\nr3 = r6\nr4 = 0\ncall 2\nr0 = 0", 0, 24),
    ] {
        assert_eq!(body(text), Fault::LockBytes { min, end, at: 8 }, "{text}");
    }
    let direct = "r1 = map[idx:8][0]+0 ll\n*(u32 *)(r1 + 8) = 1\nr0 = 0\nexit";
    assert_eq!(refused(direct), Fault::LockBytes { min: 8, end: 12, at: 8 });
    // What is no lock.
    for text in [
        "r1 = r6\ncall 93\nr0 = 0",
        "r1 = r10\nr1 += -4\ncall 93\nr0 = 0",
        "r1 = 0\ncall 93\nr0 = 0",
        "r2 = *(u8 *)(r6 + 0)\nr2 &= 8\nr1 = r6\nr1 += r2\ncall 93\nr0 = 0",
    ] {
        assert_eq!(body(text), Fault::NoLock { register }, "{text}");
    }
    let plain = found(0, &format!("{LOCK}{UNLOCK}r0 = 0"));
    assert_eq!(refused(&plain), Fault::NoLock { register });
    // Unbalanced.
    let slot = 11;
    assert_eq!(body(&format!("{LOCK}r0 = 0")), Fault::StillLocked { slot });
    assert_eq!(
        body(&format!("{LOCK}r2 = *(u64 *)(r6 + 0)\nr0 = 0\nif r2 == 0 goto +2\n{UNLOCK}")),
        Fault::StillLocked { slot }
    );
    assert_eq!(body(&format!("{UNLOCK}r0 = 0")), Fault::NotLocked);
    assert_eq!(body(&format!("{LOCK}{UNLOCK}{UNLOCK}r0 = 0")), Fault::NotLocked);
    assert_eq!(body(&format!("{LOCK}{LOCK}{UNLOCK}r0 = 0")), Fault::CallLocked { slot });
    // Calls under it: helpers, tail calls, a loop.
    let again = "r1 = map[idx:8] ll\nr2 = r10\nr2 += -4\ncall 1\n";
    assert_eq!(body(&format!("{LOCK}{again}{UNLOCK}r0 = 0")), Fault::CallLocked { slot });
    let tail = found(8, &format!("{LOCK}r1 = r8\nr2 = map[idx:4] ll\nr3 = 0\ncall 12\nr0 = 0"));
    assert!(matches!(refused(&format!("r8 = r1\n{tail}")), Fault::CallLocked { .. }));
    // Another lock: another value's, another map's, and one that may be another's.
    let zero = "*(u32 *)(r10 - 4) = 0\nr1 = map[idx:8] ll\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto none\n\
                r8 = r0\nr8 += 8\n";
    let other = |map: i32| format!("{zero}{LOCK}r1 = r8\ncall 94\nr0 = 0").replace("idx:8", &format!("idx:{map}"));
    assert!(matches!(body(&other(8)), Fault::OtherLock { .. }));
    assert!(matches!(body(&other(9)), Fault::OtherLock { .. }));
    let first = format!("r8 = map[idx:8][0]+8 ll\n{LOCK}r1 = r8\ncall 94\nr0 = 0");
    assert!(matches!(body(&first), Fault::OtherLock { .. }));
    // The same look-up twice finds two values.
    let twice = "r9 = 0\nr8 = 0\nagain: *(u32 *)(r10 - 4) = r9\nr1 = map[idx:8] ll\nr2 = r10\nr2 += -4\ncall 1\n\
                 if r0 == 0 goto none\nr0 += 8\nif r9 == 1 goto both\nr8 = r0\nr9 = 1\ngoto again\n\
                 both: r7 = r0\nr1 = r7\ncall 93\nr1 = r8\ncall 94\nr0 = 0\nexit\nnone: r0 = 0\nexit";
    assert_eq!(refused(twice), Fault::NoLock { register });
    // A function for elements leaves none, nor keeps an element for another round.
    let each = |body: &str| {
        format!(
            "*(u64 *)(r10 - 8) = 0\nr1 = map[idx:8] ll\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 164\nr0 = 0\n\
             exit\nf: r6 = r4\nr7 = r3\nr7 += 8\n{body}r0 = 0\nexit"
        )
    };
    assert!(locked().build().verify(contract(), code(&each(&format!("{LOCK}{UNLOCK}")))).is_ok());
    assert!(matches!(refused(&each(LOCK)), Fault::StillLocked { .. }));
    // Nor takes one in a round, to give it back in another one, which is for another element.
    let rounds = "*(u64 *)(r10 - 8) = 0\nr1 = map[idx:8] ll\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 164\n\
                  r1 = *(u64 *)(r10 - 8)\non: if r1 != 0 goto on\nr0 = 0\nexit\n\
                  f: r6 = r4\nr1 = r3\nr1 += 8\nr2 = *(u64 *)(r6 + 0)\nif r2 != 0 goto give\n\
                  *(u64 *)(r6 + 0) = 1\ncall 93\nr0 = 0\nexit\n\
                  give: *(u64 *)(r6 + 0) = 0\ncall 94\nr0 = 0\nexit";
    let rounds = locked().build().verify(contract().fuel(10), code(rounds)).map(drop);
    assert!(matches!(rounds.map_err(|error| error.fault), Err(Fault::StillLocked { .. })));
    // What the last one has kept is another element than what the next one gets.
    let kept = "*(u64 *)(r10 - 8) = 0\nr1 = map[idx:8] ll\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 164\n\
                r1 = map[idx:8] ll\nr2 = func[g] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 164\nr0 = 0\nexit\n\
                f: *(u64 *)(r4 + 0) = r3\nr0 = 1\nexit\n\
                g: r6 = *(u64 *)(r4 + 0)\nif r6 == 0 goto out\nr6 += 8\nr7 = r3\nr7 += 8\nr1 = r7\ncall 93\nr1 = r6\n\
                call 94\nout: r0 = 0\nexit";
    assert_eq!(refused(kept), Fault::NoLock { register });
}

/// Fails on: a store that is checked against the values of a map, where locks lie.
#[test]
fn unproven_stores_reach_no_lock() {
    let contract = || contract().unproven(Unproven::Probe);
    let refused = |text: &str| locked().build().verify(contract(), code(text)).map(drop).expect_err(text).fault;
    // The same look-up twice: nobody knows any more which lock the first value has.
    let twice = |store: &str| {
        format!(
            "r9 = 0\nr8 = 0\nagain: *(u32 *)(r10 - 4) = r9\nr1 = map[idx:8] ll\nr2 = r10\nr2 += -4\ncall 1\n\
             if r0 == 0 goto none\nif r9 == 1 goto both\nr8 = r0\nr9 = 1\ngoto again\n\
             both: {store}\nnone: r0 = 0\nexit"
        )
    };
    assert!(locked().build().verify(contract(), code(&twice("*(u32 *)(r8 + 0) = 1"))).is_ok());
    assert!(matches!(refused(&twice("*(u32 *)(r8 + 8) = 1")), Fault::LockBytes { .. }));
    let far = "r1 = *(u64 *)(r0 + 0)\nr8 += r1\n*(u32 *)(r8 + 0) = 1";
    refused(&twice(far));
}

#[test]
fn maps_with_locks_are_not_inside_others() {
    let inner = Some(Box::new(Definition { lock: Some(0), ..Definition::new("inner", Kind::Array, 4, 8, 1) }));
    let outer = |inner| Map::new(Definition { inner, ..Definition::new("outer", Kind::ArrayOfMaps, 4, 4, 1) });
    assert!(outer(inner).is_err());
    let plain = outer(Some(Box::new(Definition::new("inner", Kind::Array, 4, 24, 1)))).expect("good measures");
    let into = plain.maps().expect("it has maps");
    let map = Arc::clone(locked().build().map("locked array").expect("it is there"));
    into.set(&[0; 4], Some(map)).expect_err("a program could write its lock");
}

#[test]
fn loops_that_only_a_count_ends_hold_no_lock() {
    let host = locked().build();
    let verify = |contract: Contract, body: &str| {
        let text = format!("{}\nloop: may_goto out\ngoto loop\nout: r0 = 0\nexit", found(8, body));
        host.verify(contract, code(&text)).map(drop).map_err(|error| error.fault)
    };
    let inside = [
        format!("{LOCK}again: may_goto on\ngoto again\non: {UNLOCK}r0 = 0"),
        format!("{LOCK}call local loop\n{UNLOCK}r0 = 0"),
    ];
    for body in inside {
        let refused = verify(contract(), &body);
        assert!(matches!(refused, Err(Fault::CountsLocked { slot: 11 })), "{refused:?}\n{body}");
        assert_eq!(verify(contract().fuel(1000), &body), Ok(()), "fuel bounds it");
    }
    for body in [
        format!("call local loop\n{LOCK}{UNLOCK}call local loop\nr0 = 0"),
        // What is followed to its end.
        format!("{LOCK}r1 = 9\nagain: r1 -= 1\nif r1 != 0 goto again\n{UNLOCK}r0 = 0"),
    ] {
        assert_eq!(verify(contract(), &body), Ok(()), "{body}");
    }
}

#[test]
fn a_key_that_is_removed_while_its_value_changes_is_not_written() {
    let definition = Definition { lock: Some(8), ..Definition::new("one", Kind::Hash, 4, 24, 1) };
    let map = Arc::new(Map::new(definition).expect("good measures"));
    let values = HashHandle::<u32, Value>::new(Arc::clone(&map)).expect("its type");
    let remove = |key: u32| map.remove(&key.to_ne_bytes());
    values.set(&1, &[1, 0, 1], Update::Always).expect("room");
    // There is one element, which is then another key's.
    let changed = values.change_locked(&1, |value| {
        remove(1).expect("it is there");
        values.set(&2, &[5, 0, 5], Update::Always).expect("room");
        *value = [9; 3];
    });
    assert_eq!((changed, values.get(&2), values.get(&1)), (Err(OpError::NotFound), Some([5, 0, 5]), None));
    assert_eq!(values.change_locked(&2, |_| remove(2)), Err(OpError::NotFound));
    values.set(&3, &[6, 0, 6], Update::Always).expect("room");
    assert_eq!(values.change_locked(&3, |value| value[0]), Ok(6), "the lock was given back");
}
