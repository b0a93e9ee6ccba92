//! Modules: objects that are loaded while the kernel runs, on every node, and unloaded.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use palimpsest_bpf::host::Host;
use palimpsest_module::{LinkError, ReadError, RelocationFault, SectionFault};
use palimpsest_paging::{AccessKind, ChangeError, PAGE, Rights, VirtAddr};
use palimpsest_text::poke::arch::TRAP;

use super::breakpoints::copies_with;
use super::programs::{contract, load as load_program, on_every_cpu, store_value, verified};
use crate::arch::{cpu as hardware, mmu, ordinary};
use crate::bpf::hook::{self, Attached, WORDS};
use crate::breakpoints::{Probe, bytes_at, hits};
use crate::counts::now;
use crate::cpu::{self, CPUS};
use crate::kernel_text_writer::{Copies, KernelTextWriter};
use crate::memory::{self, NODES, alias, node_of};
use crate::modules::{self, Kind, LoadError, Module, UnloadError};
use crate::{check, kernel_space, key, packs, probe, say};

/// A module, as `build.rs` has compiled it.
static COUNTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/counter.o"));
/// One that needs it.
static CALLER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/caller.o"));

/// How often the key is switched while other CPUs run modules.
const TURNS: usize = 4;
/// How many damaged objects are loaded.
const DAMAGED: u64 = 300;

fn handle(name: &str) -> Arc<Module> {
    modules::get(name).unwrap_or_else(|| panic!("{name} is loaded"))
}

fn done<E: core::fmt::Debug>(result: Result<(), E>) {
    result.unwrap_or_else(|error| panic!("{error:?}"));
}

/// Chunks that modules and programs have.
fn taken() -> (u32, u32) {
    packs::reclaim();
    (packs::taken(), modules::taken())
}

pub(super) fn run() {
    let before = (taken(), memory::in_use());
    let undefined = LoadError::Link(LinkError::Undefined("counter_call".into()));
    check::equal("module.undefined", modules::load("caller", CALLER), Err(undefined));
    check::equal("module.unknown", modules::unload("counter"), Err(UnloadError::Unknown));
    let counts = now();
    check::equal("module.load", modules::load("counter", COUNTER), Ok(()));
    let counts = counts.since();
    say!("module.load.ipis-per-cpu {}", counts.sync_calls / (CPUS as u64 - 1));
    check::equal(
        "module.load.costs",
        (counts.sync_calls, counts.code_flushes, counts.flushes),
        (CPUS as u64 - 1, 1, 0),
    );
    check::equal("module.twice", modules::load("counter", COUNTER), Err(LoadError::Loaded));
    check::equal("module.taken", matches!(modules::load("again", COUNTER), Err(LoadError::Taken(_))), true);
    calls();
    places();
    rights();
    rights_that_change();
    probed();
    check::equal("module.needs", modules::load("caller", CALLER), Ok(()));
    check::equal("module.needed", modules::unload("counter"), Err(UnloadError::InUse { handles: 1 }));
    keys();
    switched_under_load();
    check::equal("module.unload.caller", modules::unload("caller"), Ok(()));
    while_another_cpu_is_inside();
    unloaded();
    hostile();
    check::equal("module.leaks", (taken(), memory::in_use()), before);
    check::equal("module.sites", key::sites(), key::own_sites().to_vec());
}

/// Functions of the module run on every CPU, call the kernel, and are called by it.
fn calls() {
    fn call(cpu: usize) {
        let counter = handle("counter");
        // One call of each of the four functions that the module's table leads to.
        let results = core::array::from_fn(|step| counter.call("counter_call", (cpu as u64 + 2) << 2 | step as u64));
        let value = cpu as u64 + 2;
        let should = [2 * value, value * value, !value, [2, 3, 5, 7, 11, 13, 17, 19][cpu + 2]];
        store_value(cpu, u64::from(results == should));
    }
    let noted = modules::noted();
    check::equal("module.calls", on_every_cpu(call), [1; CPUS]);
    let counter = handle("counter");
    check::equal("module.data", counter.call("counter_calls", 0), 100 + 4 * CPUS as u64);
    let last: [u64; CPUS] = core::array::from_fn(|cpu| counter.call("counter_last", cpu as u64));
    check::equal("module.calls.cpus", last, core::array::from_fn(|cpu| (cpu as u64 + 2) << 2 | 3));
    let sum: u64 = (0..CPUS as u64).map(|cpu| 4 * ((cpu + 2) << 2) + 6).sum();
    check::equal("module.calls.kernel", modules::noted() - noted, sum);
}

