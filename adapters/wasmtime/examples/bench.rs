//! Suite `wasmtime`: loading, instantiating and calling many modules, in packs and in plain Wasmtime.
//!
//! `cargo xtask bench adapters` runs it and shows the table. Alone it writes a record for `palimpsest bench --from`:
//! the file that its first argument names; `--check` runs one round of everything, `--quick` takes less time.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use palimpsest_bench::harness::progress::Silent;
use palimpsest_bench::harness::record::Unit;
use palimpsest_bench::harness::sampler::{Rounds, interleave};
use palimpsest_bench::harness::{self, BenchError, Contestant, Context, Effort, Group, Request, Samples, Suite, host};
use palimpsest_text::Packs;
use palimpsest_wasmtime::PackedEngine;
use wasmtime::{Config, Engine, Instance, Linker, Module, Ref, Store, TypedFunc};

/// How many modules there are at once.
const COUNTS: [usize; 3] = [1, 100, 1000];

/// Functions of each module.
const FUNCTIONS: usize = 10;

/// Calls of a sample.
const CALLS: usize = 1_000_000;

/// The contestants: packs, then rivals. `unwind` has tables for the process's unwinder, as Wasmtime makes by default;
/// `file` maps images from files.
const WAYS: [Way; 4] = [Way::Packed, Way::Plain, Way::File, Way::Unwind];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Packed,
    Plain,
    File,
    Unwind,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Packed => "packed",
            Self::Plain => "plain",
            Self::File => "file",
            Self::Unwind => "unwind",
        }
    }
}

type Failure = Box<dyn Error + Send + Sync>;

/// An engine, and modules that differ.
struct Host {
    way: Way,
    engine: Engine,
    packed: Option<PackedEngine>,
    images: Vec<Vec<u8>>,
    files: Vec<PathBuf>,
}

impl Host {
    fn new(way: Way, count: usize) -> Result<Self, Failure> {
        let mut config = Config::new();
        config.native_unwind_info(way == Way::Unwind);
        let packed = match way {
            Way::Packed => Some(PackedEngine::new(config.clone(), Packs::new()?)?),
            _ => None,
        };
        let engine = packed.as_ref().map_or_else(|| Engine::new(&config), |packed| Ok(packed.engine().clone()))?;
        let images: Vec<_> =
            (0..count).map(|number| engine.precompile_module(module(number).as_bytes())).collect::<Result<_, _>>()?;
        let mut files = Vec::new();
        if way == Way::File {
            let folder = std::env::temp_dir().join(format!("palimpsest-wasmtime-bench-{}", std::process::id()));
            std::fs::create_dir_all(&folder)?;
            for (number, image) in images.iter().enumerate() {
                let file = folder.join(number.to_string());
                std::fs::write(&file, image)?;
                files.push(file);
            }
        }
        Ok(Self { way, engine, packed, images, files })
    }

    fn load(&self, number: usize) -> wasmtime::Result<Module> {
        match (&self.packed, self.files.get(number)) {
            // SAFETY: 1. compiled by this engine in `new`.
            (Some(packed), _) => unsafe { packed.deserialize(&self.images[number]) },
            // SAFETY: compiled by this engine in `new`, in a file that nobody else writes to.
            (None, Some(file)) => unsafe { Module::deserialize_file(&self.engine, file) },
            // SAFETY: compiled by this engine in `new`.
            (None, None) => unsafe { Module::deserialize(&self.engine, &self.images[number]) },
        }
    }

    fn load_all(&self) -> wasmtime::Result<Vec<Module>> {
        (0..self.images.len()).map(|number| self.load(number)).collect()
    }

