//! What a freeze does to a process that can be frozen.

mod common;

use std::time::Duration;

use common::{Files, Memory, freeze, in_child, page, play, status_kb};
use palimpsest_fork::{ExtentLen, Measure, Options, Pause, Stage, on_own_stack, progress, status};
use palimpsest_sys::pages::vmas::{Detail, Vmas};

const MIB: usize = 1 << 20;

#[test]
fn contents_are_the_same_before_and_after() {
    play("contents_are_the_same_before_and_after", || {
        let memory = Memory::apart(64 * MIB + 3 * page());
        memory.fill(0..memory.len, 1);
        let heap: Vec<Vec<u8>> = (0..1000).map(|index| vec![index as u8; 3000]).collect();
        let report = freeze(&Options::new());
        assert!(memory.is_frozen(), "{report:?}");
        assert!(report.stopped.is_none());
        assert!(memory.holds(0..memory.len, 1));
        assert!(heap.iter().enumerate().all(|(index, bytes)| bytes.iter().all(|byte| *byte == index as u8)));
        let status = in_child(|| {
            assert!(memory.holds(0..memory.len, 1));
            memory.fill(0..memory.len, 2);
            assert!(memory.holds(0..memory.len, 2));
            0
        });
        assert_eq!(status, 0);
        assert!(memory.holds(0..memory.len, 1), "a child's writes are its own");
        memory.fill(0..8 * MIB, 3);
        assert_eq!(in_child(|| i32::from(!memory.holds(0..8 * MIB, 3) || !memory.holds(8 * MIB..memory.len, 1))), 0);
    });
}

#[test]
fn a_child_has_small_page_tables() {
    play("a_child_has_small_page_tables", || {
        let empty = in_child_kb();
        let memory = Memory::apart(256 * MIB);
        memory.fill(0..memory.len, 1);
        let plain = in_child(|| i32::from(status_kb("VmPTE") < 500));
        assert_eq!(plain, 0, "a plain child has 512 kB of page tables and more");
        freeze(&Options::new());
        let frozen = in_child_kb();
        // Two page tables: for this library's tables, which have 2 MiB to themselves, and for the memory's cut-off
        // neighbours. Each border of a GiB that they cross takes one more table of the next level: of 60 runs with
        // other addresses 49 took 8 kB, 9 took 12, and 2 took 16. The limit leaves room for one more.
        assert!(frozen <= empty + 20, "{frozen} kB, and {empty} kB in a child of an empty process");
    });
}

/// Fails on: a child that adds to its parent's count of forks.
#[test]
fn the_account_of_a_child_begins_with_its_first_fork() {
    play("the_account_of_a_child_begins_with_its_first_fork", || {
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new());
        for _ in 0..3 {
            assert_eq!(in_child(|| 0), 0);
        }
        let parent = status();
        assert!(parent.forks >= 3, "{parent:?}");
        let of_child = || {
            let new = status();
            let child = in_child(|| i32::from(status().forks != 0));
            i32::from(child != 0 || (new.forks, new.repairs, new.debt) != (0, 0, 0) || status().forks != 1)
        };
        assert_eq!(in_child(of_child), 0);
        assert_eq!(status().forks, parent.forks + 1);
    });
}

/// Fails on: a repair that does not renew what lies between written pieces, or renews part of a mapping.
#[test]
fn what_a_repair_has_renewed_gives_a_child_no_page_tables() {
    play("what_a_repair_has_renewed_gives_a_child_no_page_tables", || {
        const EXTENT: usize = 64 * MIB;
        let memory = Memory::apart(2 * EXTENT);
        memory.fill(0..memory.len, 1);
        // With measured forks, a slow machine repairs at the fork that should find page tables.
        freeze(&Options::new().extent(ExtentLen::Bytes(EXTENT)).measure(Measure::Nothing));
        let start = memory.at(0).addr().next_multiple_of(EXTENT) - memory.at(0).addr();
        let (middle, end) = (start + EXTENT / 2, start + EXTENT - page());
        let clean = in_child_kb();
        // The first write cuts the mapping in two.
        for (written, least) in [(middle, 100), (start, 50), (end, 50)] {
            let holds =
                || [start + page()..middle, middle + page()..end].map(|part| memory.holds(part, 1)) == [true; 2];
            assert!(holds(), "all is read, and so in the page tables");
            memory.set(written, 7);
            let dear = in_child_kb();
            assert!(dear >= clean + least, "{dear} kB after a write, {clean} kB before");
            freeze(&Options::new().measure(Measure::Nothing));
            assert!(holds() && memory.get(written) == 7);
            let repaired = in_child_kb();
            // What was written is a mapping of its own, or a huge page.
            assert!(repaired <= clean + 20, "{repaired} kB after a repair, {clean} kB before");
        }
    });
}