/// Every CPU runs the code and reads the constants of its own node; the data are the same for all.
fn places() {
    fn find(cpu: usize) {
        let counter = handle("counter");
        let root = mmu::loaded_kernel_root();
        let node = cpu::node_of(cpu);
        let of = |address| kernel_space::walk(root, VirtAddr(address)).map(node_of);
        let constant = counter.call("counter_constant", 0);
        let [constants, data] = counter.rooms();
        let is_local = [counter.code().start, constant, constants].map(of) == [Some(node); 3];
        store_value(cpu, u64::from(is_local && of(data).is_some_and(|node| node.0 == 0)));
    }
    check::equal("module.local", on_every_cpu(find), [1; CPUS]);
    let counter = handle("counter");
    let bytes = |address: u64| {
        kernel_space::copies(VirtAddr(address)).map(|copy| {
            // SAFETY: a chunk of a copy, which nobody writes now.
            unsafe { core::slice::from_raw_parts(alias(copy), packs::CHUNK) }
        })
    };
    for (name, address, copies) in [
        ("module.copies.code", counter.code().start, NODES),
        ("module.copies.constants", counter.call("counter_constant", 0), NODES),
        ("module.copies.data", counter.rooms()[1], 1),
    ] {
        let all: Vec<&[u8]> = bytes(address).collect();
        check::equal(name, (all.len(), all.iter().all(|copy| copy == &all[0])), (copies, true));
    }
}

/// What may be written cannot be run, and the reverse.
fn rights() {
    let counter = handle("counter");
    let code = VirtAddr(counter.export("counter_one").unwrap_or_else(|| panic!("it is exported")));
    let [constants, data] = counter.rooms().map(VirtAddr);
    // Data that no module has, at the end of their page.
    let scratch = VirtAddr(modules::range(Kind::Data).end.0 - 8);
    for (name, address, access, should) in [
        ("module.code.store", code, AccessKind::Write, false),
        ("module.code.fetch", code, AccessKind::Execute, true),
        ("module.constants.load", constants, AccessKind::Read, true),
        ("module.constants.store", constants, AccessKind::Write, false),
        ("module.constants.fetch", constants, AccessKind::Execute, false),
        ("module.data.store", scratch, AccessKind::Write, true),
        ("module.data.fetch", data, AccessKind::Execute, false),
    ] {
        // SAFETY: 1. stores are refused, or go where nothing is; what can be fetched is a function that returns 1, or
        // nothing.
        let passed = unsafe { probe::passes(address, access) };
        check::equal(name, passed, should);
    }
}

/// Rights of a module's replicas can change while it is loaded, on every node: of whole large pages, since a replicated
/// one is not split.
fn rights_that_change() {
    let counter = handle("counter");
    let code = counter.export("counter_one").unwrap_or_else(|| panic!("it is exported"));
    let (run, read, bytes) = (Rights::READ | Rights::EXECUTE, Rights::READ, packs::PACK as u64);
    for (name, address, access, rights) in [
        ("module.rights.code", code, AccessKind::Execute, [read, run]),
        ("module.rights.constants", counter.rooms()[0], AccessKind::Read, [Rights::empty(), read]),
    ] {
        let start = address / bytes * bytes;
        let seen = rights.map(|rights| {
            // SAFETY: 1. nothing runs or reads there meanwhile except what follows: no program is in the packs, and no
            // other CPU calls a module.
            let set = unsafe { kernel_space::get().protect_kernel(VirtAddr(start)..VirtAddr(start + bytes), rights) };
            match set {
                Ok(flush) => flush.finish(),
                Err(error) => panic!("{error}"),
            }
            passes_everywhere(VirtAddr(address), access)
        });
        check::equal(name, seen, [[0; CPUS], [1; CPUS]]);
    }
    check::equal("module.rights.calls", counter.call("counter_one", 0), 1);
    let part = VirtAddr(code / PAGE * PAGE)..VirtAddr(code / PAGE * PAGE + PAGE);
    // SAFETY: 1. it is refused, or the check fails.
    let refused = unsafe { kernel_space::get().protect_kernel(part, read) }.err();
    let is = matches!(refused, Some(ChangeError::Replicated { .. }));
    check::holds("module.rights.part", is, format_args!("{refused:?}"));
}

