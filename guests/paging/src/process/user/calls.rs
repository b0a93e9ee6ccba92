//! User programs whose system calls are answered by programs attached in the kernel.

use super::{Number, RUNNING, exit};
use crate::arch::user::call;

/// A process that does not exist: [`Number::Wait`] answers [`RUNNING`], unless an attached program answers first.
pub(crate) const NOBODY: u64 = u64::MAX - 1;
/// An attached program's answer: refused.
pub(crate) const REFUSED: u64 = 13;
/// An attached program's answer: the process is to end.
pub(crate) const ENOUGH: u64 = 14;
/// The code of a process that got any other answer.
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
