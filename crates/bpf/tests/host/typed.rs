//! Contexts with types: compared with what a program was verified for when it is loaded, and not when it runs.

use palimpsest_bpf::{ContextError, layout};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::*;

layout! {
    /// What programs see of a request.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
    #[repr(C)]
    struct Request {
        bytes: u64,
        cost: u64,
    }
}

/// As long as it, and aligned to less.
type Words = [u32; 4];

const BEGIN: Request = Request { bytes: 1200, cost: 5 };

/// Sets the cost; returns the length that it got.
const COST: &str = "r0 = *(u64 *)(r1 + 0)\nr0 /= 100\n*(u64 *)(r1 + 8) = r0\nr0 = r2\nexit";
const COUNT: &str = "r0 = 1\nr0 = atomic_fetch_add((u64 *)(r1 + 8), r0)\nexit";
const SUM: &str = "r0 = *(u64 *)(r1 + 0)\nr3 = *(u64 *)(r1 + 8)\nr0 += r3\nexit";

fn loaded(packs: &Packs, access: ContextAccess, text: &str) -> HostedProgram {
    let linked = builder().build().verify(Contract::of::<Request>(access), code(text)).expect(text);
    HostedProgram::load(packs, &linked).expect("room")
}

fn verified(packs: &Packs, access: ContextAccess, text: &str) -> VerifiedProgram {
    let verified = Contract::of::<Request>(access).verify(code(text)).expect(text);
    VerifiedProgram::load(packs, &verified, &()).expect("room")
}

#[test]
fn programs_run_with_contexts_of_their_type() {
    let Some(packs) = packs() else { return };
    let with_helper = "r6 = r1\nr7 = r2\ncall 8\nr1 = r6\nr2 = r7\n";
    let with_tail_call = "r6 = r1\nr7 = r2\nr2 = map[idx:4] ll\nr3 = 0\ncall 12\nr1 = r6\nr2 = r7\n";
    for begin in ["", with_helper, with_tail_call] {
        let program =
            loaded(&packs, ContextAccess::Write, &format!("{begin}{COST}")).typed::<Request>().expect("its type");
        let mut request = BEGIN;
        assert_eq!(program.run(&mut request), Ok(16));
        assert_eq!(request, Request { cost: 12, ..BEGIN }, "{begin}");
        let program = loaded(&packs, ContextAccess::Read, &format!("{begin}{SUM}")).typed_read_only::<Request>();
        assert_eq!(program.expect("its type").run(&BEGIN), Ok(1205), "{begin}");
    }
    let program = verified(&packs, ContextAccess::Write, COST).typed::<Request>().expect("its type");
    let mut request = BEGIN;
    assert_eq!((program.run(&mut request), request.cost), (Ok(16), 12));
    let program = verified(&packs, ContextAccess::Read, SUM).typed_read_only::<Request>().expect("its type");
    assert_eq!(program.run(&BEGIN), Ok(1205));
    // One that only reads may have what can be written, too.
    let program = program.into_program().typed::<Request>().expect("its type");
    assert_eq!(program.run(&mut request), Ok(1212));
}

/// Fails on: a length, an alignment or an access that is not compared.
#[test]
fn types_that_do_not_fit_are_refused_when_a_program_is_loaded() {
    let Some(packs) = packs() else { return };
    let hosted = |text: &str| loaded(&packs, ContextAccess::Write, text);
    let short = Err(ContextError::Short { len: 8, least: 16 });
    assert_eq!(hosted(COST).typed::<u64>().map(drop), short);
    assert_eq!(verified(&packs, ContextAccess::Write, COST).typed::<u64>().map(drop), short);
    // Plain loads and stores need no alignment; atomic operations do.
    let mut words: Words = [1200, 0, 0, 0];
    assert_eq!(hosted(COST).typed::<Words>().expect("long enough").run(&mut words), Ok(16));
    assert_eq!(words, [1200, 0, 12, 0]);
    let unaligned = hosted(COUNT).typed::<Words>().map(drop);
    assert_eq!(unaligned, Err(ContextError::Unaligned { address: 4, align: 8 }));
    assert!(hosted(COUNT).typed::<Request>().is_ok());
    assert_eq!(hosted(COST).typed_read_only::<Request>().map(drop), Err(ContextError::ReadOnly));
    let written = verified(&packs, ContextAccess::Write, SUM).typed_read_only::<Request>().map(drop);
    assert_eq!(written, Err(ContextError::ReadOnly));
    // The verifier keeps the program in its type.
    let contract = Contract::of::<Request>(ContextAccess::Read);
    let beyond = contract.verify(code("r0 = *(u64 *)(r1 + 16)\nexit")).map(drop).expect_err("it is no longer").fault;
    assert_eq!(beyond, Fault::Context { min: 16, end: 24, len: 16 });
}
