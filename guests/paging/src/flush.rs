//! Flushing the TLBs of several CPUs, and their instruction fetch.
//!
//! A *slot* describes a flush. Its word `waiting` has a bit for each CPU that still has to do it,
//! [`TAKEN`], and [`ASLEEP`].
//!
//! | | CPU 0 | CPU 1 |
//! |---|---|---|
//! | a | takes a slot, writes what to flush, sets CPU 1's bit (Release), interrupts it | |
//! | b | flushes its own TLB | interrupt, or spins somewhere: sees its bit (Acquire), flushes, clears it (Release) |
//! | c | sees no bit (Acquire), frees the slot | |
//!
//! If c takes long, CPU 0 sets [`ASLEEP`] and halts, so that an emulator with fewer processors can run CPU 1; the CPU
//! that clears the last bit and finds `ASLEEP` set interrupts CPU 0. Both change one word, so that one of them sees the
//! other's change.
//!
//! CPUs that wait, for a flush or for a lock of an address space, serve slots with their own bit meanwhile ([`serve`]),
//! so that two CPUs that wait for each other both continue. No lock is taken in b.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use palimpsest_paging::{FlushRanges, FlushRequest, PAGE, VirtAddr};

use crate::arch::{self, mmu};
use crate::call::Call;
use crate::counts::{COUNTS, add};
use crate::cpu::{self, CPUS};
use crate::kernel_space;

/// Flushes that can be under way at once.
const SLOTS: usize = 32;
/// Ranges of one slot; a flush of more flushes everything.
const RANGES: usize = 16;
/// Pages that are flushed one by one; a flush of more flushes everything.
const SINGLE_PAGES: u64 = 128;
/// Bit of `waiting`: somebody uses the slot.
const TAKEN: u32 = 1 << 31;
/// Bit of `waiting`: the waiting CPU has halted.
const ASLEEP: u32 = 1 << 30;
/// Turns of waiting before a CPU halts.
const PATIENCE: u32 = 100;

struct Slot {
    waiting: AtomicU32,
    /// The CPU that waits.
    caller: AtomicUsize,
    /// A [`What`].
    what: AtomicU32,
    count: AtomicUsize,
    ranges: [(AtomicU64, AtomicU64); RANGES],
}

static SLOT: [Slot; SLOTS] = [const {
    Slot {
        waiting: AtomicU32::new(0),
        caller: AtomicUsize::new(0),
        what: AtomicU32::new(0),
        count: AtomicUsize::new(0),
        ranges: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; RANGES],
    }
}; SLOTS];

/// What a slot is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// The whole TLB.
    Everything,
    /// Its ranges.
    Ranges,
    /// Fetched code.
    Fetched,
}

/// Whether flushes leave other CPUs out, as in a wrong kernel, to show that tests notice.
pub(crate) static ONLY_HERE: AtomicBool = AtomicBool::new(false);

/// A flush that was sent out.
#[derive(Debug)]
pub(crate) struct Pending(usize);

/// Sends out a flush, and does this CPU's part of it.
pub(crate) fn dispatch(request: FlushRequest<'_>) -> Pending {
    add(&COUNTS.flushes, 1);
    let here = arch::cpu::number();
    let number = take_slot();
    let slot = &SLOT[number];
    let ranges: &[Range<VirtAddr>] = match request.what {
        FlushRanges::All => &[],
        FlushRanges::Some(ranges) => ranges,
    };
    let pages: u64 =
        ranges.iter().map(|range| (range.end.0.wrapping_sub(range.start.0)) / PAGE).fold(0, u64::saturating_add);
    let everything = ranges.is_empty() || ranges.len() > RANGES || pages > SINGLE_PAGES;
    let what = if everything { What::Everything } else { What::Ranges };
    // Relaxed, here and below: ordered by `waiting`.
    slot.what.store(what as u32, Ordering::Relaxed);
    slot.count.store(if everything { 0 } else { ranges.len() }, Ordering::Relaxed);
    for (to, range) in slot.ranges.iter().zip(ranges) {
        to.0.store(range.start.0, Ordering::Relaxed);
        to.1.store(range.end.0, Ordering::Relaxed);
    }
    // Every CPU has translations of the kernel's.
    let is_concerned = |cpu: usize| request.space == kernel_space::ID || cpu::runs(cpu, request.space);
    let others = (0..CPUS).filter(|&cpu| cpu != here && is_concerned(cpu) && cpu::is_up(cpu));
    // Relaxed: a switch of tests, set by this CPU.
    let mask: u32 = if ONLY_HERE.load(Ordering::Relaxed) { 0 } else { others.fold(0, |mask, cpu| mask | 1 << cpu) };
    add(&COUNTS.flush_calls, u64::from(mask.count_ones()));
    call(slot, mask, Call::Flush);
    if is_concerned(here) {
        do_here(slot);
    }
    Pending(number)
}

/// Makes every CPU drop its fetched code, this one too.
pub(crate) fn synchronize_all() {
    add(&COUNTS.sync_calls, call_all());
}

