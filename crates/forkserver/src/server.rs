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

/// The source of test cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// Memory that the fuzzer shares, if it does, else standard input.
    SharedMemory,
    /// Standard input, as for a program that is not made for fuzzing.
    StandardInput,
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// There is no fuzzer: the target has run once, in this process, on standard input.
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
    /// Creates a server that takes test cases from shared memory and speaks a generation of the protocol that its
    /// fuzzer is sure to know.
    pub fn new(mode: Mode) -> Self {
        Self { mode, inputs: Inputs::SharedMemory, protocol: None, map_len: None, tokens: Vec::new() }
    }

    /// Sets the source of test cases.
    pub fn inputs(mut self, inputs: Inputs) -> Self {
        self.inputs = inputs;
        self
    }

    /// Sets the generation of the protocol.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Makes the fuzzer read only the first `bytes` of the coverage map. By default as many as there are guards, or the
    /// whole map if there are none.
    pub fn map_len(mut self, bytes: u32) -> Self {
        self.map_len = Some(bytes);
        self
    }

    /// Adds a token of 1 to 255 bytes to the dictionary for the fuzzer.
    pub fn token(mut self, token: impl Into<Vec<u8>>) -> Self {
        self.tokens.push(token.into());
        self
    }

    /// Serves the fuzzer that started this process: calls `target` once per run with the test case, in the process's
    /// present state.
    ///
    /// Call it after everything that the runs have in common; AFL++ calls this a deferred fork server. Runs happen in
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
    /// 3. If descriptors 198 and 199 are pipes, they belong to the fuzzer.
    pub unsafe fn start(self, mut target: impl FnMut(&[u8])) -> Result<Ended, ServeError> {
        // SAFETY: (3).
        let wire = unsafe { Wire::inherited() };
        let protocol = self.protocol.unwrap_or_else(Protocol::of_environment);
        let Some(mut wire) = wire else {
            // afl-showmap runs a single test case without a server, but still reads the map.
            if let Some(map) = sysv::attach(protocol::MAP_VARIABLE, SharedAccess::Write)? {
                coverage::set_map(map);
            }
            TestCase::StandardInput.give_to(&mut target);
            return Ok(Ended::Alone);
        };
        let (offer, test_case) = match self.prepare() {
            Ok(prepared) => prepared,
            Err(error) => {
                // The fuzzer has its own message for this; it does not matter if the fuzzer is gone already.
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

    /// Attaches the fuzzer's shared memory, and determines the offer.
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

    /// Returns the tokens in the protocol's format.
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
