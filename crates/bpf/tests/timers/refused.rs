//! What the verifier refuses to do with timers, and maps that cannot have any.

use std::sync::Arc;

use palimpsest_bpf::host::{Host, HostedProgram};
use palimpsest_bpf::insn::Register;
use palimpsest_bpf::interp::{HelperError, Interpreter, Trap};
use palimpsest_bpf::map::{Definition, Kind, Map, MapError, ValueAccess};
use palimpsest_bpf::verify::Fault;
use palimpsest_bpf::{Code, StructureError, asm};

use super::common::packs;
use super::{FIND, Hand, INIT, SET, START, TICK, array, builder, context, contract, link, program};

fn refused(text: &str) -> Fault {
    let host = Host::builder().map(array()).map(array()).build();
    let code = Code::new(&asm::assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"))).expect("right");
    host.verify(contract(), code).map(drop).expect_err(text).fault
}

fn body(text: &str) -> Fault {
    refused(&[FIND, text, "r0 = 0\nexit\n"].concat())
}

#[test]
fn a_timer_is_reached_by_helpers_alone() {
    let bytes = |min, end| Fault::TimerBytes { min, end, at: 8 };
    assert_eq!(body("r0 = *(u64 *)(r7 + 8)\n"), bytes(8, 16));
    assert_eq!(body("r0 = *(u8 *)(r7 + 23)\n"), bytes(23, 24));
    assert_eq!(body("*(u32 *)(r7 + 12) = 1\n"), bytes(12, 16));
    assert_eq!(body("r1 = 1\nlock *(u64 *)(r7 + 16) += r1\n"), bytes(16, 24));
    // At a place that is only known within bounds.
    assert_eq!(body("r1 = *(u8 *)(r8 + 1)\nr1 &= 15\nr7 += r1\nr0 = *(u8 *)(r7 + 0)\n"), bytes(0, 16));
    // By helpers that take bytes: as a value of the same map, a text to format, a dynptr.
    let value = "r1 = map[idx:0] ll\nr2 = r10\nr2 += -4\nr3 = r7\nr4 = 0\ncall 2\n";
    assert_eq!(body(value), bytes(0, 32));
    assert_eq!(body("r1 = r7\nr2 = 9\nr3 = 0\nr4 = 0\nr5 = 0\ncall 6\n"), bytes(0, 9));
    assert_eq!(body("r1 = r7\nr2 = 32\nr3 = 0\nr4 = r10\nr4 += -24\ncall 197\n"), bytes(0, 32));
    // The bytes beside it may be read.
    let host = Host::builder().map(array()).build();
    link(&host, &[FIND, "r0 = *(u64 *)(r7 + 0)\nr1 = *(u64 *)(r7 + 24)\nr0 += r1\nexit\n"].concat());
}

#[test]
fn timers_and_their_maps_belong_together() {
    let no_timer = Fault::NoTimer { register: Register::R1 };
    assert_eq!(body("r1 = r7\ncall 172\n"), no_timer);
    assert_eq!(body("r1 = r7\nr1 += 16\ncall 172\n"), no_timer);
    assert_eq!(body("*(u64 *)(r10 - 16) = 0\n*(u64 *)(r10 - 24) = 0\nr1 = r10\nr1 += -24\ncall 172\n"), no_timer);
    assert_eq!(body(&INIT.replace("map[idx:0]", "map[idx:1]")), Fault::TimerMap { register: Register::R2 });
    assert_eq!(body("r1 = r7\nr1 += 8\nr2 = 5\ncall 170\n"), Fault::NoFunction { register: Register::R2 });
    let maybe = FIND.replace("if r0 != 0 goto found\n    r0 = 100\n    exit\n    found: r7 = r0", "r1 = r0\ncall 172");
    assert_eq!(refused(&[&maybe, "\nr0 = 0\nexit\n"].concat()), Fault::MaybeNull { register: Register::R1 });
}

#[test]
fn what_a_timer_calls_is_followed_as_it_is_called() {
    let with = |tick: &str| refused(&[FIND, SET, "r0 = 0\nexit\ntick: ", tick].concat());
    assert_eq!(with("r0 = 1\nexit\n"), Fault::TimerResult);
    assert_eq!(with("r0 = *(u64 *)(r3 + 0)\nexit\n"), Fault::TimerResult);
    // It gets a map, a key and a value, and nothing of the program that armed it.
    assert_eq!(with("r0 = *(u64 *)(r4 + 0)\nexit\n"), Fault::Unset { register: Register::R4 });
    assert_eq!(with("r0 = *(u64 *)(r7 + 0)\nexit\n"), Fault::Unset { register: Register::R7 });
    assert!(matches!(with("r0 = *(u64 *)(r10 - 8)\nexit\n"), Fault::StackUnset { .. }));
    assert!(matches!(with("r0 = *(u64 *)(r3 + 32)\nexit\n"), Fault::Outside { .. }));
    assert!(matches!(with("r0 = *(u64 *)(r3 + 8)\nexit\n"), Fault::TimerBytes { .. }));
    assert_eq!(with("*(u32 *)(r2 + 0) = 1\nr0 = 0\nexit\n"), Fault::ReadOnlyMap);
    assert_eq!(with("again: goto again\n"), Fault::Endless);
    // The callback is followed on a path of its own, not on that of the program that arms it.
    assert!(matches!(with("r6 = r3\nr1 = 0\ngoto +0\nr0 = *(u8 *)(r6 + 99)\nexit\n"), Fault::Outside { .. }));
}

#[test]
fn a_tail_call_leaves_no_timer() {
    let programs = Arc::new(Map::new(Definition::new("programs", Kind::Programs, 4, 4, 1)).expect("good measures"));
    let host = Host::builder().map(array()).map(programs).build();
    let tick = "tick: r2 = map[idx:1] ll\nr3 = 0\ncall 12\nr0 = 0\nexit\n";
    let text = [FIND, SET, "r0 = 0\nexit\n", tick].concat();
    let code = Code::new(&asm::assemble(&text).expect("a program")).expect("right");
    assert_eq!(host.verify(contract(), code).map(drop).expect_err("refused").fault, Fault::TailCall);
}

#[test]
fn one_function_serves_many_timers_and_itself() {
    let host = Host::builder().map(array()).map(array()).build();
    // The callback sets itself again each time, also for another map than the one it was armed with.
    let other = SET.replace("r7", "r6");
    let again = ["tick: r6 = r3\n", &other, "r0 = 0\nexit\n"].concat();
    // A helper that calls the function itself nests ever deeper.
    let deeper = "tick: r1 = 1\nr2 = func[tick] ll\nr3 = 0\nr4 = 0\ncall 181\nr0 = 0\nexit\n";
    let once = "r1 = 1\nr2 = func[tick] ll\nr3 = 0\nr4 = 0\ncall 181\nr0 = 0\nexit\n";
    assert_eq!(refused(&[once, deeper].concat()), Fault::Depth);
    let second = FIND.replace("map[idx:0]", "map[idx:1]").replace("found", "second").replace("r8 = r1\n", "r1 = r8\n");
    let linked = link(&host, &[FIND, SET, &second, SET, "r0 = 0\nexit\n", &again].concat());
    assert!(linked.verified().followed() < 200, "{}", linked.verified().followed());
}

#[test]
fn no_helper_calls_the_program_itself() {
    let structure = |text: &str| Code::new(&asm::assemble(text).expect("a program")).map(drop);
    let own = Err(StructureError::Depth { start: 0 });
    let looped = "tick: r1 = 1\nr2 = func[tick] ll\nr3 = 0\nr4 = 0\ncall 181\nr0 = 0\nexit\n";
    assert_eq!(structure(looped), own);
    let timed = ["tick: ", FIND, INIT, SET, START, "r0 = 0\nexit\n"].concat();
    assert_eq!(structure(&timed), own);
    // As another function than the first it may be called.
    assert_eq!(structure(&["call local tick\nexit\n", &timed].concat()), Ok(()));
}

#[test]
fn a_function_is_followed_for_each_map_that_it_is_called_with() {
    let short = Definition { timer: Some(8), ..Definition::new("short", Kind::Array, 4, 24, 4) };
    let host = Host::builder().map(array()).map(Arc::new(Map::new(short).expect("good measures"))).build();
    // Looks up the map's first value, and sets its timer's callback.
    let set = |map: u32| {
        let find = format!("*(u32 *)(r10 - 4) = 0\nr1 = map[idx:{map}] ll\nr2 = r10\nr2 += -4\ncall 1\nr7 = r0\n");
        [&find, &format!("if r7 == 0 goto no{map}\n"), SET, &format!("no{map}:\n")].concat()
    };
    let tick = "r0 = 0\nexit\ntick: r0 = *(u64 *)(r3 + 24)\nr0 = 0\nexit\n";
    link(&host, &[&set(0), tick].concat());
    for maps in [[set(0), set(1)], [set(1), set(0)]] {
        let text = [&maps.concat(), tick].concat();
        let code = Code::new(&asm::assemble(&text).expect("a program")).expect("right");
        let fault = host.verify(contract(), code).map(drop).expect_err(&text).fault;
        assert!(matches!(fault, Fault::Outside { end: 32, len: 24, .. }), "{fault}");
    }
}

#[test]
fn interpreted_programs_set_no_callback() {
    let host = builder(&Hand::default()).build();
    let linked = link(&host, &program(&[INIT, SET, START]));
    let error = linked.interpret(&Interpreter::default(), &mut context(0, 1, 0)).expect_err("a function without code");
    assert_eq!(error.trap, Trap::Helper { id: 170, error: HelperError::Timer });
    // The other helpers work as in compiled programs.
    let linked = link(&host, &program(&[INIT]));
    assert_eq!(linked.interpret(&Interpreter::default(), &mut context(0, 0, 0)), Ok(-16_i64 as u64));
    let Some(packs) = packs() else { return };
    let armed = HostedProgram::load(&packs, &link(&host, &[FIND, SET, START, "exit\n", TICK].concat())).expect("room");
    assert_eq!(armed.run_read_only(&context(0, 10, 0)), Ok(0));
    let cancel = link(&host, &program(&[super::CANCEL]));
    assert_eq!(cancel.interpret(&Interpreter::default(), &mut context(0, 0, 0)), Ok(1));
}

#[test]
fn maps_that_cannot_have_timers_are_refused() {
    let with = |definition: Definition, timer| Map::new(Definition { timer: Some(timer), ..definition }).map(drop);
    let of = |kind, value_len| Definition::new("m", kind, 4, value_len, 4);
    for kind in [Kind::Array, Kind::Hash, Kind::LruHash] {
        assert_eq!(with(of(kind, 24), 8), Ok(()));
        for (len, offset) in [(24, 4), (24, 16), (15, 0), (24, u32::MAX - 7)] {
            let error = with(of(kind, len), offset);
            assert!(matches!(error, Err(MapError::Timer { offset: at, .. }) if at == offset), "{error:?}");
        }
    }
    for kind in [Kind::PerCpuArray, Kind::PerCpuHash, Kind::LruPerCpuHash] {
        assert!(matches!(with(of(kind, 24), 8), Err(MapError::Timer { .. })), "{kind:?}");
    }
    let read_only = Definition { access: ValueAccess::Read, ..of(Kind::Array, 16) };
    assert!(matches!(with(read_only, 0), Err(MapError::Timer { .. })));
    let inner = Some(Box::new(Definition { timer: Some(0), ..of(Kind::Array, 16) }));
    let outer = Definition { inner, ..Definition::new("outer", Kind::ArrayOfMaps, 4, 4, 4) };
    assert!(matches!(Map::new(outer), Err(MapError::Timer { .. })));
}
