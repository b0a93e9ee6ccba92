//! Programs in the kernel: packs and their rights, maps and helpers, loads that may fault, and many programs loaded
//! and freed.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use palimpsest_bpf::host::{Host, Linked};
use palimpsest_bpf::interp::{HelperError, Interpreter};
use palimpsest_bpf::jit::{Target, compile};
use palimpsest_bpf::map::{Definition, Kind, Map};
use palimpsest_bpf::verify::{ContextAccess, Contract, Signature, Trust, Unproven};
use palimpsest_bpf::{Code, asm};
use palimpsest_paging::{AccessKind, VirtAddr};

use crate::arch::{cpu as hardware, layout, mmu};
use crate::asked::{self, Asked};
use crate::bpf::{Ended, Program};
use crate::counts::now;
use crate::cpu::{self, CPUS};
use crate::memory::{self, NODES, alias};
use crate::modules;
use crate::packs::{self, PACK};
use crate::{check, kernel_space, probe, say};

/// Creates a map for programs; a per-CPU map has a value for each CPU of this machine.
pub(super) fn map(name: &str, kind: Kind, key: u32, value: u32, entries: u32) -> Arc<Map> {
    let definition = Definition { cpus: Some(CPUS as u32), ..Definition::new(name, kind, key, value, entries) };
    Arc::new(Map::new(definition).unwrap_or_else(|error| panic!("{error}")))
}

/// Assembles and verifies a program.
pub(super) fn verified(host: &Arc<Host>, contract: Contract, text: &str) -> Linked {
    let bytes = asm::assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let code = Code::new(&bytes).unwrap_or_else(|error| panic!("{error}\n{text}"));
    host.verify(contract, code).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub(super) fn load(linked: Linked) -> Program {
    Program::load(linked).unwrap_or_else(|error| panic!("{error:?}"))
}

/// Creates a contract with `words` words of read-only context.
pub(super) fn contract(words: usize) -> Contract {
    Contract::new().context(words as u32 * 8, ContextAccess::Read).budget(50_000)
}

/// Returns a number in a map, as `cpu` sees it.
pub(super) fn number(map: &Map, key: u64, cpu: usize) -> u64 {
    let mut value = [0; 8];
    let key = &key.to_le_bytes()[..map.definition().key_len as usize];
    match map.read(key, cpu as u32, &mut value) {
        Ok(()) => u64::from_le_bytes(value),
        Err(_) => 0,
    }
}

/// Returns code that adds one to the number with key `r6` in the map with this index; jumps to `out` if there is none.
pub(super) fn count_in(index: usize) -> String {
    format!(
        "*(u32 *)(r10 - 4) = r6\nr1 = map[idx:{index}] ll\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\n\
         r1 = 1\nlock *(u64 *)(r0 + 0) += r1\n"
    )
}

static VALUES: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];

/// Returns what `work` leaves in [`VALUES`] on each CPU.
pub(super) fn on_every_cpu(work: cpu::Work) -> [u64; CPUS] {
    (1..CPUS).for_each(|cpu| cpu::give(cpu, work));
    work(hardware::number());
    cpu::wait_for_work();
    // Relaxed: `wait_for_work` orders it.
    core::array::from_fn(|cpu| VALUES[cpu].load(Ordering::Relaxed))
}

/// Leaves a CPU's value for [`on_every_cpu`].
pub(super) fn store_value(cpu: usize, value: u64) {
    // Relaxed: `wait_for_work` orders it.
    VALUES[cpu].store(value, Ordering::Relaxed);
}

pub(super) fn run() {
    replicas();
    let host = Host::builder().build();
    compilers(&host);
    rights(&host);
    maps();
    probes(&host);
    freed(&host);
    many(&host);
    loads(&host);
    check::equal("bpf.leaks", (packs::reclaim(), packs::taken()).1, 0);
    check::equal("bpf.traps", packs::first_that_is_no_trap(), None);
}

