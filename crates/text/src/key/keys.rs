//! All keys of the process.

use std::ops::Deref;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use palimpsest_sys::{NotedObject, objects_with_note};

use super::change::{self, Request, Switched};
use super::error::{SetError, SwitchError};
use super::key::{Key, is_name};
use super::note::{NOTE_OWNER, NOTE_VERSION, Note, OWN_NOTE};
use super::pattern::Pattern;
use super::section::Object;
use super::state::State;

/// The keys of the program and of all loaded libraries.
///
/// Under Miri there are no sections, so that no key is found by name.
#[derive(Debug)]
pub enum Keys {}

/// A key found by name. It keeps the key's library loaded.
#[derive(Clone, Debug)]
pub struct KeyRef {
    /// # Invariants
    ///
    /// In the object that `object` keeps loaded, or in this copy's own; never handed out for longer than `self` lives.
    key: &'static Key,
    object: Option<Arc<NotedObject>>,
}

impl KeyRef {
    /// Returns the library that contains the key, as the dynamic linker names it. Empty for the program; `None` for the
    /// object that contains this copy of Palimpsest.
    pub fn object(&self) -> Option<PathBuf> {
        self.object.as_ref().map(|object| object.path())
    }
}

impl Deref for KeyRef {
    type Target = Key;

    fn deref(&self) -> &Key {
        self.key
    }
}

impl Keys {
    /// Returns every key, sorted by name.
    ///
    /// Several keys may have the same name, for example in different libraries.
    pub fn iter() -> impl Iterator<Item = KeyRef> {
        let mut keys = Self::own();
        for object in objects_with_note(NOTE_OWNER, NOTE_VERSION) {
            let description = object.description();
            if description.len() != size_of::<Note>() || description.start == OWN_NOTE.addr() {
                continue;
            }
            let object = Arc::new(object);
            let note = NonNull::new(ptr::with_exposed_provenance_mut::<Note>(description.start));
            // SAFETY: 1. of our owner, version and length, and the object stays loaded as long as `KeyRef::object`.
            keys.extend(note.into_iter().flat_map(|note| collect(unsafe { Object::new(note) }, Some(&object))));
        }
        // An object with C and Rust parts has a note of each, for the same sections.
        keys.sort_by(|a, b| (a.name(), ptr::from_ref(a.key)).cmp(&(b.name(), ptr::from_ref(b.key))));
        keys.dedup_by(|a, b| ptr::eq(a.key, b.key));
        keys.into_iter()
    }

    /// Returns the first key named `name`.
    pub fn find(name: &str) -> Option<KeyRef> {
        Self::iter().find(|key| key.name() == name)
    }

    /// Turns the switches of many keys in one batch and with one core synchronisation. Turns all or, after an error,
    /// none. If a key occurs more than once, the last state holds.
    ///
    /// # Errors
    ///
    /// See [`SwitchError`].
    pub fn apply<'k>(states: impl IntoIterator<Item = (&'k Key, State)>) -> Result<Switched, SwitchError> {
        let requests: Vec<_> = states.into_iter().map(|(key, state)| (key, Request::Switch(state))).collect();
        change::apply(&requests)
    }

    /// Turns the switches of all keys whose names match `pattern` (see [`Pattern`]), in one batch.
    ///
    /// # Errors
    ///
    /// See [`SetError`].
    pub fn set(pattern: &str, state: State) -> Result<Switched, SetError> {
        let pattern = Pattern::new(pattern)?;
        let keys: Vec<KeyRef> = Self::iter().filter(|key| is_name(key.name()) && pattern.matches(key.name())).collect();
        if keys.is_empty() {
            return Err(SetError::NoKey { pattern: pattern.to_string() });
        }
        Ok(Self::apply(keys.iter().map(|key| (&**key, state)))?)
    }

    /// Returns the keys of this copy's own object.
    pub(super) fn own() -> Vec<KeyRef> {
        let own = NonNull::new(OWN_NOTE.cast_mut()).unwrap_or_else(|| unreachable!("the address of a static"));
        // SAFETY: 1. the code that runs here is in that object.
        collect(unsafe { Object::new(own) }, None)
    }
}

/// Returns the keys of `found`, which is held by `object`, or is this copy's own.
fn collect(found: Object, object: Option<&Arc<NotedObject>>) -> Vec<KeyRef> {
    let with_object = |key: NonNull<Key>| KeyRef {
        // SAFETY: a key in a loaded object. The reference lives no longer than the object: see the field's invariants.
        key: unsafe { key.as_ref() },
        object: object.cloned(),
    };
    found.keys().map(with_object).collect()
}
