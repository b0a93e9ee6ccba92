//! Replicas: each node runs its own copy of the kernel's text, through its own tables.

use core::sync::atomic::{AtomicU64, Ordering};

use palimpsest_paging::{AccessKind, Rights, VirtAddr};

use crate::arch::{cpu as hardware, mmu};
use crate::counts::now;
use crate::cpu::{self, CPUS};
use crate::kernel_space::{self, ImageRights};
use crate::memory::{self, NODES, alias, node_of};
use crate::{check, probe, say};

use super::locality;

/// What each CPU has found: the physical addresses of code that it runs, of a constant, and of its root.
static FOUND: [[AtomicU64; 3]; CPUS] = [const { [const { AtomicU64::new(0) }; 3] }; CPUS];

/// Something in read-only data.
static CONSTANT: u64 = 0x5eed;

fn find(cpu: usize) {
    let root = mmu::loaded_kernel_root();
    let code = kernel_space::walk(root, VirtAddr(find as *const () as u64));
    let constant = kernel_space::walk(root, VirtAddr(&raw const CONSTANT as u64));
    for (to, value) in FOUND[cpu].iter().zip([code, constant, Some(root.address())]) {
        // Relaxed: `wait_for_work` orders it.
        to.store(value.unwrap_or(0), Ordering::Relaxed);
    }
}

/// Asks all CPUs for these addresses.
fn ask() -> [[u64; 3]; CPUS] {
    for cpu in 1..CPUS {
        cpu::give(cpu, find);
    }
    find(hardware::number());
    cpu::wait_for_work();
    core::array::from_fn(|cpu| core::array::from_fn(|what| FOUND[cpu][what].load(Ordering::Relaxed)))
}

/// Returns whether address `what` is on each CPU's own node.
fn all_local(found: &[[u64; 3]; CPUS], what: usize) -> bool {
    (0..CPUS).all(|cpu| node_of(found[cpu][what]) == cpu::node_of(cpu))
}

pub(super) fn run() {
    let before = ask();
    let without = locality::measure();
    check::holds("replica.roots.local", all_local(&before, 2), format_args!("{before:x?}"));
    let range = kernel_space::image_range(ImageRights::Constant);
    let pages = kernel_space::pages(ImageRights::Constant);
    let space = kernel_space::get();
    match space.replicate(range.clone()) {
        Ok((done, flush)) => {
            let counts = now();
            flush.finish();
            let counts = counts.since();
            say!("paging.replica.flushes {}", counts.flushes);
            say!("paging.replica.ipis {}", counts.flush_calls);
            check::equal("replica.pages", (done.pages, done.single), (pages * (NODES - 1), 0));
            // The root exists already; one table for each level below it is made on the other node.
            check::equal("replica.tables", done.tables, 3 * (NODES - 1));
        }
        Err(error) => check::report("replica.pages", Err(format_args!("{error}"))),
    }
    crate::entry::set_copies(kernel_space::Copies::EachNode);
    let after = ask();
    check::holds("replica.text.local", all_local(&after, 0), format_args!("{after:x?}"));
    check::holds("replica.rodata.local", all_local(&after, 1), format_args!("{after:x?}"));
    for (cpu, [code, constant, root]) in after.iter().enumerate() {
        say!("# cpu {cpu} node {}: runs {code:#x}, reads {constant:#x}, root {root:#x}", cpu::node_of(cpu).0);
    }
    let with = locality::measure();
    without.say("without");
    with.say("with");
    check::equal("replica.remote-pages", (without.remote_pages(), with.remote_pages()), (pages * (NODES - 1), 0));
    check::equal("replica.equal", first_difference(), None);
    check::equal("replica.seen", seen(), core::array::from_fn(|cpu| cpu::node_of(cpu).0.into()));
    let verified = space.verify();
    check::holds("replica.verify", verified.is_ok(), format_args!("{verified:?}"));
    // SAFETY: 1. the store is refused, or the check fails.
    let passed = unsafe { probe::passes(range.start, AccessKind::Write) };
    check::equal("replica.text.store", passed, false);
    protects_all();
    drops();
}

/// Read-only data that changes: each copy gets its node's number.
static MARK: [u64; 1] = [u64::MAX];

