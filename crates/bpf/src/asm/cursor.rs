//! A place in a line.

use super::AsmError;
use crate::insn::{Register, Size, Width};

/// What is left of a line.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

const fn is_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '$')
}

impl<'a> Cursor<'a> {
    /// Starts at the beginning of `text`, without its comment.
    pub(super) fn new(text: &'a str, line: usize) -> Self {
        let end = [";", "//", "#"].into_iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
        Self { text: &text[..end], at: 0, line }
    }

    /// Returns what is left, without leading blanks.
    fn rest(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    /// Returns the error that something else stands here.
    pub(super) fn expected(&mut self, expected: &'static str) -> AsmError {
        self.rest();
        let column = self.text[..self.at].chars().count() + 1;
        AsmError::Syntax { line: self.line, column, expected }
    }

    pub(super) fn is_at_end(&mut self) -> bool {
        self.rest().is_empty()
    }

    pub(super) fn end(&mut self) -> Result<(), AsmError> {
        if self.is_at_end() { Ok(()) } else { Err(self.expected("the end of the line")) }
    }

    /// Skips `sign` if it stands here. Returns whether it did.
    pub(super) fn eat(&mut self, sign: &str) -> bool {
        let found = self.rest().starts_with(sign);
        if found {
            self.at += sign.len();
        }
        found
    }

    /// Skips `sign`, which must stand here.
    pub(super) fn must(&mut self, sign: &str, expected: &'static str) -> Result<(), AsmError> {
        if self.eat(sign) { Ok(()) } else { Err(self.expected(expected)) }
    }

    fn peek_word(&mut self) -> &'a str {
        let rest = self.rest();
        &rest[..rest.find(|letter| !is_word(letter)).unwrap_or(rest.len())]
    }

    /// Skips the word `word` if it stands here. Returns whether it did.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == word;
        if found {
            self.at += word.len();
        }
        found
    }

    /// Reads a name that does not begin with a digit.
    pub(super) fn name(&mut self) -> Option<&'a str> {
        let word = self.peek_word();
        if word.is_empty() || word.starts_with(|letter: char| letter.is_ascii_digit()) {
            return None;
        }
        self.at += word.len();
        Some(word)
    }

    /// Reads `name:`.
    pub(super) fn label(&mut self) -> Option<&'a str> {
        let mut ahead = *self;
        let name = ahead.name().filter(|_| ahead.eat(":"))?;
        *self = ahead;
        Some(name)
    }

    /// Reads `r1` or `w1`.
    pub(super) fn register(&mut self) -> Option<(Width, Register)> {
        let word = self.peek_word();
        let (width, number) = match word.split_at_checked(1)? {
            ("r", number) => (Width::W64, number),
            ("w", number) => (Width::W32, number),
            _ => return None,
        };
        let is_plain = number == "0" || !number.starts_with(['0', '+']);
        let register = number.parse().ok().filter(|_| is_plain).and_then(Register::new)?;
        self.at += word.len();
        Some((width, register))
    }

    /// Reads `r1`: a whole register.
    pub(super) fn whole_register(&mut self) -> Result<Register, AsmError> {
        let start = *self;
        match self.register() {
            Some((Width::W64, register)) => Ok(register),
            _ => {
                *self = start;
                Err(self.expected("a register from r0 to r10"))
            }
        }
    }

    /// Reads a number with or without sign, decimal or with `0x`, if one stands here. It has at most 64 bits.
    pub(super) fn number(&mut self) -> Option<i128> {
        let mut ahead = *self;
        let negative = ahead.eat("-");
        if !negative {
            ahead.eat("+");
        }
        let word = ahead.peek_word();
        let value = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok()?,
            None => word.parse().ok()?,
        };
        ahead.at += word.len();
        *self = ahead;
        Some(if negative { -i128::from(value) } else { value.into() })
    }

    /// Reads a number that `T` can hold.
    pub(super) fn number_of<T: TryFrom<i128>>(&mut self, expected: &'static str) -> Result<T, AsmError> {
        let start = *self;
        let number = self.number().and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| {
            *self = start;
            self.expected(expected)
        })
    }

    /// Reads a number of 32 bits, with or without sign: `-1` and `0xffffffff` are the same.
    pub(super) fn number_of_32_bits(&mut self) -> Result<i32, AsmError> {
        let start = *self;
        let number = self.number().and_then(|number| {
            i32::try_from(number).ok().or_else(|| u32::try_from(number).ok().map(|number| number as i32))
        });
        number.ok_or_else(|| {
            *self = start;
            self.expected("a number of 32 bits")
        })
    }

    /// Reads `u32` or `s32`, or the same with another number of bits.
    pub(super) fn kind(&mut self) -> Result<(char, Size), AsmError> {
        const EXPECTED: &str = "u8, u16, u32, u64, s8, s16 or s32";
        let word = self.peek_word();
        let size = match word.get(1..) {
            Some("8") => Size::Byte,
            Some("16") => Size::Half,
            Some("32") => Size::Word,
            Some("64") => Size::Double,
            _ => return Err(self.expected(EXPECTED)),
        };
        let letter = if word.starts_with('s') { 's' } else { 'u' };
        if !word.starts_with(['u', 's']) || (letter == 's' && size == Size::Double) {
            return Err(self.expected(EXPECTED));
        }
        self.at += word.len();
        Ok((letter, size))
    }

    /// Reads `(u64 *)`.
    pub(super) fn cast(&mut self) -> Result<(char, Size), AsmError> {
        self.must("(", "`(`")?;
        let kind = self.kind()?;
        self.must("*", "`*`")?;
        self.must(")", "`)`")?;
        Ok(kind)
    }

    /// Reads `r1 + 8`.
    pub(super) fn address(&mut self) -> Result<(Register, i16), AsmError> {
        let base = self.whole_register()?;
        let mut ahead = *self;
        if !ahead.eat("+") && !ahead.eat("-") {
            return Ok((base, 0));
        }
        // The sign may stand apart from the number.
        let negative = !self.eat("+") && self.eat("-");
        let distance: i32 = self.number_of("a number of 16 bits")?;
        let distance = if negative { distance.checked_neg() } else { Some(distance) };
        let offset = distance.and_then(|distance| i16::try_from(distance).ok());
        offset.map(|offset| (base, offset)).ok_or_else(|| self.expected("an offset of 16 bits before this"))
    }
}
