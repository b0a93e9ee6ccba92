//! The kernel runs through a space while safe operations change it: whatever a CPU remembers of a walk, and wherever
//! the operation is, the kernel's text and data translate.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use common::mutant::{Event, Mutant};
use common::scene::*;
use palimpsest_paging::format::{AArch64, Sv39, X86_64};
use palimpsest_paging::sim::trial::Host;
use palimpsest_paging::sim::{Computer, Config, Hardware, Progress, interleave};
use palimpsest_paging::*;

const RX: Rights = Rights::READ.union(Rights::EXECUTE);
/// Pages of text, and one of data in the same table.
const TEXT: u64 = 16;
const DATA: u64 = 20;

const PRIVATE: Attributes =
    Attributes { scope: Scope::Local, sharing: Sharing::Private, ..Attributes::kernel(Rights::READ) };

fn map_as<F: Hardware, M: Host>(space: &AddressSpace<F, M>, range: std::ops::Range<u64>, attributes: Attributes) {
    let computer = space.machine().computer();
    let frame = computer.allocate(Node(0), (range.end - range.start) << 12, PageSize::Small).unwrap();
    space.map_simulated(pages(range), frame, attributes, PageSizes::UpTo(PageSize::Small)).unwrap();
}

/// Returns whether a walk passes, by what the CPU remembers of earlier walks, but not by its TLB.
fn walks(computer: &Computer, cpu: usize, n: u64, kind: AccessKind) -> bool {
    computer.begin(cpu, page(n), Access { kind, from: Privilege::Kernel });
    loop {
        match computer.step(cpu) {
            Progress::Walking => {}
            progress => return progress == Progress::Done,
        }
    }
}

/// What safe code may do to a range. Some of it is refused, which is as good.
type Operation<F> = (&'static str, fn(&AddressSpace<F, Mutant<'_>>));

fn drop_flush<T>(done: Result<T, impl std::fmt::Debug>) {
    drop(done);
}

fn text_and_data_translate_all_the_time<F: Hardware>() {
    let faulted = RefCell::new(BTreeSet::new());
    let operations: [Operation<F>; 9] = [
        ("replicate", |space| drop_flush(space.replicate(pages(0..32)))),
        ("replicate_on_use", |space| drop_flush(space.replicate_on_use(pages(0..32)))),
        ("replicate and drop", |space| {
            drop_flush(space.replicate(pages(0..32)));
            drop_flush(space.drop_replicas(pages(0..32)));
        }),
        ("replicate, on use, and drop a part", |space| {
            drop_flush(space.replicate(pages(0..4)));
            drop_flush(space.replicate_on_use(pages(0..32)));
            drop_flush(space.drop_replicas(pages(2..32)));
        }),
        ("take_marks", |space| {
            drop_flush(space.take_marks(pages(0..32), Mark::Accessed, |_| ()));
            drop_flush(space.take_marks(pages(0..32), Mark::Dirty, |_| ()));
        }),
        ("fork", |space| drop_flush(space.fork(SpaceId(2)))),
        ("fork with replicas", |space| {
            drop_flush(space.replicate(pages(0..32)));
            let options = ForkOptions::new().replicas(ChildReplicas::Inherited);
            drop_flush(space.fork_with(SpaceId(2), options));
        }),
        ("fork and pin", |space| {
            let child = space.fork(SpaceId(2)).map(|(child, _)| child);
            for n in [0, DATA] {
                drop_flush(space.pin(page(n), Node(0)));
                drop_flush(space.unpin(page(n)));
            }
            drop_flush(child);
        }),
        ("unmap what is beside it", |space| {
            drop_flush(space.unmap(pages(24..32)));
            drop_flush(space.split(pages(0..32)));
        }),
    ];
    for kernel in [Attributes::kernel(Rights::READ), PRIVATE] {
        for (name, operation) in &operations {
            let computer = Computer::new::<F>(Config::default().nodes(2));
            let runs = || {
                for (cpu, n) in (0..2).flat_map(|cpu| [0, 1, TEXT - 1, DATA].map(|n| (cpu, n))) {
                    let kind = if n == DATA { AccessKind::Write } else { AccessKind::Execute };
                    if !walks(&computer, cpu, n, kind) {
                        faulted.borrow_mut().insert((*name, kernel.scope == Scope::Global, cpu, n));
                    }
                }
            };
            let is_on = Cell::new(false);
            let watch = |_| {
                if is_on.get() {
                    runs();
                }
            };
            let machine = Mutant { computer: &computer, mistake: None, watch: Some(&watch) };
            let space = space::<F, _>(machine, ShareTables::Last, 2);
            map_as(&space, 0..TEXT, Attributes { rights: RX, ..kernel });
            map_as(&space, DATA..DATA + 1, Attributes { rights: RW, ..kernel });
            fill(&space, 24..32, RW, PageSize::Small);
            (0..2).for_each(|cpu| run_on(&space, cpu));
            runs();
            is_on.set(true);
            interleave(&runs, || operation(&space));
            is_on.set(false);
            runs();
            finish(&computer, vec![space]);
        }
    }
    assert_eq!(faulted.into_inner(), BTreeSet::new(), "{}: operation, whether global, CPU, page", F::NAME);
}

