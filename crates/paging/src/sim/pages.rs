//! Memory for pages. Each frame of 4 KiB has a number instead of its bytes, a count of references, and a count of pins.

use std::collections::HashMap;

use crate::address::{Frame, PAGE, PageSize};
use crate::machine::{Node, Page};

/// Frames of node n start here times n.
const NODE_SHIFT: u32 = 44;
/// Memory that is not counted, like a device's.
pub(super) const DEVICE: u64 = 3 << 46;
const BLOCK: usize = 512;

struct Block {
    content: [u64; BLOCK],
    references: [u32; BLOCK],
    pins: [u16; BLOCK],
    /// Frames with references or pins.
    live: usize,
}

/// A mistake in counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    /// The frame has no reference.
    Free(Frame),
    /// The frame is not pinned.
    NotPinned(Frame),
}

/// All nodes' pages.
pub(super) struct Pages {
    blocks: HashMap<u64, Box<Block>>,
    nodes: Vec<NodePages>,
}

struct NodePages {
    next: u64,
    free: u64,
}

pub(super) fn is_device(page: Page) -> bool {
    page.frame.address() >= DEVICE
}

fn node_of(frame: u64) -> usize {
    (frame >> NODE_SHIFT) as usize
}

/// Returns the 4 KiB frames of a page: each block, with the range of its frames.
fn parts(page: Page) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let first = page.frame.address() / PAGE;
    let count = page.size.bytes() / PAGE;
    let blocks = count.div_ceil(BLOCK as u64);
    (0..blocks).map(move |block| {
        let start = (first + block * BLOCK as u64) as usize % BLOCK;
        (first / BLOCK as u64 + block, start..start + (count as usize).min(BLOCK))
    })
}

impl Pages {
    pub(super) fn new(nodes: usize, frames: u64) -> Self {
        // Frame 0 is used: nothing may take it for "none".
        Self { blocks: HashMap::new(), nodes: (0..nodes).map(|_| NodePages { next: 0, free: frames }).collect() }
    }

    /// Allocates memory with one reference to each frame, aligned to `align`, on `node` or the next node that has
    /// enough.
    pub(super) fn allocate(&mut self, node: Node, bytes: u64, align: PageSize) -> Option<Frame> {
        let frames = bytes / PAGE;
        let count = self.nodes.len();
        let chosen =
            (0..count).map(|turn| (usize::from(node.0) + turn) % count).find(|&n| self.nodes[n].free >= frames)?;
        let on = &mut self.nodes[chosen];
        let start = on.next.next_multiple_of(align.bytes());
        on.next = start + bytes;
        on.free -= frames;
        let first = ((chosen as u64) << NODE_SHIFT) + start;
        for frame in 0..frames {
            let number = first / PAGE + frame;
            let block = self.blocks.entry(number / BLOCK as u64).or_insert_with(|| {
                Box::new(Block { content: [0; BLOCK], references: [0; BLOCK], pins: [0; BLOCK], live: 0 })
            });
            block.references[number as usize % BLOCK] = 1;
            block.live += 1;
        }
        Some(Frame::containing(first))
    }

    fn each(
        &mut self,
        page: Page,
        mut change: impl FnMut(&mut Block, usize) -> Result<(), Wrong>,
    ) -> Result<(), Wrong> {
        if is_device(page) {
            return Ok(());
        }
        for (number, range) in parts(page) {
            let freed = Wrong::Free(Frame::containing(number * BLOCK as u64 * PAGE + range.start as u64 * PAGE));
            let block = self.blocks.get_mut(&number).ok_or(freed)?;
            for index in range {
                let frame = Frame::containing((number * BLOCK as u64 + index as u64) * PAGE);
                if block.references[index] == 0 && block.pins[index] == 0 {
                    return Err(Wrong::Free(frame));
                }
                change(block, index)?;
            }
        }
        Ok(())
    }

    pub(super) fn retain(&mut self, page: Page) -> Result<(), Wrong> {
        self.each(page, |block, index| {
            block.references[index] += 1;
            Ok(())
        })
    }

    /// Drops a reference to each frame. Adds frames without references to `freed`.
    pub(super) fn release(&mut self, page: Page, freed: &mut Vec<Frame>) -> Result<(), Wrong> {
        self.drop_each(page, freed, |block, index| {
            block.references[index] = block.references[index].checked_sub(1)?;
            Some(())
        })
    }

    pub(super) fn pin(&mut self, page: Page) -> Result<(), Wrong> {
        self.each(page, |block, index| {
            block.pins[index] += 1;
            Ok(())
        })
    }

