//! Relocatable objects as modules of the bare-metal guest. The first byte chooses the architecture and how far away the
//! kernel's exports are; the rest is the object.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_module::{Addresses, Architecture, Limits, Module, Part};

const AT: Addresses =
    Addresses { text: 0xffff_ffff_a000_0000, constants: 0xffff_ffff_a040_0000, data: 0xffff_ffff_a060_0000 };

fuzz_target!(|input: &[u8]| {
    let Some((&choice, object)) = input.split_first() else { return };
    let architecture = if choice & 1 == 0 { Architecture::X86_64 } else { Architecture::Aarch64 };
    let limits = Limits { part: 1 << 16, ..Limits::USUAL };
    let module = match Module::read(object, architecture, &limits) {
        Ok(module) => module,
        Err(error) => return drop(error.to_string()),
    };
    let kernel = if choice & 2 == 0 { AT.text - (1 << 20) } else { 0xffff_8000_0000_0000 };
    let linked = match module.link(&AT, |_| Some(kernel)) {
        Ok(linked) => linked,
        Err(error) => return drop(error.to_string()),
    };
    for part in Part::ALL {
        let extent = module.extent(part);
        assert!(extent.len <= limits.part && extent.align <= limits.align);
        assert_eq!(linked.bytes(part).len(), extent.len);
    }
    // What it exports is its own: in a part, or at its end.
    for address in linked.exports().values() {
        let is_in = |part: &Part| (AT.of(*part)..=AT.of(*part) + module.extent(*part).len as u64).contains(address);
        assert!(Part::ALL.iter().any(is_in), "{address:#x}");
    }
    if let Ok(Some((part, place))) = module.table(".key_sites", 16) {
        assert!(linked.bytes(part).get(place).is_some());
    }
});