    fn compile(&self, text: &str) -> wasmtime::Result<Module> {
        match &self.packed {
            Some(packed) => packed.compile(text.as_bytes()),
            None => Module::new(&self.engine, text),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(folder) = self.files.first().and_then(|file| file.parent()) {
            // If this fails, the file stays in the temporary folder.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// A small module; no two are equal.
fn module(number: usize) -> String {
    let function = |function: usize| {
        let (factor, term) = (number * 31 + function + 1, function);
        format!(
            "(func (export \"f{function}\") (param i32) (result i32)
                (i32.rotl (i32.add (i32.mul (local.get 0) (i32.const {factor})) (i32.const {term}))
                    (i32.and (local.get 0) (i32.const 7))))\n"
        )
    };
    format!("(module {})", (0..FUNCTIONS).map(function).collect::<String>())
}

/// A module that calls the functions in its table, one after the other.
fn driver(count: usize) -> String {
    format!(
        r#"(module (table (export "table") {count} funcref) (type $f (func (param i32) (result i32)))
            (func (export "run") (param $rounds i32) (result i32) (local $which i32) (local $sum i32)
                (loop $again
                    (local.set $which (i32.const 0))
                    (loop $next
                        (local.set $sum (call_indirect (type $f) (local.get $sum) (local.get $which)))
                        (local.set $which (i32.add (local.get $which) (i32.const 1)))
                        (br_if $next (i32.lt_u (local.get $which) (i32.const {count}))))
                    (local.set $rounds (i32.sub (local.get $rounds) (i32.const 1)))
                    (br_if $again (local.get $rounds)))
                (local.get $sum)))"#
    )
}

/// Modules that are instantiated and called.
struct Running {
    way: Way,
    store: Store<()>,
    run: TypedFunc<i32, i32>,
    /// Mappings that the modules have taken.
    mappings: usize,
    _host: Host,
}

impl Running {
    fn new(way: Way, count: usize) -> Result<Self, Failure> {
        let host = Host::new(way, count)?;
        let before = mappings()?;
        let modules = host.load_all()?;
        let mappings = mappings()?.saturating_sub(before);
        let mut store = Store::new(&host.engine, ());
        let driver = Instance::new(&mut store, &host.compile(&driver(count))?, &[])?;
        let table = driver.get_table(&mut store, "table").ok_or("no table")?;
        for (which, module) in modules.iter().enumerate() {
            let instance = Instance::new(&mut store, module, &[])?;
            let function = instance.get_func(&mut store, &format!("f{}", which % FUNCTIONS)).ok_or("no function")?;
            table.set(&mut store, which as u64, Ref::Func(Some(function)))?;
        }
        let run = driver.get_typed_func(&mut store, "run")?;
        Ok(Self { way, store, run, mappings, _host: host })
    }
}

fn mappings() -> io::Result<usize> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().count())
}

/// The suite that the module's documentation describes.
struct Wasmtime;

fn group(id: &str, title: &str, unit: Unit, note: &str) -> Group {
    let contestants = WAYS.map(|way| {
        let own = Contestant::new(format!("{id}.{}", way.name()), unit);
        if way != Way::Packed {
            return own;
        }
        let rivals = WAYS.iter().filter(|&&way| way != Way::Packed).map(|way| format!("{id}.{}", way.name()));
        own.against(rivals).in_packs().note(note)
    });
    Group::new(id, title, contestants)
}

fn calls(count: usize) -> Group {
    let title = format!("a call of one of {count} modules in turn, by a table");
    group(&format!("wasmtime.call.{count}"), &title, Unit::Nanoseconds, "of ten functions each")
}

fn taken(count: usize) -> Group {
    let title = format!("mappings of {count} modules");
    group(&format!("wasmtime.mappings.{count}"), &title, Unit::Mappings, "packs that were there before count nowhere")
}

fn loads(count: usize) -> Group {
    let title = format!("loading one of {count} modules, from its image");
    group(&format!("wasmtime.load.{count}"), &title, Unit::Microseconds, "packs that have been used before")
}

fn instances(count: usize) -> Group {
    let title = format!("instantiating one of {count} modules");
    group(&format!("wasmtime.instantiate.{count}"), &title, Unit::Microseconds, "modules that are linked before")
}

fn failed(id: &str, way: Way, source: impl Into<Failure>) -> BenchError {
    BenchError::Contestant { id: id.to_owned(), contestant: way.name().to_owned(), source: source.into() }
}

fn rounds(effort: Effort) -> Rounds {
    match effort {
        Effort::Check => Rounds { least: 1, most: 1, budget: Duration::ZERO },
        Effort::Quick => Rounds { least: 3, most: 9, budget: Duration::from_secs(5) },
        Effort::Full => Rounds { least: 9, most: 41, budget: Duration::from_secs(30) },
    }
}

