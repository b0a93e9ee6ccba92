//! What user mode's tables hide: all of the kernel except the entry, on every node, whatever happens to the tables of
//! processes.

use alloc::vec::Vec;

use palimpsest_paging::format::{Entry, Format};
use palimpsest_paging::{AccessKind, ENTRIES, Frame, Level, Machine, PAGE, VirtAddr};

use super::counts::map_one;
use super::processes::{codes, run_program, thread};
use crate::arch::mmu::{self, KernelFormat};
use crate::arch::{cpu as hardware, layout};
use crate::cpu::{self, CPUS};
use crate::kernel_space::{self, ImageRights};
use crate::memory::{self, Memory, node_of};
use crate::process::{CHILD, next_id, user};
use crate::{check, entry, packs, probe, say};

/// Pages of the kernel's half.
type Pages = Vec<VirtAddr>;

/// Collects the pages of all tables below `table`, which translates addresses from `start` on.
fn look(table: Frame, level: Level, start: u64, found: &mut Pages) {
    for index in 0..ENTRIES {
        let address = VirtAddr(start + index as u64 * level.entry_bytes());
        if !KernelFormat::is_valid(address) {
            // The half of processes is skipped.
            continue;
        }
        // SAFETY: the roots of user mode stay, and so do their tables of the kernel's half.
        let entries = unsafe { Memory.table(table) };
        // Acquire, partner: the Release with which the entry was published.
        match (KernelFormat::decode(level, entries.0[index].load(core::sync::atomic::Ordering::Acquire)), level.below())
        {
            (Entry::Leaf(_), _) => found.push(address),
            (Entry::Table { frame, .. }, Some(below)) => look(frame, below, address.0, found),
            (Entry::Empty | Entry::Table { .. }, _) => {}
        }
    }
}

/// Returns the pages in the root of `cpu`.
fn of(cpu: usize) -> Pages {
    /// Where the kernel's half begins, or would begin in a root with both halves.
    const START: u64 = 0xffff << 48;
    let mut found = Pages::new();
    look(mmu::user_root(cpu), KernelFormat::TOP, START, &mut found);
    found
}

fn pages(range: core::ops::Range<VirtAddr>) -> impl Iterator<Item = VirtAddr> {
    (range.start.0..range.end.0).step_by(PAGE as usize).map(VirtAddr)
}

pub(super) fn run() {
    let frames = memory::in_use();
    accesses();
    let all: Vec<Pages> = (0..CPUS).map(of).collect();
    let should: Pages = pages(entry::text()).chain(pages(entry::data())).collect();
    check::equal("hidden.extent", all, alloc::vec![should.clone(); CPUS]);
    say!("hidden.user-root.kernel-pages {}", should.len());
    let locals: Vec<usize> = (0..CPUS).filter(|&cpu| is_local(cpu)).collect();
    check::holds("hidden.local", locals.len() == CPUS, format_args!("for CPUs {locals:?} alone"));
    if mmu::ENTRY_IS_SAME {
        let different = (0..CPUS).find_map(|cpu| first_difference(cpu).map(|page| (cpu, page)));
        check::equal("hidden.entry.same", different, None);
    }
    follows();
    for reader in 1..CPUS {
        let (exits, _) = run_program(user::far_mapper, thread(user::far_reader, reader), 8, 0);
        let name = ["", "hidden.other-cpu-1", "hidden.other-cpu-2", "hidden.other-cpu-3"][reader];
        let is_gone = exits.iter().any(|exit| exit.code == user::FAULTED_NOT_MAPPED && exit.address.0 == user::FAR);
        check::holds(name, codes(&exits) == [0, user::FAULTED_NOT_MAPPED] && is_gone, format_args!("{exits:?}"));
    }
    check::equal("hidden.leaks", memory::in_use(), frames);
}

/// Returns whether `cpu`, when it comes from user mode, finds the entry's text and the tables that lead to it on its
/// own node, and whether the kernel runs the same copy there.
fn is_local(cpu: usize) -> bool {
    let node = cpu::node_of(cpu);
    let kernel = kernel_space::get().root(node);
    pages(entry::text()).all(|page| {
        let mut tables_are = true;
        let place = kernel_space::walk_by(mmu::user_root(cpu), page, |table| {
            tables_are &= node_of(table.address()) == node;
        });
        tables_are && place.is_some_and(|place| node_of(place) == node) && place == kernel_space::walk(kernel, page)
    })
}

