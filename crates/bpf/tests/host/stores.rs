//! Stores that the verifier cannot prove: they stay in the memory that their address was made from, or end the program.
//!
//! Mutants that are caught: a check that is one byte off at either end, or left out; a context's address that a
//! function clobbers; another map's bounds; a program that goes on behind the store, or whose caller does.

use palimpsest_bpf::interp::{Access, MemoryFault, RunError, Trap};
use palimpsest_bpf::verify::{Trust, Unproven};
use palimpsest_bpf::{VerifiedError, VerifiedProgram};

use super::*;

fn probing() -> Contract {
    contract().unproven(Unproven::Probe)
}

/// A context whose first number is `number`.
fn with(number: i64) -> [u8; LEN] {
    let mut context = [0x11; LEN];
    context[..8].copy_from_slice(&number.to_ne_bytes());
    context
}

/// Runs it both ways, also as a program that is not trusted. Returns what both return, or the slot of the store that
/// ended it; and the context afterwards.
fn stored(text: &str, number: i64) -> (Result<u64, usize>, [u8; LEN]) {
    let mut all = Vec::new();
    for trust in [Trust::Full, Trust::None] {
        let (host, other) = (builder().build(), builder().build());
        let mut interpreted = with(number);
        let verify = |host: &Arc<Host>| host.verify(probing().trust(trust), code(text));
        let program = verify(&host).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let result = match program.interpret(&Interpreter::default(), &mut interpreted) {
            Ok(value) => Ok(value),
            Err(RunError { slot, trap: Trap::Memory(MemoryFault { access: Access::Write, .. }) }) => Err(slot),
            Err(error) => panic!("{error}\n{text}"),
        };
        all.push((result, interpreted));
        let Some(packs) = packs() else { continue };
        let mut compiled = with(number);
        let program = HostedProgram::load(&packs, &verify(&other).expect("as before")).expect("room");
        let result = match program.run(&mut compiled) {
            Ok(value) => Ok(value),
            Err(HostedError::Store { slot }) => Err(slot),
            Err(error) => panic!("{error}\n{text}"),
        };
        assert_eq!(contents(&other), contents(&host), "{text}");
        all.push((result, compiled));
    }
    assert!(all.iter().all(|one| *one == all[0]), "{all:?}\n{text}");
    all[0]
}

