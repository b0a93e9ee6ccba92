use std::thread::scope;

use super::*;

fn sure(span: Span) {
    panic!("{span:?}");
}

/// Does `work` in another thread, to its end.
fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    scope(|scope| scope.spawn(work).join().expect("it ends"))
}

#[test]
fn who_was_interrupted_works_again() {
    let (turns, mut done) = (Turns::default(), Vec::new());
    let all = Span::new(0x1000, 0x2000);
    turns.take(Waiting::Asleep, sure).alone(all, || {
        if done.is_empty() {
            // As a handler does.
            turns.take(Waiting::Asleep, sure).alone(Span::new(0x5000, 0x6000), || done.push("handler"));
            assert_eq!(turns.noting(), all);
            assert_ne!(turns.holder.load(Ordering::Relaxed), 0, "the turn goes on");
        }
        done.push("interrupted");
    });
    assert_eq!(done, ["handler", "interrupted", "interrupted"]);
    assert_eq!(turns.holder.load(Ordering::Relaxed), 0);
}

/// Fails on: a call of another interposer that calls the C library each time, and never returns.
#[test]
fn who_takes_a_turn_within_each_time_comes_to_an_end() {
    let (turns, mut times) = (Turns::default(), 0);
    let span = Span::new(0x1000, 0x2000);
    turns.take(Waiting::Asleep, sure).alone(span, || {
        times += 1;
        turns.take(Waiting::Asleep, sure).alone(span, || ());
    });
    assert_eq!(times, 1 + MOST_AGAIN);
    assert_eq!(turns.holder.load(Ordering::Relaxed), 0);
    turns.take(Waiting::Asleep, sure).alone(span, || times = 0);
    assert_eq!(times, 0, "nothing is left of it");
}

#[test]
fn a_turn_of_a_thread_that_is_gone_ends_and_what_it_did_is_in_doubt() {
    let lose = |turns: &Turns| {
        elsewhere(|| {
            let turn = turns.take(Waiting::Asleep, sure);
            turn.will_note(Span::new(0x1000, 0x2000));
            std::mem::forget(turn);
        });
        assert_ne!(turns.holder.load(Ordering::Relaxed), 0);
    };
    let (turns, mut doubtful) = (Turns::default(), Span::default());
    lose(&turns);
    drop(turns.take(Waiting::Briefly, |span| doubtful = span));
    assert_eq!((doubtful, turns.noting()), (Span::new(0x1000, 0x2000), Span::default()));
    assert_eq!(turns.holder.load(Ordering::Relaxed), 0);
    let (turns, mut doubtful) = (Turns::default(), Span::default());
    lose(&turns);
    turns.end_in_child(|span| doubtful = span);
    assert_eq!((doubtful, turns.holder.load(Ordering::Relaxed)), (Span::new(0x1000, 0x2000), 0));
}

/// Fails on: a freeze beside a guard, in another thread or interrupted by a handler of this one.
#[test]
fn nobody_freezes_in_the_middle_of_a_turn() {
    let turns = Turns::default();
    let turn = turns.take(Waiting::Asleep, sure);
    for patience in [Patience::Long, Patience::Short] {
        assert!(turns.freeze(patience, sure).is_none(), "{patience:?}: this thread has one");
    }
    assert!(elsewhere(|| turns.freeze(Patience::Short, sure).is_none()), "another thread has one");
    drop(turn);
    drop(turns.freeze(Patience::Short, sure).expect("nobody has one"));
    assert_eq!(turns.holder.load(Ordering::Relaxed), 0);
    assert_eq!(turns.freezer.load(Ordering::Relaxed), 0);
}

/// Fails on: a turn that stays this thread's for ever, since every later one is within.
#[test]
fn a_turn_that_its_own_thread_has_left_ends() {
    let (turns, doubtful) = (Turns::default(), std::cell::Cell::new(Span::default()));
    let turn = turns.take(Waiting::Asleep, sure);
    turn.will_note(Span::new(0x1000, 0x2000));
    // As a handler does that jumps out of it.
    std::mem::forget(turn);
    assert!(turns.freeze(Patience::None, sure).is_none(), "it may be an interrupted one");
    drop(turns.take(Waiting::Asleep, sure));
    drop(turns.freeze(Patience::None, |span| doubtful.set(span)).expect("it has not gone on"));
    assert_eq!(doubtful.get(), Span::new(0x1000, 0x2000));
    drop(turns.freeze(Patience::Long, sure).expect("nobody has one"));
}

/// Fails on: threads that wait for each other's moves; a freeze in the middle of one; a move in the middle of a freeze.
#[test]
fn moves_wait_for_freezes_only_and_freezes_for_moves() {
    let turns = Turns::default();
    let moving = turns.begin_move().expect("nobody freezes");
    assert!(elsewhere(|| turns.begin_move().is_some()));
    assert!(elsewhere(|| turns.freeze(Patience::Short, sure).is_none()), "another thread moves");
    for patience in [Patience::Long, Patience::Short] {
        assert!(turns.freeze(patience, sure).is_none(), "{patience:?}: this thread moves");
    }
    scope(|scope| {
        let freezing = scope.spawn(|| turns.freeze(Patience::Long, sure).is_some());
        // Until it has begun to wait.
        while turns.freezer.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        drop(moving);
        assert!(freezing.join().expect("it ends"));
    });
    let freezing = turns.freeze(Patience::Long, sure).expect("nobody moves");
    assert!(turns.begin_move().is_none() && elsewhere(|| turns.begin_move().is_none()));
    drop(freezing);
    let all: Vec<_> = std::iter::from_fn(|| turns.begin_move()).take(100).collect();
    assert!(all.len() < 100, "further ones take turns");
}

#[test]
fn moves_that_do_not_end_are_lost() {
    let turns = Turns::default();
    std::mem::forget(turns.begin_move());
    assert!(turns.freeze(Patience::None, sure).is_none(), "it may be an interrupted one");
    drop(turns.freeze(Patience::None, sure).expect("it has not gone on"));
    elsewhere(|| std::mem::forget(turns.begin_move()));
    assert!(turns.freeze(Patience::Short, sure).is_none());
    turns.end_in_child(sure);
    drop(turns.freeze(Patience::Short, sure).expect("a child does not have that thread"));
}
