//! eBPF programs: one from an object file of clang, and one at a hook of this program.
#![forbid(unsafe_code)]

use std::sync::Arc;

use palimpsest_bpf::elf::Object;
use palimpsest_bpf::host::{Host, HostedProgram};
use palimpsest_bpf::jit::Target;
use palimpsest_bpf::verify::{ContextAccess, Contract};
use palimpsest_bpf::{Code, Packs, asm, hook};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What clang 14 made of `count.c`.
const COUNT: &[u8] = include_bytes!("../crates/bpf/tests/objects/golden/count.o");

fn object(packs: &Packs) -> Result<(), Box<dyn std::error::Error>> {
    let contract = Contract::new().context(16, ContextAccess::Read);
    // ANCHOR: object
    let object = Object::parse(COUNT)?;
    let host = object.host()?.build();
    let program = object.program("count").ok_or("no such program")?;
    let linked = host.verify(contract, program.code()?).map_err(|error| program.explain(error).to_string())?;
    let loaded = HostedProgram::load(packs, &linked)?;
    // ANCHOR_END: object
    println!("count returns {}", loaded.run_read_only(&[0; 16])?);
    Ok(())
}

// ANCHOR: hook
/// What programs at the hook see.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Request {
    bytes: u64,
}

hook! {
    /// Called before a request is answered; a result other than 0 refuses the request.
    pub fn request(request: &Request) = "http.request";
}

fn answer(bytes: u64) -> &'static str {
    if request(&Request { bytes }) != 0 { "refused" } else { "answered" }
}
// ANCHOR_END: hook

fn hooked(packs: &Packs) -> Result<(), Box<dyn std::error::Error>> {
    let code = Code::new(&asm::assemble("r0 = *(u64 *)(r1 + 0)\nr0 >>= 10\nexit")?)?;
    let linked = Host::builder().build().verify(Contract::new().context(8, ContextAccess::Read), code)?;
    let program = Arc::new(HostedProgram::load(packs, &linked)?);
    assert_eq!(answer(5000), "answered");
    // ANCHOR: attach
    let attached = request::HOOK.attach(0, program)?;
    assert_eq!((answer(5000), answer(500)), ("refused", "answered"));
    attached.detach()?;
    // ANCHOR_END: attach
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if Target::NATIVE.is_none() {
        println!("skipped: there is no compiler for this machine");
        return Ok(());
    }
    let packs = Packs::new()?;
    object(&packs)?;
    hooked(&packs)
}
