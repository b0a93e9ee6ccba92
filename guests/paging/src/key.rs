//! The static key of the system-call hook: its sites in the kernel's own text and in that of modules, and how all of
//! them change together, in every node's copy.
//!
//! One CPU at a time changes the key or the list of sites ([`Turns`]). So a module's code is stored with the key as it
//! is, and before it changes again the module's sites are among those that change; and a module goes only when nobody
//! writes its sites.

use alloc::vec::Vec;
use core::ops::Range;

use palimpsest_text::poke::{self, Code, Site, arch as isa};

use crate::arch::key;
use crate::cpu::Turns;
use crate::kernel_text_writer::{Copies, KernelTextWriter};
use crate::sync::SpinLock;

/// A site's address and its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct KeySite {
    pub(crate) address: usize,
    pub(crate) target: usize,
}

/// Bytes of an entry in the section `.key_sites`, of the kernel or of a module.
pub(crate) const ENTRY: usize = size_of::<KeySite>();

/// What code has that is no site of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoSite(pub(crate) KeySite);

struct State {
    is_on: bool,
    /// The sites of modules.
    sites: Vec<KeySite>,
}

static STATE: SpinLock<State> = SpinLock::new(State { is_on: false, sites: Vec::new() });
/// Those who change it, or its sites.
static CHANGES: Turns = Turns::new();

unsafe extern "C" {
    static key_sites_start: [u8; 0];
    static key_sites_end: [u8; 0];
}

impl KeySite {
    /// Reads an entry of a module.
    pub(crate) fn from_entry(entry: [u8; ENTRY]) -> Self {
        let word = |at: usize| core::array::from_fn(|index| entry[at + index]);
        Self { address: u64::from_le_bytes(word(0)) as usize, target: u64::from_le_bytes(word(8)) as usize }
    }

    /// Returns the site's bytes while programs are attached (`on`) or not.
    pub(crate) fn bytes(&self, on: bool) -> impl IntoIterator<Item = u8> + AsRef<[u8]> + use<> {
        key::bytes(self.address, self.target, on)
    }

    /// Returns where the site is in `code`, which is to run from `start` on, if it is one there: switched off, and with
    /// its target in the same code.
    fn place(&self, code: &[u8], start: u64) -> Result<Range<usize>, NoSite> {
        let no_site = NoSite(*self);
        let offset = self.address.checked_sub(start as usize).ok_or(no_site)?;
        let place = offset..offset.checked_add(key::LEN).ok_or(no_site)?;
        let target = self.target.wrapping_sub(start as usize);
        let is_one = target < code.len() && code.get(place.clone()).ok_or(no_site)? == self.bytes(false).as_ref();
        let changes = isa::check(self.address, self.bytes(false).as_ref(), self.bytes(true).as_ref());
        if is_one && changes.is_ok() { Ok(place) } else { Err(no_site) }
    }
}

/// Returns the sites of the key in the kernel's own text.
pub(crate) fn own_sites() -> &'static [KeySite] {
    let (start, end) = ((&raw const key_sites_start) as usize, (&raw const key_sites_end) as usize);
    // SAFETY: the linker has collected the entries of `key::is_on` there, two aligned words each.
    unsafe { core::slice::from_raw_parts(start as *const KeySite, (end - start) / ENTRY) }
}

/// Returns all sites: the kernel's and those of loaded modules.
pub(crate) fn sites() -> Vec<KeySite> {
    own_sites().iter().chain(&STATE.lock().sites).copied().collect()
}

/// Describes how to switch a site.
fn site(site: &KeySite, on: bool) -> Site {
    let code = |bytes: &[u8]| Code::new(bytes).unwrap_or_else(|| unreachable!("an instruction"));
    let (old, new) = (site.bytes(!on), site.bytes(on));
    let (old, new) = (old.as_ref(), new.as_ref());
    let action = isa::check(site.address, old, new).unwrap_or_else(|refusal| panic!("{site:x?}: {refusal:?}"));
    Site { address: site.address, old: code(old), new: code(new), action }
}

/// Switches the key, and calls every CPU once.
pub(crate) fn switch(on: bool) {
    CHANGES.alone(|| {
        let writer = KernelTextWriter { copies: Copies::All };
        let mut all: Vec<Site> = sites().iter().map(|entry| site(entry, on)).collect();
        all.sort_unstable_by_key(|site| site.address);
        if let Err(failed) = poke::apply_by_single_stores(&writer, &all) {
            panic!("{failed:?}");
        }
        if let Err(unmapped) = writer.settle(&all) {
            panic!("{unmapped:?}");
        }
        STATE.lock().is_on = on;
    });
}

/// Lets `store` store a module's code, which is to run from `start` on, with its sites as the key is, and switches them
/// with the key from then on.
pub(crate) fn adopt(sites: &[KeySite], code: &mut [u8], start: u64, store: impl FnOnce(&[u8])) -> Result<(), NoSite> {
    let places = sites.iter().map(|site| site.place(code, start)).collect::<Result<Vec<_>, _>>()?;
    // Two that overlap would not be what the other expects.
    let mut sorted: Vec<(&KeySite, &Range<usize>)> = sites.iter().zip(&places).collect();
    sorted.sort_unstable_by_key(|(_, place)| place.start);
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].1.end > pair[1].1.start) {
        return Err(NoSite(*pair[1].0));
    }
    CHANGES.alone(|| {
        if STATE.lock().is_on {
            for (site, place) in sites.iter().zip(places.iter().cloned()) {
                code[place].copy_from_slice(site.bytes(true).as_ref());
            }
        }
        store(code);
        STATE.lock().sites.extend_from_slice(sites);
    });
    Ok(())
}

/// Forgets the sites in this range of addresses: they are not written any more.
pub(crate) fn abandon(code: &Range<u64>) {
    CHANGES.alone(|| STATE.lock().sites.retain(|site| !code.contains(&(site.address as u64))));
}
