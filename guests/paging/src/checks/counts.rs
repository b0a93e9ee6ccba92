//! What a fork costs, in tables, entries and bytes.

use palimpsest_paging::format::{Entry, Format};
use palimpsest_paging::{
    AddressSpace, Attributes, Fault, Frame, Level, Machine, Node, PAGE, PageSize, PageSizes, Rights, ShareTables,
    Sharing, SpaceOptions, Stores, VirtAddr,
};

use crate::arch::mmu::{self, UserFormat, UserSpace};
use crate::counts::now;
use crate::memory::{self, Memory, Records};
use crate::process::{CHILD, next_id};
use crate::{check, kernel_space, say};

const GIGABYTE: u64 = 1 << 30;
/// Where spaces are filled.
pub(super) const START: VirtAddr = VirtAddr(1 << 39);

/// Returns a space with `bytes` mapped by small pages.
fn filled(options: SpaceOptions, bytes: u64) -> UserSpace {
    let space: UserSpace =
        AddressSpace::new(Memory, next_id(), &[Node(0)], options).unwrap_or_else(|error| panic!("{error}"));
    fill(&space, bytes);
    space
}

/// Maps `bytes` from [`START`] on by small pages, all of which lead to the same 512 frames.
pub(super) fn fill(space: &UserSpace, bytes: u64) {
    // The first table's pages are allocated; all others refer to them once more.
    let pages = bytes / PAGE;
    let mut frames = alloc::vec::Vec::new();
    for number in 0..pages {
        let frame = if number < 512 {
            let frame = Records::allocate(Node(0), 1).unwrap_or_else(|| panic!("no memory"));
            frames.push(frame);
            frame
        } else {
            let frame = frames[number as usize % 512];
            Memory.retain(palimpsest_paging::Page { frame, size: PageSize::Small });
            frame
        };
        map_frame(space, VirtAddr(START.0 + number * PAGE), frame);
    }
}

/// Maps a new page.
pub(super) fn map_one(space: &UserSpace, address: VirtAddr) {
    let frame = Records::allocate(Node(0), 1).unwrap_or_else(|| panic!("no memory"));
    map_frame(space, address, frame);
}

fn map_frame(space: &UserSpace, address: VirtAddr, frame: Frame) {
    let rights = Rights::READ | Rights::WRITE;
    let attributes = Attributes { sharing: Sharing::Private, memory: mmu::ORDINARY, ..Attributes::user(rights) };
    let range = address..VirtAddr(address.0 + PAGE);
    // SAFETY: 1. the caller has allocated the frame, or retained it once more, for this. 2. It holds nothing.
    let mapped = unsafe { space.map(range, frame, attributes, PageSizes::Only(PageSize::Small)) };
    mapped.unwrap_or_else(|error| panic!("{error}"));
}

/// Counts the entries of a space's own tables, and those that lead to shared tables.
fn entries(table: Frame, level: Level) -> (u64, u64) {
    // SAFETY: the caller has the space.
    let table = unsafe { Memory.table(table) };
    let (mut own, mut shared) = (0, 0);
    for entry in &table.0 {
        // Acquire, partner: the Release with which the entry was published.
        match UserFormat::decode(level, entry.load(core::sync::atomic::Ordering::Acquire)) {
            Entry::Empty => {}
            Entry::Leaf(_) => own += 1,
            Entry::Table { stores: Stores::Fault, .. } => {
                own += 1;
                shared += 1;
            }
            Entry::Table { frame, .. } => {
                let below = level.below().map_or((0, 0), |below| entries(frame, below));
                own += 1 + below.0;
                shared += below.1;
            }
        }
    }
    (own, shared)
}

/// Forks and prints what that took. Returns the tables and the entries written.
fn fork(name: &str, space: &UserSpace) -> (u64, u64) {
    let before = now();
    let (child, flush) = space.fork(next_id()).unwrap_or_else(|error| panic!("{error}"));
    flush.finish();
    let tables = before.since().tables_allocated;
    let (written, shared) = entries(child.root(Node(0)), UserFormat::TOP);
    let entries = written + shared;
    say!("paging.fork.1g.{name}.tables {tables}");
    say!("paging.fork.1g.{name}.entries {entries}");
    say!("paging.fork.1g.{name}.bytes {}", tables * PAGE);
    // A shared table is charged to the space that made it.
    for (who, id) in [("parent", space.id()), ("child", child.id())] {
        say!("paging.fork.1g.{name}.{who}.bytes {}", memory::charged(id).tables * PAGE as i64);
    }
    (tables, entries)
}

/// Stores to all pages of one table in the parent of a child: the first store breaks the table, and each breaks its
/// page.
fn stores(space: &UserSpace) {
    let mut tables = [0; 2];
    let mut copied = 0;
    for page in 0..512 {
        let before = now();
        let fault = space.fault(VirtAddr(START.0 + page * PAGE), palimpsest_paging::Access::USER_WRITE, Node(0));
        let counts = before.since();
        copied += counts.pages_copied;
        tables[usize::from(page > 0)] += counts.tables_allocated;
        if page < 2 {
            let name = ["first", "next"][page as usize];
            say!("paging.fault.break.{name}.tables {}", counts.tables_allocated);
            say!("paging.fault.break.{name}.pages {}", counts.pages_copied);
            say!("paging.fault.break.{name}.flushes {}", counts.flushes);
        }
        if !matches!(fault, Ok(Fault::Resolved(_))) {
            check::report("counts.break", Err(format_args!("page {page}: {fault:?}")));
            return;
        }
    }
    check::equal("counts.break", (tables, copied), ([1, 0], 512));
}

pub(super) fn run() {
    let frames = memory::in_use();
    let cow = filled(SpaceOptions::default(), GIGABYTE);
    let shared = fork("cow", &cow);
    let verified = cow.verify();
    check::holds("counts.verify", verified.is_ok(), format_args!("{verified:?}"));
    let (child, flush) = cow.fork(next_id()).unwrap_or_else(|error| panic!("{error}"));
    flush.finish();
    stores(&cow);
    drop(child);
    drop(cow);
    let full = filled(SpaceOptions::new().share(ShareTables::None), GIGABYTE);
    let copied = fork("full", &full);
    drop(full);
    say!("# entries written: {} times fewer", copied.1 / shared.1);
    check::holds("counts.entries", copied.1 >= 100 * shared.1, format_args!("{} and {}", copied.1, shared.1));
    check::holds("counts.bytes", shared.0 * PAGE <= 44 * 1024, format_args!("{} tables", shared.0));
    // On some architectures a process also has the kernel's tables, for both nodes.
    let process = mmu::new_user_space(kernel_space::get(), next_id()).unwrap_or_else(|error| panic!("{error}"));
    fill(&process, GIGABYTE);
    let before = now();
    let (child, flush) = process.fork_with(next_id(), CHILD).unwrap_or_else(|error| panic!("{error}"));
    flush.finish();
    let tables = before.since().tables_allocated;
    say!("# a process of two nodes: child {} kB of tables, the kernel's part included", tables * PAGE / 1024);
    check::holds("counts.process.bytes", tables * PAGE <= 44 * 1024, format_args!("{tables} tables"));
    drop(child);
    drop(process);
    check::equal("counts.leaks", memory::in_use(), frames);
}
