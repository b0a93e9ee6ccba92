use super::*;

/// For how many forks a huge page rests the first time.
const REST: u64 = 100;

fn of(index: usize) -> Span {
    Span::new(index << 21, (index + 1) << 21)
}

/// Plays a round that finds `written` pieces written to. Returns which of them were left alone, and how many rested.
fn round(pieces: &mut HotPieces, written: &[usize]) -> (Vec<usize>, usize) {
    let mut resting = Vec::new();
    pieces
        .begin(REST, |run| {
            resting.extend(run.cut(1 << 21));
            Ok(())
        })
        .expect("room");
    let left =
        written.iter().copied().filter(|index| !resting.contains(&of(*index)) && pieces.note_written(of(*index)));
    let left = left.collect();
    pieces.end();
    let in_base_pages = |piece: &&HotPiece| matches!(piece.state, State::Base { until } if until > pieces.round);
    let counted = pieces.all.iter().filter(in_base_pages).count() + pieces.huge() - pieces.overdue;
    assert_eq!(pieces.resting(), counted);
    (left, resting.len())
}

fn pieces() -> HotPieces {
    HotPieces::new(MappedVec::with_capacity(16).expect("memory"))
}

#[test]
fn what_is_written_in_every_round_rests_for_longer_and_longer_and_is_tried_again() {
    let mut pieces = pieces();
    // The rounds that do not freeze it again.
    let left: Vec<bool> = (0..40)
        .map(|_| {
            let (left, resting) = round(&mut pieces, &[7]);
            !left.is_empty() || resting > 0
        })
        .collect();
    assert!(!left[0] && left[1], "the second time it is hot");
    let frozen = left.iter().filter(|left| !**left).count();
    assert!((3..=8).contains(&frozen), "frozen again in {frozen} of 40 rounds: {left:?}");
    // Not written to, it is forgotten.
    for _ in 0..40 {
        round(&mut pieces, &[]);
    }
    assert_eq!((pieces.resting(), pieces.all.len()), (0, 0));
}

#[test]
fn what_is_written_now_and_then_is_frozen_each_time() {
    let mut pieces = pieces();
    for turn in 0..40 {
        let written = if turn % 3 == 0 { &[1][..] } else { &[] };
        assert_eq!(round(&mut pieces, written), (vec![], 0), "round {turn}");
    }
}

#[test]
fn beyond_the_table_everything_is_hot() {
    let mut pieces = pieces();
    let room = pieces.all.capacity();
    let written: Vec<usize> = (0..room + 5).collect();
    assert_eq!(round(&mut pieces, &written).0, [room, room + 1, room + 2, room + 3, room + 4]);
}

/// Plays `count` forks. Returns how much rent they owe.
fn forks(pieces: &mut HotPieces, count: u64) -> usize {
    (0..count).map(|_| pieces.forked()).sum()
}

#[test]
fn a_huge_page_rests_for_some_forks_owes_rent_until_it_is_frozen_and_rests_twice_as_long_the_next_time() {
    let mut pieces = pieces();
    let mut rest = REST;
    for turn in 0..8 {
        assert_eq!(round(&mut pieces, &[]).1, 0);
        for index in [3, 5, 4] {
            pieces.note_huge(of(index)).expect("room");
        }
        assert_eq!(pieces.huge(), 3);
        assert_eq!(forks(&mut pieces, rest - 1), 0, "turn {turn}");
        // A round in between leaves them alone.
        assert_eq!(round(&mut pieces, &[9]), (vec![], 3));
        assert_eq!(forks(&mut pieces, 5), 5 * 3);
        if turn < 4 {
            rest *= 2;
        }
    }
    // Frozen and not written to, they are forgotten in the end.
    round(&mut pieces, &[]);
    assert_eq!((pieces.huge(), forks(&mut pieces, rest * 3)), (0, 0));
    (0..40).for_each(|_| drop(round(&mut pieces, &[])));
    assert_eq!(pieces.all.len(), 0);
}