#[test]
fn the_kernel_never_faults_on_its_own_pages() {
    text_and_data_translate_all_the_time::<X86_64>();
    text_and_data_translate_all_the_time::<AArch64>();
    text_and_data_translate_all_the_time::<Sv39>();
}

/// The operation is over, and its flush may still have to be sent.
#[test]
fn dropped_replicas_leave_the_text_to_cpus_that_remember_the_nodes_table() {
    let computer = Computer::new::<X86_64>(Config::default().nodes(2));
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 2);
    map_as(&space, 0..TEXT, Attributes::kernel(RX));
    space.replicate(pages(0..TEXT)).unwrap().1.finish();
    run_on(&space, 1);
    computer.reach(1, page(0), Access::KERNEL_EXECUTE).unwrap();
    let flush = space.drop_replicas(pages(0..TEXT)).unwrap();
    assert!(computer.reach(1, page(1), Access::KERNEL_EXECUTE).is_ok());
    flush.finish();
    finish(&computer, vec![space]);
}

/// However many tables have copies.
#[test]
fn dropped_replicas_need_one_flush() {
    let computer = Computer::new::<X86_64>(Config::default().nodes(3));
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 3);
    for table in 0..20 {
        map_as(&space, 512 * table..512 * table + 1, Attributes::kernel(RX));
    }
    let (tables, range) = (computer.live_tables(), pages(0..512 * 20));
    space.replicate(range.clone()).unwrap().1.finish();
    let flushes = computer.counts().flushes;
    space.drop_replicas(range).unwrap().finish();
    assert_eq!((computer.counts().flushes - flushes, computer.live_tables()), (1, tables));
    finish(&computer, vec![space]);
}

#[test]
fn nodes_get_pages_of_the_kernel_before_they_use_them() {
    let computer = Computer::new::<X86_64>(Config::default().nodes(2));
    let space = space::<X86_64, _>(&computer, ShareTables::Last, 2);
    map_as(&space, 0..1, Attributes::kernel(RX));
    fill(&space, 1..2, RX, PageSize::Small);
    let (done, flush) = space.replicate_on_use(pages(0..2)).unwrap();
    flush.finish();
    assert_eq!((done.pages, done.single), (2, 0));
    let there = [0, 1].map(|n| space.query_on(page(n), Node(1)).map(|found| computer.node_of(found.leaf.frame)));
    assert_eq!(there, [Some(Node(1)), None]);
    finish(&computer, vec![space]);
}

/// Where CPUs set no marks, the kernel's pages would fault without them.
fn marks_of_the_kernels_pages<F: Hardware>(are_taken: bool) {
    let computer = Computer::new::<F>(Config::default());
    let space = space::<F, _>(&computer, ShareTables::Last, 1);
    fill(&space, 0..1, RW, PageSize::Small);
    map_as(&space, 1..2, Attributes::kernel(RW));
    for mark in [Mark::Accessed, Mark::Dirty] {
        let mut taken = Vec::new();
        let answer = space.take_marks(pages(0..2), mark, |address| taken.push(number(address))).map(Flush::finish);
        if are_taken {
            assert_eq!((answer, taken), (Ok(()), vec![0, 1]));
            continue;
        }
        assert_eq!((answer, taken), (Err(ChangeError::Kernel { address: page(1) }), vec![]));
        space.take_marks(pages(0..1), mark, |_| ()).unwrap().finish();
        // SAFETY: 1. no program runs by a software machine's tables.
        unsafe { space.take_marks_kernel(pages(0..2), mark, |_| ()) }.unwrap().finish();
        assert_eq!(space.count_marked(pages(0..2), mark), Ok(0));
    }
    finish(&computer, vec![space]);
}

#[test]
fn marks_of_the_kernels_pages_are_taken_where_cpus_set_them() {
    marks_of_the_kernels_pages::<X86_64>(true);
    marks_of_the_kernels_pages::<AArch64>(false);
    marks_of_the_kernels_pages::<Sv39>(false);
}

/// A child's copy of the kernel's data is its own, and both are written without a fault.
#[test]
fn private_data_of_the_kernel_is_copied_by_the_fork() {
    let computer = Computer::new::<X86_64>(Config::default());
    let parent = space::<X86_64, _>(&computer, ShareTables::Last, 1);
    map_as(&parent, 0..1, Attributes { rights: RW, ..PRIVATE });
    let store = |space: &AddressSpace<X86_64, _>, value| {
        run_on(space, 0);
        computer.store_from(Privilege::Kernel, 0, page(0), value).unwrap();
        space.query(page(0)).unwrap().leaf.frame
    };
    let frame = store(&parent, 1);
    // The last request is for the page's copy.
    let refused = (1..64).find_map(|request| {
        computer.refuse(request..u64::MAX);
        let error = parent.fork(SpaceId(2)).map(|_| ()).err();
        computer.refuse(0..0);
        error.filter(|error| matches!(error, ForkError::NoPage { .. }))
    });
    assert_eq!(refused, Some(ForkError::NoPage { address: page(0) }));
    let child = fork(&parent, 2);
    assert_eq!(store(&parent, 2), frame);
    let copy = store(&child, 3);
    assert_eq!((computer.content(frame), computer.content(copy)), (2, 3));
    finish(&computer, vec![parent, child]);
}

