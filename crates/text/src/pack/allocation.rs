//! Code with its data on the way into packs.

use std::fmt;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use palimpsest_sys::arch;

use super::allocated::{Allocated, Held};
use super::block::{Block, Written, write_all};
use super::contents::Extras;
use super::data::Data;
use super::error::{AllocateError, FinalizeError, ForkedError, FunctionError, ShrinkError};
use super::group::Group;
use super::handle::Packs;
use super::memory::Kind;
use super::parts::{Part, Parts, Size, Working};
use super::policy::WriteView;
use super::staged::{Described, publish, synchronize};
use crate::observe::{Function, SourceLines};

/// Places for code, for data that it reads, and for data that it writes. Each has its final address, and memory to
/// which its bytes are written before. The linker of a compiler asks this of its host.
///
/// All places are in one region, so relative calls, and loads and stores relative to the instruction, reach from each
/// to each. Dropping the allocation gives the places back.
///
/// ```
/// use palimpsest_text::{Packs, Part, Parts, Size, Working};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let packs = Packs::new()?;
/// let sizes = Parts { read_only: Size { len: 100, align: 8 }, ..Parts::default() };
/// let mut allocation = packs.allocate(sizes, Working::Private)?;
/// allocation.working(Part::ReadOnly)?[..4].copy_from_slice(b"text");
/// allocation.shrink(Part::ReadOnly, 4)?;
/// let at = allocation.finalize()?.keep().read_only;
/// // From here on it is known by its address only.
/// let parts = packs.lookup(at.start).and_then(|found| found.parts().cloned());
/// assert_eq!(parts.map(|parts| parts.read_only), Some(at.clone()));
/// packs.release(at.start)?;
/// # Ok(())
/// # }
/// ```
pub struct Allocation {
    drafts: Parts<Option<Draft>>,
    name: Box<str>,
    eh_frame: Option<Vec<u8>>,
    functions: Vec<Function>,
    lines: Option<SourceLines>,
}

struct Draft {
    block: Block,
    image: Image,
}

enum Image {
    /// As long as the block.
    Private(Vec<u8>),
    InPlace,
}

impl Packs {
    /// Takes places for the parts of `sizes` that have bytes. Code begins as traps, and data as zeros.
    ///
    /// # Errors
    ///
    /// See [`AllocateError`]; nothing is taken then.
    pub fn allocate(&self, sizes: Parts<Size>, working: Working) -> Result<Allocation, AllocateError> {
        if Part::ALL.iter().all(|&part| sizes.get(part).len == 0) {
            return Err(AllocateError::Nothing);
        }
        let mut drafts = Parts::default();
        for part in Part::ALL {
            let &Size { len, align } = sizes.get(part);
            if len > 0 {
                let taken = self.take_place(Kind::of(part), len, align);
                let block = taken.map_err(|source| AllocateError::Part { part, len, source })?;
                let draft = Draft::new(block, working).ok_or_else(|| {
                    let (backing, write_view) = (self.backing(), self.write_view());
                    AllocateError::InPlace { backing, write_view }
                })?;
                *drafts.get_mut(part) = Some(draft);
            }
        }
        Ok(Allocation { drafts, name: Box::default(), eh_frame: None, functions: Vec::new(), lines: None })
    }

    /// Returns whether [`allocate`](Self::allocate) can let code and data be written in place.
    pub fn can_write_in_place(&self) -> bool {
        self.write_view() == WriteView::Standing
    }

    /// Finalizes many allocations, with one core synchronisation for all if the ISA needs it. Opens write views that
    /// are open only during copies ([`WriteView::DuringCopies`]) only once.
    ///
    /// # Errors
    ///
    /// [`FinalizeError`] of the first allocation that failed; then none is in place, and all places are free again.
    pub fn finalize_allocations(&self, mut allocations: Vec<Allocation>) -> Result<Vec<Allocated>, FinalizeError> {
        put_in_place(&mut allocations)?;
        Ok(allocations.into_iter().map(Allocation::publish).collect())
    }
}