#[test]
fn a_run_of_neighbours_is_handed_out_as_one() {
    let mut pieces = pieces();
    round(&mut pieces, &[]);
    for index in [7, 1, 2, 3, 9, 8] {
        pieces.note_huge(of(index)).expect("room");
    }
    let mut runs = Vec::new();
    pieces
        .begin(REST, |run| {
            runs.push(run);
            Ok(())
        })
        .expect("room");
    assert_eq!(runs, [Span::new(1 << 21, 4 << 21), Span::new(7 << 21, 10 << 21)]);
    assert_eq!(pieces.in_span(Span::new(2 << 21, 8 << 21)), 1..4);
}

#[test]
fn what_is_split_after_each_mending_is_mended_ever_more_seldom_and_what_is_split_now_and_then_each_time() {
    let mut pieces = pieces();
    round(&mut pieces, &[]);
    pieces.note_huge(of(1)).expect("room");
    // The rounds that find it split and mend it.
    let mut mended = |is_split: &dyn Fn(usize) -> bool| -> Vec<usize> {
        let one = |turn: &usize| {
            pieces.begin(u64::MAX, |_| Ok(())).expect("room");
            let is_mended = is_split(*turn) && pieces.mendable(0).is_some() && pieces.note_split(0);
            pieces.end();
            is_mended
        };
        (0..40).filter(one).collect()
    };
    let always = mended(&|_| true);
    assert!(always[0] == 0 && (4..=8).contains(&always.len()), "{always:?}");
    let gaps: Vec<_> = always.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.is_sorted() && gaps[0] >= 3, "{gaps:?}");
    let now_and_then = mended(&|turn| turn % 10 == 9);
    assert_eq!(now_and_then, [9, 19, 29, 39]);
}

#[test]
fn what_is_let_go_is_neither_huge_nor_at_rest() {
    let mut pieces = pieces();
    round(&mut pieces, &[]);
    pieces.note_huge(of(1)).expect("room");
    assert_eq!((pieces.huge(), pieces.resting(), pieces.rests(of(1))), (1, 1, true));
    pieces.let_go(0);
    assert_eq!((pieces.huge(), pieces.resting(), pieces.rests(of(1))), (0, 0, false));
    assert_eq!((pieces.mendable(0), pieces.note_split(0)), (None, false));
}

/// Fails on: memory unmapped long ago that keeps its place in the table.
#[test]
fn what_is_let_go_is_forgotten_where_huge_pages_rest_for_ever() {
    let mut hot = HotPieces::new(MappedVec::with_capacity(16).expect("memory"));
    hot.begin(u64::MAX, |_| Ok(())).expect("room");
    hot.note_huge(Span::new(2 << 20, 4 << 20)).expect("room");
    hot.let_go(0);
    for _ in 0..4 {
        assert!(hot.piece(0).is_some());
        hot.end();
        hot.begin(u64::MAX, |_| Ok(())).expect("room");
        if hot.piece(0).is_none() {
            return;
        }
    }
    panic!("it is known for ever");
}

/// Fails on: huge pages that a program has unmapped, and that are counted and looked at for ever.
#[test]
fn what_is_gone_is_forgotten_with_the_next_round_or_pass() {
    let mut pieces = pieces();
    pieces.begin_pass(u64::MAX);
    (0..4).for_each(|index| pieces.note_huge(of(index)).expect("room"));
    pieces.note_gone(1);
    assert_eq!((pieces.huge(), pieces.resting(), pieces.rests(of(1))), (3, 3, false));
    assert_eq!(pieces.next_huge(of(1).start).map(|(place, _)| place), Some(2), "places stay as they are in a pass");
    pieces.begin_pass(u64::MAX);
    assert_eq!((pieces.all.len(), pieces.rests(of(2))), (3, true));
    pieces.look_for_gone(|piece| piece == of(3));
    assert_eq!((pieces.huge(), pieces.resting()), (1, 1));
    assert_eq!(round(&mut pieces, &[]).1, 1);
    assert_eq!(pieces.all.len(), 1);
    // New memory at the same place is like any other.
    pieces.note_gone(0);
    pieces.note_huge(of(3)).expect("room");
    assert_eq!((pieces.huge(), pieces.resting()), (1, 1));
}
