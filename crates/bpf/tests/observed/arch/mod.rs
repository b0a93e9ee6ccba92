//! What only some architectures can do: running a program step by step, by a flag of the CPU. Tables of the other are
//! compared with its instructions, in `jit/unwinding.rs`.

#[cfg(target_arch = "x86_64")]
mod x86_64;