/// Returns for each CPU whether the kernel may do this there.
fn passes_everywhere(address: VirtAddr, access: AccessKind) -> [u64; CPUS] {
    static AT: AtomicU64 = AtomicU64::new(0);
    static EXECUTES: AtomicBool = AtomicBool::new(false);
    fn try_it(cpu: usize) {
        // Relaxed: the work's lock, and the wait for it, order these.
        let executes = EXECUTES.load(Ordering::Relaxed);
        let access = if executes { AccessKind::Execute } else { AccessKind::Read };
        // SAFETY: 1. no store; what is run is a function that returns 1.
        let passed = unsafe { probe::passes(VirtAddr(AT.load(Ordering::Relaxed)), access) };
        store_value(cpu, passed.into());
    }
    AT.store(address.0, Ordering::Relaxed);
    EXECUTES.store(access == AccessKind::Execute, Ordering::Relaxed);
    on_every_cpu(try_it)
}

/// A probe at an ordinary instruction of a module is in every node's copy, runs what it has replaced on each CPU from
/// its own node, and keeps the module loaded.
fn probed() {
    fn call(cpu: usize) {
        store_value(cpu, handle("counter").call("counter_call", (cpu as u64) << 2 | 2));
    }
    fn find(cpu: usize) {
        // Relaxed: the work's lock orders it.
        let aside = VirtAddr(ASIDE.load(Ordering::Relaxed));
        let place = kernel_space::walk(mmu::loaded_kernel_root(), aside).map(node_of);
        store_value(cpu, u64::from(place == Some(cpu::node_of(cpu))));
    }
    static ASIDE: AtomicU64 = AtomicU64::new(0);
    let writer = KernelTextWriter { copies: Copies::All };
    let counter = handle("counter");
    let entry = counter.export("counter_call").unwrap_or_else(|| panic!("it is exported")) as usize;
    let should: [u64; CPUS] = core::array::from_fn(|cpu| !(cpu as u64));
    check::equal("module.probe.before", on_every_cpu(call), should);
    let address = first_ordinary(entry);
    say!("# the probed instruction of the module is {} bytes behind its function's entry", address - entry);
    let probe = Probe::set(&writer, address, Some(counter)).unwrap_or_else(|refused| panic!("{refused:?}"));
    check::equal("module.probe.copies", copies_with(address, TRAP), (NODES, NODES));
    ASIDE.store(probe.aside().0, Ordering::Relaxed);
    check::equal("module.probe.local", on_every_cpu(find), [1; CPUS]);
    let before = hits();
    let results = on_every_cpu(call);
    let hit: [u64; CPUS] = core::array::from_fn(|cpu| hits()[cpu] - before[cpu]);
    check::equal("module.probe.runs", (results, hit), (should, [1; CPUS]));
    check::equal("module.probe.holds", modules::unload("counter"), Err(UnloadError::InUse { handles: 1 }));
    done(probe.remove(&writer));
    check::equal("module.probe.gone", (copies_with(address, TRAP).0, on_every_cpu(call)), (0, should));
    packs::reclaim();
}

/// Returns where the first instruction is that can be probed, from the entry of a function on.
fn first_ordinary(entry: usize) -> usize {
    let is_ordinary = |address: &usize| {
        let code = bytes_at::<15>(*address).unwrap_or_else(|unmapped| panic!("{unmapped:?}"));
        ordinary(&code).is_some()
    };
    // A landing pad may come first: `endbr64` or `bti c`, of 4 bytes.
    [entry, entry + 4].into_iter().find(is_ordinary).unwrap_or_else(|| panic!("no such instruction at {entry:#x}"))
}

/// Attaches a program that lets every call pass, and so switches the key.
fn attach() -> Attached {
    let host = Host::builder().build();
    let program = Arc::new(load_program(verified(&host, contract(WORDS), "r0 = 0\nexit")));
    hook::attach(0, program).unwrap_or_else(|error| panic!("{error:?}"))
}

