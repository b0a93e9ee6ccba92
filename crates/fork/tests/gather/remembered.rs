//! Before Linux 6.7 the kernel does not tell which pages are huge: what was made is remembered, and the rest is asked
//! for again. What is gathered, and how, is the same.

use std::sync::atomic::Ordering;
use std::time::Duration;

use palimpsest_fork::{Stage, status};

use crate::common::gathering::{
    Child, LEN, PIECE, by_deputies, filled, in_slices, needs_huge_pages, plan, slices, to_the_end,
};
use crate::common::kernels::before_6_7;
use crate::common::notified::{self, Call};
use crate::common::{Memory, in_child, page, play, status_kb};
use crate::listed::shared_number;
use crate::{
    beside_a_child, later, oracle, piece_by_piece, unless_it_is_written_to, while_the_thread_goes_on, without_a_repair,
};

/// Plays a scenario as such a kernel would.
fn play_before_6_7(name: &str, scenario: impl FnOnce()) {
    play(name, || {
        before_6_7();
        scenario();
    });
}

/// Fails on: nothing that is gathered.
#[test]
fn piece_by_piece_memory_becomes_huge() {
    play_before_6_7("remembered::piece_by_piece_memory_becomes_huge", piece_by_piece);
}

/// Fails on: taking what a child shows for pages of zeros, or the reverse.
#[test]
fn what_a_child_shows_waits() {
    play_before_6_7("remembered::what_a_child_shows_waits", beside_a_child);
}

/// Fails on: what nobody has written to since the fork, and is taken for split.
#[test]
fn what_is_gathered_too_slowly_is_frozen_unless_it_is_written_to() {
    let name = "remembered::what_is_gathered_too_slowly_is_frozen_unless_it_is_written_to";
    play_before_6_7(name, unless_it_is_written_to);
}

/// Fails on: what was made before the last fork, and is taken for whole.
#[test]
fn what_a_child_has_split_is_whole_before_the_next_fork() {
    play_before_6_7("remembered::what_a_child_has_split_is_whole_before_the_next_fork", without_a_repair);
}

/// Fails on: what one child has split, and is taken for whole because nobody writes to it while the next one shows it.
#[test]
fn what_the_child_before_has_split_is_mended_once_the_next_is_gone() {
    let name = "remembered::what_the_child_before_has_split_is_mended_once_the_next_is_gone";
    play_before_6_7(name, || {
        needs_huge_pages();
        let memory = filled();
        plan(&in_slices());
        to_the_end(|_| ());
        // A busy machine may use up the time for slices: there is more in each turn, and one is enough.
        let turn = (2..30).find(|turn| {
            let child = Child::fork(|| memory.holds(0..page(), *turn - 1));
            (0..LEN).step_by(PIECE).for_each(|start| memory.fill(start..start + page(), *turn));
            child.end();
            assert_eq!(memory.huge(), 0, "the kernel splits what is written beside a child");
            // Slices get a part of this time.
            std::thread::sleep(Duration::from_millis(400 * (turn - 1)));
            let child = Child::fork(|| memory.holds(0..page(), *turn));
            slices(12);
            child.end();
            slices(40);
            let is_whole = memory.huge() == LEN;
            while memory.huge() < LEN {
                std::thread::sleep(Duration::from_millis(20));
                assert_eq!(in_child(|| 0), 0);
                slices(50);
            }
            is_whole
        });
        assert!(turn.is_some(), "{:?}", status());
        assert!((0..LEN).step_by(PIECE).all(|start| memory.holds(start..start + page(), turn.unwrap_or(0))));
    });
}

/// Fails on: an errand after which nobody knows that its pieces are whole.
#[test]
fn deputies_gather_and_mend() {
    play_before_6_7("remembered::deputies_gather_and_mend", while_the_thread_goes_on);
}

/// Fails on: pieces that are asked for again at each fork, and count as work for which a new plan must wait.
#[test]
fn memory_that_comes_later_is_gathered() {
    play_before_6_7("remembered::memory_that_comes_later_is_gathered", later);
}

/// The oracles of gathering, by slices and by deputies.
#[test]
fn whatever_is_done_between_slices_memory_is_what_it_would_be() {
    let name = "remembered::whatever_is_done_between_slices_memory_is_what_it_would_be";
    play_before_6_7(name, || oracle::play(&in_slices(), 160));
}

#[test]
fn whatever_is_done_beside_deputies_memory_is_what_it_would_be() {
    let name = "remembered::whatever_is_done_beside_deputies_memory_is_what_it_would_be";
    play_before_6_7(name, || oracle::play(&by_deputies(), 160));
}

/// Fails on: filling up a piece whose pages of zeros were only read. Entries show them like pages with contents.
#[test]
fn pages_of_zeros_are_not_filled_up() {
    play_before_6_7("remembered::pages_of_zeros_are_not_filled_up", || {
        needs_huge_pages();
        let (memory, sparse) = (filled(), Memory::unadvised(LEN));
        for start in (0..LEN).step_by(PIECE) {
            sparse.fill(start..start + PIECE * 5 / 8, 2);
            assert!(sparse.is_zero(start + PIECE * 5 / 8..start + PIECE));
        }
        let present = status_kb("RssAnon");
        plan(&in_slices());
        let done = to_the_end(|_| ());
        assert_eq!((done.stage, memory.huge(), sparse.huge()), (Stage::Done, LEN, 0), "{done:?}");
        assert!(status_kb("RssAnon") <= present + 1024);
    });
}

/// `MADV_COLLAPSE`, by deputies and by the thread.
const ASKS: Call = Call { number: libc::SYS_madvise, third: Some(libc::MADV_COLLAPSE) };

/// Fails on: asking again, without a fork in between, for what is known to be whole.
#[test]
fn what_is_whole_is_not_asked_for_again_until_there_is_a_fork() {
    play_before_6_7("remembered::what_is_whole_is_not_asked_for_again_until_there_is_a_fork", || {
        needs_huge_pages();
        let plans = shared_number();
        let (child, listener) = notified::start(&[ASKS], || {
            let memory = filled();
            for _ in 0..2 {
                plan(&in_slices());
                to_the_end(|_| ());
                assert_eq!(memory.huge(), LEN);
                plans.fetch_add(1, Ordering::SeqCst);
            }
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        });
        // In both plans, between which nobody asks.
        let (mut status, mut asks) = (0, [0, 0]);
        // SAFETY: `status` outlives the call.
        while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
            let Some(asked) = listener.next() else { continue };
            asks[plans.load(Ordering::SeqCst) as usize] += 1;
            listener.let_go(asked);
        }
        assert_eq!(status, 0);
        // Other memory may be asked for, too.
        assert!(asks[0] >= LEN / PIECE && asks[1] < LEN / PIECE, "{asks:?}");
    });
}
