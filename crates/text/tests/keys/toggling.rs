//! States, counts, and passes during a switch.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use palimpsest_text::key::{Keys, State, SwitchError};
use palimpsest_text::{branch, static_key};

use super::{PATCHED, SYNCS, isa};

static_key! {
    static A_OFF: "toggling.a" = off;
    static A_ON: "toggling.b" = on;
}

#[inline(never)]
fn four() -> [bool; 4] {
    [branch!(unlikely A_OFF), branch!(likely A_OFF), branch!(unlikely A_ON), branch!(likely A_ON)]
}

#[test]
fn both_hints_are_right_in_both_states() {
    let [off, on] = [State::Off, State::On];
    assert_eq!(four(), [false, false, true, true]);
    for (first, second) in [(on, on), (on, off), (off, off), (off, on), (on, off), (off, on)] {
        Keys::apply([(&A_OFF, first), (&A_ON, second)]).unwrap();
        assert_eq!(four(), [first.is_on(), first.is_on(), second.is_on(), second.is_on()]);
        assert_eq!((A_OFF.state(), A_ON.state()), (first, second));
    }
    assert_eq!((A_OFF.first_state(), A_ON.first_state()), (off, on));
}

#[test]
fn requests_are_counted() {
    static_key!(static COUNTED: "toggling.counted" = off);
    let is_on = || branch!(unlikely COUNTED);
    assert_eq!(COUNTED.enable().unwrap().keys, 1);
    assert_eq!(COUNTED.enable().unwrap().keys, 0, "the second changes nothing");
    assert!(is_on());
    assert_eq!(COUNTED.disable().unwrap().keys, 0);
    assert!(is_on());
    assert_eq!(COUNTED.enabled(), 1);
    // The switch and the count are independent.
    COUNTED.set(State::On).unwrap();
    COUNTED.disable().unwrap();
    assert!(is_on());
    let error = COUNTED.disable().unwrap_err();
    assert!(matches!(&error, SwitchError::NotEnabled { name } if name == "toggling.counted"), "{error}");
    assert!(is_on());
    COUNTED.set(State::Off).unwrap();
    assert!(!is_on());
}

#[test]
fn who_keeps_a_key_on_need_not_count() {
    static_key!(static KEPT: "toggling.kept" = off);
    let is_on = || branch!(unlikely KEPT);
    for state in [State::Off, State::On, State::On, State::Off, State::Off] {
        KEPT.keep(state).unwrap();
        assert_eq!((is_on(), KEPT.enabled()), (state.is_on(), 0));
    }
    // The switch is others'.
    KEPT.set(State::On).unwrap();
    KEPT.keep(State::Off).unwrap();
    assert!(is_on());
    KEPT.set(State::Off).unwrap();
    assert!(!is_on());
}

#[test]
fn who_keeps_a_key_on_and_those_who_count_leave_each_other_alone() {
    static_key!(static BOTH: "toggling.both" = off);
    let is_on = || branch!(unlikely BOTH);
    BOTH.enable().unwrap();
    BOTH.keep(State::On).unwrap();
    assert_eq!(BOTH.enabled(), 1);
    BOTH.disable().unwrap();
    assert!(is_on(), "it is kept on");
    let error = BOTH.disable().unwrap_err();
    assert!(matches!(error, SwitchError::NotEnabled { .. }), "{error}");

    BOTH.enable().unwrap();
    BOTH.keep(State::Off).unwrap();
    assert!(is_on(), "it is enabled");
    BOTH.disable().unwrap();
    assert_eq!((is_on(), BOTH.enabled()), (false, 0));
}

#[test]
fn after_an_error_nothing_has_changed() {
    static_key!(static HELD: "toggling.held" = off);
    HELD.enable().unwrap();
    HELD.disable().unwrap();
    HELD.disable().unwrap_err();
    assert!(!branch!(unlikely HELD) && HELD.enabled() == 0);
    HELD.enable().unwrap();
    assert!(branch!(unlikely HELD));
}

#[test]
fn the_last_state_holds() {
    static_key!(static TWICE: "toggling.twice" = off);
    Keys::apply([(&TWICE, State::On), (&TWICE, State::Off), (&TWICE, State::On)]).unwrap();
    assert!(branch!(likely TWICE));
    let nothing = Keys::apply([(&TWICE, State::Off), (&TWICE, State::On)]).unwrap();
    assert_eq!((nothing.keys, nothing.sites, nothing.syncs), (0, 0, 0));
}

static_key! {
    static M0: "many.0" = off; static M1: "many.1" = off; static M2: "many.2" = off; static M3: "many.3" = off;
    static M4: "many.4" = off; static M5: "many.5" = off; static M6: "many.6" = off; static M7: "many.7" = on;
}

#[inline(always)]
fn inlined() -> u32 {
    let mut on = 0;
    for is_on in [
        branch!(unlikely M0),
        branch!(likely M1),
        branch!(unlikely M2),
        branch!(likely M3),
        branch!(unlikely M4),
        branch!(likely M5),
        branch!(unlikely M6),
        branch!(likely M7),
    ] {
        on += u32::from(is_on);
    }
    on
}

