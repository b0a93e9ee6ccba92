//! Switching: turns requests for keys into a batch of sites.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use palimpsest_sys::Caller;

use super::error::SwitchError;
use super::key::{Key, MOST_ENABLED, Wish};
use super::lock::{Held, Inherited};
use super::note::{Note, OWN_NOTE};
use super::section::{Object, Site};
use super::state::State;
use crate::poke::{Batch, PokeError};

/// A request for a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    Enable,
    Disable,
    Switch(State),
    Keep(State),
}

/// What a switch has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switched {
    /// Keys that have changed; the others were what they should be before.
    pub keys: usize,
    /// Branches that were rewritten.
    pub sites: usize,
    /// Core synchronisations: one, or none if no branch changes.
    pub syncs: u64,
}

impl Key {
    /// Returns the addresses of the branches on the key, as they are after inlining. None on machines without patching.
    pub fn sites(&self) -> Vec<usize> {
        Objects::default().sites_of(self).iter().map(|site| site.address).collect()
    }

    /// Turns the key on and keeps it on until [`disable`](Self::disable) was called as often.
    ///
    /// # Errors
    ///
    /// See [`SwitchError`]; after one the key is as before, unless the variant says otherwise.
    pub fn enable(&self) -> Result<Switched, SwitchError> {
        apply(&[(self, Request::Enable)])
    }

    /// Takes back one [`enable`](Self::enable).
    ///
    /// # Errors
    ///
    /// [`SwitchError::NotEnabled`] if there is none; see [`SwitchError`] for others.
    pub fn disable(&self) -> Result<Switched, SwitchError> {
        apply(&[(self, Request::Disable)])
    }

    /// Keeps the key on until `keep(State::Off)`, however often it is [`enable`](Self::enable)d by others. For one who
    /// need not know what became of his earlier calls, of which some may have failed, or have ended half-way in the
    /// process that he was forked from. Nobody else may call it for this key.
    ///
    /// # Errors
    ///
    /// See [`SwitchError`]; try it again.
    #[doc(hidden)]
    pub fn keep(&self, state: State) -> Result<Switched, SwitchError> {
        apply(&[(self, Request::Keep(state))])
    }

    /// Turns the key's switch. Turning it off takes effect once the key is no longer enabled.
    ///
    /// # Errors
    ///
    /// See [`SwitchError`]; after one the key is as before, unless the variant says otherwise.
    pub fn set(&self, state: State) -> Result<Switched, SwitchError> {
        apply(&[(self, Request::Switch(state))])
    }
}

/// A key that is being switched.
struct Plan<'k> {
    key: &'k Key,
    inherited: Inherited,
    before: State,
    wish: Wish,
}

impl Plan<'_> {
    fn ask(&mut self, request: Request) -> Result<(), SwitchError> {
        let name = || self.key.name().to_owned();
        match request {
            Request::Switch(state) => self.wish.switch = state,
            Request::Keep(state) => self.wish.kept = state,
            Request::Enable => {
                let more = self.wish.enabled.checked_add(1).filter(|more| *more <= MOST_ENABLED);
                self.wish.enabled = more.ok_or_else(|| SwitchError::EnabledTooOften { name: name() })?;
            }
            Request::Disable => {
                let fewer = self.wish.enabled.checked_sub(1);
                self.wish.enabled = fewer.ok_or_else(|| SwitchError::NotEnabled { name: name() })?;
            }
        }
        Ok(())
    }

    fn changes(&self) -> bool {
        self.before != self.wish.state()
    }
}

/// Carries out all requests in one batch or, after an error, none. A key may occur more than once.
pub(super) fn apply(requests: &[(&Key, Request)]) -> Result<Switched, SwitchError> {
    stay_loaded()?;
    let mut keys: Vec<&Key> = requests.iter().map(|(key, _)| *key).collect();
    keys.sort_unstable_by_key(|key| ptr::from_ref(*key));
    keys.dedup_by_key(|key| ptr::from_ref(*key));
    let caller = Caller::current();
    let mut held = Vec::with_capacity(keys.len());
    let mut plans = Vec::with_capacity(keys.len());
    for key in keys {
        let lock = Held::take(&key.lock, caller)
            .map_err(|_reentered| SwitchError::Reentered { name: key.name().to_owned() })?;
        plans.push(Plan { key, inherited: lock.inherited, before: key.state(), wish: key.wish() });
        held.push(lock);
    }
    for (key, request) in requests {
        let found = plans.binary_search_by_key(&ptr::from_ref(*key), |plan| ptr::from_ref(plan.key));
        let index = found.unwrap_or_else(|_| unreachable!("every key has a plan"));
        plans[index].ask(*request)?;
    }
    let keys = plans.iter().filter(|plan| plan.changes()).count();
    let batch = batch(&plans, keys)?;
    let applied = match batch.is_empty() {
        true => Ok(Switched { keys, ..Switched::default() }),
        false => match batch.apply() {
            Ok(applied) => Ok(Switched { keys, sites: applied.sites, syncs: applied.syncs }),
            Err(source) => Err(SwitchError::Poke { keys, sites: batch.len(), source }),
        },
    };
    // In both cases the sites behave as the new code says.
    let is_done = matches!(
        applied,
        Ok(_) | Err(SwitchError::Poke { source: PokeError::Unsynced(_) | PokeError::Stuck(Some(_)), .. })
    );
    if is_done {
        for (plan, lock) in plans.iter().zip(&mut held) {
            plan.key.store(plan.wish);
            lock.settle();
        }
    }
    if matches!(applied, Err(SwitchError::Poke { source: PokeError::Partial { .. }, .. })) {
        held.iter_mut().for_each(Held::unsettle);
    }
    drop(held);
    applied
}

