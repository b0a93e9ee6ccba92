//! Two ways meet with different numbers. If nobody uses a number, the rest is followed once; if somebody does, by
//! whatever way it comes there, each is followed.

use palimpsest_bpf::verify::{ContextAccess, Contract, Verified, VerifyError};
use palimpsest_bpf::{Code, asm};

fn contract() -> Contract {
    Contract::new().context(16, ContextAccess::Write).budget(20_000)
}

fn verify_for(contract: Contract, text: &str) -> Result<Verified, VerifyError> {
    let bytes = asm::assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    contract.verify(Code::new(&bytes).unwrap_or_else(|error| panic!("{error}\n{text}")))
}

pub(super) fn verify(text: &str) -> Result<Verified, VerifyError> {
    verify_for(contract(), text)
}

/// Reads the context so many bytes behind its start.
pub(super) const READ: &str = "r0 = *(u8 *)(r9 + 0)\nexit";
/// Reads what was never written, unless the number is small.
const BRANCH: &str = "if r7 > 60 goto bad\nr0 = 0\nexit\nbad: r0 = *(u64 *)(r10 - 16)\nexit";

/// What uses `r6`, which is 1 on the way that is followed first.
fn uses() -> Vec<String> {
    vec![
        // In an address; in a comparison that it decides; in 32 bits.
        format!("r9 += r6\n{READ}"),
        format!("r7 = r6\n{BRANCH}"),
        format!("w7 = w6\n{BRANCH}"),
        // After other operations, alone and with another number.
        format!("r7 = r6\nr7 <<= 1\nr7 ^= 3\nr7 += r7\n{BRANCH}"),
        format!("r7 = r6\nr7 = -r7\nr7 = -r7\n{BRANCH}"),
        format!("r7 = (s8)r6\n{BRANCH}"),
        format!("r7 = r6\nr7 = le16 r7\n{BRANCH}"),
        format!("r7 = 1\nr7 *= r6\nr9 += r7\n{READ}"),
        // Behind another place where ways meet.
        format!("r7 = r6\nif r4 > 7 goto again\nr8 = 1\nagain: r9 += r7\n{READ}"),
        // On the stack, before and behind such a place.
        format!("*(u64 *)(r10 - 8) = r6\nr7 = *(u64 *)(r10 - 8)\nr9 += r7\n{READ}"),
        format!(
            "*(u64 *)(r10 - 8) = r6\nif r4 > 7 goto again\nr8 = 1\nagain: r7 = *(u64 *)(r10 - 8)\nr9 += r7\n{READ}"
        ),
        // In a function, in what it returns, and in its caller while ways meet in it.
        format!("r1 = r9\nr2 = r6\ncall local f\nexit\nf: r9 = r1\nr9 += r2\n{READ}"),
        format!("r1 = r6\ncall local f\nr9 += r0\n{READ}\nf: r0 = r1\nexit"),
        format!("r1 = r4\ncall local f\nr9 += r6\n{READ}\nf: r0 = 1\nif r1 > 7 goto again\nr0 = 2\nagain: exit"),
        format!("r1 = r4\ncall local f\nr9 += r6\n{READ}\nf: goto again\nagain: r0 = 1\nexit"),
        format!(
            "r1 = r6\nr2 = r4\ncall local f\nr9 += r0\n{READ}\nf: r0 = r1\nif r2 > 7 goto again\nr3 = 2\nagain: exit"
        ),
        format!(
            "r1 = r4\nr2 = r6\ncall local f\nr9 += r0\n{READ}\n\
             f: r3 = 1\nif r1 > 7 goto again\nr3 = 2\nagain: r0 = r2\nexit"
        ),
        // It is used on a way that ends where another one has been, with a number that has not come from it.
        format!("r7 = 1\nif r4 > 5 goto take\ngoto again\ntake: r7 = r6\nagain: r9 += r7\n{READ}"),
        // The same, with one that is still followed: a round of a loop.
        format!("r7 = 1\nhead: may_goto out\nr7 = r6\ngoto head\nout: r9 += r7\n{READ}"),
        // In a difference, beside an atomic operation, and beside less than 8 bytes of the stack.
        format!("r5 = 4096\nr5 -= r6\nif r5 s< 4090 goto bad\nr0 = 0\nexit\nbad: r0 = *(u64 *)(r10 - 16)\nexit"),
        format!(
            "r7 = 0\n*(u64 *)(r10 - 8) = r7\nlock *(u64 *)(r10 - 8) += r6\nr7 = *(u64 *)(r10 - 8)\nr7 &= 1\n\
             r7 *= r6\nr9 += r7\n{READ}"
        ),
        format!("*(u32 *)(r10 - 8) = r6\nr7 = *(u32 *)(r10 - 8)\nr7 &= 64\nr7 *= r6\nr9 += r6\n{READ}"),
        // It tells something of a number that is used.
        format!("r7 = r4\nif r7 > r6 goto out\nr9 += r7\n{READ}\nout: r0 = 0\nexit"),
        format!("r7 = r4\nif r6 < r7 goto out\nr9 += r7\n{READ}\nout: r0 = 0\nexit"),
    ]
}

/// `r9` is the context, `r3` and `r4` are unknown bytes; then `r6` is 1 or `other`, and ways meet.
pub(super) fn meeting(other: u32, rest: &str) -> String {
    format!(
        "r9 = r1\nr3 = *(u8 *)(r1 + 0)\nr4 = *(u8 *)(r1 + 1)\nr8 = 0\n\
         r6 = {other}\nif r3 > 5 goto meet\nr6 = 1\nmeet: {rest}"
    )
}

#[test]
fn a_number_that_is_used_is_followed_on_each_way() {
    for rest in uses() {
        let (right, wrong) = (meeting(1, &rest), meeting(100, &rest));
        verify(&right).unwrap_or_else(|error| panic!("{error}\n{right}"));
        assert!(verify(&wrong).is_err(), "accepted:\n{wrong}");
    }
}

#[test]
fn what_a_loop_with_fuel_takes_along_is_used() {
    let rest =
        format!("r7 = 1\nhead: r5 = *(u8 *)(r9 + 0)\nif r5 > 7 goto out\nr7 = r6\ngoto head\nout: r9 += r7\n{READ}");
    let fuelled = |other| verify_for(contract().fuel(100), &meeting(other, &rest));
    assert!(fuelled(1).expect("it has fuel").fuel().is_some());
    assert!(fuelled(100).is_err());
}

#[test]
fn what_nobody_uses_is_followed_once() {
    const BRANCHES: usize = 60;
    let branches: String = (0..BRANCHES)
        .map(|n| format!("r5 = *(u8 *)(r1 + {})\nif r5 > {n} goto l{n}\nr6 += {n}\nr7 ^= r6\nl{n}: r3 = r7\n", n % 16))
        .collect();
    let text = format!("r6 = 1\nr7 = 2\nr8 = r6\n{branches}*(u64 *)(r1 + 0) = r7\nr0 = r6\nexit");
    let verified = verify(&text).unwrap_or_else(|error| panic!("{error}"));
    let most = 10 * BRANCHES;
    assert!(verified.followed() <= most, "{} instructions were followed", verified.followed());
}
