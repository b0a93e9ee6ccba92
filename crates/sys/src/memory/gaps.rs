//! Where this process has room for a mapping at an address of our choice.
//!
//! The kernel keeps its own choices away from the heap and the first thread's stack, which grow (`mmap_base` in
//! `mm/util.c`). Where a program gives the address, nobody does but this.

use std::ops::Range;

use rustix::process::{Resource, getrlimit};

use super::calls::program_break;
use crate::pages::maps::MapEntry;

/// Room for the heap behind a program to grow into (`brk(2)`), in bytes.
const HEAP_ROOM: usize = crate::arch::DIRECT_BRANCH_REACH / 8;

/// The least room that the kernel leaves below the first thread's stack, in bytes (`MIN_GAP` in `mm/util.c`).
const LEAST_STACK_ROOM: usize = 128 << 20;
/// Room below a stack without a limit, in bytes: more than programs use, less than branches reach.
const UNLIMITED_STACK_ROOM: usize = 1 << 30;

/// Returns how far the first thread's stack may grow below what is mapped of it, in bytes: as far as its limit allows,
/// with the gap that the kernel wants to be left (`stack_guard_gap`, 256 pages unless the kernel was told otherwise).
pub fn stack_room() -> usize {
    let limit = getrlimit(Resource::Stack).current;
    let most = limit.map_or(UNLIMITED_STACK_ROOM, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    most.max(LEAST_STACK_ROOM).saturating_add(256 * rustix::param::page_size())
}

/// What grows, and how far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Growing {
    /// Room below the first thread's stack, in bytes.
    stack_room: usize,
    /// Where the heap ends, whatever its last mapping is called, or would begin.
    program_break: usize,
}

impl Growing {
    pub(super) fn now() -> Self {
        Self { stack_room: stack_room(), program_break: program_break() }
    }
}

/// Returns the unmapped ranges between this process's mappings, without what the heap and the first thread's stack may
/// grow into.
pub(super) fn gaps(maps: &[MapEntry], growing: Growing) -> Vec<Range<usize>> {
    // vm.mmap_min_addr is 64 KiB by default; ordinary users may not map lower addresses.
    let mut floor = 1 << 16;
    let mut gaps: Vec<Range<usize>> = Vec::new();
    // The vsyscall page lies in the kernel's half; there is no gap below it.
    for entry in maps.iter().filter(|entry| entry.end <= isize::MAX as usize) {
        if entry.start > floor {
            gaps.push(floor..entry.start);
        }
        floor = floor.max(entry.end);
        // What touches the stack may be a part of it with other rights.
        if entry.path.as_ref().is_some_and(|path| path.as_os_str() == "[stack]")
            && let Some(lowest) = gaps.last().map(|gap| gap.end.saturating_sub(growing.stack_room))
        {
            gaps.iter_mut().for_each(|gap| gap.end = gap.end.min(lowest));
        }
    }
    let heap = growing.program_break..growing.program_break.saturating_add(HEAP_ROOM);
    let parts = gaps.into_iter().flat_map(|gap| [gap.start..gap.end.min(heap.start), gap.start.max(heap.end)..gap.end]);
    parts.filter(|part| !part.is_empty()).collect()
}

/// Returns the bases of `len` bytes in `gaps` that lie entirely within `reach` of `target`, the nearest first.
pub(super) fn candidates(gaps: &[Range<usize>], target: usize, reach: usize, len: usize, align: usize) -> Vec<usize> {
    let lowest = target.saturating_sub(reach);
    let highest = target.saturating_add(reach);
    let mut bases: Vec<usize> = gaps
        .iter()
        .filter_map(|gap| {
            let first = gap.start.max(lowest).checked_next_multiple_of(align)?;
            let last = gap.end.min(highest).checked_sub(len)? & !(align - 1);
            (first <= last).then(|| (target & !(align - 1)).clamp(first, last))
        })
        .collect();
    bases.sort_by_key(|base| base.abs_diff(target));
    bases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::reservation::Reservation;
    use crate::pages::maps::{self, Maps};

    const MIB: usize = 1 << 20;

    #[test]
    fn what_grows_has_room() {
        let lines = "\
00200000-00400000 r-xp 00000000 00:00 0 /bin/program
00400000-00500000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000200000 r--p 00000000 00:00 0
7fff00000000-7fff00100000 r--p 00000000 00:00 0
7fff3fe00000-7fff3ff00000 ---p 00000000 00:00 0
7fff3ff00000-7fff40000000 rw-p 00000000 00:00 0 [stack]
7fff40100000-7fff40102000 r-xp 00000000 00:00 0 [vdso]
";
        let maps = maps::parse(lines).unwrap();
        let growing = |stack_room| Growing { stack_room, program_break: 0x50_1000 };
        let found = gaps(&maps, growing(0x1000_0000));
        assert_eq!(
            found,
            [
                1 << 16..0x20_0000,
                0x50_0000..0x50_1000,
                0x50_1000 + HEAP_ROOM..0x7f00_0000_0000,
                0x7f00_0020_0000..0x7fff_0000_0000,
                0x7fff_0010_0000..0x7fff_2fe0_0000,
                0x7fff_4000_0000..0x7fff_4010_0000,
            ]
        );
        // The room reaches below another mapping.
        assert_eq!(gaps(&maps, growing(0x5000_0000)).last(), Some(&(0x7fff_4000_0000..0x7fff_4010_0000)));
        assert_eq!(gaps(&maps, growing(0x5000_0000))[3].end, 0x7ffe_efe0_0000);
    }

    #[test]
    fn what_is_near_the_stack_leaves_it_room() {
        let maps = Maps::read().unwrap();
        let stack = maps.iter().find(|entry| entry.path.as_ref().is_some_and(|path| path.as_os_str() == "[stack]"));
        let stack = stack.expect("the first thread has a stack").range();
        // As far as branches reach on x86-64; on AArch64 that is less than the room.
        let near = Reservation::near(stack.start, 2 << 30, 64 * MIB, 2 * MIB).unwrap();
        let range = near.range();
        assert!(range.start >= stack.end || range.end + stack_room() <= stack.start, "{range:x?} near {stack:x?}");
    }

    #[test]
    fn the_nearest_gap_comes_first() {
        let gaps = [0..10 * MIB, 20 * MIB..40 * MIB, 50 * MIB..90 * MIB];
        let bases = candidates(&gaps, 45 * MIB, 30 * MIB, 4 * MIB, MIB);
        assert_eq!(bases, [50 * MIB, 36 * MIB]);
        assert_eq!(candidates(&gaps, 45 * MIB, 30 * MIB, 15 * MIB, MIB), [50 * MIB, 25 * MIB]);
        assert_eq!(candidates(&gaps, 45 * MIB, 30 * MIB, 60 * MIB, MIB), []);
    }
}
