//! A program in C that reads types of this program, in Rust, of which nothing but its debug information tells.
#![forbid(unsafe_code)]

use palimpsest_bpf::Packs;
use palimpsest_bpf::dwarf::DebugInfo;
use palimpsest_bpf::elf::Object;
use palimpsest_bpf::host::HostedProgram;
use palimpsest_bpf::jit::Target;
use palimpsest_bpf::verify::{ContextAccess, Contract, Unproven};

/// What clang 14 made of `host_types/queue.c`.
const QUEUE: &[u8] = include_bytes!("host_types/queue.o");

// ANCHOR: types
/// No `#[repr(C)]`, and nothing that describes them: their members are wherever rustc has put them.
struct Limits {
    bytes: u64,
    queued: u32,
}

enum State {
    Idle,
    Open { since: u64, priority: u32 },
}

struct Session {
    name: String,
    is_secure: bool,
    state: State,
    limits: Limits,
    queue: Vec<u64>,
}
// ANCHOR_END: types

impl Session {
    fn new(state: State) -> Self {
        let limits = Limits { bytes: 1 << 20, queued: 2 };
        Self { name: "first".to_owned(), is_secure: true, state, limits, queue: Vec::new() }
    }

    fn describe(&self) -> String {
        let state = match self.state {
            State::Idle => "idle".to_owned(),
            State::Open { since, priority } => format!("open since {since}, priority {priority}"),
        };
        let Self { name, is_secure, limits: Limits { bytes, queued }, .. } = self;
        let len = self.queue.len();
        format!("{name} ({state}; secure: {is_secure}; {bytes} bytes): {len} queued, for {queued} and its priority")
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if Target::NATIVE.is_none() {
        println!("skipped: there is no compiler for this machine");
        return Ok(());
    }
    // ANCHOR: load
    let types = DebugInfo::of_this_process()?.types(Object::asks(QUEUE)?)?;
    let object = Object::parse_for(QUEUE, Some(&types.btf()?))?;
    let program = object.program("is_full").ok_or("no such program")?;
    // The context is an address; loads through it are tried.
    let contract = Contract::new().context(8, ContextAccess::Read).unproven(Unproven::Probe);
    let linked = object.host()?.build().verify(contract, program.code()?).map_err(|error| program.explain(error))?;
    let packs = Packs::new()?; // once per process, for all programs
    let program = HostedProgram::load(&packs, &linked)?;
    // ANCHOR_END: load
    println!("{} bytes of types", types.section().len());
    for (state, most) in [(State::Idle, 2), (State::Open { since: 7, priority: 3 }, 5)] {
        let mut session = Session::new(state);
        for number in 0..8 {
            // ANCHOR: run
            let address = (&raw const session).expose_provenance() as u64;
            let is_full = program.run_read_only(&address.to_ne_bytes())? != 0;
            // ANCHOR_END: run
            assert_eq!(is_full, number >= most, "{}", session.describe());
            session.queue.push(number);
        }
        println!("{}", session.describe());
    }
    Ok(())
}
