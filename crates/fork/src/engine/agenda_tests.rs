use super::*;
use crate::engine::hot::HotPieces;
use crate::engine::huge::Asked;
use crate::engine::ledger::Ledger;
use crate::engine::prices::Prices;
use crate::options::Pays;

fn until_it_waits(gathering: &mut Gathering) -> (usize, Gathered) {
    let found = (1..100).find_map(|looks| gathering.note_child().map(|waits| (looks, waits)));
    found.expect("it waits")
}

/// Fails on: each trial looking as often as the first one, while a child lives for minutes.
#[test]
fn who_waits_for_a_child_looks_at_one_piece_at_a_time() {
    let mut gathering = Gathering::new(Where::Everywhere);
    let first = MOST_SHARED as usize;
    assert_eq!(until_it_waits(&mut gathering), (first, Gathered::Waits { in_vain: 1 }));
    for in_vain in 2..70 {
        assert_eq!(until_it_waits(&mut gathering), (1, Gathered::Waits { in_vain }));
    }
    gathering.note_made(1);
    assert_eq!(until_it_waits(&mut gathering), (first, Gathered::Waits { in_vain: 1 }), "the child is gone");
}

/// Fails on: a rest after a pass that made huge pages; no rest after a pass in vain.
#[test]
fn a_pass_beside_a_child_is_followed_by_another_and_by_a_rest_if_it_was_in_vain() {
    let mut gathering = Gathering::new(Where::Planned);
    assert_eq!(gathering.end_pass(), Gathered::Done);
    assert_eq!(gathering.note_child(), None);
    gathering.note_made(3);
    assert_eq!(gathering.end_pass(), Gathered::More);
    assert_eq!(gathering.note_child(), None);
    assert_eq!(gathering.end_pass(), Gathered::Waits { in_vain: 1 });
    assert_eq!(gathering.end_pass(), Gathered::Done);
}

/// Fails on: one split piece that many passes beside a child see, counted as many.
#[test]
fn a_piece_that_each_pass_sees_split_is_one_piece() {
    let mut agenda = Agenda::new(MappedVec::with_capacity(16).expect("memory"));
    let step = Step::Gather(Gathering::new(Where::Everywhere));
    let terms = Terms { budget: Duration::ZERO, extent: PIECE, pages: Pages::Gather, mappings: 9, looked: 0, step };
    // In each pass, how many were split; whether the rest is frozen after two intervals.
    for (split, expected) in [(1, true), (2, false)] {
        agenda.begin_unseen(64 * PIECE, terms);
        // One part in eight of what was gathered is one piece.
        agenda.gathered_before(8 * PIECE, 0, 0);
        agenda.gathered_at_fork = agenda.gathered;
        let is_slow = [(); 2].map(|()| {
            let Step::Gather(mut gathering) = agenda.step() else { panic!("it still gathers") };
            for _ in 0..100 {
                gathering.note_split(split);
                assert_eq!(gathering.note_child().is_some(), gathering.is_stuck());
                gathering.end_pass();
            }
            // In the middle of a pass.
            gathering.note_split(1);
            agenda.gathered_until(gathering, 0, 0);
            agenda.end_interval()
        });
        assert_eq!(is_slow, [false, expected], "{split}");
    }
}

/// Fails on: a time that is left out, or counts twice: that of gathering, if the plan of the rest comes to nothing.
#[test]
fn what_a_freeze_takes_is_its_looks_its_slices_and_its_deputies() {
    let mut agenda = Agenda::new(MappedVec::with_capacity(16).expect("memory"));
    let step = Step::Gather(Gathering::new(Where::Everywhere));
    let terms = Terms { budget: Duration::ZERO, extent: PIECE, pages: Pages::Gather, mappings: 9, looked: 1000, step };
    for begins_anew in [false, true] {
        agenda.begin_unseen(64 * PIECE, Terms { looked: 0, ..terms });
        agenda.gathered_until(Gathering::new(Where::Everywhere), PIECE, 200);
        agenda.gathered_until(Gathering::new(Where::Everywhere), PIECE, 100);
        agenda.had_deputies(7);
        assert_eq!(agenda.spent(), 307);
        let (gathered, gathering, beside) = (agenda.gathered(), agenda.gathering(), agenda.beside());
        if begins_anew {
            agenda.begin(&mut [], terms);
        }
        agenda.gathered_before(gathered, gathering, beside);
        let looked = if begins_anew { 1000 } else { 0 };
        assert_eq!((agenda.gathered(), agenda.looked(), agenda.spent()), (2 * PIECE, looked, looked + 307));
        assert_eq!(agenda.worked(50), 350);
        assert_eq!((agenda.freezing(), agenda.spent()), (50, looked + 357));
    }
}

/// Fails on: waiting for children for ever; freezing what is gathered quickly, or slowly only for lack of time;
/// freezing what is written to all over.
#[test]
fn what_is_gathered_too_slowly_beside_children_is_left_to_be_frozen() {
    let mut agenda = Agenda::new(MappedVec::with_capacity(16).expect("memory"));
    let step = Step::Gather(Gathering::new(Where::Everywhere));
    let terms = Terms { budget: Duration::ZERO, extent: PIECE, pages: Pages::Gather, mappings: 9, looked: 0, step };
    // What the intervals gather, of 64; whether each had a child; how many were split in each; after which fork the
    // rest is frozen.
    for (gathered, has_child, split, expected) in [
        (&[0, 0, 0, 0][..], false, 0, None),
        (&[1, 1, 1, 1], false, 0, None),
        (&[8, 8, 8, 8], true, 0, None),
        (&[7, 8, 7, 8], true, 0, None),
        (&[8, 7, 7, 8], true, 0, Some(3)),
        (&[0, 0], true, 0, Some(2)),
        (&[7, 7, 7, 7], true, 4, None),
        (&[7, 7, 7, 7], true, 1, Some(3)),
    ] {
        agenda.begin_unseen(64 * PIECE, terms);
        let forks = gathered.iter().position(|pieces| {
            let Step::Gather(mut gathering) = agenda.step() else { panic!("it still gathers") };
            if has_child {
                until_it_waits(&mut gathering);
            }
            gathering.note_split(split);
            agenda.gathered_until(gathering, pieces * PIECE, 0);
            agenda.end_interval()
        });
        assert_eq!(forks.map(|fork| fork + 1), expected, "{gathered:?}");
    }
    agenda.freeze_the_rest();
    assert!(!agenda.end_interval());
}

/// Fails on: huge pages for which the table has no room, counted by each pass: it would never end beside a child.
#[test]
fn a_pass_over_what_is_not_new_is_in_vain() {
    let room = MappedVec::with_capacity(1).expect("memory");
    let mut ledger = Ledger::new(HotPieces::new(room), Prices::new(4096));
    ledger.begin_pass(Pays::Within(1));
    let pieces = (1..1 << 12).map(|number| Span::new(number * PIECE, (number + 1) * PIECE));
    let mut gathering = Gathering::new(Where::Everywhere);
    let mut pass = || {
        let made = pieces.clone().map(|piece| ledger.asked(piece, Asked::Made).count()).sum();
        gathering.note_made(made);
        assert_eq!(gathering.note_child(), None);
        (made, gathering.end_pass())
    };
    let (made, more) = pass();
    assert!((1..pieces.len()).contains(&made) && more == Gathered::More, "{made}");
    assert_eq!(pass(), (0, Gathered::Waits { in_vain: 1 }));
}
