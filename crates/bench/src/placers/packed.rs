//! TEMP
use super::{Loaded, Placer, foreign};
use crate::PlaceError;
use crate::machine::CodeArea;

#[derive(Clone)]
pub(crate) struct Packed;
impl Packed {
    pub(crate) fn open() -> Result<Self, PlaceError> { Ok(Self) }
    pub(crate) fn backing(&self) -> String { "none".into() }
    pub(crate) fn refused(&self) -> Vec<String> { vec!["collapsed-memfd: temp".into()] }
    pub(crate) fn reserved_per_used(&self) -> f64 { 1.0 }
}
impl Placer for Packed {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> { CodeArea::place(code, code.len()).map(Loaded::Packed) }
    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError> { match loaded { Loaded::Packed(a) => { drop(a); Ok(()) } _ => Err(foreign("packed")) } }
}
pub(crate) struct Batch(Packed);
impl Batch { pub(crate) fn open() -> Result<Self, PlaceError> { Packed::open().map(Self) } }
impl Placer for Batch {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> { self.0.load(code) }
    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError> { self.0.free(loaded) }
}
pub(crate) struct EachInstruction(Packed);
impl EachInstruction {
    pub(crate) fn flushing(p: Packed, _i: usize) -> Self { Self(p) }
    pub(crate) fn synchronising(p: Packed, _i: usize) -> Result<Self, PlaceError> { Ok(Self(p)) }
}
impl Placer for EachInstruction {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> { self.0.load(code) }
    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError> { self.0.free(loaded) }
}
