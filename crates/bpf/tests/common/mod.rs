//! What tests of compiled programs share.

use palimpsest_bpf::Packs;
use palimpsest_bpf::jit::Target;

/// Whether there is a compiler for this machine; says so if there is none.
pub(crate) fn compiles() -> bool {
    if Target::NATIVE.is_none() {
        eprintln!("skipped: there is no compiler for this machine");
    }
    Target::NATIVE.is_some()
}

/// New packs, if there is a compiler for this machine.
pub(crate) fn packs() -> Option<Packs> {
    compiles().then(|| Packs::new().expect("packs"))
}