/// Does the same, but without counting it, since only QEMU needs it, and processors would not. See
/// [`KernelTextWriter::settle`](crate::kernel_text_writer::KernelTextWriter::settle).
pub(crate) fn settle_all() {
    call_all();
}

/// Drops this CPU's translations before it stores code that others may run, without counting it, since only QEMU needs
/// it.
///
/// QEMU 7.2 notes in a CPU's TLB whether stores to a page must drop translated code. It checks that no code of the page
/// is translated, and then clears the note; if another CPU translates some in between, stores by this TLB entry are
/// missed until it is gone (`notdirty_write` in QEMU's accel/tcg/cputlb.c).
pub(crate) fn forget_before_code() {
    mmu::flush_all();
    mmu::flush_done();
}

/// Makes every CPU drop its fetched code. Returns how many other CPUs there are.
fn call_all() -> u64 {
    let here = arch::cpu::number();
    let number = take_slot();
    // Relaxed: ordered by `waiting`.
    SLOT[number].what.store(What::Fetched as u32, Ordering::Relaxed);
    let mask: u32 = (0..CPUS).filter(|&cpu| cpu != here && cpu::is_up(cpu)).fold(0, |mask, cpu| mask | 1 << cpu);
    call(&SLOT[number], mask, Call::Synchronize);
    do_here(&SLOT[number]);
    wait(Pending(number));
    u64::from(mask.count_ones())
}

/// Interrupts the CPUs of `mask`.
fn call(slot: &Slot, mask: u32, call: Call) {
    // Relaxed: ordered by `waiting`.
    slot.caller.store(arch::cpu::number(), Ordering::Relaxed);
    // SeqCst, partner: the Acquire in `serve`. Forbids that a CPU sees its bit, but does what the slot said earlier or
    // fetches older code.
    slot.waiting.fetch_or(mask, Ordering::SeqCst);
    (0..CPUS).filter(|cpu| mask >> cpu & 1 != 0).for_each(|cpu| arch::interrupts::send(cpu, call));
}

fn take_slot() -> usize {
    loop {
        for (number, slot) in SLOT.iter().enumerate() {
            // Acquire, partner: the Release in `wait`. Forbids that the slot is rewritten while a CPU still reads it.
            // Relaxed: another is tried.
            if slot.waiting.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return number;
            }
        }
        cpu::relax();
    }
}

/// Waits until every CPU has done its part.
pub(crate) fn wait(pending: Pending) {
    let slot = &SLOT[pending.0];
    let mut turns = 0;
    // Acquire, partner: the Release in `serve`. Forbids reusing memory that a CPU still reaches.
    while slot.waiting.load(Ordering::Acquire) & !ASLEEP != TAKEN {
        cpu::relax();
        turns += 1;
        // AcqRel, partner: `serve`; one of the two sees the other's change.
        if turns > PATIENCE && slot.waiting.fetch_or(ASLEEP, Ordering::AcqRel) & !ASLEEP != TAKEN {
            arch::cpu::halt();
        }
    }
    // Release, partner: the Acquire in `take_slot`.
    slot.waiting.store(0, Ordering::Release);
}

/// Does this CPU's part of all requests.
pub(crate) fn serve() {
    let bit = 1 << arch::cpu::number();
    for slot in &SLOT {
        // Acquire, partner: `call`.
        if slot.waiting.load(Ordering::Acquire) & bit == 0 {
            continue;
        }
        do_here(slot);
        // Relaxed: ordered by the Acquire above; the slot is not used again before the bit is cleared.
        let caller = slot.caller.load(Ordering::Relaxed);
        // AcqRel, partner: `wait`.
        if slot.waiting.fetch_and(!bit, Ordering::AcqRel) == TAKEN | ASLEEP | bit {
            arch::interrupts::send(caller, Call::Wake);
        }
    }
}

/// Does a flush on this CPU only.
pub(crate) fn here(request: &FlushRequest<'_>) {
    add(&COUNTS.local_flushes, 1);
    mmu::tables_changed();
    match request.what {
        FlushRanges::All => mmu::flush_all(),
        FlushRanges::Some(ranges) => {
            for range in ranges {
                let mut page = range.start.0;
                while page != range.end.0 {
                    mmu::flush_page(VirtAddr(page));
                    page = page.wrapping_add(PAGE);
                }
            }
        }
    }
    mmu::flush_done();
}

fn do_here(slot: &Slot) {
    // Relaxed, here and below: ordered by `waiting`.
    let what = slot.what.load(Ordering::Relaxed);
    if what == What::Fetched as u32 {
        arch::cpu::serialize();
        return;
    }
    mmu::tables_changed();
    if what == What::Everything as u32 {
        mmu::flush_all();
    } else {
        for (start, end) in &slot.ranges[..slot.count.load(Ordering::Relaxed)] {
            let mut page = start.load(Ordering::Relaxed);
            while page != end.load(Ordering::Relaxed) {
                mmu::flush_page(VirtAddr(page));
                page = page.wrapping_add(PAGE);
            }
        }
    }
    mmu::flush_done();
}
