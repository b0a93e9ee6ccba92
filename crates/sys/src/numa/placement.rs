//! The node of each page, from `move_pages(2)`. This is reliable, while calls that move pages only report that they
//! have tried (`MPOL_MF_STRICT | MPOL_MF_MOVE` answers 0 and moves nothing if two processes map the page).

use std::fmt;
use std::ops::Range;
use std::ptr;

use rustix::io::Errno;
use rustix::process::Pid;

use super::NodeId;
use super::policy::{Call, NumaError};

/// Pages that one call asks for.
const AT_ONCE: usize = 512;

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// On this node.
    On(NodeId),
    /// Nowhere, according to this process's page tables: not touched yet, or swapped out.
    Absent,
    /// Unknown: nothing is mapped there, or the page is never moved, such as the zero page. Linux 6.1 also reports this
    /// (EFAULT) for untouched pages without a page table.
    Untold(Errno),
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On(node) => write!(formatter, "on {node}"),
            Self::Absent => formatter.write_str("absent"),
            Self::Untold(errno) => write!(formatter, "untold ({errno})"),
        }
    }
}

/// Bytes by their location, seen from one node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// On the node.
    pub here: u64,
    /// On other nodes, ascending.
    pub elsewhere: Vec<(NodeId, u64)>,
    /// Unknown to the kernel: not mapped by the process yet, or swapped out.
    pub untold: u64,
}

impl Summary {
    /// Sums up the pages.
    pub fn of(places: &[Place], node: NodeId) -> Self {
        let page = rustix::param::page_size() as u64;
        let mut summary = Self::default();
        for place in places {
            match *place {
                Place::On(here) if here == node => summary.here += page,
                Place::On(other) => match summary.elsewhere.iter_mut().find(|(known, _)| *known == other) {
                    Some((_, bytes)) => *bytes += page,
                    None => summary.elsewhere.push((other, page)),
                },
                Place::Absent | Place::Untold(_) => summary.untold += page,
            }
        }
        summary.elsewhere.sort_unstable();
        summary
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} KiB here", self.here >> 10)?;
        self.elsewhere.iter().try_for_each(|(node, bytes)| write!(formatter, ", {} KiB on {node}", bytes >> 10))?;
        if self.untold > 0 {
            write!(formatter, ", {} KiB untold", self.untold >> 10)?;
        }
        Ok(())
    }
}

/// Returns where the pages of `range` in this process are, in order.
///
/// # Errors
///
/// `move_pages` cannot be made, see [`can_ask`](super::policy::can_ask).
pub fn of_own_pages(range: Range<usize>) -> Result<Vec<Place>, NumaError> {
    ask(0, range)
}

/// Does the same as [`of_own_pages`] for another process.
///
/// # Errors
///
/// As for [`of_own_pages`]; EPERM for a process that the caller may not inspect (`ptrace(2)`), ESRCH if there is none.
pub fn of_pages(process: Pid, range: Range<usize>) -> Result<Vec<Place>, NumaError> {
    ask(process.as_raw_nonzero().get(), range)
}

fn ask(process: i32, range: Range<usize>) -> Result<Vec<Place>, NumaError> {
    let mut places = Vec::with_capacity(range.len() / rustix::param::page_size() + 1);
    each(process, range, &mut |place| places.push(place))?;
    Ok(places)
}

/// Calls `take` with the place of each page of `range` in this process, in order, and uses no heap.
///
/// # Errors
///
/// As for [`of_own_pages`].
pub fn each_own_page(range: Range<usize>, take: &mut dyn FnMut(Place)) -> Result<(), NumaError> {
    each(0, range, take)
}

