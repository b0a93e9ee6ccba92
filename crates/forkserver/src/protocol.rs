//! The words that a fork server and its fuzzer exchange before the first run, in both generations of the protocol.
//!
//! Every word is four bytes in the machine's order. The target reads from its descriptor 198 and writes to 199.
//!
//! | generation | target says | fuzzer answers | target says |
//! |---|---|---|---|
//! | old (AFL++ up to 4.1x) | a word of `OLD_*` bits, the map's length among them | a word of `OLD_*` bits, if a shared test case or a dictionary was offered | the dictionary, if it was taken |
//! | new (AFL++ from 4.20) | [`NEW_HELLO`] | its complement | `NEW_*` bits, the map's length, the dictionary, [`NEW_HELLO`] again |
//!
//! Newer fuzzers still accept the old hello; an old fuzzer takes the new hello for a target without abilities. Source:
//! `docs/fork_server.md` and `include/forkserver.h`, `src/afl-forkserver.c` in the AFL++ tree.

/// The descriptor on which the target hears the fuzzer; the next one is for its answers.
pub(crate) const CONTROL: i32 = 198;
/// The descriptor on which the target speaks.
pub(crate) const STATUS: i32 = CONTROL + 1;

/// The variable that names the System V segment of the coverage map.
pub(crate) const MAP_VARIABLE: &str = "__AFL_SHM_ID";
/// What `afl-fuzz` searches in a program's file, including the zero byte, before it starts it as a target.
#[used]
static INSTRUMENTED: [u8; 13] = *b"__AFL_SHM_ID\0";
/// The variable that names the System V segment of test cases: a word with the length, then the bytes.
pub(crate) const INPUT_VARIABLE: &str = "__AFL_SHM_FUZZ_ID";
/// The variable that is set by fuzzers that know the new generation.
const NEW_FUZZER_VARIABLE: &str = "__AFL_SHM_FUZZ_MAP_SIZE";
/// The variable by which users request the old generation.
const OLD_PROTOCOL_VARIABLE: &str = "AFL_OLD_FORKSERVER";

const OLD_ENABLED: u32 = 0x8000_0001;
const OLD_MAP_LEN: u32 = 0x4000_0000;
const OLD_DICTIONARY: u32 = 0x1000_0000;
const OLD_SHARED_INPUT: u32 = 0x0100_0000;
const OLD_ERROR: u32 = 0xf800_008f;
/// The longest map that the old hello can express.
const OLD_LONGEST_MAP: usize = 0x80_0000;

/// The new hello: `AFL`, and version 1.
const NEW_HELLO: u32 = 0x4146_4c01;
const NEW_MAP_LEN: u32 = 1;
const NEW_SHARED_INPUT: u32 = 2;
const NEW_DICTIONARY: u32 = 0x800;
const NEW_ERROR: u32 = 0xeffe_0000;

/// The number by which both generations report a coverage map that cannot be attached.
const ERROR_ATTACH: u32 = 8;

/// A generation of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// AFL++ up to 4.1x, and so far every later version.
    Old,
    /// AFL++ from 4.20.
    New,
}

impl Protocol {
    /// Returns the generation that the fuzzer which started this process is sure to understand, from the environment.
    pub(crate) fn of_environment() -> Self {
        let set = |variable| std::env::var_os(variable).is_some();
        if set(NEW_FUZZER_VARIABLE) && !set(OLD_PROTOCOL_VARIABLE) { Self::New } else { Self::Old }
    }

    /// Returns the word that tells the fuzzer that its coverage map cannot be attached.
    pub(crate) fn attach_error(self) -> u32 {
        match self {
            Self::Old => OLD_ERROR | ERROR_ATTACH << 8,
            Self::New => NEW_ERROR | ERROR_ATTACH,
        }
    }
}

/// A target's offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Bytes of the coverage map that it uses; with `None` the fuzzer decides.
    pub(crate) map_len: Option<u32>,
    /// Whether it takes test cases from shared memory.
    pub(crate) shared_input: SharedInput,
    /// Words worth trying, each as one byte of length and its bytes; may be empty.
    pub(crate) dictionary: Vec<u8>,
}

/// Whether test cases come through shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedInput {
    /// They do.
    Used,
    /// They come by standard input.
    Unused,
}

