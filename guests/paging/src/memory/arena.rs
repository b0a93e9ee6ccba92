//! Frames of each node, handed out one by one and counted.
//!
//! | from the start of a node | what |
//! |---|---|
//! | 0 | node 0: boot code and the kernel's image |
//! | 32 MiB | programs, in every node ([`packs_of`](super::packs_of)) |
//! | 47 MiB | node 0: [`ASKED_AT`] |
//! | 48 MiB | a [`Record`] for each frame |
//! | 49 MiB | a `TableMeta` for each frame |
//! | 64 MiB | the frames |

use core::mem::size_of;
use core::sync::atomic::{AtomicU32, Ordering};

use palimpsest_paging::{Frame, Node, PAGE, TableMeta};

use super::{NODE_BYTES, NODES, alias};
use crate::arch::layout;
use crate::sync::SpinLock;

/// Where QEMU puts [what is asked for](crate::asked).
pub(crate) const ASKED_AT: u64 = 47 << 20;
const RECORDS_AT: u64 = 48 << 20;
const METAS_AT: u64 = 49 << 20;
const FRAMES_AT: u64 = 64 << 20;
const FRAMES: u64 = (NODE_BYTES - FRAMES_AT) / PAGE;

const _: () = assert!(FRAMES * size_of::<Record>() as u64 <= METAS_AT - RECORDS_AT);
const _: () = assert!(FRAMES * size_of::<TableMeta>() as u64 <= FRAMES_AT - METAS_AT);

/// What is known of a frame.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Record {
    /// Entries that refer to it; [`TABLE`] for a table, 0 for a free frame.
    pub(crate) references: AtomicU32,
    /// How often it is pinned.
    pub(crate) pins: AtomicU32,
    /// The next free one, plus one.
    next: AtomicU32,
    /// The frame of the image whose replica it is, plus one.
    pub(crate) replica_of: AtomicU32,
}

/// `references` of a table.
pub(crate) const TABLE: u32 = u32::MAX;

/// Free frames of a node.
#[derive(Debug)]
struct Free {
    /// The first that was given back, plus one.
    first: u32,
    /// The first that was never handed out.
    fresh: u32,
    in_use: u32,
}

static FREE: [SpinLock<Free>; NODES] = [const { SpinLock::new(Free { first: 0, fresh: 0, in_use: 0 }) }; NODES];

/// Access to records.
#[derive(Debug)]
pub(crate) enum Records {}

/// Returns a frame's node, and its number there.
fn place(frame: Frame) -> Option<(u64, u64)> {
    let offset = frame.address().checked_sub(layout::RAM_BASE)?;
    let (node, offset) = (offset / NODE_BYTES, offset % NODE_BYTES);
    (node < NODES as u64 && offset >= FRAMES_AT).then(|| (node, (offset - FRAMES_AT) / PAGE))
}

fn frame(node: usize, number: u32) -> Frame {
    Frame::containing(layout::RAM_BASE + node as u64 * NODE_BYTES + FRAMES_AT + u64::from(number) * PAGE)
}

impl Records {
    /// Returns the record of `frame`, or `None` if no arena hands it out: the image, and devices.
    pub(crate) fn of(frame: Frame) -> Option<&'static Record> {
        let (node, number) = place(frame)?;
        let at = layout::RAM_BASE + node * NODE_BYTES + RECORDS_AT + number * size_of::<Record>() as u64;
        #[expect(clippy::cast_ptr_alignment, reason = "the array begins at a multiple of a page")]
        let record = alias(at).cast::<Record>();
        // SAFETY: memory reserved for records, whose fields are valid for any bytes; QEMU starts with zeros.
        Some(unsafe { &*record })
    }

    /// Returns the meta data of `frame`.
    ///
    /// # Panics
    ///
    /// If no arena hands it out.
    pub(crate) fn meta(frame: Frame) -> &'static TableMeta {
        let Some((node, number)) = place(frame) else { panic!("{frame} is no table") };
        let at = layout::RAM_BASE + node * NODE_BYTES + METAS_AT + number * size_of::<TableMeta>() as u64;
        #[expect(clippy::cast_ptr_alignment, reason = "the array begins at a multiple of a page")]
        let meta = alias(at).cast::<TableMeta>();
        // SAFETY: memory reserved for meta data: atomics, valid for any bytes.
        unsafe { &*meta }
    }

    /// Hands out a zeroed frame with `references`, of `node` if it has one, else of another node.
    pub(crate) fn allocate(node: Node, references: u32) -> Option<Frame> {
        let frame = (0..NODES).find_map(|turn| take((usize::from(node.0) + turn) % NODES))?;
        // SAFETY: the frame is nobody's, and mapped by the physical map.
        unsafe { core::ptr::write_bytes(alias(frame.address()), 0, PAGE as usize) };
        let record = Self::of(frame)?;
        // Relaxed, here and below: the frame is nobody's yet.
        record.pins.store(0, Ordering::Relaxed);
        record.replica_of.store(0, Ordering::Relaxed);
        let before = record.references.swap(references, Ordering::Relaxed);
        assert_eq!(before, 0, "{frame} is handed out twice");
        Some(frame)
    }

    /// Takes back a frame whose count of references has reached zero.
    pub(crate) fn free(free: Frame) {
        let (Some((node, number)), Some(record)) = (place(free), Self::of(free)) else {
            panic!("{free} is of no arena")
        };
        let mut list = FREE[node as usize].lock();
        // Relaxed: under the lock.
        record.next.store(list.first, Ordering::Relaxed);
        list.first = number as u32 + 1;
        list.in_use -= 1;
    }
}

fn take(node: usize) -> Option<Frame> {
    let mut free = FREE[node].lock();
    let number = if free.first != 0 {
        let number = free.first - 1;
        // Relaxed: under the lock.
        free.first = Records::of(frame(node, number))?.next.load(Ordering::Relaxed);
        number
    } else if u64::from(free.fresh) < FRAMES {
        free.fresh += 1;
        free.fresh - 1
    } else {
        return None;
    };
    free.in_use += 1;
    Some(frame(node, number))
}

impl Records {
    /// Returns the number of frames that could be handed out.
    pub(crate) fn free_count() -> usize {
        in_use().into_iter().map(|in_use| (FRAMES - u64::from(in_use)) as usize).sum()
    }
}

/// Returns the number of frames handed out, by node.
pub(crate) fn in_use() -> [u32; NODES] {
    core::array::from_fn(|node| FREE[node].lock().in_use)
}