#[test]
fn holes_stay_holes() {
    play("holes_stay_holes", || {
        let memory = Memory::apart(64 * MIB);
        // Two pages in each 2 MiB of the first half, nothing in the second.
        for offset in (0..32 * MIB).step_by(2 * MIB) {
            memory.fill(offset + page()..offset + 3 * page(), 1);
        }
        freeze(&Options::new().extent(ExtentLen::Bytes(8 * MIB)));
        assert_eq!(memory.present(), 0, "nothing was touched by the freeze itself");
        let kib = file_kib(&memory);
        assert!((128..1024).contains(&kib), "{kib} kB in memory files for 128 kB");
        assert!(memory.is_zero(32 * MIB..64 * MIB));
        for offset in (0..32 * MIB).step_by(2 * MIB) {
            assert_eq!(memory.get(offset), 0);
            assert!(memory.holds(offset + page()..offset + 3 * page(), 1));
        }
    });
}

/// Returns what the files that show `memory` take, in kB. The rest of the process has other files, which hold as much
/// as the C library and the kernel's huge pages have made of its heap.
fn file_kib(memory: &Memory) -> u64 {
    let mut vmas = Vmas::with_capacity(10_000).expect("memory");
    vmas.read(Detail::Places).expect("/proc");
    let addresses = memory.at(0).addr()..memory.at(memory.len - 1).addr();
    let inodes: Vec<u64> = vmas.iter().filter(|vma| addresses.contains(&vma.start)).map(|vma| vma.inode).collect();
    Files::default().look(|inode| inodes.contains(&inode)) as u64 >> 10
}

#[test]
fn a_second_freeze_takes_what_is_new() {
    play("a_second_freeze_takes_what_is_new", || {
        let old = Memory::apart(16 * MIB);
        old.fill(0..old.len, 1);
        freeze(&Options::new());
        let new = Memory::apart(16 * MIB);
        new.fill(0..new.len, 2);
        old.fill(4 * MIB..4 * MIB + page(), 3);
        let second = freeze(&Options::new());
        assert!((16 * MIB..24 * MIB).contains(&second.frozen_bytes()), "{second}");
        assert!(old.is_frozen() && new.is_frozen());
        assert!(old.holds(0..4 * MIB, 1) && old.holds(4 * MIB..4 * MIB + page(), 3));
        assert!(old.holds(4 * MIB + page()..old.len, 1) && new.holds(0..new.len, 2));
        assert_eq!(anonymous(&old), 0, "written pages were frozen again");
    });
}

/// Fails on: a repair that shows again what the extent holds. No other memory is so long, so that the test itself loses
/// nothing, and says so.
#[test]
fn a_repair_keeps_what_was_written() {
    play("a_repair_keeps_what_was_written", || {
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        let options = Options::new().measure(Measure::Nothing).least(memory.len).extent(ExtentLen::Bytes(8 * MIB));
        freeze(&options);
        assert!(memory.is_frozen());
        // Of pieces of 2 MiB: the first and the last page of one; many pages; all of it; the last page of all.
        let ends = [2 * MIB..2 * MIB + page(), 4 * MIB - page()..4 * MIB];
        let many = (4 * MIB..6 * MIB).step_by(MIB / 8).map(|start| start..start + page());
        let rest = [8 * MIB..10 * MIB, memory.len - page()..memory.len];
        let written: Vec<_> = ends.into_iter().chain(many).chain(rest).collect();
        written.iter().for_each(|part| memory.fill(part.clone(), 2));
        assert_eq!(freeze(&options).stopped, None);
        assert_eq!((memory.is_frozen(), anonymous(&memory)), (true, 0), "it is repaired");
        let salt = |offset| if written.iter().any(|part| part.contains(&offset)) { 2 } else { 1 };
        let is_right =
            || (0..memory.len).step_by(page()).all(|offset| memory.holds(offset..offset + page(), salt(offset)));
        assert!(is_right());
        assert_eq!(in_child(|| i32::from(!is_right())), 0);
    });
}

/// Returns the bytes of memory that are this process's own pages.
fn anonymous(memory: &Memory) -> usize {
    use palimpsest_sys::pages::vmas::{Detail, Vmas};
    let mut vmas = Vmas::with_capacity(10_000).expect("memory");
    vmas.read(Detail::Figures).expect("/proc");
    vmas.iter().filter(|vma| memory.range().contains(&vma.start)).map(|vma| vma.anonymous).sum()
}