/// What target and fuzzer have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// How test cases come.
    pub(crate) shared_input: SharedInput,
    /// The first request for a run, if it came instead of an answer.
    pub(crate) first_request: Option<u32>,
}

/// The two pipes to a fuzzer. Tests replace them.
pub(crate) trait Words {
    /// Why a word could not be received or sent.
    type Error;
    /// Waits for a word.
    fn receive(&mut self) -> Result<u32, Self::Error>;
    /// Sends all of the bytes.
    fn send(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;
    /// Returns the error for an answer outside the protocol.
    fn unexpected(&self, word: u32) -> Self::Error;
}

/// Greets the fuzzer and settles what will be used.
pub(crate) fn greet<W: Words>(words: &mut W, protocol: Protocol, offer: &Offer) -> Result<Agreed, W::Error> {
    match protocol {
        Protocol::Old => greet_old(words, offer),
        Protocol::New => greet_new(words, offer),
    }
}

fn greet_old<W: Words>(words: &mut W, offer: &Offer) -> Result<Agreed, W::Error> {
    let mut hello = match offer.map_len {
        Some(len @ 2..) if len as usize <= OLD_LONGEST_MAP => OLD_ENABLED | OLD_MAP_LEN | (len - 1) << 1,
        _ => 0,
    };
    if offer.shared_input == SharedInput::Used {
        hello |= OLD_ENABLED | OLD_SHARED_INPUT;
    }
    if !offer.dictionary.is_empty() {
        hello |= OLD_ENABLED | OLD_DICTIONARY;
    }
    words.send(&hello.to_ne_bytes())?;
    let plain = Agreed { shared_input: SharedInput::Unused, first_request: None };
    if hello & (OLD_SHARED_INPUT | OLD_DICTIONARY) == 0 {
        return Ok(plain);
    }
    let answer = words.receive()?;
    if answer & OLD_ENABLED != OLD_ENABLED {
        // A fuzzer that wants none of this does not answer, but makes its first request.
        return Ok(Agreed { first_request: Some(answer), ..plain });
    }
    if answer & OLD_DICTIONARY != 0 {
        send_dictionary(words, &offer.dictionary)?;
    }
    let shared_input = if answer & OLD_SHARED_INPUT != 0 { offer.shared_input } else { SharedInput::Unused };
    Ok(Agreed { shared_input, first_request: None })
}

fn greet_new<W: Words>(words: &mut W, offer: &Offer) -> Result<Agreed, W::Error> {
    words.send(&NEW_HELLO.to_ne_bytes())?;
    match words.receive()? {
        answer if answer == !NEW_HELLO => {}
        // An old fuzzer takes any hello for a target without abilities, and this is its first request.
        request @ (0 | 1) => return Ok(Agreed { shared_input: SharedInput::Unused, first_request: Some(request) }),
        other => return Err(words.unexpected(other)),
    }
    let mut options = 0;
    if offer.map_len.is_some() {
        options |= NEW_MAP_LEN;
    }
    if offer.shared_input == SharedInput::Used {
        options |= NEW_SHARED_INPUT;
    }
    if !offer.dictionary.is_empty() {
        options |= NEW_DICTIONARY;
    }
    words.send(&options.to_ne_bytes())?;
    if let Some(len) = offer.map_len {
        words.send(&len.to_ne_bytes())?;
    }
    if !offer.dictionary.is_empty() {
        send_dictionary(words, &offer.dictionary)?;
    }
    words.send(&NEW_HELLO.to_ne_bytes())?;
    Ok(Agreed { shared_input: offer.shared_input, first_request: None })
}

fn send_dictionary<W: Words>(words: &mut W, dictionary: &[u8]) -> Result<(), W::Error> {
    // `Server::start` limits a dictionary to far less than 4 GiB.
    words.send(&u32::try_from(dictionary.len()).unwrap_or(u32::MAX).to_ne_bytes())?;
    words.send(dictionary)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers from a list, and keeps what was sent.
    struct Script {
        answers: Vec<u32>,
        sent: Vec<u8>,
    }

    impl Words for Script {
        type Error = String;

        fn receive(&mut self) -> Result<u32, String> {
            if self.answers.is_empty() { Err("nothing more to hear".into()) } else { Ok(self.answers.remove(0)) }
        }

        fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
            self.sent.extend_from_slice(bytes);
            Ok(())
        }

        fn unexpected(&self, word: u32) -> String {
            format!("unexpected {word:#x}")
        }
    }