/// Returns the sites that change. The caller holds the keys.
fn batch(plans: &[Plan<'_>], changing: usize) -> Result<Batch<'static>, SwitchError> {
    let mut batch = Batch::new();
    if plans.iter().any(|plan| plan.inherited == Inherited::Yes) {
        // A batch was under way in the parent when this process was forked, or one of this process stopped half-way.
        // The next batch, even an empty one, ends the former; the sites themselves then show their state.
        let finished = batch.apply();
        finished.map_err(|source| SwitchError::Poke { keys: changing, sites: 0, source })?;
    }
    let mut objects = Objects::default();
    for plan in plans {
        let is_inherited = plan.inherited == Inherited::Yes;
        if !plan.changes() && !is_inherited {
            continue;
        }
        for site in objects.sites_of(plan.key) {
            let (Some(before), Some(after)) = (site.code(plan.before), site.code(plan.wish.state())) else { continue };
            let before = match is_inherited {
                // SAFETY: 1. the caller has a reference to the key, which is in the same object.
                true => unsafe { site.present() },
                false => before,
            };
            // SAFETY: 1. `branch!` made the site in the text of the key's object, to which the caller has a reference:
            // it stays loaded; 2. the site is one instruction, whose label is in front of it; 3. both ways through a
            // branch are compiled by the rules of the language; 4. nothing makes references to text.
            let added = unsafe { batch.add_text(site.address, &before, &after) };
            added.map_err(|source| SwitchError::Site { name: plan.key.name().to_owned(), source })?;
        }
    }
    Ok(batch)
}

/// The sites of objects other than this copy's own, kept while a batch is collected.
#[derive(Default)]
struct Objects(Vec<(NonNull<Note>, Vec<Site>)>);

impl Objects {
    fn sites_of(&mut self, key: &Key) -> &[Site] {
        let address = ptr::from_ref(key).addr();
        let note = key.note();
        if ptr::eq(note.as_ptr(), OWN_NOTE) {
            return belonging_to(address, own_sites());
        }
        let known = self.0.iter().position(|(known, _)| *known == note);
        let index = known.unwrap_or_else(|| {
            // SAFETY: 1. a key points to the note of its own object, which stays loaded while the key is borrowed.
            let object = unsafe { Object::new(note) };
            self.0.push((note, sorted(object)));
            self.0.len() - 1
        });
        belonging_to(address, &self.0[index].1)
    }
}

/// Returns the sites of the key or static call at `address`.
fn belonging_to(address: usize, sorted: &[Site]) -> &[Site] {
    let start = sorted.partition_point(|site| site.key < address);
    let len = sorted[start..].partition_point(|site| site.key == address);
    &sorted[start..start + len]
}

/// Returns the sites of `object`, sorted by owner, then by address.
fn sorted(object: Object) -> Vec<Site> {
    in_order(object.sites().collect())
}

/// Sorts sites, and drops what is there twice: linkers that fold functions of the same key into one may leave the
/// entries of all.
fn in_order(mut sites: Vec<Site>) -> Vec<Site> {
    sites.sort_unstable();
    sites.dedup();
    sites
}

/// Returns the sites of the object that this copy of the library is in, sorted.
fn own_sites() -> &'static [Site] {
    // Not a `OnceLock`: a child forked in the middle of the first use would wait for it for ever.
    static SITES: AtomicPtr<Vec<Site>> = AtomicPtr::new(ptr::null_mut());
    // Acquire, partner: the Release below. Forbids that the sites are seen before they are written.
    let mut sites = SITES.load(Ordering::Acquire);
    if sites.is_null() {
        let own = NonNull::new(OWN_NOTE.cast_mut()).unwrap_or_else(|| unreachable!("the address of a static"));
        // SAFETY: 1. the code that runs here is in that object.
        let made = Box::into_raw(Box::new(sorted(unsafe { Object::new(own) })));
        // Release, partner: the Acquire above and this one.
        match SITES.compare_exchange(ptr::null_mut(), made, Ordering::Release, Ordering::Acquire) {
            Ok(_) => sites = made,
            Err(theirs) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(made) });
                sites = theirs;
            }
        }
    }
    // SAFETY: not null by now, and never freed or changed.
    unsafe { &*sites }
}

/// Returns the site of the static call at `address`, in this copy's own object; none if nobody calls it.
pub(super) fn call_sites(address: usize) -> &'static [Site] {
    belonging_to(address, own_sites())
}

/// Keeps this copy of the library loaded: its first batch installs a handler for signals that is the copy's own code.
pub(super) fn stay_loaded() -> Result<(), palimpsest_sys::NotLoaded> {
    if cfg!(any(miri, palimpsest_atomic_keys)) { Ok(()) } else { palimpsest_sys::stay_loaded() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::section::Kind;

    /// Fails on: an entry that is there twice, which a batch refuses as sites that overlap.
    #[test]
    fn what_a_linker_leaves_twice_is_one_site() {
        let site = |key, address| Site { key, address, kind: Kind::Call };
        let folded = [site(8, 64), site(4, 32), site(8, 48), site(8, 64), site(4, 32)];
        assert_eq!(in_order(folded.to_vec()), [site(4, 32), site(8, 48), site(8, 64)]);
    }
}
