//! Parses what `tcpdump` prints: C initialisers (`-dd`), or numbers (`-ddd`).

use alloc::vec::Vec;

use super::{ClassicError, Insn};

/// Parses the instructions of `text`.
pub(super) fn parse(text: &str) -> Result<Vec<Insn>, ClassicError> {
    let mut instructions = Vec::new();
    let mut said = None;
    let lines = text.lines().zip(1..).map(|(line, number)| (line.trim(), number));
    for (line, number) in lines.filter(|(line, _)| !line.is_empty()) {
        let syntax = ClassicError::Syntax { line: number };
        let inner = line.strip_prefix('{').and_then(|rest| rest.trim_end_matches(',').strip_suffix('}'));
        let fields: Option<Vec<u32>> = match inner {
            Some(inner) => inner.split(',').map(|field| number_of(field.trim())).collect(),
            None => line.split_whitespace().map(number_of).collect(),
        };
        match fields.as_deref() {
            Some([count]) if inner.is_none() && said.is_none() && instructions.is_empty() => {
                said = Some(*count as usize)
            }
            Some([code, jt, jf, k]) => {
                let narrow = (u16::try_from(*code), u8::try_from(*jt), u8::try_from(*jf));
                let (Ok(code), Ok(jt), Ok(jf)) = narrow else { return Err(syntax) };
                instructions.push(Insn { code, jt, jf, k: *k });
            }
            _ => return Err(syntax),
        }
    }
    match said {
        Some(said) if said != instructions.len() => Err(ClassicError::Count { said, found: instructions.len() }),
        _ => Ok(instructions),
    }
}

fn number_of(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let expected = [Insn { code: 0x28, jt: 0, jf: 0, k: 12 }, Insn { code: 6, jt: 0, jf: 0, k: 0xffff_ffff }];
        assert_eq!(parse("{ 0x28, 0, 0, 0x0000000c },\n{ 0x6, 0, 0, 0xffffffff },\n").as_deref(), Ok(&expected[..]));
        assert_eq!(parse("2\n40 0 0 12\n6 0 0 4294967295\n").as_deref(), Ok(&expected[..]));
    }

    #[test]
    fn what_is_none_is_refused_by_its_line() {
        for (text, line) in [
            ("{ 0x28, 0, 0 },", 1),
            ("40 0 0 12\n\nnonsense", 3),
            ("1\n2\n", 2),
            ("70000 0 0 0", 1),
            ("6 0 256 0", 1),
            ("{ 6, 0, 0, 0", 1),
            ("6 0 0 4294967296", 1),
            ("6 0 0 -1", 1),
        ] {
            assert_eq!(parse(text), Err(ClassicError::Syntax { line }), "{text}");
        }
        assert_eq!(parse("3\n6 0 0 0\n"), Err(ClassicError::Count { said: 3, found: 1 }));
    }
}