    fn play(protocol: Protocol, offer: &Offer, answers: &[u32]) -> (Result<Agreed, String>, Vec<u8>) {
        let mut script = Script { answers: answers.to_vec(), sent: Vec::new() };
        let agreed = greet(&mut script, protocol, offer);
        (agreed, script.sent)
    }

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    const PLAIN: Offer = Offer { map_len: None, shared_input: SharedInput::Unused, dictionary: Vec::new() };

    fn everything() -> Offer {
        Offer { map_len: Some(65536), shared_input: SharedInput::Used, dictionary: b"\x03GET\x02ok".to_vec() }
    }

    #[test]
    fn the_old_hello_without_abilities_is_zero_and_wants_no_answer() {
        let (agreed, sent) = play(Protocol::Old, &PLAIN, &[]);
        assert_eq!(agreed, Ok(Agreed { shared_input: SharedInput::Unused, first_request: None }));
        assert_eq!(sent, bytes(&[0]));
    }

    #[test]
    fn the_old_hello_tells_the_map_and_sends_a_dictionary_that_is_wanted() {
        let answer = OLD_ENABLED | OLD_SHARED_INPUT | OLD_DICTIONARY;
        let (agreed, sent) = play(Protocol::Old, &everything(), &[answer]);
        assert_eq!(agreed, Ok(Agreed { shared_input: SharedInput::Used, first_request: None }));
        let mut expected = bytes(&[0xd101_ffff, 7]);
        expected.extend_from_slice(b"\x03GET\x02ok");
        assert_eq!(sent, expected);
    }

    #[test]
    fn an_old_fuzzer_may_refuse_and_go_on_at_once() {
        let (agreed, sent) = play(Protocol::Old, &everything(), &[0]);
        assert_eq!(agreed, Ok(Agreed { shared_input: SharedInput::Unused, first_request: Some(0) }));
        assert_eq!(sent, bytes(&[0xd101_ffff]));
        let (agreed, _) = play(Protocol::Old, &everything(), &[OLD_ENABLED]);
        assert_eq!(agreed, Ok(Agreed { shared_input: SharedInput::Unused, first_request: None }));
    }

    #[test]
    fn a_map_that_the_old_hello_cannot_tell_is_left_to_the_fuzzer() {
        for len in [0, 1, OLD_LONGEST_MAP as u32 + 1] {
            let (_, sent) = play(Protocol::Old, &Offer { map_len: Some(len), ..PLAIN }, &[]);
            assert_eq!(sent, bytes(&[0]), "{len}");
        }
    }

    #[test]
    fn the_new_hello_is_answered_by_its_complement_and_closed_by_itself() {
        let (agreed, sent) = play(Protocol::New, &everything(), &[!NEW_HELLO]);
        assert_eq!(agreed, Ok(Agreed { shared_input: SharedInput::Used, first_request: None }));
        let mut expected = bytes(&[NEW_HELLO, 0x803, 65536, 7]);
        expected.extend_from_slice(b"\x03GET\x02ok");
        expected.extend(bytes(&[NEW_HELLO]));
        assert_eq!(sent, expected);
    }

    #[test]
    fn an_old_fuzzer_that_hears_the_new_hello_is_served_plainly() {
        let (agreed, sent) = play(Protocol::New, &everything(), &[0]);
        assert_eq!(agreed, Ok(Agreed { shared_input: SharedInput::Unused, first_request: Some(0) }));
        assert_eq!(sent, bytes(&[NEW_HELLO]));
    }

    #[test]
    fn any_other_answer_is_an_error() {
        let (agreed, _) = play(Protocol::New, &everything(), &[7]);
        assert_eq!(agreed, Err("unexpected 0x7".to_owned()));
    }

    #[test]
    fn errors_are_told_in_the_words_of_the_generation() {
        assert_eq!(Protocol::Old.attach_error(), 0xf800_088f);
        assert_eq!(Protocol::New.attach_error(), 0xeffe_0008);
    }
}
