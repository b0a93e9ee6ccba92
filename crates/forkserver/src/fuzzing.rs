//! The greeting between a target and its fuzzer, for the fuzz targets (feature `fuzzing`).

use crate::Protocol;
use crate::protocol::{self, Offer, SharedInput, Words};

/// What a target offers.
#[derive(Clone, Debug)]
pub struct Offered {
    /// Bytes of its coverage map.
    pub map_len: Option<u32>,
    /// Whether test cases may come through shared memory.
    pub takes_shared_input: bool,
    /// Its dictionary as the protocol carries it.
    pub dictionary: Vec<u8>,
}

/// What came of a greeting: whether test cases come through shared memory, and a request that came in place of an
/// answer.
pub type Settled = (bool, Option<u32>);

struct Ends<'a> {
    answer: &'a mut dyn FnMut(&[u8]) -> Option<u32>,
    sent: Vec<u8>,
}

impl Words for Ends<'_> {
    type Error = Option<u32>;

    fn receive(&mut self) -> Result<u32, Option<u32>> {
        (self.answer)(&self.sent).ok_or(None)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Option<u32>> {
        self.sent.extend_from_slice(bytes);
        Ok(())
    }

    fn unexpected(&self, word: u32) -> Option<u32> {
        Some(word)
    }
}

/// Plays the target's side; `answer` is the fuzzer, which is given all that was sent and answers a word, or is gone.
/// Gives what was settled, or the word that was not understood, and all that was sent.
pub fn greet(
    protocol: Protocol,
    offered: &Offered,
    answer: &mut dyn FnMut(&[u8]) -> Option<u32>,
) -> (Result<Settled, Option<u32>>, Vec<u8>) {
    let shared_input = if offered.takes_shared_input { SharedInput::Used } else { SharedInput::Unused };
    let offer = Offer { map_len: offered.map_len, shared_input, dictionary: offered.dictionary.clone() };
    let mut ends = Ends { answer, sent: Vec::new() };
    let agreed = protocol::greet(&mut ends, protocol, &offer);
    (agreed.map(|agreed| (agreed.shared_input == SharedInput::Used, agreed.first_request)), ends.sent)
}
