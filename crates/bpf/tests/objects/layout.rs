//! Programs that use the types of this process: compiled against the header made from them, or against an older header
//! and adapted.
//!
//! Mutants that are caught: members at byte instead of bit offsets, arrays of another length, a packed structure that
//! is not marked as packed, a call of a missing helper that stops the compiler although it is never reached.

use palimpsest_bpf::elf::{Btf, Object};
use palimpsest_bpf::host::HostedProgram;
use palimpsest_bpf::interp::Interpreter;
use palimpsest_bpf::layout::Types;
use palimpsest_bpf::verify::{ContextAccess, Contract, Unproven};
use palimpsest_bpf::{hook, layout};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{objects, packs};

// ANCHOR: layout
layout! {
    /// How much a session may use.
    #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
    #[repr(C)]
    struct Limits {
        burst: u32,
        rates: [u32; 3],
        bytes: u64,
    }

    /// Members at offsets that C would not give them by itself.
    #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
    #[repr(C, packed(2))]
    struct Packed {
        near: u16,
        far: u32,
    }

    /// What programs see of a session.
    #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
    #[repr(C, align(16))]
    struct Session as "session" {
        limits: Limits,
        is_secure: u8,
        room: [u8; 3],
        id: u32,
        port: u32,
        r#type: i8,
        more_room: [u8; 3],
        next: u64,
        packed: Packed,
        end: [u8; 2],
        offset: i64,
    }
}
// ANCHOR_END: layout

layout! {
    /// Types that programs are not given.
    struct Node {
        value: u32,
        next: *const Node,
        table: *mut [Node; 4],
        is_last: bool,
        count: std::sync::atomic::AtomicU64,
    }
}

hook! {
    /// Runs when a session begins.
    fn begins(session: &Session) = "session";
}

const SESSION: Session = Session {
    limits: Limits { burst: 9, rates: [7, 5, 8], bytes: 3 },
    is_secure: 1,
    room: [0xee; 3],
    id: 42,
    port: 6,
    r#type: -7,
    more_room: [0xee; 3],
    next: 0,
    packed: Packed { near: 99, far: 4 },
    end: [0xee; 2],
    offset: 5,
};

const READ: u64 = 6_05_03_42;

/// Returns what a program returns for a session; interpreted and compiled it must be the same.
fn run(object: &Object, name: &str, session: &Session) -> u64 {
    let host = object.host().expect("no maps").build();
    let program = object.program(name).expect("there");
    let contract =
        if name == "follows" { begins::HOOK.contract().unproven(Unproven::Probe) } else { begins::HOOK.contract() };
    let linked = host.verify(contract, program.code().expect("right"));
    let linked = linked.unwrap_or_else(|error| panic!("{name}: {}", program.explain(error)));
    let Some(packs) = packs() else {
        return linked.interpret(&Interpreter::default(), &mut session.as_bytes().to_vec()).expect("it ends");
    };
    let compiled = HostedProgram::load(&packs, &linked).expect("room").run_read_only(session.as_bytes());
    if name != "follows" {
        let interpreted = linked.interpret(&Interpreter::default(), &mut session.as_bytes().to_vec());
        assert_eq!(interpreted.map_err(drop), compiled.map_err(drop), "{name}");
    }
    compiled.expect("it ends")
}

#[test]
fn programs_of_older_types_are_adapted_to_those_of_this_process() {
    for bytes in objects("older") {
        // ANCHOR: adapt
        let btf = Btf::parse(&begins::HOOK.types().btf()).expect("types");
        let object = Object::parse_for(&bytes, Some(&btf)).expect("it is adapted");
        // ANCHOR_END: adapt
        assert_eq!(run(&object, "session", &SESSION), READ);
        // The size is that of this process; new members exist, removed ones do not.
        assert_eq!(run(&object, "differences", &SESSION), size_of::<Session>() as u64 + 1000);
        let other = Session { is_secure: 0, ..SESSION };
        assert_eq!(run(&object, "differences", &other), size_of::<Session>() as u64 + 2000);
        let next = Session { id: 77, ..SESSION };
        let address = std::ptr::from_ref(&next).expose_provenance() as u64;
        if palimpsest_bpf::jit::Target::NATIVE.is_some() {
            assert_eq!(run(&object, "follows", &Session { next: address, ..SESSION }), 77);
        }
        // Unadapted, the program reads other members.
        let as_compiled = Object::parse(&bytes).expect("an object");
        assert_ne!(run(&as_compiled, "session", &SESSION), READ);
    }
}

#[test]
fn a_header_says_where_members_are() {
    let header = begins::HOOK.types().header(begins::HOOK.name());
    assert_eq!(header, include_str!("c/session.h"), "write it to tests/objects/c/session.h if it is right:\n{header}");
    for bytes in objects("session") {
        let btf = Btf::parse(&Types::of::<Session>().btf()).expect("types");
        for object in [Object::parse(&bytes), Object::parse_for(&bytes, Some(&btf))] {
            let object = object.expect("an object");
            assert_eq!(run(&object, "session", &SESSION), READ);
            assert_eq!(run(&object, "edges", &SESSION), 104_051);
        }
    }
}

#[test]
fn types_that_point_at_themselves_and_have_no_order_are_described() {
    let header = Types::of::<Node>().header("node");
    for line in ["unsigned int value;", "struct Node *next;", "struct Node (*table)[4];", "_Bool is_last;"] {
        assert!(header.contains(&format!("\t{line}\n")), "{header}");
    }
    let offset = format!("offsetof(struct Node, count) == {}", std::mem::offset_of!(Node, count));
    assert!(header.contains(&offset), "{header}");
    Btf::parse(&Types::of::<Node>().and::<Session>().btf()).expect("types");
    let node = Node { value: 1, next: std::ptr::null(), table: std::ptr::null_mut(), is_last: true, count: 7.into() };
    assert!(node.next.is_null() && node.table.is_null() && node.is_last && node.value == 1);
    assert_eq!(node.count.into_inner(), 7);
    let refused = Contract::new().context(8, ContextAccess::Read);
    assert_ne!(refused, begins::HOOK.contract());
}

#[test]
fn the_hook_runs_what_was_compiled_against_its_types() {
    let Some(packs) = packs() else { return };
    let object = Object::parse(&objects("session")[0]).expect("an object");
    let program = object.program("session").expect("there");
    let host = object.host().expect("no maps").build();
    let linked = host.verify(begins::HOOK.contract(), program.code().expect("right")).expect("harmless");
    let attached = begins::HOOK.attach(0, HostedProgram::load(&packs, &linked).expect("room").into());
    let attached = attached.expect("it fits");
    assert_eq!(begins(&SESSION), READ);
    attached.detach().expect("it was on");
}
