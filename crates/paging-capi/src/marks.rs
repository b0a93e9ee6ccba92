//! Marks of use and of writing: counting and clearing them.

use core::ffi::c_void;

use palimpsest_paging::Mark;

use crate::pages::{PALIMPSEST_PAGING_ACCESSED, PALIMPSEST_PAGING_DIRTY, range_of};
use crate::result::palimpsest_paging_result::{self, PALIMPSEST_PAGING_INVALID, PALIMPSEST_PAGING_RANGE};
use crate::result::{Answer, code, of_change};
use crate::space::{each_format, live, out, palimpsest_paging_space};

/// Gets the first address of a page, or, of a page that begins before the range asked for, the range's first address.
/// Runs while the library holds the space's lock: it must not call functions for the same space.
#[expect(non_camel_case_types, reason = "the names that C sees")]
pub type palimpsest_paging_on_page = Option<unsafe extern "C" fn(argument: *mut c_void, address: u64)>;

fn mark_of(mark: u32) -> Answer<Mark> {
    match mark {
        PALIMPSEST_PAGING_ACCESSED => Ok(Mark::Accessed),
        PALIMPSEST_PAGING_DIRTY => Ok(Mark::Dirty),
        _ => Err(PALIMPSEST_PAGING_INVALID),
    }
}

/// Writes to `count` how many pages from `start` to before `start + len` have a mark: PALIMPSEST_PAGING_ACCESSED or
/// PALIMPSEST_PAGING_DIRTY. Copies no table.
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. `count` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_count_marked(
    space: *const palimpsest_paging_space,
    start: u64,
    len: u64,
    mark: u32,
    count: *mut u64,
) -> palimpsest_paging_result {
    let counted = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let (mark, range, count) = (mark_of(mark)?, range_of(start, len)?, out(count)?);
        let marked = each_format!(space, space => space.count_marked(range, mark));
        let marked = marked.map_err(|_| PALIMPSEST_PAGING_RANGE)?;
        // SAFETY: contract 2; not null, and aligned.
        unsafe { count.write(marked as u64) };
        Ok(())
    };
    code(counted())
}

/// Clears a mark of all pages from `start` to before `start + len`, and flushes those that had it. `on_page`, which may
/// be null, is called for each of them; a CPU may have set the mark again when this function returns. Copies shared
/// tables first, since their marks also belong to the other spaces. On AArch64 and RISC-V, where a page without its
/// marks faults, it refuses pages of the kernel (PALIMPSEST_PAGING_KERNELS).
///
/// # Safety
///
/// 1. `space` is null, or points to a structure that is not dropped during the call.
/// 2. `on_page` is null or such a function, and may be called with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_paging_take_marks(
    space: *const palimpsest_paging_space,
    start: u64,
    len: u64,
    mark: u32,
    on_page: palimpsest_paging_on_page,
    argument: *mut c_void,
) -> palimpsest_paging_result {
    let taken = || {
        // SAFETY: contract 1.
        let space = unsafe { live(space) }?;
        let (mark, range) = (mark_of(mark)?, range_of(start, len)?);
        each_format!(space, space => {
            let flush = space.take_marks(range, mark, |address| {
                if let Some(on_page) = on_page {
                    // SAFETY: contract 2.
                    unsafe { on_page(argument, address.0) };
                }
            });
            flush.map_err(|error| of_change(&error))?.finish();
        });
        Ok(())
    };
    code(taken())
}
