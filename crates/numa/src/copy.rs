//! One copy of some bytes, on a preferred node.

use palimpsest_sys::memory::sealed::{Made, SealError, SealedBytes};
use palimpsest_sys::numa::NodeId;

use crate::plain::Plain;
use crate::shared::{Folder, NotShared, Obtained, Origin, PassedOver, Registered};
use crate::wishes;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
#[error("no copy of {len} bytes on {node}")]
pub struct CopyError {
    /// The preferred node.
    pub node: NodeId,
    /// Length of the content, in bytes.
    pub len: usize,
    /// The reason.
    #[source]
    pub source: SealError,
}

/// A copy.
#[derive(Debug)]
pub(crate) struct Copy {
    bytes: SealedBytes,
    origin: Origin,
    made: Made,
    not_shared: Option<NotShared>,
    passed_over: Vec<PassedOver>,
    /// Removes this process's entry when the copy is dropped.
    _registered: Option<Registered>,
}

impl Copy {
    /// Gets a copy of `content` on `node`: another process's if there is a folder and a copy in it, else a new one.
    pub(crate) fn get(content: &[u8], node: NodeId, folder: Option<&Folder>) -> Result<Self, CopyError> {
        let failed = |source| CopyError { node, len: content.len(), source };
        let not_shared = match folder.map(|folder| folder.obtain_bytes(node, content)) {
            None => None,
            Some(Ok(Obtained::Found { taken: bytes, process, registered, passed_over })) => {
                let origin = Origin::Found { process: process.as_raw_nonzero().get() };
                let made = Made::default();
                return Ok(Self { bytes, origin, made, not_shared: None, passed_over, _registered: registered });
            }
            Some(Ok(Obtained::Made { taken: bytes, made, registered, passed_over })) => {
                let (origin, registered) = (Origin::Made, Some(registered));
                return Ok(Self { bytes, origin, made, not_shared: None, passed_over, _registered: registered });
            }
            Some(Ok(Obtained::Misplaced { taken: bytes, made, passed_over, .. })) => {
                let (origin, not_shared) = (Origin::Private, Some(NotShared::Misplaced { node }));
                return Ok(Self { bytes, origin, made, not_shared, passed_over, _registered: None });
            }
            Some(Err(why)) => Some(why),
        };
        let (bytes, made) = SealedBytes::of(content, Some(node)).map_err(failed)?;
        let passed_over = Vec::new();
        Ok(Self { bytes, origin: Origin::Private, made, not_shared, passed_over, _registered: None })
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.as_bytes()
    }

    /// Returns the value of which the copy was made.
    #[inline]
    pub(crate) fn content<T: Plain + ?Sized>(&self) -> &T {
        match T::ref_from_bytes(self.as_bytes()) {
            Ok(content) => content,
            // The bytes are those of a `T`, and start at a page.
            Err(_) => unreachable!("what was made of a value can be read as one"),
        }
    }

    pub(crate) fn bytes(&self) -> &SealedBytes {
        &self.bytes
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the wishes that were not fulfilled.
    pub(crate) fn lacks(&self) -> Vec<String> {
        let not_shared = self.not_shared.iter().map(wishes::not_shared);
        not_shared.chain(wishes::passed_over(&self.passed_over)).chain(wishes::lacks(&self.made)).collect()
    }
}