fn generic<T: Default + std::fmt::Debug>() -> u32 {
    // The type makes each instance a different function.
    if format!("{:?}", T::default()).is_empty() { 0 } else { inlined() + inlined() }
}

#[test]
fn syncs_do_not_grow_with_keys_and_sites() {
    let pass = || generic::<u8>() + generic::<String>() + generic::<[u64; 3]>() + generic::<Option<bool>>() + inlined();
    let keys = [&M0, &M1, &M2, &M3, &M4, &M5, &M6, &M7];
    pass();
    for state in [State::On, State::Off, State::On] {
        let expected = keys.iter().filter(|key| key.state() != state).count();
        let switched = Keys::apply(keys.map(|key| (key, state))).unwrap();
        assert_eq!((switched.keys, switched.syncs), (expected, SYNCS));
        assert_eq!(switched.sites > 40, PATCHED, "{switched:?}");
        assert_eq!(pass(), if state.is_on() { 9 * 8 } else { 0 });
    }
}

#[test]
fn a_site_belongs_to_one_key() {
    let mut sites: Vec<usize> = Keys::iter().flat_map(|key| key.sites()).collect();
    let found = sites.len();
    sites.sort_unstable();
    sites.dedup();
    assert_eq!(sites.len(), found);
    assert_eq!(found > 40, PATCHED);
}

/// One store separates what threads fetch while a site is switched: the old or the new instruction.
#[test]
fn switching_changes_what_one_store_can() {
    static_key!(static STORED: "toggling.stored" = off);
    let pass = || [branch!(unlikely STORED), branch!(likely STORED)];
    assert_eq!(pass(), [false, false]);
    let bytes = |site: usize| {
        let byte = |offset: usize| std::ptr::with_exposed_provenance::<u8>(site + offset);
        // SAFETY: a site of this binary, which nobody switches meanwhile.
        std::array::from_fn::<u8, { isa::SITE }, _>(|offset| unsafe { byte(offset).read_volatile() })
    };
    let off: Vec<_> = STORED.sites().into_iter().map(bytes).collect();
    STORED.set(State::On).unwrap();
    let on: Vec<_> = STORED.sites().into_iter().map(bytes).collect();
    assert_eq!(off.len() > 1, PATCHED);
    for (site, (off, on)) in STORED.sites().into_iter().zip(off.iter().zip(&on)) {
        let changed = off.iter().zip(on).filter(|(off, on)| off != on).count();
        assert!(isa::is_one_store(site, changed), "{site:#x}: {off:x?} to {on:x?}");
    }
}

static_key! {
    static RACE_A: "race.a" = off;
    static RACE_B: "race.b" = off;
}

fn race_generic<T: Into<u64>>(seed: T) -> (bool, bool) {
    let seed: u64 = seed.into();
    if seed == u64::MAX { (true, false) } else { (branch!(unlikely RACE_A), branch!(likely RACE_B)) }
}

#[inline(always)]
fn race_inlined() -> (bool, bool) {
    (branch!(likely RACE_A), branch!(unlikely RACE_B))
}

#[test]
fn passes_see_one_of_both_and_later_the_new_state() {
    const TIME: Duration = Duration::from_millis(if cfg!(debug_assertions) { 700 } else { 1500 });
    // Odd while the keys change; otherwise twice the number of changes.
    let epoch = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let checked = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (epoch, stop, checked) = (&epoch, &stop, &checked);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for round in 0..100_u32 {
                        // Acquire, partner: the Release stores below.
                        let before = epoch.load(Ordering::Acquire);
                        let seen = match (thread + round) % 4 {
                            0 => race_generic(round),
                            1 => race_generic(u64::from(round)),
                            2 => race_generic((round % 100) as u8),
                            _ => race_inlined(),
                        };
                        let after = epoch.load(Ordering::SeqCst);
                        if before == after && before % 2 == 0 {
                            let on = before / 2 % 2 == 1;
                            assert_eq!(seen, (on, on), "at {before}");
                            checked.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        let _stop = super::StopOnDrop(&stop);
        let start = Instant::now();
        let mut changes = 0_u64;
        // Continues where there was hardly any processor time.
        while start.elapsed() < TIME || changes <= 10 || checked.load(Ordering::Relaxed) <= 100 {
            epoch.store(2 * changes + 1, Ordering::SeqCst);
            changes += 1;
            let state = if changes % 2 == 1 { State::On } else { State::Off };
            let switched = Keys::apply([(&RACE_A, state), (&RACE_B, state)]).unwrap();
            assert_eq!((switched.keys, switched.syncs), (2, SYNCS));
            // Release, partner: the Acquire load above.
            epoch.store(2 * changes, Ordering::Release);
            assert_eq!(race_inlined(), (state.is_on(), state.is_on()));
            if changes.is_multiple_of(8) {
                thread::yield_now();
            }
        }
    });
}

#[test]
fn threads_that_count_the_same_key_do_not_lose_each_other() {
    static_key!(static SHARED: "toggling.shared" = off);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    SHARED.enable().unwrap();
                    assert!(branch!(unlikely SHARED), "on while anyone holds it");
                    SHARED.disable().unwrap();
                }
            });
        }
    });
    assert_eq!((SHARED.enabled(), branch!(unlikely SHARED)), (0, false));
}
