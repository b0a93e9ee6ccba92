//! The greeting of a fork server, tried with a fuzzer that models AFL++'s reading of it: whatever either side says,
//! what the target sends is understood, and both settle the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_forkserver::Protocol;
use palimpsest_forkserver::fuzzing::{Offered, greet};

/// Words as the two read them, one after the other.
struct Heard<'a>(&'a [u8]);

impl Heard<'_> {
    fn word(&mut self) -> u32 {
        let (word, rest) = self.0.split_first_chunk().expect("the target sends whole words");
        self.0 = rest;
        u32::from_ne_bytes(*word)
    }

    fn dictionary(&mut self) -> Vec<u8> {
        let length = self.word() as usize;
        let (dictionary, rest) = self.0.split_at(length);
        self.0 = rest;
        dictionary.to_vec()
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&[how, low, high, kind], rest)) = bytes.split_first_chunk() else { return };
    let word = rest.first_chunk().map(|word| u32::from_ne_bytes(*word));
    let map_len = (how & 1 != 0).then(|| u32::from(low) << (high % 24));
    let dictionary = if how & 4 == 0 { Vec::new() } else { rest.to_vec() };
    let offered = Offered { map_len, takes_shared_input: how & 2 != 0, dictionary };
    let protocol = if how & 8 == 0 { Protocol::Old } else { Protocol::New };
    // Right answers, any word, or none.
    let mut hello = 0;
    let mut given = None;
    let (settled, sent) = greet(protocol, &offered, &mut |sent| {
        hello = Heard(sent).word();
        given = match (kind % 4, protocol) {
            (0, Protocol::Old) => Some(hello & (0x8000_0001 | 0x0100_0000 | 0x1000_0000)),
            (0, Protocol::New) => Some(!hello),
            (1, _) => Some(u32::from(kind & 4 != 0)),
            (2, _) => word,
            _ => None,
        };
        given
    });
    let mut heard = Heard(&sent);
    let hello = heard.word();
    match protocol {
        Protocol::New => {
            assert_eq!(hello, 0x4146_4c01);
            match given {
                Some(answer) if answer == !hello => {
                    let options = heard.word();
                    assert_eq!(options & 1 != 0, offered.map_len.is_some());
                    assert_eq!(options & 1 != 0 && Some(heard.word()) != offered.map_len, false);
                    if options & 0x800 != 0 {
                        assert_eq!(heard.dictionary(), offered.dictionary);
                    }
                    assert_eq!(heard.word(), hello, "the greeting ends as it began");
                    assert_eq!(settled, Ok((offered.takes_shared_input, None)));
                }
                Some(request @ (0 | 1)) => assert_eq!(settled, Ok((false, Some(request)))),
                other => assert_eq!(settled, Err(other)),
            }
        }
        Protocol::Old => {
            let asks = hello & (0x0100_0000 | 0x1000_0000) != 0;
            assert_eq!(asks, offered.takes_shared_input || !offered.dictionary.is_empty());
            if hello & 0x4000_0000 != 0 {
                assert_eq!(Some((hello >> 1 & 0x7f_ffff) + 1), offered.map_len);
            }
            match given {
                _ if !asks => assert_eq!(settled, Ok((false, None))),
                None => assert_eq!(settled, Err(None)),
                Some(answer) if answer & 0x8000_0001 != 0x8000_0001 => assert_eq!(settled, Ok((false, Some(answer)))),
                Some(answer) => {
                    if answer & 0x1000_0000 != 0 {
                        assert_eq!(heard.dictionary(), offered.dictionary);
                    }
                    let is_shared = offered.takes_shared_input && answer & 0x0100_0000 != 0;
                    assert_eq!(settled, Ok((is_shared, None)));
                }
            }
        }
    }
    assert_eq!(heard.0, b"", "nothing is sent that nobody waits for");
});