/// Each node runs its own copy of the packs, and of the constants beside them.
fn replicas() {
    let range = packs::range().start..modules::range(modules::Kind::Constants).end;
    let replicated = kernel_space::get().replicate(range.clone()).map(|(done, flush)| {
        flush.finish();
        (done.pages, done.single, done.tables)
    });
    let pages = (range.end.0 - range.start.0) as usize / PACK;
    // The tables are the image's, which has replicas already.
    check::equal("bpf.replicas", replicated, Ok((pages * (NODES - 1), 0, 0)));
    fn find(cpu: usize) {
        let place = kernel_space::walk(mmu::loaded_kernel_root(), VirtAddr(layout::PACKS));
        // Relaxed: `wait_for_work` orders it.
        VALUES[cpu].store(place.map_or(u64::MAX, |place| memory::node_of(place).0.into()), Ordering::Relaxed);
    }
    check::equal("bpf.replicas.local", on_every_cpu(find), core::array::from_fn(|cpu| cpu::node_of(cpu).0.into()));
}

/// A program, and the code that each compiler makes of it: the listings that tests on every host compare with too.
const PROGRAM: &str = include_str!("../../../../crates/bpf/src/jit/golden/program.bpf");
const LISTINGS: [(Target, &str); 2] = [
    (Target::X86_64, include_str!("../../../../crates/bpf/src/jit/golden/x86_64.txt")),
    (Target::Aarch64, include_str!("../../../../crates/bpf/src/jit/golden/aarch64.txt")),
];

/// Both compilers make here the same code as everywhere, and the code for this machine computes what the interpreter
/// does.
fn compilers(host: &Arc<Host>) {
    let bytes = asm::assemble(PROGRAM).unwrap_or_else(|error| panic!("{error}"));
    let code = Code::new(&bytes).unwrap_or_else(|error| panic!("{error}"));
    for (name, (target, listing)) in ["bpf.compiler.x86-64", "bpf.compiler.aarch64"].into_iter().zip(LISTINGS) {
        let compiled = compile(&code, target, &()).unwrap_or_else(|error| panic!("{error}"));
        let is: String = compiled.bytes()[..compiled.code_len()].iter().map(|byte| format!("{byte:02x}")).collect();
        // The code stands behind each instruction.
        let should: String = listing.lines().filter_map(|line| line.split_whitespace().next_back()).collect();
        check::equal(name, is, should);
    }
    let context = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
    let text = "r6 = *(u64 *)(r1 + 0)\nr7 = *(s16 *)(r1 + 8)\n*(u64 *)(r10 - 8) = r6\nr0 = 0\nr2 = 10\n\
                again: r0 += r6\nw0 s>>= 3\nr0 ^= r7\nr6 *= 7\nr6 %= r2\nr2 += -1\nif r2 != 0 goto again\n\
                r1 = *(u32 *)(r10 - 6)\nlock *(u64 *)(r10 - 8) += r0\nr2 = *(u64 *)(r10 - 8)\nr2 = bswap64 r2\n\
                r0 += r1\nr0 ^= r2\nexit";
    let linked = verified(host, contract(2), text);
    let mut bytes: Vec<u8> = context.into_iter().flat_map(u64::to_le_bytes).collect();
    let interpreted = linked.interpret(&Interpreter::default(), &mut bytes);
    check::equal("bpf.interpreted", load(linked).run(&context).ok(), interpreted.ok());
}

fn rights(host: &Arc<Host>) {
    let before = now();
    let program = load(verified(host, contract(0), "r0 = 1\nexit"));
    check::equal("bpf.run", program.run(&[]), Ok(1));
    check::equal("bpf.load.code-flushes", before.since().code_flushes, 1);
    let entry = program.entry();
    let written: Vec<u64> = kernel_space::copies(entry).map(|copy| alias(copy) as u64).collect();
    check::equal("bpf.copies", written.len(), NODES);
    // SAFETY: 1. the store faults, or the check fails; fetched code returns 1.
    let [store, fetch] = [AccessKind::Write, AccessKind::Execute].map(|access| unsafe { probe::passes(entry, access) });
    check::equal("bpf.pack.store", store, false);
    check::equal("bpf.pack.fetch", fetch, true);
    // SAFETY: 1. as above: the same bytes, at the addresses through which they are written.
    let fetched = written.iter().any(|copy| unsafe { probe::passes(VirtAddr(*copy), AccessKind::Execute) });
    check::equal("bpf.pack.alias.fetch", fetched, false);
}

static SHARED: crate::sync::SpinLock<Option<Arc<Program>>> = crate::sync::SpinLock::new(None);

