//! The functions that this object's own code calls instead of those that it defines, through `--wrap` (`build.rs`).

use crate::arch::{jump, own_syscall};

/// Defines the names that `--wrap` gives these functions, as jumps to their targets. Hidden, so that no other object is
/// bound to them.
macro_rules! own {
    ($($name:ident => $target:path,)+) => {
        std::arch::global_asm!(
            ".macro palimpsest_own name, target",
            ".hidden __wrap_\\name",
            ".globl __wrap_\\name",
            ".type __wrap_\\name, %function",
            "__wrap_\\name:",
            concat!(jump!(), " \\target"),
            ".size __wrap_\\name, . - __wrap_\\name",
            ".endm",
            ".pushsection .text.palimpsest_own, \"ax\", %progbits",
            $(concat!("palimpsest_own ", stringify!($name), ", {", stringify!($name), "}"),)+
            ".popsection",
            ".purgem palimpsest_own",
            $($name = sym $target,)+
        );
    };
}

own! {
    fork => crate::fork::plain,
    madvise => crate::kernel::madvise,
    mremap => crate::kernel::mremap,
    mmap => crate::kernel::mmap,
    mmap64 => crate::kernel::mmap,
    mlock => crate::kernel::mlock,
    mlock2 => crate::kernel::mlock2,
    mlockall => crate::kernel::mlockall,
    syscall => own_syscall,
    epoll_wait => crate::own_waits::own_epoll_wait,
    epoll_pwait => crate::own_waits::own_epoll_pwait,
    poll => crate::own_waits::own_poll,
    ppoll => crate::own_waits::own_ppoll,
    select => crate::own_waits::own_select,
    pselect => crate::own_waits::own_pselect,
    nanosleep => crate::own_waits::own_nanosleep,
    clock_nanosleep => crate::own_waits::own_clock_nanosleep,
}
