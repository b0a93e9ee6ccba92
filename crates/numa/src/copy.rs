//! One copy of some bytes, wanted on one node.

use std::fmt;

use palimpsest_sys::memory::sealed::{Made, SealError, SealedBytes};
use palimpsest_sys::numa::NodeId;

use crate::shared::{Folder, Key, NotShared, Obtained, Registered};

/// Where a copy comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
pub enum Origin {
    /// This process has made it for itself.
    Private,
    /// This process has made it, and others of this user may use it.
    Made,
    /// Another process of this user has made it.
    Found {
        /// A process that had it.
        process: i32,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Private => formatter.write_str("private"),
            Self::Made => formatter.write_str("shared, made here"),
            Self::Found { process } => write!(formatter, "shared, found at process {process}"),
        }
    }
}

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
#[error("no copy of {len} bytes on {node}")]
pub struct CopyError {
    /// Where it was wanted.
    pub node: NodeId,
    /// Bytes.
    pub len: usize,
    /// Why.
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
    /// Takes this process's entry back when the copy goes.
    _registered: Option<Registered>,
}

impl Copy {
    /// Gets a copy of `content` on `node`: with a folder that of another process if there is one, else a new one.
    pub(crate) fn get(content: &[u8], node: NodeId, folder: Option<&Folder>) -> Result<Self, CopyError> {
        let failed = |source| CopyError { node, len: content.len(), source };
        let not_shared = match folder.map(|folder| folder.obtain(&Key::of(content), node, content)) {
            None => None,
            Some(Ok(Obtained::Found { bytes, process, registered })) => {
                let origin = Origin::Found { process: process.as_raw_nonzero().get() };
                let made = Made::default();
                return Ok(Self { bytes, origin, made, not_shared: None, _registered: registered });
            }
            Some(Ok(Obtained::Made { bytes, made, registered })) => {
                return Ok(Self { bytes, origin: Origin::Made, made, not_shared: None, _registered: Some(registered) });
            }
            Some(Err(why)) => Some(why),
        };
        let (bytes, made) = SealedBytes::of(content, Some(node)).map_err(failed)?;
        Ok(Self { bytes, origin: Origin::Private, made, not_shared, _registered: None })
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.as_bytes()
    }

    pub(crate) fn bytes(&self) -> &SealedBytes {
        &self.bytes
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// What it lacks of what was wished for.
    pub(crate) fn lacks(&self) -> Vec<String> {
        let line = |error: &dyn std::error::Error| palimpsest_sys::Causes(error).to_string();
        let shared = self.not_shared.as_ref().map(|why| format!("not shared: {}", line(why)));
        let placed = self.made.not_placed.as_ref().map(|why| format!("not asked of the node: {}", line(why)));
        let huge = self.made.not_huge.as_ref().map(|why| format!("not in huge pages: {}", line(why)));
        shared.into_iter().chain(placed).chain(huge).collect()
    }
}