/// Runs the program in [`SHARED`] many times, with the CPU's number as argument.
fn run_shared(cpu: usize) {
    let program = SHARED.lock().clone().unwrap_or_else(|| panic!("a program is there"));
    let sum = (0..ROUNDS).map(|_| program.run(&[cpu as u64]).unwrap_or(1 << 32)).sum();
    // Relaxed: `wait_for_work` orders it.
    VALUES[cpu].store(sum, Ordering::Relaxed);
}

const ROUNDS: u64 = 500;

/// Tests maps and helpers with programs that run on all CPUs at the same time.
fn maps() {
    let maps = [
        map("array", Kind::Array, 4, 8, 8),
        map("of CPUs", Kind::PerCpuArray, 4, 8, 8),
        map("hash", Kind::Hash, 8, 8, 8),
        map("records", Kind::RingBuffer, 0, 0, 4096),
    ];
    let host = maps.iter().cloned().fold(Host::builder(), |host, map| host.map(map));
    let host = host.helper(900, Signature::new([]), |_| Err(HelperError::Exit(5))).build();
    // The array is changed by atomic operations, the per-CPU array by a load and a store, which nothing interrupts.
    let text = format!(
        "r6 = *(u64 *)(r1 + 0)\nr7 = r6\nr6 = 3\n{}r6 = 3\n*(u32 *)(r10 - 4) = r6\nr1 = map[idx:1] ll\nr2 = r10\n\
         r2 += -4\ncall 1\nif r0 == 0 goto out\nr1 = *(u64 *)(r0 + 0)\nr1 += 1\n*(u64 *)(r0 + 0) = r1\n\
         *(u64 *)(r10 - 16) = r7\nr7 += 1\n*(u64 *)(r10 - 24) = r7\nr1 = map[idx:2] ll\nr2 = r10\nr2 += -16\n\
         r3 = r10\nr3 += -24\nr4 = 0\ncall 2\nif r0 != 0 goto out\nr0 = 1\nexit\nout: r0 = 0\nexit",
        count_in(0)
    );
    *SHARED.lock() = Some(Arc::new(load(verified(&host, contract(1), &text))));
    let values = on_every_cpu(run_shared);
    *SHARED.lock() = None;
    check::equal("bpf.maps.results", values, [ROUNDS; CPUS]);
    let per_cpu: [u64; CPUS] = core::array::from_fn(|cpu| number(&maps[1], 3, cpu));
    let hashed: [u64; CPUS] = core::array::from_fn(|cpu| number(&maps[2], cpu as u64, 0));
    check::equal("bpf.maps.array", number(&maps[0], 3, 0), ROUNDS * CPUS as u64);
    check::equal("bpf.maps.per-cpu", per_cpu, [ROUNDS; CPUS]);
    check::equal("bpf.maps.hash", hashed, core::array::from_fn(|cpu| cpu as u64 + 1));

    processors(&maps[1]);

    // A helper ends the program while it holds a record, which is then given back.
    let text = "r1 = map[idx:3] ll\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\nr6 = r0\ncall 900\nr1 = r6\nr2 = 0\n\
                call 132\nout: r0 = 0\nexit";
    let ended = load(verified(&host, contract(0), text)).run(&[]);
    check::equal("bpf.helper.ends", ended, Err(Ended::Helper(Some(HelperError::Exit(5)))));
    let text = "*(u64 *)(r10 - 8) = 77\nr1 = map[idx:3] ll\nr2 = r10\nr2 += -8\nr3 = 8\nr4 = 0\ncall 130\nexit";
    let program = load(verified(&host, contract(0), text));
    check::equal("bpf.ring.output", [(); 3].map(|()| program.run(&[])), [Ok(0); 3]);
    let mut records = Vec::new();
    let mut consumer = maps[3].ring().and_then(|ring| ring.take_consumer()).unwrap_or_else(|| panic!("a ring buffer"));
    consumer.drain(|record| records.push(record.to_vec()));
    check::equal("bpf.ring.records", records, alloc::vec![77_u64.to_le_bytes().to_vec(); 3]);
    // A loop without proof that it ends.
    let text = "r6 = *(u64 *)(r1 + 0)\nagain: r6 += 1\nif r6 != 0 goto again\nr0 = 3\nexit";
    let program = load(verified(&host, contract(1).fuel(1000), text));
    let near = program.run(&[u64::MAX - 900]);
    check::equal("bpf.fuel", (near, program.run(&[5])), (Ok(3), Err(Ended::Fuel)));
}

