//! Batches: sites that change together.

use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

use palimpsest_sys::{Causes, stay_loaded, trap};

use super::arch::{self, Refusal};
use super::domain::{Domain, MAX_SITES, State};
use super::error::{AddError, PokeError};
use super::handler::{claim, is_trap, traps_hit};
use super::held::apply_while_held;
use super::log::{self, PatchRecord};
use super::machine::{Target, UserMachine};
use super::protocol::{Failed, Machine as _, apply_by_detours, apply_by_single_stores, apply_by_traps};
use super::site::{Code, Site};
use super::threads::who_blocks_traps;
use crate::address::CodeAddress;
use crate::pack::{Opened, OutsideProgram, Program};

/// How the sites of a batch were changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// By one store each, in one round.
    SingleStore,
    /// By a detour: threads fall through to what follows the site, in two rounds.
    Detour,
    /// At once, while every other thread is held still: see `poke`, "Sites of any bytes".
    Held,
    /// By traps, in three rounds. For processes whose threads never block SIGTRAP, not even in a signal handler: a
    /// thread that blocks it when the batch begins is an error, but a thread that blocks it later and runs into a site
    /// ends the process.
    Trap,
}

/// How a batch is to change its sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ModeChoice {
    /// By single stores if all sites fit one each, else while other threads are held.
    #[default]
    Automatic,
    /// Only in this way.
    Only(Mode),
}

/// What [`Batch::apply`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applied {
    /// The way.
    pub mode: Mode,
    /// Sites that have changed; the others were what they should be before.
    pub sites: usize,
    /// Core synchronisations.
    pub syncs: u64,
    /// Stores to programs, and system calls that store to text.
    pub writes: u64,
    /// Traps that threads of this process have run into during the batch.
    pub traps_hit: u64,
}

/// Sites that change together.
///
/// The borrow keeps each program alive:
///
/// ```compile_fail
/// # use palimpsest_text::{Packs, poke::Batch};
/// let program = Packs::new().unwrap().load(&[0x90, 0xC3], 16).unwrap();
/// let mut batch = Batch::new();
/// // SAFETY: nobody runs it.
/// unsafe { batch.add(&program, 0, &[0x90], &[0xC3]) }.unwrap();
/// drop(program);
/// batch.apply();
/// ```
#[derive(Clone, Default)]
pub struct Batch<'p> {
    sites: Vec<Site>,
    targets: Vec<Target<'p>>,
}

impl<'p> Batch<'p> {
    /// Creates a batch without sites.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how many sites there are.
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// Adds the site at `offset` bytes of a program.
    ///
    /// # Safety
    ///
    /// 1. `old` is one instruction, or a jump and bytes that are never run; and so is `new`. No jump leads between
    ///    their bytes.
    /// 2. All threads that run the program work with both versions, at any time from now until the batch is dropped.
    ///
    /// # Errors
    ///
    /// See [`AddError`].
    pub unsafe fn add(
        &mut self,
        program: &'p Program,
        offset: usize,
        old: &[u8],
        new: &[u8],
    ) -> Result<&mut Self, AddError> {
        let outside = || OutsideProgram { offset, len: program.len(), address: program.address() };
        offset.checked_add(old.len()).filter(|&end| end <= program.len()).ok_or_else(outside)?;
        self.push(program.address().get() + offset, old, new, Target::Program(program))
    }

    /// Adds the same site in several copies of one program: all of them or, after an error, none. They change with the
    /// same core synchronisations. `change` returns the old and the new bytes of each copy. It is told where the site
    /// is, because a relative reference depends on that.
    ///
    /// # Safety
    ///
    /// As for [`add`](Self::add), of each copy.
    ///
    /// # Errors
    ///
    /// See [`AddError`]; the batch is as before.
    pub unsafe fn add_to_all<C: AsRef<[u8]>>(
        &mut self,
        copies: impl IntoIterator<Item = &'p Program>,
        offset: usize,
        mut change: impl FnMut(CodeAddress) -> (C, C),
    ) -> Result<&mut Self, AddError> {
        let before = self.len();
        for program in copies {
            let (old, new) = change(CodeAddress::new(program.address().get().wrapping_add(offset)));
            // SAFETY: 1. and 2. by the caller.
            if let Err(error) = unsafe { self.add(program, offset, old.as_ref(), new.as_ref()) } {
                self.sites.truncate(before);
                self.targets.truncate(before);
                return Err(error);
            }
        }
        Ok(self)
    }

