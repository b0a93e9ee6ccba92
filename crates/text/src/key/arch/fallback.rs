//! No patching: a branch loads its key's state, and a static call its target. There are no sites.

/// Bytes of a site.
pub(in super::super) const LEN: usize = 0;

/// Returns the bytes that fall through: none.
pub(in super::super) fn falls(_site: usize, _target: usize) -> Option<[u8; LEN]> {
    Some([])
}

/// Returns a jump: none is needed, and no target is too far.
pub(in super::super) fn jump(_site: usize, _target: usize) -> Option<[u8; LEN]> {
    Some([])
}

/// Returns where a site leads: there are none.
pub(in super::super) fn target(_site: usize, _code: [u8; LEN]) -> Option<usize> {
    None
}

/// Expands to a branch on `$key`.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_site {
    ($key:path, $inline:literal) => {{
        // Rejects what patching machines reject.
        const _: bool = <$key>::ON;
        $crate::key::Key::is_on(&$key)
    }};
}

/// Returns the function that the static call `$call` leads to.
#[doc(hidden)]
#[macro_export]
macro_rules! __palimpsest_call_entry {
    ($call:path, $first:path, $type:ty) => {
        $crate::key::StaticCall::target(&$call)
    };
}
