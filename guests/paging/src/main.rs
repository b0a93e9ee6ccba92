//! A kernel that exists to be checked: it runs the page tables of `palimpsest-paging`, the code patching of
//! `palimpsest-text`, and the programs of `palimpsest-bpf`, with the page walkers of real architectures. See README.md
//! for how to run it.
//!
//! | module | what it holds |
//! |---|---|
//! | `arch` | what differs between architectures |
//! | `asked` | what the command line asks for |
//! | `memory` | frames of two nodes, and the machine as address spaces see it |
//! | `flush`, `cpu`, `call` | calls between CPUs |
//! | `image` | where the kernel's image runs |
//! | `kernel_space` | the kernel's own tables |
//! | `entry` | what user mode's tables have of it |
//! | `probe` | accesses of the kernel that may fault |
//! | `sites` | code of the kernel that is changed while it runs |
//! | `kernel_text_writer` | the poke core's machine: writes the kernel's text in every node's copy |
//! | `breakpoints` | a probe in the kernel's own text, in every node's copy |
//! | `packs` | programs in the kernel's space, and what their faults and traps mean |
//! | `key` | the static key of the system-call hook: its sites in the kernel and in modules |
//! | `modules` | relocatable objects that are loaded while the kernel runs |
//! | `bpf` | programs that are verified, compiled into packs, and attached to system calls |
//! | `process` | user mode |
//! | `caches`, `fetches` | a model of caches, and the kernel's instructions shown to it |
//! | `checks` | what is proved |

#![no_std]
#![no_main]

extern crate alloc;

mod arch;
mod asked;
mod bpf;
mod breakpoints;
mod caches;
mod call;
mod check;
mod checks;
mod console;
mod counts;
mod cpu;
mod entry;
mod fetches;
mod flush;
mod image;
mod kernel_space;
mod kernel_text_writer;
mod key;
mod memory;
mod modules;
mod packs;
mod probe;
mod process;
mod sites;
mod sync;

use cpu::CPUS;

/// Bytes of a kernel stack.
const STACK: usize = 64 << 10;

#[repr(C, align(4096))]
struct Stack(core::cell::UnsafeCell<[u8; STACK]>);

// SAFETY: each is one CPU's stack.
unsafe impl Sync for Stack {}

/// The stacks of the other CPUs.
static STACKS: [Stack; CPUS] = [const { Stack(core::cell::UnsafeCell::new([0; STACK])) }; CPUS];

core::arch::global_asm!(
    ".section .bss",
    ".balign 4096",
    ".skip 65536",
    ".global first_stack_end",
    "first_stack_end:",
    ".section .text",
);

/// Starts every CPU, on a stack of its own and with the boot tables loaded.
#[unsafe(no_mangle)]
extern "C" fn cpu_main(number: usize) -> ! {
    arch::cpu::init(number);
    if number == 0 {
        say!("# {}, {CPUS} CPUs, {} nodes", arch::layout::NAME, memory::NODES);
        kernel_space::make();
        entry::make();
        packs::make();
        modules::make();
    }
    arch::mmu::load_kernel(kernel_space::get().root(cpu::node_of(number)));
    arch::mmu::make_user_root(number);
    cpu::set_up(number);
    if number != 0 {
        loop {
            if !cpu::do_work() && !process::run_ready() {
                arch::cpu::halt();
            }
        }
    }
    for (other, stack) in STACKS.iter().enumerate().skip(1) {
        arch::cpu::start(other, stack.0.get() as u64 + STACK as u64);
        while !cpu::is_up(other) {
            cpu::relax();
        }
    }
    checks::run();
    arch::console::exit(check::finish())
}

/// Whether some CPU has panicked.
static PANICKED: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    // Relaxed: nothing is published. Only the first to panic prints; it ends the machine.
    while PANICKED.swap(true, core::sync::atomic::Ordering::Relaxed) {
        arch::cpu::halt();
    }
    console::last_line(format_args!("FAILED cpu {}: {info}", arch::cpu::number()));
    arch::console::exit(check::Status::Failed)
}