/// Returns the first page of the entry that the kernel's root and user mode's map by different entries: other frames,
/// other rights, or pages of other sizes. A TLB that has both could find either, or fault.
fn first_difference(cpu: usize) -> Option<VirtAddr> {
    let kernel = kernel_space::get().root(cpu::node_of(cpu));
    let entry = |root, page| kernel_space::last_entry(root, page, |_| ());
    pages(entry::text()).chain(pages(entry::data())).find(|&page| {
        let (here, there) = (entry(kernel, page), entry(mmu::user_root(cpu), page));
        here.is_none() || here != there
    })
}

/// Checks what loads in user mode find: nothing of the kernel, and at the entry a page that they may not read.
fn accesses() {
    let physical = VirtAddr(layout::PHYSICAL_MAP + kernel_space::image_frames(ImageRights::Write).end);
    let cases = [
        ("hidden.text", kernel_space::image_range(ImageRights::Execute).start, user::FAULTED_HIDDEN),
        ("hidden.rodata", kernel_space::image_range(ImageRights::Read).start, user::FAULTED_HIDDEN),
        ("hidden.data", kernel_space::image_range(ImageRights::Write).start, user::FAULTED_HIDDEN),
        ("hidden.physical", physical, user::FAULTED_HIDDEN),
        ("hidden.packs", packs::range().start, user::FAULTED_HIDDEN),
        ("hidden.entry.text", entry::text().start, user::FAULTED_DENIED),
        ("hidden.entry.data", entry::data().start, user::FAULTED_DENIED),
    ];
    for (name, address, should) in cases {
        let codes: Vec<u64> =
            (0..CPUS).flat_map(|cpu| codes(&run_program(user::peeker, address.0, 1, cpu).0)).collect();
        check::equal(name, codes, alloc::vec![should; CPUS]);
    }
}

/// Checks that user mode's root follows the process's when tables are made, freed and shared.
fn follows() {
    let space = mmu::new_user_space(kernel_space::get(), next_id()).unwrap_or_else(|error| panic!("{error}"));
    let far = VirtAddr(user::FAR)..VirtAddr(user::FAR + PAGE);
    cpu::run_space(&space);
    let mut is_same = Vec::new();
    let mut step = |operation: &mut dyn FnMut()| {
        operation();
        mmu::follow();
        is_same.push(mmu::user_half_is_same(hardware::number()));
    };
    let mut child = None;
    step(&mut || ());
    step(&mut || map_one(&space, far.start));
    user_memory(far.start);
    step(&mut || {
        let (forked, flush) = space.fork_with(next_id(), CHILD).unwrap_or_else(|error| panic!("{error}"));
        flush.finish();
        child = Some(forked);
    });
    step(&mut || {
        let fault = space.fault(far.start, palimpsest_paging::Access::USER_WRITE, cpu::node_of(hardware::number()));
        fault.unwrap_or_else(|error| panic!("{error}"));
    });
    step(&mut || space.unmap(far.clone()).unwrap_or_else(|error| panic!("{error}")).finish());
    step(&mut || map_one(&space, far.start));
    step(&mut || child.iter().for_each(cpu::run_space));
    cpu::leave_space();
    check::equal("hidden.follows", is_same, alloc::vec![true; 7]);
}

/// The kernel does not touch what user mode can, except where it says so; and never runs it.
fn user_memory(address: VirtAddr) {
    let all = || {
        [AccessKind::Read, AccessKind::Write, AccessKind::Execute].map(|access| {
            // SAFETY: 1. the page is this check's own, and holds zeros, which trap if they run.
            unsafe { probe::passes(address, access) }
        })
    };
    check::equal("hidden.user.refused", all(), [false; 3]);
    check::equal("hidden.user.meant", hardware::with_user_memory(all), [true, true, false]);
    check::equal("hidden.user.refused-again", all(), [false; 3]);
}
