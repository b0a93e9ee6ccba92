//! The floor of every load: copies the bytes to ordinary memory that is already present, and does nothing else.

use super::{Loaded, Placer};
use crate::PlaceError;

/// Room for the copies; they follow each other and start again at the beginning, like programs in packs.
const ROOM: usize = 4 << 20;

/// See the module.
pub(super) struct Floor {
    room: Vec<u8>,
    used: usize,
}

impl Floor {
    /// With all pages present.
    pub(super) fn new() -> Self {
        Self {
            // Not zero, which the allocator would leave to pages that are not present yet.
            room: vec![0xcc; ROOM],
            used: 0,
        }
    }
}

impl Placer for Floor {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> {
        if self.used + code.len() > ROOM {
            self.used = 0;
        }
        let room = self.room.get_mut(self.used..self.used + code.len()).ok_or_else(|| PlaceError::Peer {
            peer: "copy",
            len: code.len(),
            reason: format!("the buffer has {ROOM} bytes"),
        })?;
        room.copy_from_slice(code);
        self.used += code.len().next_multiple_of(64);
        Ok(Loaded::Copied(room.as_ptr()))
    }

    fn free(&mut self, _loaded: Loaded) -> Result<(), PlaceError> {
        Ok(())
    }
}