#[test]
fn children_freeze_for_themselves() {
    play("children_freeze_for_themselves", || {
        let memory = Memory::apart(32 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new());
        let status = in_child(|| {
            memory.fill(0..4 * MIB, 2);
            freeze(&Options::new());
            assert_eq!(anonymous(&memory), 0);
            let grandchild = in_child(|| {
                assert!(memory.holds(0..4 * MIB, 2) && memory.holds(4 * MIB..memory.len, 1));
                memory.fill(8 * MIB..9 * MIB, 3);
                freeze(&Options::new());
                i32::from(!memory.holds(8 * MIB..9 * MIB, 3))
            });
            assert_eq!(grandchild, 0);
            i32::from(!memory.holds(0..4 * MIB, 2) || !memory.holds(4 * MIB..memory.len, 1))
        });
        assert_eq!(status, 0);
        assert!(memory.holds(0..memory.len, 1));
    });
}

#[test]
fn a_survey_changes_nothing() {
    play("a_survey_changes_nothing", || {
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        let report = palimpsest_fork::survey(&Options::new()).expect("can be frozen");
        assert!(report.frozen.iter().any(|range| range.range == memory.range() && range.bytes == memory.len));
        assert_eq!((palimpsest_fork::frozen_bytes(), memory.mappings()), (0, 1));
        assert!(!memory.is_frozen());
    });
}

#[test]
fn what_the_parent_writes_is_repaired_when_that_pays() {
    play("what_the_parent_writes_is_repaired_when_that_pays", || {
        let memory = Memory::apart(256 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new().extent(ExtentLen::Bytes(8 * MIB)));
        // Makes every clean page table entry present, so that a written page makes its whole extent dear.
        assert!(memory.holds(0..memory.len, 1));
        for offset in (0..memory.len).step_by(8 * MIB) {
            memory.set(offset + 100, 7);
        }
        let dear = in_child_kb();
        assert!(dear > 400, "{dear} kB of page tables where every extent was written to");
        let mut forks = 0;
        while status().repairs == 0 {
            assert_eq!(in_child(|| 0), 0);
            forks += 1;
            assert!(forks < 100_000, "{:?}", status());
        }
        println!("repaired after {forks} forks: {:?}", status());
        assert_eq!(anonymous(&memory), 0);
        // Present page table entries do not matter if their mapping is new.
        assert!(memory.holds(page()..8 * MIB, 1));
        let sum: u64 = (0..memory.len).step_by(page()).map(|offset| u64::from(memory.get(offset))).sum();
        assert!(sum > 0);
        let cheap = in_child_kb();
        assert!(cheap <= 100, "{cheap} kB of page tables after the repair");
        for offset in (0..memory.len).step_by(8 * MIB) {
            assert_eq!(memory.get(offset + 100), 7);
            assert!(memory.holds(offset + page()..offset + 8 * MIB, 1));
        }
    });
}

/// Fails on: a repair that is made in one go while everybody is held; a repair that never ends.
#[test]
fn a_repair_takes_no_longer_than_a_slice_at_a_time() {
    play("a_repair_takes_no_longer_than_a_slice_at_a_time", || {
        const PIECE: usize = 2 * MIB;
        let memory = Memory::apart(8 * PIECE);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new().measure(Measure::Nothing).pause(Pause::Within(Duration::ZERO)));
        // SAFETY: 1. the scenario keeps the contract of freezing.
        while progress().stage == Stage::UnderWay && unsafe { palimpsest_fork::freeze_slice() }.is_ok() {}
        (0..4).for_each(|_| assert_eq!(in_child(|| 0), 0));
        memory.fill(0..memory.len, 2);
        // New memory is frozen once it is what makes forks dear.
        let later = Memory::apart(4 * PIECE);
        later.fill(0..later.len, 3);
        let left = || memory.present() + later.present();
        let mut parts = 0;
        let forks = (0..100_000).find(|_| {
            let before = left();
            assert_eq!(in_child(|| 0), 0);
            let repaired = before.saturating_sub(left());
            assert!(repaired <= PIECE, "{repaired} bytes at one fork");
            parts += usize::from(repaired > 0);
            status().repairs > 0 && left() == 0
        });
        assert!(forks.is_some(), "{} bytes are left: {:?}", left(), status());
        assert!(parts >= 12, "{parts} parts");
        assert!(memory.is_frozen() && memory.holds(0..memory.len, 2));
        assert!(later.is_frozen() && later.holds(0..later.len, 3));
    });
}