fn call(context: &mut Context<'_>, count: usize) -> Result<(), BenchError> {
    let (calls, taken) = (calls(count), taken(count));
    if !context.wants(&calls) && !context.wants(&taken) {
        return Ok(());
    }
    context.begin(&calls.id);
    let make = |way| Running::new(way, count).map_err(|error| failed(&calls.id, way, error));
    let mut all = WAYS.into_iter().map(make).collect::<Result<Vec<_>, _>>()?;
    let (mut times, mut mapped) = (Samples::default(), Samples::default());
    for running in &all {
        mapped.extend(&format!("{}.{}", taken.id, running.way.name()), [running.mappings as f64]);
    }
    let times_all = (CALLS / count) as i32;
    let mut expected = None;
    interleave(&mut all, rounds(context.effort), |running| {
        let way = running.way;
        let id = format!("{}.{}", calls.id, way.name());
        let failed = |error| failed(&calls.id, way, error);
        // First brings back what others have driven out of the caches.
        let Running { run, store, .. } = &mut *running;
        run.call(&mut *store, times_all / 10 + 1).map_err(failed)?;
        let began = Instant::now();
        let sum = run.call(&mut *store, times_all).map_err(failed)?;
        let each = began.elapsed().as_secs_f64() * 1e9 / (times_all as f64 * count as f64);
        let expected = *expected.get_or_insert(sum);
        if sum != expected {
            let (expected, found) = (expected as u32 as u64, sum as u32 as u64);
            return Err(BenchError::WrongResult {
                id: calls.id.clone(),
                contestant: way.name().to_owned(),
                expected,
                found,
            });
        }
        times.extend(&id, [each]);
        Ok(())
    })?;
    if context.wants(&calls) {
        context.record(&calls, times);
    }
    if context.wants(&taken) {
        context.record(&taken, mapped);
    }
    Ok(())
}

fn load(context: &mut Context<'_>, count: usize) -> Result<(), BenchError> {
    let (loads, instances) = (loads(count), instances(count));
    if !context.wants(&loads) && !context.wants(&instances) {
        return Ok(());
    }
    context.begin(&loads.id);
    let make = |way| Host::new(way, count).map_err(|error| failed(&loads.id, way, error));
    let mut all = WAYS.into_iter().map(make).collect::<Result<Vec<_>, _>>()?;
    for host in &all {
        // The first load makes packs, which stay.
        host.load_all().map_err(|error| failed(&loads.id, host.way, error))?;
    }
    let (mut loaded, mut made) = (Samples::default(), Samples::default());
    interleave(&mut all, rounds(context.effort), |host| {
        let failed = |error| failed(&loads.id, host.way, error);
        let began = Instant::now();
        let modules = host.load_all().map_err(failed)?;
        let each = began.elapsed().as_secs_f64() * 1e6 / count as f64;
        loaded.extend(&format!("{}.{}", loads.id, host.way.name()), [each]);
        let linker: Linker<()> = Linker::new(&host.engine);
        let linked: Vec<_> =
            modules.iter().map(|module| linker.instantiate_pre(module)).collect::<Result<_, _>>().map_err(failed)?;
        let mut store = Store::new(&host.engine, ());
        let began = Instant::now();
        for module in &linked {
            module.instantiate(&mut store).map_err(failed)?;
        }
        let each = began.elapsed().as_secs_f64() * 1e6 / count as f64;
        made.extend(&format!("{}.{}", instances.id, host.way.name()), [each]);
        drop((store, linked, modules));
        if let Some(packed) = &host.packed {
            packed.packs().reclaim().map_err(|error| failed(error.into()))?;
        }
        Ok::<_, BenchError>(())
    })?;
    if context.wants(&loads) {
        context.record(&loads, loaded);
    }
    if context.wants(&instances) {
        context.record(&instances, made);
    }
    Ok(())
}

impl Suite for Wasmtime {
    fn id(&self) -> &'static str {
        "wasmtime"
    }

    fn description(&self) -> &'static str {
        "many Wasmtime modules: loading, instantiating, calling"
    }

    fn groups(&self) -> Vec<Group> {
        COUNTS.into_iter().flat_map(|count| [calls(count), taken(count), loads(count), instances(count)]).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        for count in COUNTS {
            call(context, count)?;
            load(context, count)?;
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut request = Request::default();
    let mut record = None;
    for argument in std::env::args().skip(1) {
        match &*argument {
            "--check" => request = request.effort(Effort::Check),
            "--quick" => request = request.effort(Effort::Quick),
            other if other.starts_with('-') => return Err(format!("{other}: --check and --quick are known").into()),
            path => record = Some(path.to_owned()),
        }
    }
    let record = record.ok_or("name the file for the record")?;
    let mut machine = host::describe();
    machine.backing = Some(Packs::new()?.backing().to_string());
    let report = harness::run(vec![Box::new(Wasmtime)], machine, &request, &Silent)?;
    std::fs::write(record, serde_json::to_string_pretty(&report)?)?;
    Ok(())
}
