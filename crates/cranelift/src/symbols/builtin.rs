//! Functions that always exist: Cranelift's library calls, whose libm a program may not have linked.

/// Rounding and fused multiply-add, under the names from `cranelift_module::default_libcall_names`.
macro_rules! math {
    ($($name:ident($($arg:ident),+) -> $float:ty = $body:expr;)+) => {
        $(extern "C" fn $name($($arg: $float),+) -> $float { $body })+

        fn math(name: &str) -> Option<usize> {
            match name {
                $(stringify!($name) => Some($name as *const () as usize),)+
                _ => None,
            }
        }
    };
}

math! {
    ceilf(x) -> f32 = x.ceil();
    ceil(x) -> f64 = x.ceil();
    floorf(x) -> f32 = x.floor();
    floor(x) -> f64 = x.floor();
    truncf(x) -> f32 = x.trunc();
    trunc(x) -> f64 = x.trunc();
    nearbyintf(x) -> f32 = x.round_ties_even();
    nearbyint(x) -> f64 = x.round_ties_even();
    fmaf(x, y, z) -> f32 = x.mul_add(y, z);
    fma(x, y, z) -> f64 = x.mul_add(y, z);
}

/// Returns the address of the function called `name`, if it is one of these.
pub(super) fn address(name: &str) -> Option<usize> {
    math(name)
}