/// Fails on: slices between the parts of a repair that make its next part wait until they have seen everything.
#[test]
fn a_repair_that_was_begun_goes_on_at_each_fork_whatever_slices_do_between() {
    play("a_repair_that_was_begun_goes_on_at_each_fork_whatever_slices_do_between", || {
        // `apart` has the advice against huge pages, so that slices find pieces and can do nothing with them.
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new().measure(Measure::Nothing).pause(Pause::Within(Duration::ZERO)));
        // SAFETY: 1. the scenario keeps the contract of freezing.
        let slice = || unsafe { palimpsest_fork::freeze_slice() }.is_ok();
        while progress().stage == Stage::UnderWay && slice() {}
        (0..4).for_each(|_| assert_eq!(in_child(|| 0), 0));
        memory.fill(0..memory.len, 2);
        let (mut has_begun, mut parts) = (false, 0);
        let forks = (0..100_000).find(|_| {
            let before = memory.present();
            assert_eq!(in_child(|| 0), 0);
            let has_repaired = memory.present() < before;
            has_begun |= has_repaired;
            assert!(has_repaired || !has_begun || status().repairs > 0, "no part after {parts}: {:?}", status());
            parts += usize::from(has_repaired);
            if has_begun {
                slice();
            }
            status().repairs > 0
        });
        // How many parts there are depends on the machine: its kernel may mend most of it between forks.
        assert!(forks.is_some() && parts > 0, "{parts} parts: {:?}", status());
        assert!(memory.holds(0..memory.len, 2));
    });
}

/// Page tables of a child, in kB.
fn in_child_kb() -> i32 {
    // The status can tell up to 255: in units of 4 kB.
    4 * in_child(|| i32::try_from(status_kb("VmPTE") / 4).unwrap_or(255).min(255))
}

#[test]
fn memory_that_is_always_written_is_left_alone_after_a_while() {
    play("memory_that_is_always_written_is_left_alone_after_a_while", || {
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new());
        for round in 2..6 {
            memory.fill(4 * MIB..5 * MIB, round);
            freeze(&Options::new());
            assert!(memory.holds(4 * MIB..5 * MIB, round) && memory.holds(5 * MIB..memory.len, 1));
        }
        assert_eq!(status().hot_pieces, 1);
        assert!(!memory.is_frozen());
        assert_eq!(anonymous(&memory), 2 * MIB, "the one piece");
        // Not written to, it is frozen again.
        for _ in 0..20 {
            freeze(&Options::new());
        }
        assert_eq!(status().hot_pieces, 0);
        assert!(memory.is_frozen() && memory.holds(4 * MIB..5 * MIB, 5));
    });
}

#[test]
fn scattered_writes_make_whole_pieces_hot_and_few_ones_are_isolated() {
    play("scattered_writes_make_whole_pieces_hot_and_few_ones_are_isolated", || {
        let memory = Memory::apart(64 * MIB);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new().extent(ExtentLen::Bytes(8 * MIB)));
        let write = |value| {
            // Many pages in each of the first 8 pieces, and one in each of the next 8.
            for offset in (0..16 * MIB).step_by(MIB / 4).chain((16 * MIB..32 * MIB).step_by(2 * MIB)) {
                memory.set(offset + 64, value);
            }
        };
        for round in 2..6 {
            write(round);
            assert_eq!(freeze(&Options::new().extent(ExtentLen::Bytes(8 * MIB))).stopped, None);
        }
        let status = status();
        assert_eq!(status.hot_pieces, 16, "{status:?}");
        assert_eq!(anonymous(&memory), 16 * MIB + 8 * page(), "pieces, and pages");
        write(6);
        assert!(memory.holds(32 * MIB..memory.len, 1));
        for offset in (0..32 * MIB).step_by(page()) {
            let is_written =
                if offset < 16 * MIB { offset.is_multiple_of(MIB / 4) } else { offset.is_multiple_of(2 * MIB) };
            assert_eq!(memory.get(offset + 64), if is_written { 6 } else { 0 });
        }
    });
}

/// Fails on: memory of the program that is left out because it lies beside this library's stack.
#[test]
fn what_lies_beside_the_stack_of_our_own_is_frozen() {
    play("what_lies_beside_the_stack_of_our_own_is_frozen", || {
        // The stack is made right below it, as the kernel gives out addresses.
        let memory = Memory::map(MIB);
        memory.fill(0..memory.len, 1);
        let local = || {
            let local = [0_u8; 1];
            std::hint::black_box(local.as_ptr()).addr()
        };
        let inside = on_own_stack(local).expect("memory");
        println!("{:#x} bytes below", memory.start.addr().wrapping_sub(inside));
        on_own_stack(|| freeze(&Options::new().measure(Measure::Nothing))).expect("memory");
        assert!(memory.is_frozen() && memory.holds(0..memory.len, 1));
    });
}