    /// Adds a site in the text of the running program or of a library.
    ///
    /// # Safety
    ///
    /// 1. `old.len()` bytes from `address` on are mapped, readable code, and not in a [`Program`]. The object stays
    ///    loaded until the batch is dropped.
    /// 2. `old` is one instruction, or a jump and bytes that are never run; and so is `new`. No jump leads between
    ///    their bytes.
    /// 3. All threads that run the code work with both versions, at any time from now until the batch is dropped.
    /// 4. No reference to the bytes is live, nor to bytes between sites in one page.
    ///
    /// # Errors
    ///
    /// See [`AddError`].
    pub unsafe fn add_text(&mut self, address: usize, old: &[u8], new: &[u8]) -> Result<&mut Self, AddError> {
        self.push(address, old, new, Target::Text)
    }

    fn push(&mut self, address: usize, old: &[u8], new: &[u8], target: Target<'p>) -> Result<&mut Self, AddError> {
        if old.len() != new.len() {
            return Err(AddError::Lengths { old: old.len(), new: new.len() });
        }
        let both = Code::new(old).zip(Code::new(new));
        let (old_code, new_code) = both.ok_or(AddError::Length { len: old.len() })?;
        let refused = |refusal: Refusal| AddError::Refused { address, old: old_code, new: new_code, refusal };
        let action = arch::check(address, old, new).map_err(refused)?;
        self.sites.push(Site { address, old: old_code, new: new_code, action });
        self.targets.push(target);
        Ok(self)
    }

    /// Changes all sites. Returns when every core runs the new code.
    ///
    /// Batches of one process take turns. Do not call it from a signal handler.
    ///
    /// # Errors
    ///
    /// See [`PokeError`].
    pub fn apply(&self) -> Result<Applied, PokeError> {
        self.apply_in(ModeChoice::Automatic)
    }

    /// Does what [`apply`](Self::apply) does, in the way that the caller chooses.
    ///
    /// # Errors
    ///
    /// See [`PokeError`].
    pub fn apply_in(&self, choice: ModeChoice) -> Result<Applied, PokeError> {
        match choice {
            ModeChoice::Only(Mode::Detour) => Err(PokeError::NoDetours),
            choice => self.apply_as(choice),
        }
    }

    /// Changes all sites, which are jumps, by detours if the ISA has them, else by single stores.
    ///
    /// # Safety
    ///
    /// 1. Every site is a jump or [`arch::DETOUR`] in the place of one's first byte, and becomes a jump; what follows
    ///    it leads to where the new jump does.
    ///
    /// # Errors
    ///
    /// See [`PokeError`]. After any but [`PokeError::Unsynced`] and [`PokeError::Partial`] each site leads to where it
    /// did, or to what follows it.
    pub(crate) unsafe fn apply_by_detours(&self) -> Result<Applied, PokeError> {
        self.apply_as(ModeChoice::Only(Mode::Detour))
    }

    fn apply_as(&self, choice: ModeChoice) -> Result<Applied, PokeError> {
        let sorted = self.sorted()?;
        // Handlers are installed below, under the lock. A constructor that waits for that has the dynamic linker's.
        stay_loaded()?;
        let domain = Domain::own()?;
        let mut state = domain.lock();
        if state.stuck {
            return Err(PokeError::Stuck(None));
        }
        finish_inherited(domain, &mut state)?;
        verify(&sorted.0, &sorted.1)?;
        let (sites, targets) = without_changeless(sorted);
        if sites.len() > MAX_SITES {
            return Err(PokeError::TooMany { sites: sites.len(), max: MAX_SITES });
        }
        let mode = choose(choice, &sites, &targets)?;
        let applied = match sites.is_empty() {
            true => Applied { mode, sites: 0, syncs: 0, writes: 0, traps_hit: 0 },
            false => run(domain, &mut state, &sites, &targets, mode)?,
        };
        tell(&sites, &targets);
        Ok(applied)
    }

    /// Returns the sites sorted by address. Fails if some overlap.
    fn sorted(&self) -> Result<Sorted<'_, 'p>, PokeError> {
        let (mut sites, mut targets) = (Cow::Borrowed(&self.sites[..]), Cow::Borrowed(&self.targets[..]));
        if !self.sites.is_sorted_by_key(|site| site.address) {
            let mut order: Vec<usize> = (0..self.sites.len()).collect();
            order.sort_unstable_by_key(|&index| self.sites[index].address);
            sites = order.iter().map(|&index| self.sites[index]).collect();
            targets = order.iter().map(|&index| self.targets[index]).collect();
        }
        match sites.windows(2).find(|pair| pair[0].end() > pair[1].address) {
            Some(pair) => Err(PokeError::Overlap { first: pair[0].address, second: pair[1].address }),
            None => Ok((sites, targets)),
        }
    }
}