/// Returns what each CPU loads from [`MARK`], whose copies hold their nodes' numbers: so it shows which copy the CPU's
/// page walker finds.
fn seen() -> [u64; CPUS] {
    static SEEN: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];
    fn load(cpu: usize) {
        // SAFETY: a constant. Volatile: its bytes change by other addresses.
        let value = unsafe { MARK.as_ptr().read_volatile() };
        // Relaxed: `wait_for_work` orders it.
        SEEN[cpu].store(value, Ordering::Relaxed);
    }
    let set = |value: &dyn Fn(u64) -> u64| {
        for copy in kernel_space::copies(VirtAddr(MARK.as_ptr() as u64)) {
            #[expect(clippy::cast_ptr_alignment, reason = "as aligned as the constant")]
            let mark = alias(copy).cast::<u64>();
            // SAFETY: memory of the image or of a copy, through the physical map; only the volatile load above reads
            // it.
            unsafe { mark.write_volatile(value(copy)) };
        }
    };
    set(&|copy| node_of(copy).0.into());
    (1..CPUS).for_each(|cpu| cpu::give(cpu, load));
    load(hardware::number());
    cpu::wait_for_work();
    set(&|_| u64::MAX);
    core::array::from_fn(|cpu| SEEN[cpu].load(Ordering::Relaxed))
}

/// Returns the first page that differs between a node's copy and the first node's.
fn first_difference() -> Option<VirtAddr> {
    let range = kernel_space::image_range(ImageRights::Constant);
    (range.start.0..range.end.0).step_by(4096).map(VirtAddr).find(|&page| {
        let bytes = |physical: u64| {
            // SAFETY: a page of the image, or a copy; nobody writes to it now.
            unsafe { core::slice::from_raw_parts(alias(physical), 4096) }
        };
        let mut copies = kernel_space::copies(page);
        let first = copies.next().map(bytes);
        copies.count() != NODES - 1 || kernel_space::copies(page).any(|copy| Some(bytes(copy)) != first)
    })
}

/// Protecting pages changes the rights on every node.
fn protects_all() {
    let page = kernel_space::user_image();
    let page = page.start..VirtAddr(page.start.0 + 4096);
    // SAFETY: 1. the kernel reads there only to copy the page to new processes, and none starts meanwhile.
    let set = |rights| match unsafe { kernel_space::get().protect_kernel(page.clone(), rights) } {
        Ok(flush) => flush.finish(),
        Err(error) => panic!("{error}"),
    };
    set(Rights::empty());
    let hidden = memory::nodes().map(|node| can_read(node, page.start));
    set(Rights::READ);
    let shown = memory::nodes().map(|node| can_read(node, page.start));
    check::equal("replica.protect", (hidden, shown), ([false; NODES], [true; NODES]));
}

static READ_AT: AtomicU64 = AtomicU64::new(0);
static COULD: AtomicU64 = AtomicU64::new(0);

/// Returns whether a CPU of `node` can read `address`.
fn can_read(node: palimpsest_paging::Node, address: VirtAddr) -> bool {
    fn try_it(_: usize) {
        // Relaxed: the work's lock, and `wait_for_work`, order these.
        let address = VirtAddr(READ_AT.load(Ordering::Relaxed));
        // SAFETY: 1. only a load.
        let passed = unsafe { probe::passes(address, AccessKind::Read) };
        COULD.store(passed.into(), Ordering::Relaxed);
    }
    READ_AT.store(address.0, Ordering::Relaxed);
    match (0..CPUS).find(|&cpu| cpu::node_of(cpu) == node && cpu != hardware::number()) {
        Some(cpu) => {
            cpu::give(cpu, try_it);
            cpu::wait_for_work();
        }
        None => try_it(hardware::number()),
    }
    COULD.load(Ordering::Relaxed) == 1
}

/// Drops replicas of some pages and makes them again.
fn drops() {
    let range = kernel_space::image_range(ImageRights::Read);
    let before = memory::text_replicas();
    match kernel_space::get().drop_replicas(range.clone()) {
        Ok(flush) => flush.finish(),
        Err(error) => panic!("{error}"),
    }
    let without = ask();
    let back = kernel_space::get().replicate(range).map(|(done, flush)| {
        flush.finish();
        done.pages
    });
    let gone = kernel_space::pages(ImageRights::Read) * (NODES - 1);
    check::holds("replica.drop", !all_local(&without, 1) && all_local(&without, 0), format_args!("{without:x?}"));
    check::equal("replica.again", (back, memory::text_replicas()), (Ok(gone), before));
}
