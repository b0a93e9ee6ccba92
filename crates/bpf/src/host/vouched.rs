//! Memory of helpers that compiled code calls: at addresses.
#![expect(unsafe_code, reason = "what compiled code passes are addresses, which the verifier vouches for")]

use core::marker::PhantomData;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::Runner;
use super::call::Space;
use crate::interp::{HelperError, MemoryFault};
use crate::map::Map;
use crate::map::cells::WORD;

/// Memory at addresses that the verifier has proven.
///
/// Compiled code of other threads may write to the values of maps at the same time; so bytes are read and written
/// atomically, and as whole words where they are aligned.
pub(super) struct Vouched<R>(PhantomData<fn() -> R>);

impl<R> Vouched<R> {
    /// Returns the memory of one call.
    ///
    /// # Safety
    ///
    /// 1. Until the call is over, whoever uses it touches only the bytes that the signature of the called helper gives
    ///    it, of which the verifier has proven that they may be read or written.
    pub(super) const unsafe fn new() -> Self {
        Self(PhantomData)
    }

    /// Copies `len` bytes at `address` to `cells`, which are as many words as that takes; what is behind the bytes in
    /// the last word becomes zero.
    #[inline]
    pub(super) fn copy(&self, address: u64, len: usize, cells: &[AtomicU64]) {
        let (whole, rest) = (len / WORD, len % WORD);
        let is_aligned = address.is_multiple_of(WORD as u64);
        for (index, cell) in cells[..whole].iter().enumerate() {
            let at = address + (index * WORD) as u64;
            // Relaxed, here and below: nothing is published by what programs write.
            let bytes = if is_aligned { self.word(at).load(Ordering::Relaxed) } else { self.scattered(at, WORD) };
            cell.store(bytes, Ordering::Relaxed);
        }
        if let (1.., Some(cell)) = (rest, cells.get(whole)) {
            cell.store(self.scattered(address + (whole * WORD) as u64, rest), Ordering::Relaxed);
        }
    }

    /// Copies bytes out.
    #[inline]
    pub(super) fn read_vouched(&self, address: u64, bytes: &mut [u8]) {
        // Relaxed, here and below: nothing is published by what programs write.
        let words = if address.is_multiple_of(WORD as u64) { bytes.len() / WORD } else { 0 };
        let (words, rest) = bytes.split_at_mut(words * WORD);
        let mut at = address;
        for out in words.chunks_exact_mut(WORD) {
            out.copy_from_slice(&self.word(at).load(Ordering::Relaxed).to_ne_bytes());
            at += WORD as u64;
        }
        for (at, out) in (at..).zip(rest) {
            *out = self.byte(at).load(Ordering::Relaxed);
        }
    }

    /// Returns up to 8 bytes that may lie anywhere, as the beginning of a word of zeros.
    fn scattered(&self, address: u64, len: usize) -> u64 {
        let mut bytes = [0; WORD];
        for (at, out) in (address..).zip(&mut bytes[..len]) {
            *out = self.byte(at).load(Ordering::Relaxed);
        }
        u64::from_ne_bytes(bytes)
    }

    fn byte(&self, address: u64) -> &AtomicU8 {
        let place = with_exposed_provenance::<u8>(address as usize).cast_mut();
        // SAFETY: a byte has any alignment.
        // * valid: it is one of a helper's arguments (1 of `new`), which outlive the call, and so `self`.
        // * no other access that is not atomic: compiled code is not Rust, and the host's values are atomic.
        unsafe { AtomicU8::from_ptr(place) }
    }

    fn word(&self, address: u64) -> &AtomicU64 {
        debug_assert!(address.is_multiple_of(WORD as u64), "{address:#x}");
        let place = with_exposed_provenance::<u64>(address as usize).cast_mut();
        // SAFETY: callers check that the address is a multiple of 8; the rest is as in `byte`.
        unsafe { AtomicU64::from_ptr(place) }
    }
}

impl<R: Runner> Space for Vouched<R> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryFault> {
        self.read_vouched(address, bytes);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        let whole = if address.is_multiple_of(WORD as u64) { bytes.len() / WORD } else { 0 };
        let (words, rest) = bytes.split_at(whole * WORD);
        let mut at = address;
        for value in words.as_chunks().0 {
            self.word(at).store(u64::from_ne_bytes(*value), Ordering::Relaxed);
            at += WORD as u64;
        }
        for (at, value) in (at..).zip(rest) {
            self.byte(at).store(*value, Ordering::Relaxed);
        }
        Ok(())
    }

    fn reaches(&self, _address: u64, _len: usize) -> Result<(), MemoryFault> {
        // The verifier has proven it.
        Ok(())
    }

    fn peek(&self, address: u64, bytes: &mut [u8]) -> usize {
        R::peek(address, bytes)
    }

    fn hold(&mut self, record: u64) -> Result<(), HelperError> {
        R::hold(record)
    }

    fn let_go(&mut self, record: u64) {
        R::let_go(record);
    }

    fn cpu(&self) -> u32 {
        R::cpu()
    }

    fn tail_call(&self, map: &Map, index: u32) -> bool {
        map.programs().is_some_and(|programs| R::tail_call(programs, index))
    }

    #[cfg(feature = "std")]
    fn is_compiled(&self) -> bool {
        true
    }
}
