//! Static calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use palimpsest_text::{call, static_call};

fn sum(data: &[u8], seed: (u64, u64)) -> [u64; 3] {
    [data.iter().map(|&byte| u64::from(byte)).sum(), seed.0, seed.1]
}

fn product(data: &[u8], seed: (u64, u64)) -> [u64; 3] {
    [data.iter().map(|&byte| u64::from(byte)).product(), seed.1, seed.0]
}

static_call! {
    /// Has more arguments and results than fit registers.
    static FOLD: fn(&[u8], (u64, u64)) -> [u64; 3] = sum;
}

#[inline(never)]
fn fold(data: &[u8]) -> [u64; 3] {
    call!(FOLD)(data, (1, 2))
}

#[test]
fn calls_go_where_they_are_set() {
    assert_eq!(fold(&[2, 3, 4]), [9, 1, 2]);
    for _ in 0..3 {
        FOLD.set(product).unwrap();
        assert_eq!(fold(&[2, 3, 4]), [24, 2, 1]);
        assert_eq!(FOLD.target() as usize, product as *const () as usize);
        FOLD.set(sum).unwrap();
        assert_eq!(fold(&[2, 3, 4]), [9, 1, 2]);
    }
}

#[test]
fn every_kind_of_function_can_be_set() {
    extern "C" fn plus(a: f64, b: f64) -> f64 {
        a + b
    }
    extern "C" fn minus(a: f64, b: f64) -> f64 {
        a - b
    }
    static_call!(static C: extern "C" fn(f64, f64) -> f64 = plus);
    assert_eq!(call!(C)(1.0, 2.0), 3.0);
    C.set(minus).unwrap();
    assert_eq!(call!(C)(1.0, 2.0), -1.0);

    unsafe fn nothing() {}
    fn panics() {
        panic!("through the entry");
    }
    static_call!(static U: unsafe fn() = nothing);
    // SAFETY: it does nothing.
    unsafe { call!(U)() };
    U.set(panics).unwrap();
    // The entry has no frame, so that unwinding passes through it.
    // SAFETY: it panics, and does nothing else.
    std::panic::catch_unwind(|| unsafe { call!(U)() }).unwrap_err();
}

#[test]
fn calls_that_run_meanwhile_go_to_one_of_both() {
    fn one(number: u64) -> u64 {
        number + 1
    }
    fn two(number: u64) -> u64 {
        number + 2
    }
    static_call!(static STEP: fn(u64) -> u64 = one);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for number in 0..100 {
                        assert!([1, 2].contains(&(call!(STEP)(number) - number)));
                    }
                }
            });
        }
        let _stop = super::StopOnDrop(&stop);
        for round in 0..400 {
            STEP.set(if round % 2 == 0 { two } else { one }).unwrap();
            assert_eq!(call!(STEP)(0), if round % 2 == 0 { 2 } else { 1 });
        }
    });
}
