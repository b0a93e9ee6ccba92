//! Programs that make system calls which programs of the kernel answer.

use super::{Number, RUNNING, exit};
use crate::arch::user::call;

/// No process: [`Number::Wait`] says [`RUNNING`] of it, if nobody else answers.
pub(crate) const NOBODY: u64 = u64::MAX - 1;
/// An answer of programs of the kernel: no.
pub(crate) const REFUSED: u64 = 13;
/// An answer of theirs: the process is to end.
pub(crate) const ENOUGH: u64 = 14;
/// How a process ends that got another answer.
pub(crate) const WRONG_ANSWER: u64 = 1 << 40;

/// Asks for [`NOBODY`] until the answer is [`ENOUGH`]; ends with how often it was [`REFUSED`].
#[unsafe(link_section = ".user")]
pub(crate) extern "C" fn asker(_argument: u64) -> ! {
    let mut refused = 0;
    loop {
        let answer = call(Number::Wait as u64, [NOBODY, 0, 0]);
        if answer == REFUSED {
            refused += 1;
        } else if answer == ENOUGH {
            exit(refused);
        } else if answer != RUNNING {
            exit(WRONG_ANSWER);
        }
    }
}
