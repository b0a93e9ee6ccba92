//! The target's side of AFL++'s protocol.

use crate::coverage;
use crate::error::ServeError;
use crate::input::TestCase;
use crate::protocol::{self, Offer, Protocol, SharedInput};
use crate::serve::{self, Mode};
use palimpsest_sys::memory::sysv::SharedAccess;

use crate::sysv;
use crate::wire::Wire;

/// The longest dictionary that the protocol carries, in bytes.
const LONGEST_DICTIONARY: usize = 0xff_ffff;

/// Where test cases come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// From memory that the fuzzer shares, where it does, else from standard input.
    SharedMemory,
    /// From standard input, as with a program that knows nothing of fuzzing.
    StandardInput,
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// There is no fuzzer: the target has run once, in this process, with what was on standard input.
    Alone,
    /// The fuzzer has closed its pipes.
    FuzzerGone,
}

/// A fork server that AFL++ can start.
#[derive(Clone, Debug)]
#[must_use = "it serves when it is started"]
pub struct Server {
    mode: Mode,
    inputs: Inputs,
    protocol: Option<Protocol>,
    map_len: Option<u32>,
    tokens: Vec<Vec<u8>>,
}

impl Server {
    /// A server that takes test cases from shared memory and speaks the generation of the protocol that its fuzzer
    /// surely knows.
    pub fn new(mode: Mode) -> Self {
        Self { mode, inputs: Inputs::SharedMemory, protocol: None, map_len: None, tokens: Vec::new() }
    }

    /// Where test cases come from.
    pub fn inputs(mut self, inputs: Inputs) -> Self {
        self.inputs = inputs;
        self
    }

    /// Speaks this generation of the protocol.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Tells the fuzzer to look at the first `bytes` of the coverage map. By default as many as there are guards, if
    /// there are any, else the whole.
    pub fn map_len(mut self, bytes: u32) -> Self {
        self.map_len = Some(bytes);
        self
    }

    /// Adds a token to the dictionary that the fuzzer is given: 1 to 255 bytes.
    pub fn token(mut self, token: impl Into<Vec<u8>>) -> Self {
        self.tokens.push(token.into());
        self
    }

    /// Serves the fuzzer that started this process: `target` is called once per run with the test case, in the state
    /// that the process is in now.
    ///
    /// Call it when everything that runs have in common is done; that is AFL++'s deferred fork server. Runs happen in
    /// children, which end with the target and never return from here; a panic in the target ends its child by SIGABRT.
    ///
    /// # Errors
    ///
    /// See [`ServeError`]; errors of the set-up come before the fuzzer is greeted.
    ///
    /// # Safety
    ///
    /// 1. The process can be forked: it has no other thread whose locks or work `target` needs.
    /// 2. The contract of [`freeze`](palimpsest_fork::freeze) or of
    ///    [`take_and_enter`](palimpsest_fork::snapshot::take_and_enter) holds, as far as the mode uses them.
    /// 3. Where descriptors 198 and 199 are pipes, they are the fuzzer's.
    pub unsafe fn start(self, mut target: impl FnMut(&[u8])) -> Result<Ended, ServeError> {
        // SAFETY: (3).
        let wire = unsafe { Wire::inherited() };
        let protocol = self.protocol.unwrap_or_else(Protocol::of_environment);
        let Some(mut wire) = wire else {
            // afl-showmap runs a single test case without a server, and still reads the map.
            if let Some(map) = sysv::attach(protocol::MAP_VARIABLE, SharedAccess::Write)? {
                coverage::set_map(map);
            }
            TestCase::StandardInput.give_to(&mut target);
            return Ok(Ended::Alone);
        };
        let (offer, test_case) = match self.prepare() {
            Ok(prepared) => prepared,
            Err(error) => {
                // The fuzzer has a message of its own for this; that it is gone already changes nothing.
                let _ = protocol::Words::send(&mut wire, &protocol.attach_error().to_ne_bytes());
                return Err(error);
            }
        };
        // SAFETY: (2).
        let way = unsafe { self.mode.prepare() }?;
        let agreed = protocol::greet(&mut wire, protocol, &offer)?;
        let test_case = match agreed.shared_input {
            SharedInput::Used => test_case,
            SharedInput::Unused => TestCase::StandardInput,
        };
        // SAFETY: (1, 2).
        unsafe { serve::serve(wire, agreed.first_request, &way, test_case, &mut target) }?;
        Ok(Ended::FuzzerGone)
    }

    /// Attaches what the fuzzer shares, and settles what is offered to it.
    fn prepare(&self) -> Result<(Offer, TestCase), ServeError> {
        let guards = coverage::guards();
        let mut map_len = self.map_len.or_else(|| u32::try_from(guards.end).ok().filter(|_| !guards.is_empty()));
        match sysv::attach(protocol::MAP_VARIABLE, SharedAccess::Write)? {
            Some(map) if map.len < guards.end => {
                return Err(ServeError::MapTooShort { guards: guards.end, map_len: map.len });
            }
            Some(map) => coverage::set_map(map),
            None => map_len = None,
        }
        let segment = match self.inputs {
            Inputs::SharedMemory => sysv::attach(protocol::INPUT_VARIABLE, SharedAccess::Read)?,
            Inputs::StandardInput => None,
        };
        let (shared_input, test_case) = match segment {
            Some(segment) => (SharedInput::Used, TestCase::Shared(segment)),
            None => (SharedInput::Unused, TestCase::StandardInput),
        };
        Ok((Offer { map_len, shared_input, dictionary: self.dictionary()? }, test_case))
    }

    /// The tokens as the protocol carries them.
    fn dictionary(&self) -> Result<Vec<u8>, ServeError> {
        let mut dictionary = Vec::new();
        for (index, token) in self.tokens.iter().enumerate() {
            let wrong = ServeError::Token { index, len: token.len() };
            match u8::try_from(token.len()) {
                Ok(len @ 1..) if dictionary.len() + token.len() < LONGEST_DICTIONARY => dictionary.push(len),
                _ => return Err(wrong),
            }
            dictionary.extend_from_slice(token);
        }
        Ok(dictionary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_is_lengths_and_bytes() {
        let server = Server::new(Mode::Plain).token(*b"GET").token(*b"ok");
        assert_eq!(server.dictionary().unwrap(), b"\x03GET\x02ok");
    }

    #[test]
    fn a_token_that_cannot_be_told_is_named() {
        for token in [Vec::new(), vec![b'x'; 256]] {
            let len = token.len();
            let error = Server::new(Mode::Plain).token(*b"a").token(token).dictionary().unwrap_err();
            assert!(matches!(error, ServeError::Token { index: 1, len: found } if found == len), "{error}");
        }
    }
}
