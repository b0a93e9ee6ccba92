//! The macros that are the same on all machines.

/// Defines static keys.
///
/// ```
/// use palimpsest_text::static_key;
///
/// static_key! {
///     /// Traces of packets.
///     pub static NET_TRACE: "net.trace" = off;
///     static CHECKS: "db.checks" = on;
/// }
/// assert!(CHECKS.is_on() && !NET_TRACE.is_on());
/// ```
///
/// Each is a `static` of type [`Key`](crate::key::Key), with a name by which operators switch it, and the state in
/// which the program starts. A name consists of letters, digits and `. _ - : /`, which the compiler checks; it should
/// be unique, but need not be. A key may be defined wherever a `static` may.
///
/// Beside the `static` there is a type of the same name, so that [`branch!`](crate::branch) knows the first state at
/// compile time; a `use` of the key brings both.
#[macro_export]
macro_rules! static_key {
    ($($(#[$meta:meta])* $vis:vis static $name:ident: $text:literal = $state:ident);+ $(;)?) => {
        $($crate::__palimpsest_key! { $(#[$meta])* [$vis] $name, $text, $crate::__palimpsest_is_on!($state) })+
    };
}

/// Defines one key, whose name may be any constant.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_key {
    ($(#[$meta:meta])* [$vis:vis] $name:ident, $text:expr, $on:expr) => {
        $(#[$meta])*
        // SAFETY: the section holds only keys, one after the other; see `palimpsest_text::key`, "The sections".
        #[cfg_attr(not(miri), unsafe(link_section = "palimpsest_keys"))]
        $vis static $name: $crate::key::Key = {
            const NAME: &str = $text;
            // SAFETY: it is in the section of keys.
            unsafe { $crate::key::hidden::key(NAME, $on) }
        };
        #[doc(hidden)]
        #[allow(non_camel_case_types, dead_code, reason = "it is spelt like its key, which may have no branches")]
        $vis type $name = $crate::key::hidden::Starts<{ $on }>;
    };
}

/// Turns `on` or `off` into a value.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_is_on {
    (on) => {
        true
    };
    (off) => {
        false
    };
}

/// Whether a static key is on, as an instruction that is rewritten when the key is switched.
///
/// ```
/// use palimpsest_text::{branch, static_key};
///
/// static_key!(static NET_TRACE: "net.trace" = off);
///
/// fn send(packet: &[u8]) -> usize {
///     if branch!(unlikely NET_TRACE) {
///         eprintln!("sending {packet:?}");
///     }
///     packet.len()
/// }
/// assert_eq!(send(b"abc"), 3);
/// ```
///
/// `unlikely` puts the code for the key being on out of line: as long as the key is off, a pass costs one instruction
/// without effect. `likely` puts the code for the key being off out of line. Both are right for a key in either state;
/// an arm that is out of line costs a jump there and one back.
///
/// The only promised order between switching and passing is that of [`Key`](crate::key::Key): when a call that switches
/// returns, every pass that begins later sees it.
///
/// The key must be in the same object (program or shared library) as the branch, as it is if both are linked
/// statically; otherwise the linker fails.
#[macro_export]
macro_rules! branch {
    (likely $key:path) => {
        $crate::__palimpsest_site!($key, true)
    };
    (unlikely $key:path) => {
        $crate::__palimpsest_site!($key, false)
    };
}

/// Defines a function that can be exchanged while it is called, at the price of a direct jump.
///
/// ```
/// use palimpsest_text::{call, static_call};
///
/// fn portable(data: &[u8]) -> u64 {
///     data.iter().map(|&byte| u64::from(byte)).sum()
/// }
///
/// static_call! {
///     /// Sums bytes.
///     pub static SUM: fn(&[u8]) -> u64 = portable;
/// }
/// assert_eq!(call!(SUM)(&[1, 2, 3]), 6);
/// ```
///
/// [`call!`](crate::call) is a function pointer that the compiler knows: calling it is a direct call to an entry that
/// is nothing but a jump to the present function. [`StaticCall::set`](crate::key::StaticCall::set) rewrites that jump;
/// no call instruction is ever rewritten, so that memory below a leaf function's stack pointer is safe.
///
/// The type is one of `fn(A, B) -> R`, `unsafe fn(..)`, `extern "C" fn(..)` and `unsafe extern "C" fn(..)`.
#[macro_export]
macro_rules! static_call {
    ($(#[$meta:meta])* $vis:vis static $name:ident:
        fn($($arg:ty),* $(,)?) $(-> $result:ty)? = $first:path $(;)?) => {
        $crate::__palimpsest_call! { $(#[$meta])* [$vis] $name, fn($($arg),*) $(-> $result)?, $first }
    };
    ($(#[$meta:meta])* $vis:vis static $name:ident:
        unsafe fn($($arg:ty),* $(,)?) $(-> $result:ty)? = $first:path $(;)?) => {
        $crate::__palimpsest_call! { $(#[$meta])* [$vis] $name, unsafe fn($($arg),*) $(-> $result)?, $first }
    };
    ($(#[$meta:meta])* $vis:vis static $name:ident:
        extern $abi:literal fn($($arg:ty),* $(,)?) $(-> $result:ty)? = $first:path $(;)?) => {
        $crate::__palimpsest_call! { $(#[$meta])* [$vis] $name, extern $abi fn($($arg),*) $(-> $result)?, $first }
    };
    ($(#[$meta:meta])* $vis:vis static $name:ident:
        unsafe extern $abi:literal fn($($arg:ty),* $(,)?) $(-> $result:ty)? = $first:path $(;)?) => {
        $crate::__palimpsest_call! {
            $(#[$meta])* [$vis] $name, unsafe extern $abi fn($($arg),*) $(-> $result)?, $first
        }
    };
}

/// Defines one static call. `$type` is a function pointer type: `static_call!` accepts nothing else.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_call {
    ($(#[$meta:meta])* [$vis:vis] $name:ident, $type:ty, $first:path) => {
        $(#[$meta])*
        $vis static $name: $crate::key::StaticCall<$type> = {
            const FIRST: $type = $first;
            // SAFETY: the type is that of a function pointer, and so is `FIRST`.
            unsafe { $crate::key::hidden::call(FIRST as *const ()) }
        };
        #[doc(hidden)]
        #[allow(non_camel_case_types, dead_code, reason = "it is spelt like its call, which may never be used")]
        $vis enum $name {}
        impl $crate::key::hidden::Entry for $name {
            type Function = $type;
            #[inline(always)]
            fn entry() -> $type {
                $crate::__palimpsest_call_entry!($name, $first, $type)
            }
        }
    };
}

/// The function pointer of a [`static_call!`](crate::static_call), to be called at once: `call!(SUM)(data)`.
///
/// It may be kept: it always leads to the present function. (On machines without patching it keeps leading to the
/// function that was present when the macro ran.)
#[macro_export]
macro_rules! call {
    ($call:path) => {
        <$call as $crate::key::hidden::Entry>::entry()
    };
}
