//! `%s`: texts at addresses, for programs that may read any.

use std::sync::Arc;

use palimpsest_bpf::host::{Host, HostedProgram};
use palimpsest_bpf::insn::Register;
use palimpsest_bpf::interp::Interpreter;
use palimpsest_bpf::map::{Definition, Kind, Map, Update, ValueAccess};
use palimpsest_bpf::verify::{ContextAccess, Contract, Fault, Unproven};

use super::code;
use super::common::packs;

const LEN: usize = 48;

/// A format, and a name in an array.
fn host(format: &str) -> Arc<Host> {
    let format_map = Definition { access: ValueAccess::Read, ..Definition::new("format", Kind::Array, 4, 32, 1) };
    let format_map = Map::new(format_map).expect("good measures");
    let mut value = [0; 32];
    value[..format.len()].copy_from_slice(format.as_bytes());
    format_map.update(&[0; 4], &value, Update::Always).expect("there");
    let names = Map::new(Definition::new("names", Kind::Array, 4, 8, 2)).expect("good measures");
    names.update(&0_u32.to_ne_bytes(), b"nemo\0...", Update::Always).expect("there");
    names.update(&1_u32.to_ne_bytes(), b"nautilus", Update::Always).expect("there");
    Host::builder().map(Arc::new(format_map)).map(Arc::new(names)).build()
}

/// `argument` puts what is printed into `r1`; a number of the context is in `r7`.
fn prints(argument: &str) -> String {
    format!(
        "r6 = r1\nr7 = *(u64 *)(r6 + 40)\n*(u64 *)(r10 - 16) = 0x6f6d656e\n{argument}\n*(u64 *)(r10 - 8) = r1\n\
         r1 = r6\nr2 = 40\nr3 = map[idx:0][0]+0 ll\nr4 = r10\nr4 += -8\nr5 = 8\ncall 165\nexit"
    )
}

fn contract(unproven: Unproven) -> Contract {
    Contract::new().context(LEN as u32, ContextAccess::Write).unproven(unproven)
}

/// What the helper returns, and the text in the context.
fn printed(format: &str, argument: &str, number: u64, unproven: Unproven) -> (u64, String) {
    let run = |is_compiled: bool| {
        let host = host(format);
        let linked = host.verify(contract(unproven), code(&prints(argument))).unwrap_or_else(|error| panic!("{error}"));
        let mut context = [0xee; LEN];
        context[40..].copy_from_slice(&number.to_ne_bytes());
        let result = match packs().filter(|_| is_compiled) {
            None => linked.interpret(&Interpreter::default(), &mut context).expect("it ends"),
            Some(packs) => HostedProgram::load(&packs, &linked).expect("room").run(&mut context).expect("it ends"),
        };
        let text = context[..40].split(|byte| *byte == 0).next().expect("some");
        (result, String::from_utf8(text.to_vec()).expect("a text"))
    };
    assert_eq!(run(true), run(false), "{format} {argument}");
    run(true)
}

#[test]
fn texts_are_read_where_a_program_may_read_anything() {
    let name = "r1 = map[idx:1][0]+0 ll";
    let probe = |format: &str, argument: &str| printed(format, argument, 16, Unproven::Probe);
    let text = |text: &str| (text.len() as u64 + 1, text.to_owned());
    assert_eq!(probe("<%s>", name), text("<nemo>"));
    assert_eq!(probe("<%6s|%-6d>", name), text("<  nemo|0     >"));
    assert_eq!(probe("<%-6.2s>", name), text("<ne    >"));
    assert_eq!(probe("<%pks%pus>", name), text("<nemo>"));
    // On the stack of the program.
    assert_eq!(probe("<%s>", "r1 = r10\nr1 += -16"), text("<nemo>"));
    // What may be nothing, and where nothing is.
    assert_eq!(probe("<%s>", "r1 = r7"), text("<>"));
    assert_eq!(probe("<%s>", "r1 = -4096"), text("<>"));
}

#[test]
fn texts_of_the_host_are_read_by_compiled_programs() {
    let Some(packs) = packs() else { return };
    let host = host("%s!");
    let linked = host.verify(contract(Unproven::Probe), code(&prints("r1 = r7"))).expect("harmless");
    let program = HostedProgram::load(&packs, &linked).expect("room");
    let name = std::ffi::CString::new("a text of the host".to_owned()).expect("no zero");
    let mut context = [0; LEN];
    context[40..].copy_from_slice(&(name.as_ptr().expose_provenance() as u64).to_ne_bytes());
    assert_eq!(program.run(&mut context), Ok(20));
    assert_eq!(&context[..20], b"a text of the host!\0");
}

#[test]
fn others_give_no_addresses_and_get_no_texts() {
    // An address as a number is printed as ever, whatever is there.
    let name = std::ffi::CString::new("a secret").expect("no zero");
    let number = name.as_ptr().expose_provenance() as u64;
    assert_eq!(printed("<%s>", "r1 = r7", number, Unproven::Refuse), (5, "<%s>".to_owned()));
    let refused =
        |text: &str| host("%s").verify(contract(Unproven::Refuse), code(text)).map(drop).expect_err(text).fault;
    let fault = refused(&prints("r1 = map[idx:1][0]+0 ll"));
    assert_eq!(fault, Fault::PartOfAddress { offset: -8, len: 8 });
    let trace = "r3 = r10\nr1 = map[idx:0][0]+0 ll\nr2 = 3\nr4 = 0\nr5 = 0\ncall 6\nr0 = 0\nexit";
    assert_eq!(refused(trace), Fault::Address { register: Register::R3 });
    // Behind an address there is nothing that was written.
    let half = "r6 = r1\n*(u64 *)(r10 - 16) = r6\nr1 = r6\nr2 = 40\nr3 = map[idx:0][0]+0 ll\nr4 = r10\nr4 += -16\n\
                r5 = 16\ncall 165\nexit";
    let unset = host("%s%d").verify(contract(Unproven::Probe), code(half)).map(drop).expect_err("unset").fault;
    assert_eq!(unset, Fault::StackUnset { offset: -16, len: 16 });
    let whole = half.replace("r2 = 40", "*(u64 *)(r10 - 8) = 1\nr2 = 40");
    host("%s%d").verify(contract(Unproven::Probe), code(&whole)).expect("it may know the address");
    host("%s").verify(contract(Unproven::Probe), code(trace)).expect("it may know the address");
    let unset = trace.replace("r3 = r10\n", "");
    host("%s").verify(contract(Unproven::Probe), code(&unset)).expect("it prints what is at 0");
}
