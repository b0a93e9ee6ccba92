//! Object files with eBPF programs: no input panics, and what is parsed is verified, or refused, within its budget.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_bpf::elf::Object;
use palimpsest_bpf::verify::{ContextAccess, Contract};

fuzz_target!(|bytes: &[u8]| {
    let Ok(object) = Object::parse(bytes) else { return };
    // Adapted to its own types, it parses as well.
    let adapted = Object::parse_for(bytes, object.btf());
    // Maps may be as large as their definitions say.
    let small = object.maps().iter().all(|map| {
        let definition = map.definition();
        u64::from(definition.key_len.max(8)) * u64::from(definition.max_entries) < 1 << 20
            && u64::from(definition.value_len.max(8)) * u64::from(definition.max_entries) < 1 << 20
    });
    if !small {
        return;
    }
    let Ok(host) = object.host() else { return };
    let host = host.build();
    let contract = Contract::new().context(64, ContextAccess::Read).budget(2000);
    for program in object.programs().iter().chain(adapted.iter().flat_map(|object| object.programs())) {
        let Ok(code) = program.code() else { continue };
        if let Err(error) = host.verify(contract.clone(), code) {
            let _ = program.explain(error).to_string();
        }
    }
});
