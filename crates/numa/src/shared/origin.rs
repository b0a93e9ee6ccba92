//! Who makes copies, and who uses them.

use std::fmt;

use super::Folder;

/// Who uses a copy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// This process, and its forked children.
    #[default]
    Private,
    /// All processes of this user with the same bytes and the same folder: together they use the memory of one. This
    /// process keeps a descriptor for each copy, through which the others find it; children inherit it, but it gives
    /// them no additional power.
    User(Folder),
}

impl Sharing {
    /// Returns the folder in which to search copies.
    pub(crate) fn folder(&self) -> Option<&Folder> {
        match self {
            Self::Private => None,
            Self::User(folder) => Some(folder),
        }
    }
}

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