/// Checks that every site holds what it should, and that this process may change it.
fn verify(sites: &[Site], targets: &[Target<'_>]) -> Result<(), PokeError> {
    for (site, target) in sites.iter().zip(targets) {
        if let Target::Program(program) = target
            && !program.is_of_this_process()
        {
            return Err(PokeError::Inherited { address: program.address() });
        }
        // SAFETY: a site lies in its program, which the batch borrows, or in readable text (the contract of `add_text`,
        // 1).
        let found = unsafe { read_code(site.address, site.size()) };
        if found != site.old {
            return Err(PokeError::Mismatch { address: site.address, expected: site.old, found });
        }
    }
    Ok(())
}

/// Reads `len` bytes of code.
///
/// # Safety
///
/// 1. The bytes are readable; there are at least one and at most [`MAX_SITE`](super::site::MAX_SITE).
unsafe fn read_code(address: usize, len: usize) -> Code {
    let mut bytes = [0; super::site::MAX_SITE];
    let source = std::ptr::with_exposed_provenance::<u8>(address);
    for (offset, byte) in bytes[..len].iter_mut().enumerate() {
        // SAFETY: in bounds (1).
        let at = unsafe { source.add(offset) };
        // Volatile: code is changed behind the compiler's back.
        // SAFETY: readable (1).
        *byte = unsafe { at.read_volatile() };
    }
    Code::new(&bytes[..len]).unwrap_or_else(|| unreachable!("a site of 1 to 15 bytes"))
}

/// Sites by address, and the target of each.
type Sorted<'b, 'p> = (Cow<'b, [Site]>, Cow<'b, [Target<'p>]>);

/// Removes sites that would not change.
fn without_changeless<'b, 'p>((sites, targets): Sorted<'b, 'p>) -> Sorted<'b, 'p> {
    if sites.iter().all(|site| site.old != site.new) {
        return (sites, targets);
    }
    let both = sites.iter().zip(targets.iter()).filter(|(site, _)| site.old != site.new);
    let (sites, targets): (Vec<_>, Vec<_>) = both.map(|(site, target)| (*site, *target)).unzip();
    (Cow::Owned(sites), Cow::Owned(targets))
}

/// Decides how to change the sites.
fn choose(choice: ModeChoice, sites: &[Site], targets: &[Target<'_>]) -> Result<Mode, PokeError> {
    let misfit = sites.iter().zip(targets).find(|(site, target)| !fits_single_store(site, target));
    let single_store = || match misfit {
        None => Ok(Mode::SingleStore),
        Some((site, _)) => Err(PokeError::NotSingleStore { address: site.address, len: site.size() }),
    };
    match choice {
        ModeChoice::Only(Mode::SingleStore) => return single_store(),
        ModeChoice::Only(Mode::Detour) if !arch::TRAPS => return single_store(),
        ModeChoice::Only(Mode::Detour) => return Ok(Mode::Detour),
        ModeChoice::Only(Mode::Trap) if !arch::TRAPS => return Err(PokeError::NoTraps),
        ModeChoice::Automatic if misfit.is_none() => return Ok(Mode::SingleStore),
        ModeChoice::Only(Mode::Held) | ModeChoice::Automatic => return Ok(Mode::Held),
        ModeChoice::Only(Mode::Trap) => {}
    }
    if let Some(site) = sites.iter().find(|site| site.action.is_none()) {
        return Err(PokeError::NotEmulated { address: site.address, new: site.new });
    }
    match who_blocks_traps().map_err(PokeError::Threads)? {
        None => Ok(Mode::Trap),
        Some(tid) => Err(PokeError::Blocked { tid }),
    }
}

/// Returns whether one store changes the site, by the way in which it is written.
fn fits_single_store(site: &Site, target: &Target<'_>) -> bool {
    let stored = arch::stored(site.size(), site.changed());
    let is_store = target.is_shared() || stored.len() == 1 || arch::TEXT_BY_SINGLE_STORE;
    is_store && arch::fits_single_store(site.address + stored.start, stored.len())
}

fn run(
    domain: &Domain,
    state: &mut State,
    sites: &[Site],
    targets: &[Target<'_>],
    mode: Mode,
) -> Result<Applied, PokeError> {
    let hit = traps_hit();
    if targets.iter().any(|target| matches!(target, Target::Text)) {
        let way = state.text.prepare()?;
        tracing::debug!(?way, "text is written");
        if let Some(refused) = state.text.take_refusal() {
            let refused = Causes(&refused);
            tracing::warn!(%refused, "text is written by exchanging its pages, which profilers then have no names for");
        }
    }
    let tables = match mode {
        Mode::Trap => {
            trap::install(claim)?;
            Some(domain.tables(state, sites.len())?)
        }
        Mode::SingleStore | Mode::Detour | Mode::Held => None,
    };
    let opened = Target::open(targets)?;
    let (writes, syncs, result) = {
        // SAFETY: 1. sorted together, checked by `add` or claimed by its caller, and verified; 2. claimed by the caller
        // of `add`;
        // 3. they are closed below.
        let machine = unsafe { UserMachine::new(tables, state, targets) };
        let result = match mode {
            Mode::Trap => {
                // On the heap as a whole: children read it when this thread's stack is another's.
                let in_flight = Box::new(sites.to_vec());
                domain.set_in_flight(Some(&*in_flight));
                let result = apply_by_traps(&machine, sites);
                match result {
                    // The table stays published, and so do the sites.
                    Err(Failed::Stuck(_)) => std::mem::forget(in_flight),
                    _ => domain.set_in_flight(None),
                }
                result
            }
            Mode::SingleStore => apply_by_single_stores(&machine, sites),
            Mode::Detour => apply_by_detours(&machine, sites, arch::DETOUR),
            Mode::Held => apply_while_held(&machine, sites),
        };
        let result = match result {
            Err(Failed::Partial(error)) => Err(take_back(&machine, sites, mode, error)),
            other => other,
        };
        (machine.writes.get(), machine.syncs.get(), result)
    };
    let closed = opened.into_iter().try_for_each(Opened::close);
    if let Err(error) = closed {
        tracing::warn!(%error, "the write view of a pack stays open until something else is written there");
    }
    match result {
        Ok(()) => Ok(Applied { mode, sites: sites.len(), syncs, writes, traps_hit: traps_hit().wrapping_sub(hit) }),
        Err(Failed::Undone(error)) => Err(error),
        Err(Failed::Partial(error)) => {
            let (changed, sites) = (changed(sites), sites.len());
            Err(PokeError::Partial { changed, sites, source: Box::new(error) })
        }
        Err(Failed::Unsynced(error)) => Err(PokeError::Unsynced(Box::new(error))),
        Err(Failed::Stuck(error)) => {
            state.stuck = true;
            Err(PokeError::Stuck(Some(Box::new(error))))
        }
    }
}

/// Takes back what a batch has changed before a store failed with `error`.
fn take_back(machine: &UserMachine<'_>, sites: &[Site], mode: Mode, error: PokeError) -> Failed<PokeError> {
    if changed(sites) == 0 {
        return Failed::Undone(error);
    }
    let back: Vec<Site> = sites.iter().map(Site::reversed).collect();
    // It fails where the batch has failed, behind what it takes back: the bytes tell whether that was all.
    let taken_back = match mode {
        Mode::Held => apply_while_held(machine, &back),
        _ => apply_by_single_stores(machine, &back),
    };
    if let Err(Failed::Undone(error) | Failed::Partial(error) | Failed::Unsynced(error)) = taken_back {
        tracing::debug!(%error, "sites are taken back until a store fails");
    }
    match changed(sites) == 0 && machine.sync_cores().is_ok() {
        true => Failed::Undone(error),
        false => Failed::Partial(error),
    }
}

/// Returns how many sites do not hold the old code.
fn changed(sites: &[Site]) -> usize {
    // SAFETY: 1. `verify` has read them.
    sites.iter().filter(|site| unsafe { read_code(site.address, site.size()) } != site.old).count()
}

/// Finishes the batch that was under way in the parent when this process was forked: sites that trap get the code that
/// they behave as.
fn finish_inherited(domain: &Domain, state: &mut State) -> Result<(), PokeError> {
    let mut sites = domain.inherited();
    sites.retain(|site| is_trap(site.address));
    if !sites.is_empty() {
        let targets = vec![Target::Text; sites.len()];
        // Whether the parent had stored a tail is unknown; storing it again does no harm.
        run(domain, state, &sites, &targets, Mode::Trap)?;
    }
    domain.forget_inherited();
    Ok(())
}

/// Tells the log and the observers of the programs.
fn tell(sites: &[Site], targets: &[Target<'_>]) {
    if let Some(log) = log::current() {
        let time = Instant::now();
        let record = |site: &Site| PatchRecord { address: site.address, old: site.old, new: site.new, time };
        log(&sites.iter().map(record).collect::<Vec<_>>());
    }
    let mut rest = (sites, targets);
    while let (Some(first), Some(target)) = (rest.0.first(), rest.1.first()) {
        let mut count = 1;
        if let Target::Program(program) = target {
            let end = program.address().get() + program.len();
            debug_assert!(first.address < end);
            count = rest.0.iter().take_while(|site| site.address < end).count();
            program.tell_patched(&rest.0[..count]);
        }
        rest = (&rest.0[count..], &rest.1[count..]);
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("sites", &self.sites).finish_non_exhaustive()
    }
}