fn each(process: i32, range: Range<usize>, take: &mut dyn FnMut(Place)) -> Result<(), NumaError> {
    Call::MovePages.can_be_made()?;
    let page = rustix::param::page_size();
    let (mut pages, mut answers) = ([0_usize; AT_ONCE], [0_i32; AT_ONCE]);
    let mut at = range.start & !(page - 1);
    while at < range.end {
        let (count, nowhere) = ((range.end - at).div_ceil(page).min(AT_ONCE), ptr::null::<i32>());
        pages[..count].iter_mut().zip((at..).step_by(page)).for_each(|(place, address)| *place = address);
        // SAFETY: the kernel reads as many addresses and writes as many answers; without target nodes it moves nothing.
        let answer = unsafe {
            libc::syscall(libc::SYS_move_pages, process, count, pages.as_ptr(), nowhere, answers.as_mut_ptr(), 0_usize)
        };
        if answer != 0 {
            return Err(Call::MovePages.refused());
        }
        answers[..count].iter().for_each(|answer| take(place(*answer)));
        at += count * page;
    }
    Ok(())
}

fn place(answer: i32) -> Place {
    match u32::try_from(answer) {
        Ok(node) => Place::On(NodeId(node)),
        Err(_) => match Errno::from_raw_os_error(-answer) {
            Errno::NOENT => Place::Absent,
            errno => Place::Untold(errno),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, Protection, Source};

    #[test]
    fn bytes_are_summed_up_by_where_they_are() {
        let page = rustix::param::page_size() as u64;
        let on = |node| Place::On(NodeId(node));
        let places = [on(3), on(1), on(7), on(1), Place::Absent, on(3), Place::Untold(Errno::FAULT), on(3)];
        let summary = Summary::of(&places, NodeId(1));
        let elsewhere = vec![(NodeId(3), 3 * page), (NodeId(7), page)];
        assert_eq!(summary, Summary { here: 2 * page, elsewhere, untold: 2 * page });
        assert_eq!(Summary::of(&places[..1], NodeId(3)).to_string(), format!("{} KiB here", page >> 10));
    }

    #[test]
    fn pages_are_absent_until_they_are_touched() {
        let page = rustix::param::page_size();
        let area = Mapping::new(Source::Anonymous, 3 * page, Protection::ReadWrite, page).unwrap();
        // SAFETY: inside the mapping, which is writable.
        let second = unsafe { area.as_ptr().add(page) };
        // SAFETY: as above.
        unsafe { second.write(7) };
        let places = match of_own_pages(area.range()) {
            Ok(places) => places,
            Err(error) => return println!("skipped: {error}"),
        };
        // Linux 6.1 answers EFAULT if there is no page table.
        let is_absent = |place: &Place| matches!(place, Place::Absent | Place::Untold(Errno::FAULT));
        assert!(matches!(places[1], Place::On(_)), "{places:?}");
        assert!(is_absent(&places[0]) && is_absent(&places[2]), "{places:?}");
        assert_eq!(of_pages(rustix::process::getpid(), area.range()), Ok(places));
        let range = area.range();
        drop(area);
        // Another test's memory may lie there by now.
        assert_eq!(of_own_pages(range).unwrap().len(), 3);
        assert_eq!(of_own_pages(0..page), Ok(vec![Place::Untold(Errno::FAULT)]));
    }

    #[test]
    fn more_pages_than_fit_one_call_are_told() {
        if let Err(error) = Call::MovePages.can_be_made() {
            return println!("skipped: {error}");
        }
        let page = rustix::param::page_size();
        let area = Mapping::new(Source::Anonymous, (AT_ONCE + 1) * page, Protection::ReadWrite, page).unwrap();
        // SAFETY: inside the mapping, which is writable.
        let last = unsafe { area.as_ptr().add(AT_ONCE * page) };
        // SAFETY: as above.
        unsafe { last.write(7) };
        let places = of_own_pages(area.range()).unwrap();
        // The page before may be in the same huge page; the first page cannot be.
        assert!(matches!(places[AT_ONCE], Place::On(_)), "{:?}", places[AT_ONCE]);
        assert!(!matches!(places[0], Place::On(_)), "{:?}", places[0]);
    }
}