impl Draft {
    /// Returns `None` if `working` is in place, but the place cannot be written at all times.
    fn new(mut block: Block, working: Working) -> Option<Self> {
        let kind = block.kind();
        let image = match working {
            Working::Private => {
                let mut image = vec![0; block.len()];
                if kind == Kind::Code {
                    arch::fill_traps(&mut image);
                }
                Image::Private(image)
            }
            Working::InPlace => {
                let bytes = block.bytes_in_place()?;
                // Free code is traps already; free data is whatever its last owner left there.
                if kind != Kind::Code {
                    bytes.fill(0);
                }
                Image::InPlace
            }
        };
        Some(Self { block, image })
    }

    fn range(&self) -> Range<usize> {
        let start = self.block.address().get();
        start..start + self.block.len()
    }

    fn working(&mut self) -> Result<&mut [u8], ForkedError> {
        let address = self.block.address();
        match &mut self.image {
            Image::Private(image) => Ok(image),
            Image::InPlace => self.block.bytes_in_place().ok_or(ForkedError { address }),
        }
    }

    fn shrink(&mut self, len: usize) -> Result<(), ForkedError> {
        let address = self.block.address();
        match &mut self.image {
            Image::Private(image) => image.truncate(len),
            Image::InPlace => {
                let is_code = self.block.kind() == Kind::Code;
                let bytes = self.block.bytes_in_place().ok_or(ForkedError { address })?;
                if is_code {
                    // What is given back becomes free, and free code must be traps.
                    arch::fill_traps_from(bytes, len);
                }
            }
        }
        self.block.shrink(len);
        Ok(())
    }
}

impl Allocation {
    /// Returns where a part will be; an empty range if there is no such part.
    pub fn range(&self, part: Part) -> Range<usize> {
        self.drafts.get(part).as_ref().map_or(0..0, Draft::range)
    }

    /// Returns the memory to write a part to until the allocation is finalized: as long as the part, and empty if there
    /// is none.
    ///
    /// It stays where it is, even when the part shrinks. A forked child must not write to places of its parent.
    ///
    /// # Errors
    ///
    /// [`ForkedError`] in a forked child, if the parent allocated in place.
    pub fn working(&mut self, part: Part) -> Result<&mut [u8], ForkedError> {
        self.drafts.get_mut(part).as_mut().map_or_else(|| Ok([].as_mut_slice()), Draft::working)
    }

    /// Gives back all but the first `len` bytes of a part, in whole chunks of [`CHUNK`](super::CHUNK) bytes. The memory
    /// of a part that is longer than a pack stays.
    ///
    /// # Errors
    ///
    /// See [`ShrinkError`].
    pub fn shrink(&mut self, part: Part, len: usize) -> Result<(), ShrinkError> {
        let draft = self.drafts.get_mut(part).as_mut().ok_or(ShrinkError::NoPart { part })?;
        if len == 0 || len > draft.block.len() {
            return Err(ShrinkError::Length { part, len: draft.block.len(), wanted: len });
        }
        draft.shrink(len)?;
        Ok(())
    }

