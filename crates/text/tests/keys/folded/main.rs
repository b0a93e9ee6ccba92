//! Functions that are alike but for their keys and calls. `tests/keys` links this with a linker that folds identical
//! code.

use std::hint::black_box;

use palimpsest_text::key::State;
use palimpsest_text::{branch, call, static_call, static_key};

static_key! {
    static FIRST: "folded.first" = off;
    static SECOND: "folded.second" = off;
}

static_call!(static FIRST_CALL: extern "C" fn() -> u32 = one);
static_call!(static SECOND_CALL: extern "C" fn() -> u32 = one);

#[inline(never)]
extern "C" fn one() -> u32 {
    1
}

#[inline(never)]
extern "C" fn two() -> u32 {
    2
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn on_first() -> u32 {
    if branch!(unlikely FIRST) { 1 } else { 0 }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn on_second() -> u32 {
    if branch!(unlikely SECOND) { 1 } else { 0 }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn plain(number: u32) -> u32 {
    number.wrapping_mul(12345)
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn as_plain(number: u32) -> u32 {
    number.wrapping_mul(12345)
}

fn main() {
    let addresses = [plain, as_plain].map(|function| black_box(function as extern "C" fn(u32) -> u32) as usize);
    assert_eq!(addresses[0], addresses[1], "the linker folds nothing");
    assert_eq!((on_first(), on_second()), (0, 0));
    SECOND.set(State::On).unwrap();
    assert_eq!((on_first(), on_second()), (0, 1));
    FIRST.set(State::On).unwrap();
    SECOND.set(State::Off).unwrap();
    assert_eq!((on_first(), on_second()), (1, 0));
    SECOND_CALL.set(two).unwrap();
    assert_eq!((call!(FIRST_CALL)(), call!(SECOND_CALL)()), (1, 2));
}