    pub(super) fn unpin(&mut self, page: Page, freed: &mut Vec<Frame>) -> Result<(), Wrong> {
        self.drop_each(page, freed, |block, index| {
            block.pins[index] = block.pins[index].checked_sub(1)?;
            Some(())
        })
    }

    fn drop_each(
        &mut self,
        page: Page,
        freed: &mut Vec<Frame>,
        take: impl Fn(&mut Block, usize) -> Option<()>,
    ) -> Result<(), Wrong> {
        self.each(page, |block, index| {
            let frame = Frame::containing(page.frame.address() & !(BLOCK as u64 * PAGE - 1));
            take(block, index).ok_or(Wrong::NotPinned(frame))?;
            Ok(())
        })?;
        if is_device(page) {
            return Ok(());
        }
        for (number, range) in parts(page) {
            let Some(block) = self.blocks.get_mut(&number) else { continue };
            for index in range {
                if block.references[index] == 0 && block.pins[index] == 0 {
                    let address = (number * BLOCK as u64 + index as u64) * PAGE;
                    block.live -= 1;
                    self.nodes[node_of(address)].free += 1;
                    freed.push(Frame::containing(address));
                }
            }
            if block.live == 0 {
                self.blocks.remove(&number);
            }
        }
        Ok(())
    }

    /// Returns the number of references to a frame.
    pub(super) fn references(&self, frame: Frame) -> u32 {
        let number = frame.address() / PAGE;
        self.blocks.get(&(number / BLOCK as u64)).map_or(0, |block| block.references[number as usize % BLOCK])
    }

    /// Returns whether all parts of a page satisfy a condition on references and pins.
    pub(super) fn all(&self, page: Page, condition: impl Fn(u32, u16) -> bool) -> bool {
        parts(page).all(|(number, range)| {
            let block = self.blocks.get(&number);
            range.into_iter().all(|index| {
                let (references, pins) = block.map_or((0, 0), |block| (block.references[index], block.pins[index]));
                condition(references, pins)
            })
        })
    }

    /// Returns a copy of a page, on `node` or another.
    pub(super) fn copy(&mut self, page: Page, node: Node) -> Option<Frame> {
        let copy = self.allocate(node, page.size.bytes(), page.size)?;
        for ((from, from_range), (to, to_range)) in parts(page).zip(parts(Page { frame: copy, ..page })) {
            let content: Vec<u64> = match self.blocks.get(&from) {
                Some(block) => block.content[from_range].to_vec(),
                // A device: see `read`.
                None => from_range.map(|index| (from * BLOCK as u64 + index as u64) * PAGE).collect(),
            };
            if let Some(block) = self.blocks.get_mut(&to) {
                block.content[to_range].copy_from_slice(&content);
            }
        }
        Some(copy)
    }

    /// Returns the content of a frame; `None` if it is free.
    pub(super) fn read(&self, frame: Frame) -> Option<u64> {
        if frame.address() >= DEVICE {
            return Some(frame.address());
        }
        let (block, index) = self.find(frame)?;
        Some(self.blocks[&block].content[index])
    }

    /// Writes to a frame; `None` if it is free.
    pub(super) fn write(&mut self, frame: Frame, content: u64) -> Option<()> {
        if frame.address() >= DEVICE {
            return Some(());
        }
        let (block, index) = self.find(frame)?;
        self.blocks.get_mut(&block)?.content[index] = content;
        Some(())
    }

    fn find(&self, frame: Frame) -> Option<(u64, usize)> {
        let number = frame.address() / PAGE;
        let (block, index) = (number / BLOCK as u64, number as usize % BLOCK);
        let found = self.blocks.get(&block)?;
        (found.references[index] != 0 || found.pins[index] != 0).then_some((block, index))
    }

    /// Returns every frame that is not free, with its references and pins.
    pub(super) fn live(&self) -> impl Iterator<Item = (Frame, u32, u16)> + '_ {
        self.blocks.iter().flat_map(|(&number, block)| {
            (0..BLOCK).filter(|&index| block.references[index] != 0 || block.pins[index] != 0).map(move |index| {
                let frame = Frame::containing((number * BLOCK as u64 + index as u64) * PAGE);
                (frame, block.references[index], block.pins[index])
            })
        })
    }

    /// Returns the number of frames in use.
    pub(super) fn live_frames(&self) -> usize {
        self.blocks.values().map(|block| block.live).sum()
    }

    /// Returns the node that a frame belongs to.
    pub(super) fn node(frame: Frame) -> Node {
        Node(node_of(frame.address()) as u8)
    }
}