static INTERPRETED: crate::sync::SpinLock<Option<Linked>> = crate::sync::SpinLock::new(None);

/// Compiled and interpreted programs know the CPU that they run on, and count in its value.
fn processors(per_cpu: &Arc<Map>) {
    let host = Host::builder().map(Arc::clone(per_cpu)).cpu(|| hardware::number() as u32).build();
    let text = format!("r6 = 4\n{}call 8\nexit\nout: r0 = -1\nexit", count_in(0));
    let linked = verified(&host, contract(0), &text);
    *INTERPRETED.lock() = Some(linked.clone());
    *SHARED.lock() = Some(Arc::new(load(linked)));
    fn interpret(cpu: usize) {
        let linked = INTERPRETED.lock().clone().unwrap_or_else(|| panic!("a program is there"));
        store_value(cpu, linked.interpret(&Interpreter::default(), &mut []).unwrap_or(u64::MAX));
    }
    fn run(cpu: usize) {
        let program = SHARED.lock().clone().unwrap_or_else(|| panic!("a program is there"));
        store_value(cpu, program.run(&[]).unwrap_or(u64::MAX));
    }
    let numbers: [u64; CPUS] = core::array::from_fn(|cpu| cpu as u64);
    check::equal("bpf.cpu.interpreted", on_every_cpu(interpret), numbers);
    check::equal("bpf.cpu.compiled", on_every_cpu(run), numbers);
    check::equal("bpf.cpu.counts", core::array::from_fn(|cpu| number(per_cpu, 4, cpu)), [2; CPUS]);
    (*INTERPRETED.lock(), *SHARED.lock()) = (None, None);
}

/// What [`probes`] loads from a mapped address.
static KNOWN: u64 = 0x0123_4567_89ab_cdef;

/// Loads from unproven addresses give 0 where nothing is mapped, on every CPU.
fn probes(host: &Arc<Host>) {
    static ADDRESSES: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
    let nowhere = layout::LINK_OFFSET.wrapping_add(layout::RAM_BASE).wrapping_add(0x3000_0000);
    // A hole, the end of one at the end of a page, the first page, a non-canonical address (x86-64), the last word.
    let addresses = [nowhere, nowhere + 4092, 8, 0x8000_0000_0000, u64::MAX - 7, &raw const KNOWN as u64];
    for (to, address) in ADDRESSES.iter().zip(addresses) {
        // Relaxed: the work's lock orders it.
        to.store(address, Ordering::Relaxed);
    }
    let text = "r3 = *(u64 *)(r1 + 0)\nr0 = 7\nr6 = 1\nr0 = *(u64 *)(r3 + 0)\nr6 += r0\nr0 = r6\nexit";
    let linked = verified(host, contract(1).unproven(Unproven::Probe), text);
    check::equal("bpf.probe.loads", linked.verified().probes().len(), 1);
    *SHARED.lock() = Some(Arc::new(load(linked)));
    fn try_all(cpu: usize) {
        let program = SHARED.lock().clone().unwrap_or_else(|| panic!("a program is there"));
        // Relaxed, both: as above, and `wait_for_work`.
        let found = ADDRESSES.each_ref().map(|address| program.run(&[address.load(Ordering::Relaxed)]));
        let [nothing @ .., there] = found;
        let right = nothing == [Ok(1); 5] && there == Ok(KNOWN + 1);
        VALUES[cpu].store(right.into(), Ordering::Relaxed);
    }
    let before = now();
    check::equal("bpf.probe", on_every_cpu(try_all), [1; CPUS]);
    check::equal("bpf.probe.resumed", before.since().probes_resumed, 5 * CPUS as u64);
    // The same by a helper.
    let text = "r3 = *(u64 *)(r1 + 0)\nr1 = r10\nr1 += -8\nr2 = 8\ncall 113\nif r0 != 0 goto out\n\
                r0 = *(u64 *)(r10 - 8)\nout: exit";
    let program = load(verified(host, contract(1).unproven(Unproven::Probe), text));
    let found = addresses.map(|address| program.run(&[address]).unwrap_or(0));
    const EFAULT: u64 = -14_i64 as u64;
    check::equal("bpf.probe.helper", found, [EFAULT, EFAULT, EFAULT, EFAULT, EFAULT, KNOWN]);
    *SHARED.lock() = None;
}