    /// Names the allocation, for observers and [`Packs::lookup`].
    pub fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }

    /// Gives the code unwind tables, as [`Staged::set_eh_frame`](super::Staged::set_eh_frame) does.
    pub fn set_eh_frame(&mut self, eh_frame: Vec<u8>) {
        self.eh_frame = Some(eh_frame);
    }

    /// Tells observers which functions the code consists of, in any order: they name these instead of the whole. Worth
    /// making only if there are [observers](super::Packs::is_observed). What a later [`shrink`](Self::shrink) cuts off
    /// is left out.
    ///
    /// # Errors
    ///
    /// [`FunctionError`] for a function that is not inside the code; then nothing changes.
    pub fn set_functions(&mut self, mut functions: Vec<Function>) -> Result<(), FunctionError> {
        let code_len = self.range(Part::Code).len();
        let is_inside = |one: &Function| one.offset.checked_add(one.len).is_some_and(|end| end <= code_len);
        if let Some(at) = functions.iter().position(|one| !is_inside(one)) {
            return Err(FunctionError { function: functions.swap_remove(at), code_len });
        }
        functions.sort_unstable();
        self.functions = functions;
        Ok(())
    }

    /// Tells observers which lines of a source the code comes from, as
    /// [`Staged::set_lines`](super::Staged::set_lines) does. What a later [`shrink`](Self::shrink) cuts off is left
    /// out.
    pub fn set_lines(&mut self, lines: SourceLines) {
        self.lines = Some(lines);
    }

    /// Puts all parts in place. [`Packs::finalize_allocations`] does this for many allocations.
    ///
    /// # Errors
    ///
    /// See [`FinalizeError`]; the places are free again.
    pub fn finalize(mut self) -> Result<Allocated, FinalizeError> {
        put_in_place(slice::from_mut(&mut self))?;
        Ok(self.publish())
    }

    /// Makes the parts known. Call it when the bytes are in place and cores synchronised.
    fn publish(self) -> Allocated {
        let Self { mut drafts, name, eh_frame, functions, lines } = self;
        let is_observed = drafts.code.as_ref().is_some_and(|code| code.block.store().is_observed());
        let group = Arc::new(Group::new(Parts {
            code: drafts.code.as_ref().map_or(0..0, Draft::range),
            read_only: drafts.read_only.as_ref().map_or(0..0, Draft::range),
            read_write: drafts.read_write.as_ref().map_or(0..0, Draft::range),
        }));
        let extras = Arc::new(Extras {
            name,
            functions: if is_observed { functions.into() } else { Box::default() },
            group: Some(Arc::clone(&group)),
            ..Extras::default()
        });
        // Before the code: whoever is told of the code finds its data.
        let data = |draft: Draft| Data::new(draft.block.publish(Some(Arc::clone(&extras))));
        let read_only = drafts.read_only.take().map(data);
        let read_write = drafts.read_write.take().map(data);
        let code = drafts.code.take().map(|Draft { mut block, image }| {
            let code = match image {
                Image::Private(image) => image,
                Image::InPlace if is_observed => block.bytes_in_place().unwrap_or_default().to_vec(),
                Image::InPlace => Vec::new(),
            };
            let (eh_frame, lines) = (eh_frame.as_deref(), lines.as_ref());
            publish(block, Some(extras), &Described { code: &code, eh_frame, lines })
        });
        // SAFETY: 1. made above.
        unsafe { Allocated::new(Held { code, read_only, read_write }, group) }
    }
}

impl Written for Allocation {
    fn blocks(&mut self) -> impl Iterator<Item = &mut Block> {
        self.drafts.each_mut().into_iter().flatten().map(|draft| &mut draft.block)
    }

    fn images(&self) -> impl Iterator<Item = (&Block, Option<&[u8]>)> {
        let drafts = Part::ALL.into_iter().filter_map(|part| self.drafts.get(part).as_ref());
        drafts.map(|draft| match &draft.image {
            Image::Private(image) => (&draft.block, Some(&**image)),
            Image::InPlace => (&draft.block, None),
        })
    }
}

/// Copies what is not in place yet, and makes every core see the code.
fn put_in_place(allocations: &mut [Allocation]) -> Result<(), FinalizeError> {
    write_all(allocations)?;
    if let Some(code) = allocations.iter().find_map(|one| one.drafts.code.as_ref()) {
        // Synchronises the process, so that it does not matter which packs they are in.
        synchronize(code.block.store())?;
    }
    Ok(())
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |part| format!("{:#x?}", self.range(part));
        f.debug_struct("Allocation")
            .field("name", &self.name)
            .field("code", &range(Part::Code))
            .field("read_only", &range(Part::ReadOnly))
            .field("read_write", &range(Part::ReadWrite))
            .finish()
    }
}
