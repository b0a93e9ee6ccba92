//! The functions that this object's own code calls instead of those that it defines, through `--wrap` (`build.rs`), and
//! instead of those of `libgcc_s`.

use crate::arch::{jump, own_syscall};

/// Defines these names, after a prefix, as jumps to their targets. Hidden, so that no other object is bound to them.
macro_rules! own {
    ($prefix:literal: $($name:ident => $target:path,)+) => {
        std::arch::global_asm!(
            ".macro palimpsest_own name, target",
            ".hidden \\name",
            ".globl \\name",
            ".type \\name, %function",
            "\\name:",
            concat!(jump!(), " \\target"),
            ".size \\name, . - \\name",
            ".endm",
            // A start maps a page: beside what else it runs.
            ".pushsection palimpsest_start, \"ax\", %progbits",
            $(concat!("palimpsest_own ", $prefix, stringify!($name), ", {", stringify!($name), "}"),)+
            ".popsection",
            ".purgem palimpsest_own",
            $($name = sym $target,)+
        );
    };
}

own! {
    "__wrap_":
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
    __register_atfork => crate::glibc::register_atfork,
}

own! {
    "_Unwind_":
    Backtrace => crate::unwinder::backtrace,
    DeleteException => crate::unwinder::delete_exception,
    GetDataRelBase => crate::unwinder::get_data_rel_base,
    GetIP => crate::unwinder::get_ip,
    GetIPInfo => crate::unwinder::get_ip_info,
    GetLanguageSpecificData => crate::unwinder::get_language_specific_data,
    GetRegionStart => crate::unwinder::get_region_start,
    GetTextRelBase => crate::unwinder::get_text_rel_base,
    RaiseException => crate::unwinder::raise_exception,
    Resume => crate::unwinder::resume,
    SetGR => crate::unwinder::set_gr,
    SetIP => crate::unwinder::set_ip,
}

// By its address the C library knows to which object a destructor of thread-local variables belongs. Compilers define
// it in each object's start files, which this one does without (`build.rs`).
std::arch::global_asm!(
    ".pushsection .rodata.palimpsest_own, \"a\", %progbits",
    ".hidden __dso_handle",
    ".globl __dso_handle",
    ".type __dso_handle, %object",
    ".balign 8",
    "__dso_handle:",
    ".8byte 0",
    ".size __dso_handle, . - __dso_handle",
    ".popsection",
);

// Variables that begin as zeros come with the file, as others do: on the pages of these, and in no mapping of their
// own, which a program would pay for at its start and at each fork. One byte that comes with the file makes it so with
// lld and GNU ld; mold makes a mapping all the same.
std::arch::global_asm!(".pushsection .bss.palimpsest_in_file, \"awR\", %progbits", ".byte 0", ".popsection",);