/// A page of the kernel that others refer to, too, is copied for a device without being unmapped, or not at all.
fn pinned_pages_of_the_kernel<F: Hardware>(size: PageSize, rights: Rights, memory: bool, pins: bool) {
    let computer = Computer::new::<F>(Config::default().cpus(1));
    let reads = || assert!(walks(&computer, 0, 0, AccessKind::Read), "{}: {size:?} {rights:?}", F::NAME);
    let is_on = Cell::new(false);
    let watch = |_| {
        if is_on.get() {
            reads();
        }
    };
    let space = space::<F, _>(Mutant { computer: &computer, mistake: None, watch: Some(&watch) }, ShareTables::Last, 1);
    let frame = computer.allocate(Node(0), size.bytes(), size).unwrap();
    space.machine().retain(Page { frame, size });
    computer.set_content(frame, 5);
    let attributes = Attributes { rights, ..PRIVATE };
    space.map_simulated(pages(0..count(size)), frame, attributes, PageSizes::Only(size)).unwrap();
    run_on(&space, 0);
    is_on.set(true);
    if !memory {
        // One that a large page of the computer's would need, and no table.
        computer.refuse(0..1);
    }
    let pinned = interleave(&reads, || space.pin(page(0), Node(0)));
    computer.refuse(0..0);
    is_on.set(false);
    if pins {
        let copy = pinned.unwrap().frame;
        assert_ne!(copy, frame);
        assert_eq!((computer.content(copy), computer.content(frame)), (5, 5));
        assert_eq!(computer.load(0, page(0), Access::KERNEL_READ), Ok(5));
        space.unpin(page(0)).unwrap();
    } else {
        assert_eq!(pinned, Err(PinError::Fault(FaultError::NoPage { address: page(0) })));
        assert_eq!(space.query(page(0)).unwrap().leaf.frame, frame);
    }
    computer.give_back(frame, size.bytes());
    computer.switch(0, None);
    drop(space);
    computer.expect_empty();
    assert_eq!(computer.take_failures(), []);
}

/// A CPU may store to the page until the flush that took its right is waited for; the copy is made behind that.
#[test]
fn a_page_of_the_kernel_is_copied_when_no_cpu_can_store_to_it() {
    let computer = Computer::new::<X86_64>(Config::default());
    let (is_on, stored) = (Cell::new(false), Cell::new(None));
    let watch = |event| {
        if is_on.get() && event == Event::Copy {
            stored.set(Some(computer.store_from(Privilege::Kernel, 0, page(0), 2).is_ok()));
        }
    };
    let space =
        space::<X86_64, _>(Mutant { computer: &computer, mistake: None, watch: Some(&watch) }, ShareTables::Last, 1);
    map_as(&space, 0..1, Attributes { rights: RW, ..PRIVATE });
    let before = Page { frame: space.query(page(0)).unwrap().leaf.frame, size: PageSize::Small };
    run_on(&space, 0);
    computer.store_from(Privilege::Kernel, 0, page(0), 1).unwrap();
    // SAFETY: 1. no program runs by a software machine's tables.
    let protected = unsafe { space.protect_kernel(pages(0..1), Rights::READ) }.unwrap();
    // Somebody else's reference.
    space.machine().retain(before);
    is_on.set(true);
    assert_ne!(space.pin(page(0), Node(0)).unwrap(), before);
    is_on.set(false);
    assert_eq!(stored.get(), Some(false));
    protected.finish();
    space.unpin(page(0)).unwrap();
    computer.give_back(before.frame, PAGE);
    finish(&computer, vec![space]);
}

#[test]
fn pages_of_the_kernel_are_copied_for_a_device_while_they_are_in_use() {
    for rights in [RX, RW] {
        for size in [PageSize::Small, PageSize::Large] {
            pinned_pages_of_the_kernel::<X86_64>(size, rights, true, true);
            pinned_pages_of_the_kernel::<AArch64>(size, rights, true, true);
            pinned_pages_of_the_kernel::<Sv39>(size, rights, true, true);
        }
        // Without a large page it would be split, which AArch64 does only through an empty entry.
        pinned_pages_of_the_kernel::<X86_64>(PageSize::Large, rights, false, true);
        pinned_pages_of_the_kernel::<AArch64>(PageSize::Large, rights, false, false);
        pinned_pages_of_the_kernel::<Sv39>(PageSize::Large, rights, false, true);
    }
}
