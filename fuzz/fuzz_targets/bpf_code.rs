//! Byte code: decoding is total; what has a structure is displayed, assembled again and verified within its budget; and
//! what is accepted ends in the interpreter without touching what it was not given.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers, Trap};
use palimpsest_bpf::verify::{ContextAccess, Contract};
use palimpsest_bpf::{Code, asm};

fuzz_target!(|bytes: &[u8]| {
    let Ok(code) = Code::new(bytes) else { return };
    let text: String = code.instructions().iter().map(|instruction| format!("{instruction}\n")).collect();
    let again = asm::assemble(&text).expect("what instructions show is read again");
    assert_eq!(Code::new(&again).as_ref(), Ok(&code));
    let contract = Contract::new().context(32, ContextAccess::Write).budget(2000);
    let Ok(verified) = contract.verify(code) else { return };
    let mut context = [0xa5; 32];
    let mut memory = Memory::new();
    memory.add(0x10_0000, &mut context).expect("nothing else is there");
    let arguments = [0x10_0000, 32, 0, 0, 0];
    let result = Interpreter::default().budget(200_000).run(verified.code(), arguments, &mut memory, &mut NoHelpers);
    // Loops that `may_goto` ends may be long.
    if let Err(error) = result {
        assert!(matches!(error.trap, Trap::Budget { .. }), "accepted, and {error}\n{text}");
    }
});
