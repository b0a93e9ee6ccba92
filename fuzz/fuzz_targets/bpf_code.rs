//! Byte code: decoding is total; what has a structure is displayed, assembled again and verified within its budget; and
//! what is accepted ends in the interpreter without touching what it was not given: alone, or on a host with maps and
//! Linux's helpers.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use palimpsest_bpf::host::Host;
use palimpsest_bpf::insn::Instruction;
use palimpsest_bpf::interp::{HelperError, Interpreter, Memory, NoHelpers, RunError, Trap};
use palimpsest_bpf::map::{Definition, Kind, Map, ValueAccess};
use palimpsest_bpf::verify::{ContextAccess, Contract, Unproven};
use palimpsest_bpf::{Code, asm};

/// Makes a host with maps of several kinds; the last one is text that programs only read.
fn host() -> Arc<Host> {
    let map = |kind, key, value, entries| Definition::new("m", kind, key, value, entries);
    let definitions = [
        map(Kind::Array, 4, 16, 4),
        Definition { lock: Some(8), ..map(Kind::Hash, 8, 24, 8) },
        map(Kind::RingBuffer, 0, 0, 4096),
        map(Kind::Queue, 0, 8, 2),
        Definition { access: ValueAccess::Read, ..map(Kind::Array, 4, 16, 1) },
    ];
    let maps = definitions.map(|definition| Map::new(definition).expect("good measures"));
    maps.into_iter().fold(Host::builder(), |builder, map| builder.map(Arc::new(map))).build()
}

/// Whether the error says nothing about what was verified.
fn is_allowed(error: &RunError) -> bool {
    match error.trap {
        // Loops that `may_goto` ends may be long.
        Trap::Budget { .. } => true,
        // Only compiled programs do these.
        Trap::Helper { error, .. } => matches!(error, HelperError::TailCall | HelperError::Timer),
        _ => false,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(code) = Code::new(bytes) else { return };
    let text: String = code.instructions().iter().map(|instruction| format!("{instruction}\n")).collect();
    let again = asm::assemble(&text).expect("what instructions show is read again");
    assert_eq!(Code::new(&again).as_ref(), Ok(&code));
    let contract = Contract::new().context(32, ContextAccess::Write).budget(2000);
    let interpreter = Interpreter::default().budget(200_000);
    let mut context = [0xa5; 32];
    let needs_host =
        |instruction: &Instruction| matches!(instruction, Instruction::Call(_) | Instruction::LoadWide { .. });
    let result = if code.instructions().iter().any(needs_host) {
        let unproven = if bytes.len().is_multiple_of(16) { Unproven::Probe } else { Unproven::Refuse };
        let Ok(linked) = host().verify(contract.unproven(unproven), code) else { return };
        linked.interpret(&interpreter, &mut context)
    } else {
        let Ok(verified) = contract.verify(code) else { return };
        let mut memory = Memory::new();
        memory.add(0x10_0000, &mut context).expect("nothing else is there");
        interpreter.run(verified.code(), [0x10_0000, 32, 0, 0, 0], &mut memory, &mut NoHelpers)
    };
    if let Err(error) = result {
        assert!(is_allowed(&error), "accepted, and {error}\n{text}");
    }
});