/// The place of a freed program is filled with traps, on every node.
fn freed(host: &Arc<Host>) {
    static ENTRY: AtomicU64 = AtomicU64::new(0);
    fn call(cpu: usize) {
        // Relaxed, both: the work's lock, and `wait_for_work`.
        let entry = VirtAddr(ENTRY.load(Ordering::Relaxed));
        // SAFETY: 1. a program that returns 1, or traps.
        let ran = unsafe { probe::passes(entry, AccessKind::Execute) };
        VALUES[cpu].store(ran.into(), Ordering::Relaxed);
    }
    packs::reclaim();
    // Constants of a trusted author stand in the code as they are; others do not.
    let text = "r0 = 1\nexit";
    let programs = [Trust::Full, Trust::None].map(|trust| load(verified(host, contract(0).trust(trust), text)));
    for (name, program) in ["bpf.freed", "bpf.freed.untrusted"].into_iter().zip(programs) {
        ENTRY.store(program.entry().0, Ordering::Relaxed);
        let there = on_every_cpu(call);
        drop(program);
        // No CPU has been called yet, so the program's bytes are still there.
        let retired = on_every_cpu(call);
        let reclaimed = packs::reclaim();
        check::equal(name, (there, retired, reclaimed, on_every_cpu(call)), ([1; CPUS], [1; CPUS], 1, [0; CPUS]));
    }
}

/// Loads the programs of the kernel's stress tool for its packs: 8 kinds, 20 times.
fn many(host: &Arc<Host>) {
    let text = |kind: usize| {
        format!(
            "r1 = {kind} ll\n*(u64 *)(r10 - 16) = r1\nr1 = 0x0a7525 ll\n*(u64 *)(r10 - 8) = r1\n\
             r0 = *(u64 *)(r10 - 16)\nexit"
        )
    };
    let programs: Vec<Program> = (0..160).map(|number| load(verified(host, contract(0), &text(number % 8)))).collect();
    let wrong = programs.iter().enumerate().filter(|(number, program)| program.run(&[]) != Ok((number % 8) as u64));
    check::equal("bpf.160", wrong.count(), 0);
    let mut pages: Vec<u64> = programs.iter().map(|program| program.entry().0 / PACK as u64).collect();
    pages.dedup();
    say!("bpf.160.large-pages {}", pages.len());
    say!("bpf.160.bytes {}", programs.iter().map(Program::bytes).sum::<usize>());
}

/// Lengths of the programs of the kernel's `test_tag`, in its order.
fn lengths() -> impl Iterator<Item = usize> {
    const PASSES: usize = 5;
    [2, 3].into_iter().flat_map(|first| core::iter::repeat_n(first, PASSES)).flat_map(|first| first..=LONGEST)
}

const LONGEST: usize = 4096;
/// Divisor of the lengths, unless full lengths are asked for: an emulator takes minutes for those.
const SHORTER: usize = 64;

/// Makes as many loads as `test_tag`: each program is verified, compiled, run, and freed before the next.
fn loads(host: &Arc<Host>) {
    let slot = |number: usize| 0xb7 | (number as u64) << 32;
    let longest: Vec<u8> = (1..LONGEST).map(slot).chain([0x95]).flat_map(u64::to_le_bytes).collect();
    let divisor = if asked::word(Asked::WholePrograms) != 0 { 1 } else { SHORTER };
    let (before, mut count, mut instructions, mut wrong) = (now(), 0, 0, 0);
    let mut load_one = |len: usize| {
        let code = Code::new(&longest[(LONGEST - len) * 8..]).unwrap_or_else(|error| panic!("{error}"));
        let linked = host.verify(contract(0), code).unwrap_or_else(|error| panic!("{error}"));
        wrong += u64::from(load(linked).run(&[]) != Ok(LONGEST as u64 - 1));
        instructions += len;
        count += 1;
    };
    // The longest one in any case.
    load_one(LONGEST);
    lengths().skip(1).for_each(|len| load_one((len / divisor).max(2)));
    check::equal("bpf.test-tag", (count, wrong), (40_945, 0));
    packs::reclaim();
    let counts = before.since();
    say!("bpf.test-tag.loads {count}");
    say!("bpf.test-tag.instructions {instructions}");
    say!("bpf.test-tag.code-flushes {}", counts.code_flushes);
    say!("bpf.test-tag.ipis-per-cpu {}", counts.sync_calls / (CPUS as u64 - 1));
}
