//! Landing pads: in packs that are mapped so that calls through registers lead to nothing else, on machines that check
//! it, programs run, and code without them does not.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use palimpsest_bpf::jit::compile;
use palimpsest_bpf::verify::Unproven;
use palimpsest_text::BranchTargets;

use super::*;

/// The pad of each target.
fn pad(target: Target) -> [u8; 4] {
    match target {
        Target::X86_64 => [0xf3, 0x0f, 0x1e, 0xfa],
        Target::Aarch64 => 0xd503_245f_u32.to_le_bytes(),
    }
}

#[test]
fn whatever_is_called_by_its_address_begins_with_a_pad() {
    for target in Target::ALL {
        let count = |text: &str| {
            let compiled = compile(&code(text), target, &()).expect("it compiles");
            let code = &compiled.bytes()[..compiled.code_len()];
            assert_eq!(code[..4], pad(target), "{target:?}: {text}");
            code.windows(4).filter(|bytes| *bytes == pad(target)).count()
        };
        assert_eq!(count("r0 = 1\nexit"), 1);
        // Functions that are only called directly have none.
        assert_eq!(count("call local f\nexit\nf: r0 = 1\nexit"), 1);
        assert_eq!(count("r2 = func[f] ll\nr0 = 0\nexit\nf: r0 = 1\nexit"), 2);
    }
}

/// What the child of the next test does.
const CHILD: &str = "PALIMPSEST_BPF_LANDING_PADS";

#[test]
fn programs_run_where_pads_are_checked_and_code_without_them_does_not() {
    if packs().is_none() {
        return;
    }
    let packs = Packs::builder().branch_targets(BranchTargets::LandingPads).open().expect("packs");
    if std::env::var_os(CHILD).is_some() {
        // A function of any target that returns what it was called with, without a pad.
        let bytes = compile(&code("r0 = 1\nexit"), Target::NATIVE.expect("asked before"), &()).expect("it compiles");
        let program = packs.load(&bytes.bytes()[4..bytes.code_len()], 8).expect("room");
        // SAFETY: the program's code, which ends the process or returns a number.
        let function: extern "C" fn(u64) -> u64 = unsafe { program.function() };
        println!("called");
        println!("returned {}", function(5));
        return;
    }
    // Callbacks, functions, tail calls, and loads that may find nothing.
    let map = Map::new(Definition::new("programs", Kind::Programs, 4, 4, 1)).expect("good measures");
    let host = Host::builder().map(Arc::new(map)).build();
    let load = |text: &str| {
        let linked = host.verify(Contract::new().unproven(Unproven::Probe), code(text)).expect("harmless");
        Arc::new(HostedProgram::load(&packs, &linked).expect("room"))
    };
    let called = load("r1 = 4096\nr0 = *(u64 *)(r1 + 0)\nr0 += 77\nexit");
    host.maps()[0].programs().expect("its kind").set(0, Some(called)).expect("a place");
    let calls = load(
        "r1 = 9\nr2 = func[each] ll\nr3 = 0\nr4 = 0\ncall 181\nif r0 != 9 goto out\ncall local f\nout: exit\n\
         each: r0 = 0\nexit\nf: r0 = 5\nexit",
    );
    assert_eq!(calls.run(&mut []), Ok(5));
    let contract = Contract::new().context(8, ContextAccess::Write);
    let tail = host.verify(contract, code("r2 = map[idx:0] ll\nr3 = 0\ncall 12\nr0 = 1\nexit")).expect("harmless");
    assert_eq!(HostedProgram::load(&packs, &tail).expect("room").run(&mut [0; 8]), Ok(77));
    let own = std::env::current_exe().expect("a test has a path");
    let name = "landing_pads::programs_run_where_pads_are_checked_and_code_without_them_does_not";
    let output = Command::new(own).args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("called"), "{output:?}");
    match packs.branch_targets() {
        BranchTargets::LandingPads => {
            let signal = output.status.signal();
            assert!(signal == Some(libc::SIGILL) && !said.contains("returned"), "{output:?}");
        }
        BranchTargets::Any => {
            println!("skipped in part: this machine checks no landing pads");
            assert!(said.contains("returned 1"), "{output:?}");
        }
    }
}
