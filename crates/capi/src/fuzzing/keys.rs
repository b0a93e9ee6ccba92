//! Static keys of this crate: their states are the model's, and so are the branches on them.

use std::ffi::{CStr, c_int};
use std::ptr;

use palimpsest_text::key::Key;
use palimpsest_text::{branch, static_key};

use super::{Input, Step, expect, somewhere};
use crate::keys::{
    palimpsest_key, palimpsest_key_disable, palimpsest_key_enable, palimpsest_key_is_on, palimpsest_key_set,
    palimpsest_keys_set,
};
use crate::result::palimpsest_result::{PALIMPSEST_INVALID, PALIMPSEST_NOT_FOUND, PALIMPSEST_OK};

static_key! {
    static FIRST: "random-calls.a" = off;
    static SECOND: "random-calls.b" = on;
    static THIRD: "random-calls.third" = off;
}

/// The keys, and which of them begin on.
static KEYS: [(&Key, bool); 3] = [(&FIRST, false), (&SECOND, true), (&THIRD, false)];

/// Patterns, and which keys they match; `None` for what is no pattern.
const PATTERNS: [(&CStr, Option<[bool; 3]>); 8] = [
    (c"random-calls.*", Some([true, true, true])),
    (c"random-calls.?", Some([true, true, false])),
    (c"random-calls.third", Some([false, false, true])),
    (c"*calls.b", Some([false, true, false])),
    (c"random-calls.nothing", Some([false; 3])),
    (c"", None),
    (c"random calls", None),
    (c"\xff", None),
];

/// What is wanted of a key.
#[derive(Clone, Copy)]
struct Wish {
    is_switched: bool,
    enabled: u32,
}

impl Wish {
    fn is_on(self) -> bool {
        self.is_switched || self.enabled > 0
    }
}

pub(super) struct Player {
    wishes: [Wish; 3],
}

impl Default for Player {
    fn default() -> Self {
        Self { wishes: KEYS.map(|(_, is_on)| Wish { is_switched: is_on, enabled: 0 }) }
    }
}

/// Returns what the branches say.
fn branches() -> [bool; 3] {
    [branch!(unlikely FIRST), branch!(likely SECOND), branch!(unlikely THIRD)]
}

impl Player {
    pub(super) fn step(&mut self, choice: u8, input: &mut Input<'_>) -> Step {
        let index = input.byte() % 5;
        let key = match KEYS.get(index) {
            Some((key, _)) => ptr::from_ref(*key).cast(),
            // Near a key, or anywhere.
            None => ptr::from_ref(&FIRST).wrapping_byte_add(input.number()).cast::<palimpsest_key>(),
        };
        let index = KEYS.iter().position(|(known, _)| ptr::addr_eq(*known, key));
        match choice % 5 {
            0 => self.switch(index, key, input)?,
            1 => self.enable(index, key, input)?,
            2 => self.disable(index, key, input)?,
            3 => self.ask(index, key, input)?,
            _ => self.match_pattern(input)?,
        }
        let wanted = self.wishes.map(Wish::is_on);
        if branches() == wanted { Ok(()) } else { Err(format!("branches say {:?} and not {wanted:?}", branches())) }
    }

    fn switch(&mut self, index: Option<usize>, key: *const palimpsest_key, input: &mut Input<'_>) -> Step {
        let is_on = input.number() as c_int;
        let key = key.addr();
        let answer = somewhere(input, || palimpsest_key_set(ptr::without_provenance(key), is_on));
        let Some(index) = index else { return expect("set", answer, &[PALIMPSEST_NOT_FOUND]) };
        self.wishes[index].is_switched = is_on != 0;
        expect("set", answer, &[PALIMPSEST_OK])
    }

