//! eBPF in the kernel: programs are verified and compiled here, run in packs, and are attached to system calls.
//!
//! What `palimpsest_bpf` gives without an operating system is used as it is: assembler, verifier, compiler, maps,
//! helpers. What a kernel adds is in three places: packs ([`crate::packs`]), what helpers ask about the CPU that runs
//! the program (`runner`), and who runs it when (`hook`).

pub(crate) mod hook;
mod program;
mod runner;

pub(crate) use program::{Ended, Program};
