//! The node that the calling thread runs on.
//!
//! The C library registers a *restartable sequence* for each of its threads (glibc 2.35), in which the kernel keeps the
//! thread's CPU and, since Linux 6.3, its node up to date: one load reads it. If there is none, `getcpu` is called,
//! which on x86-64 is a function of the vDSO.
//!
//! Sources: glibc's manual, "Restartable Sequences" (`__rseq_offset`, `__rseq_size`); `include/uapi/linux/rseq.h`;
//! `AT_RSEQ_FEATURE_SIZE` in `include/uapi/linux/auxvec.h`.

use std::ffi::{c_int, c_uint};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::NodeId;
use crate::arch::thread_word;
use crate::symbols::global_symbol;

/// Offset of `node_id` in `struct rseq`, in bytes.
const NODE_ID: isize = 20;
/// Offset of `cpu_id`, which is negative until a thread is registered.
const CPU_ID: isize = 4;
/// Bytes of the structure that a kernel must know to fill `node_id`.
const WITH_NODE_ID: u64 = 24;
/// `AT_RSEQ_FEATURE_SIZE`.
const FEATURE_SIZE: u64 = 27;

/// How [`current_node`] finds the node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Locating {
    /// By one load from the thread's restartable sequence.
    RestartableSequence,
    /// By the C library's `getcpu`.
    Getcpu,
}

/// The result for this process: [`UNKNOWN`], [`NO_SEQUENCE`], or the offset of the sequence from the thread pointer,
/// which is a multiple of 32 and never 0.
static SEQUENCE: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = 0;
const NO_SEQUENCE: usize = 1;

/// The C library's `getcpu`, once it was searched.
static GETCPU: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Returns the node that the calling thread runs on. The thread may have moved when this returns.
///
/// In the best case this is a load ([`Locating::RestartableSequence`]). Never fails: if the node cannot be found out,
/// returns node 0. In a thread that was started without the C library and shares another's thread pointer, returns the
/// node of that other thread.
#[inline]
pub fn current_node() -> NodeId {
    // Relaxed: the number stands for itself.
    let offset = SEQUENCE.load(Ordering::Relaxed);
    if offset <= NO_SEQUENCE {
        return located_slowly(offset);
    }
    // SAFETY: 1. a thread's sequence is part of its control block (glibc's manual), and aligned to 32 bytes.
    NodeId(unsafe { thread_word(offset.cast_signed() + NODE_ID) })
}

/// Returns how [`current_node`] finds the node in this process.
pub fn locating() -> Locating {
    current_node();
    // Relaxed: as above.
    match SEQUENCE.load(Ordering::Relaxed) {
        UNKNOWN | NO_SEQUENCE => Locating::Getcpu,
        _ => Locating::RestartableSequence,
    }
}

#[cold]
fn located_slowly(known: usize) -> NodeId {
    if known == UNKNOWN {
        let found = sequence();
        // Relaxed: every thread finds the same.
        SEQUENCE.store(found.map_or(NO_SEQUENCE, isize::cast_unsigned), Ordering::Relaxed);
        if let Some(offset) = found {
            // SAFETY: 1. as in `current_node`.
            return NodeId(unsafe { thread_word(offset + NODE_ID) });
        }
    }
    by_getcpu()
}

/// Returns the offset of each thread's restartable sequence, if it contains nodes.
fn sequence() -> Option<isize> {
    // SAFETY: only reads what the kernel handed this process.
    let known_to_kernel = unsafe { libc::getauxval(FEATURE_SIZE) };
    let size = variable(global_symbol(c"__rseq_size")?.cast::<c_uint>());
    let offset = variable(global_symbol(c"__rseq_offset")?.cast::<isize>());
    // The size is 0 if glibc has registered none (`glibc.pthread.rseq=0`), else that of the features that glibc itself
    // knows. A sequence is registered with at least 32 bytes (`ORIG_RSEQ_SIZE` in `kernel/rseq.c`), of which the kernel
    // fills all that it knows.
    if known_to_kernel < WITH_NODE_ID || size == 0 || offset == 0 || offset % 32 != 0 {
        return None;
    }
    // SAFETY: 1. a sequence has been registered for this thread, as its size tells.
    let cpu = unsafe { thread_word(offset + CPU_ID) };
    (cpu.cast_signed() >= 0).then_some(offset)
}

fn variable<T: Copy>(place: NonNull<T>) -> T {
    // SAFETY: a variable of that type according to the C library's manual, which is never written after the program has
    // started.
    unsafe { place.read() }
}

fn by_getcpu() -> NodeId {
    // Relaxed: every thread finds the same function.
    let mut found = GETCPU.load(Ordering::Relaxed);
    if found.is_null() {
        // The kernel's own call has the same first two parameters.
        found = global_symbol(c"getcpu").map_or(kernel_getcpu as *mut u8, NonNull::as_ptr);
        GETCPU.store(found, Ordering::Relaxed);
    }
    // SAFETY: a function of this type, by getcpu(2).
    let getcpu: extern "C" fn(*mut c_uint, *mut c_uint) -> c_int = unsafe { std::mem::transmute(found) };
    let (mut cpu, mut node) = (0, 0);
    match getcpu(&raw mut cpu, &raw mut node) {
        0 => NodeId(node),
        _ => NodeId(0),
    }
}

/// Replaces `getcpu` for C libraries without it.
extern "C" fn kernel_getcpu(cpu: *mut c_uint, node: *mut c_uint) -> c_int {
    // SAFETY: the kernel writes to two words of the caller's, or fails.
    let answer = unsafe { libc::syscall(libc::SYS_getcpu, cpu, node, 0_usize) };
    if answer == 0 { 0 } else { -1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_tell_a_node_that_has_this_cpu() {
        let all = crate::numa::sysfs::nodes().unwrap_or_default();
        let known = |node: NodeId| all.is_empty() && node == NodeId(0) || all.iter().any(|facts| facts.id == node);
        assert!(known(current_node()), "{}", current_node());
        assert!(known(by_getcpu()), "{}", by_getcpu());
        let (mut cpu, mut node) = (u32::MAX, u32::MAX);
        assert_eq!(kernel_getcpu(&raw mut cpu, &raw mut node), 0);
        assert!(known(NodeId(node)), "{node}");
    }

    #[test]
    fn the_sequence_tells_the_cpu_of_each_thread() {
        let Some(offset) = sequence() else {
            return println!("skipped: no restartable sequence that tells nodes (glibc 2.35, Linux 6.3)");
        };
        assert_eq!(locating(), Locating::RestartableSequence);
        let cpus = crate::numa::policy::affinity().expect("always told");
        std::thread::scope(|scope| {
            for &cpu in &cpus {
                scope.spawn(move || {
                    crate::numa::policy::set_affinity(&[cpu]).expect("one of those that were allowed");
                    // SAFETY: 1. as in `current_node`.
                    assert_eq!(unsafe { thread_word(offset + CPU_ID) }, cpu);
                    assert_eq!(current_node(), by_getcpu());
                });
            }
        });
    }
}