#[test]
fn a_store_to_the_context_stays_in_it() {
    for (size, bytes) in [("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)] {
        // Behind the store nothing counts that was not done.
        let text = format!("r3 = *(u64 *)(r1 + 0)\nr0 = 4\nr1 += r3\n*({size} *)(r1 + 2) = 0x55\nr0 = 5\nexit");
        for at in [0, 8, LEN as i64 - bytes] {
            let (result, context) = stored(&text, at - 2);
            let mut expected = with(at - 2);
            expected[at as usize..][..bytes as usize].fill(0);
            expected[if cfg!(target_endian = "little") { at } else { at + bytes - 1 } as usize] = 0x55;
            assert_eq!((result, context), (Ok(5), expected), "{size} at {at}");
        }
        for at in [-1, LEN as i64 - bytes + 1, LEN as i64, i64::MIN, i64::MAX, 1 << 32] {
            let number = at.wrapping_sub(2);
            assert_eq!(stored(&text, number), (Err(3), with(number)), "{size} at {at}");
        }
    }
}

/// Stores to the second of four values of 16 bytes, at a distance.
fn to_value(store: &str) -> String {
    found(1, &format!("r3 = *(u64 *)(r6 + 0)\nr0 += r3\n{store}\nr0 = 5")).replacen("*(u32", "r6 = r1\n*(u32", 1)
}

#[test]
fn a_store_to_a_value_stays_in_its_map() {
    let text = to_value("*(u32 *)(r0 + 0) = 7");
    for number in [0, 12, 13, -16, 32, 44] {
        assert_eq!(stored(&text, number).0, Ok(5), "{number}");
    }
    let slot = code(&text).instructions().len() - 5;
    for number in [-17, 45, 48, 1 << 40, i64::MAX, i64::MIN] {
        let (result, context) = stored(&text, number);
        assert!(matches!(result, Err(at) if at.abs_diff(slot) < 6), "{number}: {result:?}, not about {slot}");
        assert_eq!(context, with(number));
    }
    // What the program holds is given back, and nobody goes on: not its functions, and not who called them.
    let held = "r6 = r1\nr1 = map[idx:2] ll\nr2 = 16\nr3 = 0\ncall 131\nif r0 == 0 goto none\nr7 = r0\nr1 = r6\n\
                call local f\n*(u64 *)(r7 + 0) = 1\nr1 = r7\nr2 = 0\ncall 132\nr0 = 1\nexit\nnone: r0 = -1\nexit\n\
                f: r3 = *(u64 *)(r1 + 0)\nr1 = map[idx:0][0]+0 ll\nr1 += r3\n*(u64 *)(r1 + 0) = 9\nr0 = 0\nexit";
    assert_eq!(stored(held, 56).0, Ok(1));
    assert!(stored(held, 57).0.is_err());
    // Nor in a function that a helper calls.
    let each = "r6 = r1\nr3 = *(u64 *)(r6 + 0)\n*(u64 *)(r10 - 8) = r3\nr1 = 3\nr2 = func[f] ll\nr3 = r10\nr3 += -8\n\
                r4 = 0\ncall 181\nexit\nf: r4 = *(u64 *)(r2 + 0)\nr3 = map[idx:0][0]+0 ll\nr3 += r4\n\
                *(u8 *)(r3 + 1) = 9\nr0 = 0\nexit";
    assert_eq!(stored(each, 62).0, Ok(3));
    assert!(stored(each, 63).0.is_err());
}

#[test]
fn an_address_that_may_be_0_ends_the_program_where_it_is() {
    let text = "r6 = *(u64 *)(r1 + 0)\n*(u32 *)(r10 - 4) = r6\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\n\
                *(u64 *)(r0 + 8) = 3\nr0 = 5\nexit";
    assert_eq!((stored(text, 3).0, stored(text, 4).0), (Ok(5), Err(7)));
}

#[test]
fn stores_to_other_memory_are_refused_as_ever() {
    let host = || {
        let map = |definition| Arc::new(Map::new(definition).expect("good measures"));
        let inner = Some(Box::new(Definition::new("inner", Kind::Array, 4, 16, 2)));
        builder()
            .map(map(Definition { timer: Some(0), ..Definition::new("timed", Kind::Array, 4, 64, 2) }))
            .map(map(Definition { lock: Some(0), ..Definition::new("locked", Kind::Array, 4, 64, 2) }))
            .map(map(Definition { inner, ..Definition::new("outer", Kind::ArrayOfMaps, 4, 4, 2) }))
            .build()
    };
    let refused = |text: &str| {
        let error = host().verify(probing(), code(text)).map(drop).expect_err(text);
        error.fault
    };
    let value = |map: usize| format!("r3 = *(u64 *)(r1 + 0)\nr0 = map[idx:{map}][0]+32 ll\nr0 += r3\n");
    let store = "*(u64 *)(r0 + 0) = 1\nr0 = 0\nexit";
    // Read-only, with a timer, with a lock.
    for map in [5, 8, 9] {
        let fault = refused(&(value(map).replace("+32", "+0") + store));
        assert!(matches!(fault, Fault::Far { .. } | Fault::Outside { .. }), "{map}: {fault}");
    }
    // The stack, a record, a value of a map in a map, a number.
    let stack = format!("r3 = *(u64 *)(r1 + 0)\nr3 &= 1023\nr0 = r10\nr0 -= r3\n{store}");
    assert!(matches!(refused(&stack), Fault::Stack { .. }));
    let record = "r6 = *(u8 *)(r1 + 0)\nr1 = map[idx:2] ll\nr2 = 16\nr3 = 0\ncall 131\nif r0 == 0 goto none\nr7 = r0\n\
                  r7 += r6\n*(u8 *)(r7 + 0) = 1\nr1 = r0\nr2 = 0\ncall 133\nnone: r0 = 0\nexit";
    assert!(matches!(refused(record), Fault::Outside { .. }));
    let nested = "r6 = *(u8 *)(r1 + 0)\n*(u32 *)(r10 - 4) = 0\nr1 = map[idx:10] ll\nr2 = r10\nr2 += -4\ncall 1\n\
                  if r0 == 0 goto none\nr1 = r0\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto none\nr0 += r6\n\
                  *(u8 *)(r0 + 0) = 1\nnone: r0 = 0\nexit";
    assert!(matches!(refused(nested), Fault::Outside { .. }));
    assert!(matches!(refused(&format!("r0 = 4096\n{store}")), Fault::NoAddress { .. }));
    // An address stays where nobody reads it, and atomic operations are aligned.
    let far = "r3 = *(u64 *)(r1 + 0)\nr6 = r1\nr6 += r3\n";
    assert_eq!(
        refused(&format!("{far}*(u64 *)(r6 + 0) = r1\nr0 = 0\nexit")),
        Fault::Context { min: i64::MIN, end: i64::MAX, len: LEN as u32 }
    );
    assert!(matches!(refused(&format!("{far}lock *(u64 *)(r6 + 0) += r3\nr0 = 0\nexit")), Fault::Context { .. }));
    // Only the program's own function knows where the context is.
    let own = format!("call local f\nr0 = 0\nexit\nf: {far}*(u8 *)(r6 + 0) = 1\nr0 = 0\nexit");
    assert!(matches!(refused(&own), Fault::Context { .. }));
    // One check has one memory.
    let mixed = "r3 = *(u64 *)(r1 + 0)\nr4 = *(u8 *)(r1 + 8)\nr6 = r1\nif r4 == 0 goto on\nr6 = map[idx:0][0]+0 ll\n\
                 on: r6 += r3\n*(u8 *)(r6 + 0) = 1\nr0 = 0\nexit";
    assert_eq!(refused(mixed), Fault::Elsewhere);
    let proven = mixed.replace("on: r6 += r3", "r6 += r3\non: r0 = 1").replace("goto on", "goto other");
    assert_eq!(refused(&proven.replace("goto other", "goto on")), Fault::Elsewhere);
    // Without the policy, or without the right to write, nothing is checked.
    let text = format!("{far}*(u8 *)(r6 + 0) = 1\nr0 = 0\nexit");
    assert!(matches!(super::refused(&text), Fault::Far { .. }));
    let reads = Contract::new().context(LEN as u32, ContextAccess::Read).unproven(Unproven::Probe);
    assert!(host().verify(reads, code(&text)).is_err());
}

#[test]
fn programs_without_a_host_are_ended_too() {
    let Some(packs) = packs() else { return };
    let text = "r3 = *(u8 *)(r1 + 0)\nr1 += r3\n*(u8 *)(r1 + 1) = 7\nr0 = 1\nexit";
    let verified = probing().verify(code(text)).expect("stores are checked");
    assert_eq!(verified.checked_stores().collect::<Vec<_>>(), [2]);
    let program = VerifiedProgram::load(&packs, &verified, &()).expect("room");
    let mut context = [14; LEN];
    assert_eq!((program.run(&mut context), context[15]), (Ok(1), 7));
    context[0] = 15;
    assert_eq!(program.run(&mut context), Err(VerifiedError::Store { slot: 2 }));
    // Fuel is something else.
    let fuelled = probing().fuel(10).verify(code(&text.replace("r0 = 1\nexit", "on: r0 = 1\ngoto on")));
    let program = VerifiedProgram::load(&packs, &fuelled.expect("checked and paid"), &()).expect("room");
    context[0] = 14;
    assert_eq!(program.run(&mut context), Err(VerifiedError::Fuel { fuel: 10 }));
    context[0] = 15;
    assert_eq!(program.run(&mut context), Err(VerifiedError::Store { slot: 2 }));
    // What is proven needs no check.
    let proven = probing().verify(code(&text.replace("u8 *)(r1 + 0)\n", "u8 *)(r1 + 0)\nr3 &= 7\n")));
    assert_eq!(proven.expect("it is inside").checked_stores().len(), 0);
}