/// Returns what the sites of both modules say on each CPU: 3 if the key is on.
fn asked() -> [u64; CPUS] {
    fn ask(cpu: usize) {
        let of_caller = modules::get("caller").map_or(0, |caller| caller.call("caller_call", 0) & 1);
        store_value(cpu, handle("counter").call("counter_asked", 0) << 1 | of_caller);
    }
    on_every_cpu(ask)
}

/// Returns whether all copies of all modules' sites are switched on, or off.
fn sites_are(on: bool) -> bool {
    key::sites()[key::own_sites().len()..].iter().all(|site| {
        site.bytes(on).into_iter().zip(site.address as u64..).all(|(byte, address)| {
            // SAFETY: bytes of a module's code, in every copy. Volatile: they change.
            let is = |copy| unsafe { alias(copy).read_volatile() } == byte;
            kernel_space::copies(VirtAddr(address)).all(is)
        })
    })
}

/// Sites of the kernel's key in modules are switched with it, in every copy, and a module that is loaded while the key
/// is on has its sites on.
fn keys() {
    let own = key::own_sites().len();
    check::equal("module.key.sites", key::sites().len(), own + 2);
    check::equal("module.key.off", (asked(), sites_are(false)), ([0; CPUS], true));
    let calls = now();
    let attached = attach();
    // As many as for the kernel's own sites alone.
    check::equal("module.key.ipis", calls.since().sync_calls, 2 * (CPUS as u64 - 1));
    check::equal("module.key.on", (asked(), sites_are(true)), ([3; CPUS], true));
    done(modules::unload("caller"));
    check::equal("module.key.gone", (key::sites().len(), asked()), (own + 1, [2; CPUS]));
    done(modules::load("caller", CALLER));
    check::equal("module.key.loaded-on", (asked(), sites_are(true)), ([3; CPUS], true));
    hook::detach(attached);
    check::equal("module.key.off-again", (asked(), sites_are(false)), ([0; CPUS], true));
}

