//! No patching: a branch loads its key's state, and a static call its target. There are no sites.

/// Bytes of a site.
pub(in super::super) const LEN: usize = 0;

/// What falls through: nothing.
pub(in super::super) fn falls(_site: usize, _target: usize) -> Option<[u8; LEN]> {
    Some([])
}

/// A jump: to anywhere, as nothing encodes the distance.
pub(in super::super) fn jump(_site: usize, _target: usize) -> Option<[u8; LEN]> {
    Some([])
}

/// A branch on `$key`.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_site {
    ($key:path, $inline:literal) => {{
        // The same spelling is right or wrong here as with patching.
        const _: bool = <$key>::ON;
        $crate::key::Key::is_on(&$key)
    }};
}

/// The function that the static call `$call` leads to now.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_call_entry {
    ($call:path, $first:path, $type:ty) => {
        $crate::key::StaticCall::target(&$call)
    };
}
