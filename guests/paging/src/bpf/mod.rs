//! eBPF in the kernel: programs are verified, compiled into packs, and attached to system calls.
//!
//! Assembler, verifier, compiler, maps and helpers are those of `palimpsest_bpf`, which need no operating system. A
//! kernel adds three things: packs ([`crate::packs`]), what helpers ask about the CPU that runs the program (`runner`),
//! and who runs it when (`hook`).

pub(crate) mod hook;
mod program;
mod runner;

pub(crate) use program::{Ended, Program, set_tail};