/// The key is switched while other CPUs run modules all the time: each of them sees each change.
fn switched_under_load() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static SEEN: [[AtomicU64; 2]; CPUS] = [const { [const { AtomicU64::new(0) }; 2] }; CPUS];
    fn runner(cpu: usize) {
        let counter = handle("counter");
        hardware::with_interrupts(|| {
            // Relaxed: a request to stop.
            while !STOP.load(Ordering::Relaxed) {
                let is_on = counter.call("counter_asked", 0) as usize & 1;
                // Relaxed: counts.
                SEEN[cpu][is_on].fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    STOP.store(false, Ordering::Relaxed);
    (1..CPUS).for_each(|cpu| cpu::give(cpu, runner));
    let wait_until_all_see = |is_on: usize| {
        let seen = || -> [u64; CPUS] { core::array::from_fn(|cpu| SEEN[cpu][is_on].load(Ordering::Relaxed)) };
        let before = seen();
        while seen().iter().zip(&before).skip(1).any(|(now, before)| now == before) {
            cpu::relax();
        }
    };
    let mut wrong = 0;
    for _ in 0..TURNS {
        let attached = attach();
        wait_until_all_see(1);
        hook::detach(attached);
        wait_until_all_see(0);
        // A run that has begun before the key was off may still be counted: one for each CPU.
        let on = |cpu: usize| SEEN[cpu][1].load(Ordering::Relaxed);
        let before: [u64; CPUS] = core::array::from_fn(on);
        wait_until_all_see(0);
        wrong += (1..CPUS).filter(|&cpu| on(cpu) > before[cpu] + 1).count();
    }
    STOP.store(true, Ordering::Relaxed);
    cpu::wait_for_work();
    check::equal("module.key.under-load", wrong, 0);
}

/// A module that another CPU is inside is not unloaded, and can be once that CPU has left.
fn while_another_cpu_is_inside() {
    static RESULT: AtomicU64 = AtomicU64::new(0);
    static INSIDE: AtomicBool = AtomicBool::new(false);
    fn stay(_: usize) {
        let counter = handle("counter");
        // Release, partner: the Acquire below: the handle is there.
        INSIDE.store(true, Ordering::Release);
        hardware::with_interrupts(|| RESULT.store(counter.call("counter_stay", 77), Ordering::Relaxed));
    }
    handle("counter").call("counter_hold", 1);
    cpu::give(1, stay);
    while !INSIDE.load(Ordering::Acquire) {
        cpu::relax();
    }
    let refused = modules::unload("counter");
    check::equal("module.unload.in-use", refused, Err(UnloadError::InUse { handles: 1 }));
    check::equal("module.unload.in-use.runs", handle("counter").call("counter_asked", 0), 0);
    handle("counter").call("counter_hold", 0);
    cpu::wait_for_work();
    check::equal("module.unload.left", RESULT.load(Ordering::Relaxed), 77);
}

/// Unloading calls every CPU once, and leaves traps and zeros.
fn unloaded() {
    static ENTRY: AtomicU64 = AtomicU64::new(0);
    fn call(cpu: usize) {
        // Relaxed: the work's lock orders it.
        let entry = VirtAddr(ENTRY.load(Ordering::Relaxed));
        // SAFETY: 1. a function that returns 1, or a trap.
        store_value(cpu, unsafe { probe::passes(entry, AccessKind::Execute) }.into());
    }
    let counter = handle("counter");
    let (code, [constants, data]) = (counter.code(), counter.rooms());
    ENTRY.store(counter.export("counter_one").unwrap_or(0), Ordering::Relaxed);
    drop(counter);
    check::equal("module.unload.before", on_every_cpu(call), [1; CPUS]);
    let before = now();
    check::equal("module.unload", modules::unload("counter"), Ok(()));
    check::equal("module.unload.ipis", before.since().sync_calls, CPUS as u64 - 1);
    check::equal("module.unload.traps", on_every_cpu(call), [0; CPUS]);
    let is_filled = |range: core::ops::Range<u64>, with: &[u8]| {
        range.zip(with.iter().cycle()).all(|(address, byte)| {
            kernel_space::copies(VirtAddr(address)).all(|copy| {
                // SAFETY: a byte of a copy, which nobody writes now.
                let is = unsafe { alias(copy).read_volatile() };
                is == *byte
            })
        })
    };
    let chunk = packs::CHUNK as u64;
    let filled =
        [is_filled(code, TRAP), is_filled(constants..constants + chunk, &[0]), is_filled(data..data + chunk, &[0])];
    check::equal("module.unload.filled", filled, [true; 3]);
    check::equal("module.unload.again", modules::unload("counter"), Err(UnloadError::Unknown));
}

/// Fields of an object's section headers: System V ABI, "Sections".
struct Headers<'a>(&'a mut [u8]);

impl Headers<'_> {
    const BYTES: usize = 64;
    const FLAGS: usize = 8;
    const OFFSET: usize = 24;
    const SIZE: usize = 32;
    const INFO: usize = 44;

    fn word<const N: usize>(&self, at: usize) -> u64 {
        (0..N).map(|index| u64::from(self.0[at + index]) << (8 * index)).sum()
    }

    fn count(&self) -> usize {
        self.word::<2>(60) as usize
    }

    fn at(&self, index: usize) -> usize {
        self.word::<8>(40) as usize + index * Self::BYTES
    }

    fn kind(&self, index: usize) -> u64 {
        self.word::<4>(self.at(index) + 4)
    }

    fn flags(&self, index: usize) -> u64 {
        self.word::<8>(self.at(index) + Self::FLAGS)
    }

    fn set(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn find(&self, is_it: impl Fn(&Self, usize) -> bool) -> usize {
        (1..self.count()).find(|&index| is_it(self, index)).unwrap_or_else(|| panic!("there is such a section"))
    }

    /// Returns the first section of code that has bytes.
    fn code(&self) -> usize {
        self.find(|all, index| all.flags(index) & 4 != 0 && all.word::<8>(all.at(index) + Self::SIZE) > 0)
    }

    /// Returns where the first relocation of a section with these flags is.
    fn relocation(&self, flags: u64) -> usize {
        let of = |all: &Self, index: usize| all.flags(all.word::<4>(all.at(index) + Self::INFO) as usize);
        let index = self.find(|all, index| all.kind(index) == 4 && of(all, index) & 7 == flags);
        self.word::<8>(self.at(index) + Self::OFFSET) as usize
    }
}

/// What is damaged is refused, whatever the damage, and leaves nothing behind.
fn hostile() {
    let before = taken();
    let load = |damage: &dyn Fn(&mut Headers<'_>)| {
        let mut bytes = COUNTER.to_vec();
        damage(&mut Headers(&mut bytes));
        modules::load("damaged", &bytes)
    };
    /// Flags: writable, loaded, code.
    const CODE: u64 = 6;
    const DATA: u64 = 3;
    let section = load(&|all| all.set(all.at(all.code()) + Headers::FLAGS, 7));
    let is = matches!(section, Err(LoadError::Read(ReadError::Section { fault: SectionFault::WritableCode, .. })));
    check::holds("module.hostile.writable-code", is, format_args!("{section:?}"));
    let outside = load(&|all| all.set(all.at(all.code()) + Headers::OFFSET, COUNTER.len() as u64));
    let is = matches!(outside, Err(LoadError::Read(ReadError::Section { fault: SectionFault::Outside, .. })));
    check::holds("module.hostile.section", is, format_args!("{outside:?}"));
    let huge = load(&|all| {
        let index = all.find(|all, index| all.kind(index) == 8 && all.flags(index) & 7 == DATA);
        all.set(all.at(index) + Headers::SIZE, u64::MAX - 7);
    });
    check::holds(
        "module.hostile.size",
        matches!(huge, Err(LoadError::Read(ReadError::Large { .. }))),
        format_args!("{huge:?}"),
    );
    let beyond = load(&|all| all.set(all.relocation(CODE), u64::MAX - 2));
    let is = matches!(beyond, Err(LoadError::Read(ReadError::Relocation { fault: RelocationFault::Outside, .. })));
    check::holds("module.hostile.relocation", is, format_args!("{beyond:?}"));
    let kind = load(&|all| {
        let at = all.relocation(CODE) + 8;
        all.0[at] = 0xfe;
    });
    let is = matches!(kind, Err(LoadError::Read(ReadError::Relocation { fault: RelocationFault::Type(_), .. })));
    check::holds("module.hostile.type", is, format_args!("{kind:?}"));
    let far = load(&|all| all.set(all.relocation(CODE) + 16, 1 << 40));
    let is = matches!(far, Err(LoadError::Link(LinkError::Misfit { .. }) | LoadError::Read(_)));
    check::holds("module.hostile.addend", is, format_args!("{far:?}"));
    // The first relocation of what is loaded and writable is that of an entry of `.key_sites`, or of another address.
    let text: alloc::string::String = format!("{:?}", load(&|all| key_site(all)));
    check::holds("module.hostile.key-site", text.starts_with("Err(Site("), format_args!("{text}"));
    let cut = (0..COUNTER.len()).step_by(97).filter(|&len| modules::load("cut", &COUNTER[..len]).is_ok()).count();
    check::equal("module.hostile.cut", cut, 0);
    let mut loaded = 0;
    for seed in 0..DAMAGED {
        let mut bytes = COUNTER.to_vec();
        // Numbers that are as good as random here.
        let mut state = seed;
        for _ in 0..1 + seed % 4 {
            state = (state + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] ^= (state >> 24) as u8 | 1;
        }
        if modules::load("damaged", &bytes).is_ok() {
            loaded += 1;
            done(modules::unload("damaged"));
        }
    }
    say!("# of {DAMAGED} damaged modules {loaded} could be loaded: their code or data was changed");
    check::equal("module.hostile.leaks", taken(), before);
}

/// Makes the entry of a site lead to the byte behind the site.
fn key_site(all: &mut Headers<'_>) {
    let sites = all.find(|all, index| {
        let changed = all.word::<4>(all.at(index) + Headers::INFO) as usize;
        // Two words, each with a relocation: the only such section.
        all.kind(index) == 4
            && all.flags(changed) & 7 == 3
            && all.word::<8>(all.at(changed) + Headers::SIZE) == key::ENTRY as u64
            && all.word::<8>(all.at(index) + Headers::SIZE) == 48
    });
    let addend = all.word::<8>(all.at(sites) + Headers::OFFSET) as usize + 16;
    all.set(addend, all.word::<8>(addend) + 1);
}