    fn enable(&mut self, index: Option<usize>, key: *const palimpsest_key, input: &mut Input<'_>) -> Step {
        let key = key.addr();
        let answer = somewhere(input, || palimpsest_key_enable(ptr::without_provenance(key)));
        let Some(index) = index else { return expect("enable", answer, &[PALIMPSEST_NOT_FOUND]) };
        self.wishes[index].enabled += 1;
        expect("enable", answer, &[PALIMPSEST_OK])
    }

    fn disable(&mut self, index: Option<usize>, key: *const palimpsest_key, input: &mut Input<'_>) -> Step {
        let key = key.addr();
        let answer = somewhere(input, || palimpsest_key_disable(ptr::without_provenance(key)));
        let Some(index) = index else { return expect("disable", answer, &[PALIMPSEST_NOT_FOUND]) };
        let enabled = &mut self.wishes[index].enabled;
        let wanted = if *enabled > 0 { PALIMPSEST_OK } else { PALIMPSEST_INVALID };
        *enabled = enabled.saturating_sub(1);
        expect("disable", answer, &[wanted])
    }

    fn ask(&self, index: Option<usize>, key: *const palimpsest_key, input: &mut Input<'_>) -> Step {
        if input.byte().is_multiple_of(4) {
            // SAFETY: 1. null.
            return expect(
                "is on to null",
                unsafe { palimpsest_key_is_on(key, ptr::null_mut()) },
                &[PALIMPSEST_INVALID],
            );
        }
        let mut is_on = 7;
        // SAFETY: 1. a local.
        let answer = unsafe { palimpsest_key_is_on(key, &raw mut is_on) };
        let Some(index) = index else { return expect("is on", answer, &[PALIMPSEST_NOT_FOUND]) };
        expect("is on", answer, &[PALIMPSEST_OK])?;
        let wanted = c_int::from(self.wishes[index].is_on());
        if is_on == wanted { Ok(()) } else { Err(format!("the key is said to be {is_on} and not {wanted}")) }
    }

    fn match_pattern(&mut self, input: &mut Input<'_>) -> Step {
        let (pattern, matched) = PATTERNS[input.byte() % PATTERNS.len()];
        let is_on = (input.byte() % 2) as c_int;
        let mut count = 99;
        let told = if input.byte().is_multiple_of(4) { ptr::null_mut() } else { &raw mut count };
        // SAFETY: 1. a string. 2. null, or a local.
        let answer = unsafe { palimpsest_keys_set(pattern.as_ptr(), is_on, told) };
        let wanted = match matched {
            None => PALIMPSEST_INVALID,
            Some([false, false, false]) => PALIMPSEST_NOT_FOUND,
            Some(_) => PALIMPSEST_OK,
        };
        expect("keys", answer, &[wanted])?;
        let before = self.wishes.map(Wish::is_on);
        for (wish, _) in self.wishes.iter_mut().zip(matched.unwrap_or_default()).filter(|(_, is_matched)| *is_matched) {
            wish.is_switched = is_on != 0;
        }
        let changed = self.wishes.iter().zip(before).filter(|(wish, before)| wish.is_on() != *before).count();
        let wanted = if answer == PALIMPSEST_OK && !told.is_null() { changed } else { 99 };
        if count == wanted { Ok(()) } else { Err(format!("{count} keys are said to have changed, and not {wanted}")) }
    }

    /// Puts the keys back.
    pub(super) fn end(self) -> Step {
        for ((key, is_on), wish) in KEYS.iter().zip(self.wishes) {
            let key = ptr::from_ref(*key).cast();
            for _ in 0..wish.enabled {
                expect("disable", palimpsest_key_disable(key), &[PALIMPSEST_OK])?;
            }
            expect("disable", palimpsest_key_disable(key), &[PALIMPSEST_INVALID])?;
            expect("set", palimpsest_key_set(key, c_int::from(*is_on)), &[PALIMPSEST_OK])?;
        }
        if branches() == KEYS.map(|(_, is_on)| is_on) { Ok(()) } else { Err("keys are not as they were".to_owned()) }
    }
}
