//! `palimpsest bpf bench`: what it costs to load and to run a program of one's own.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use palimpsest_bpf::host::{Host, HostedProgram, Linked};
use palimpsest_bpf::interp::Interpreter;
use palimpsest_bpf::verify::{ContextAccess, Contract};
use palimpsest_bpf::{Code, Packs};
use serde::Serialize;

use super::conformance::aligned;
use super::engine::{EngineError, promised};
use super::source::{self, Loaded, Source, SourceError};
use super::terms::Terms;
use super::tools::{MapContent, fill_all};
use super::{Failure, report};

/// The arguments of `palimpsest bpf bench`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// The context: r1 is its address, r2 its length. Each run finds what the one before has left.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Put elements into a map of the object first, as `run` does.
    #[arg(long, value_name = "NAME=FILE")]
    map: Vec<MapContent>,
    #[command(flatten)]
    terms: Terms,
    /// Load the program this many times.
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(3..=100_000))]
    loads: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Samples of a time.
const SAMPLES: usize = 31;
/// The shortest time of a sample: so long that reading the clock does not matter.
const SAMPLE: Duration = Duration::from_micros(500);
/// The most calls in a sample.
const MOST_CALLS: u32 = 1 << 20;

/// The median of several times, and the quartiles below and above it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Spread {
    median: f64,
    low: f64,
    high: f64,
}

impl Spread {
    /// Returns the spread of at least one time.
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |quarter: usize| times[(times.len() - 1) * quarter / 4];
        Self { median: at(2), low: at(1), high: at(3) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} ({:.1} to {:.1})", self.median, self.low, self.high)
    }
}

/// What was measured.
#[derive(Serialize)]
struct Measured {
    /// Its name, if it is an object's.
    program: Option<String>,
    /// How many times it was loaded.
    loads: u32,
    /// Microseconds to verify it.
    verify_us: Spread,
    /// Microseconds to verify, compile and place it.
    load_us: Spread,
    loads_per_second: f64,
    /// How many times other CPUs were told to fetch instructions anew.
    core_syncs: u64,
    /// Nanoseconds of a call.
    compiled_ns: Spread,
    interpreted_ns: Spread,
    /// How many times as long the interpreter takes.
    interpreted_by_compiled: f64,
    /// How busy the machine was: processes that wanted to run, on average over the last minute.
    load_average: Option<f64>,
}

/// Measures calls.
fn calls(mut call: impl FnMut() -> Result<u64, EngineError>) -> Result<Spread, EngineError> {
    let mut count = 1;
    let mut sample = |count: u32| {
        let start = Instant::now();
        for _ in 0..count {
            std::hint::black_box(call()?);
        }
        Ok::<_, EngineError>(start.elapsed())
    };
    while sample(count)? < SAMPLE && count < MOST_CALLS {
        count *= 2;
    }
    let each = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(count);
    let times: Result<Vec<f64>, EngineError> = (0..SAMPLES).map(|_| sample(count).map(each)).collect();
    Ok(Spread::of(times?))
}

/// Measures a program that `link` verifies.
fn measure(
    program: Option<String>,
    loads: u32,
    context: &mut [u8],
    link: impl Fn() -> Result<Linked, EngineError>,
) -> Result<Measured, EngineError> {
    let packs = Packs::new()?;
    let mut programs = Vec::new();
    let (mut verify, mut load) = (Vec::new(), Vec::new());
    let before = packs.stats().core_syncs;
    let micros = |since: Instant| since.elapsed().as_secs_f64() * 1e6;
    for _ in 0..loads {
        let start = Instant::now();
        let linked = link()?;
        verify.push(micros(start));
        // All of them stay loaded, as in a host with many programs.
        programs.push(HostedProgram::load(&packs, &linked)?);
        load.push(micros(start));
    }
    let loads_per_second = f64::from(loads) * 1e6 / load.iter().sum::<f64>();
    let core_syncs = packs.stats().core_syncs - before;
    let linked = link()?;
    let compiled = HostedProgram::load(&packs, &linked)?;
    let compiled_ns = calls(|| Ok(compiled.run(context)?))?;
    let interpreted_ns = calls(|| Ok(linked.interpret(&Interpreter::default(), context)?))?;
    let load_average = std::fs::read_to_string("/proc/loadavg").ok();
    Ok(Measured {
        program,
        loads,
        verify_us: Spread::of(verify),
        load_us: Spread::of(load),
        loads_per_second,
        core_syncs,
        compiled_ns,
        interpreted_ns,
        interpreted_by_compiled: interpreted_ns.median / compiled_ns.median,
        load_average: load_average.and_then(|text| text.split(' ').next()?.parse().ok()),
    })
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let context = arguments.input.as_deref().map(source::read).transpose()?.unwrap_or_default();
    let mut room = Vec::new();
    let context = aligned(&mut room, &context);
    let contract = arguments.terms.of(Contract::new().context(promised(context)?, ContextAccess::Write));
    let measured = match arguments.source.load()? {
        Loaded::Code(_) if !arguments.map.is_empty() => return Err(Failure::NoMaps),
        Loaded::Code(code) => {
            let host = Host::builder().build();
            let link = |code: &Code| Ok(host.verify(contract.clone(), code.clone())?);
            measure(None, arguments.loads, context, || link(&code))?
        }
        Loaded::Object(object) => {
            let program = arguments.source.one(&object)?;
            let host = object.host()?.build();
            fill_all(&host, &arguments.map)?;
            let code = program.code().map_err(SourceError::from)?;
            let link = || {
                let linked = host.verify(contract.clone(), code.clone());
                Ok(linked.map_err(|error| program.explain(error))?)
            };
            measure(Some(program.name().to_owned()), arguments.loads, context, link)?
        }
    };
    if arguments.json {
        return Ok(report::write(&measured)?);
    }
    let mut out = io::stdout().lock();
    let Measured { verify_us, load_us, loads_per_second, core_syncs, compiled_ns, interpreted_ns, .. } = &measured;
    writeln!(out, "medians, and in brackets where half of all measurements lie")?;
    writeln!(out, "verify       {verify_us} µs")?;
    writeln!(out, "load         {load_us} µs with that, {loads_per_second:.0} in a second")?;
    writeln!(out, "core syncs   {core_syncs} for {} loads", measured.loads)?;
    writeln!(out, "compiled     {compiled_ns} ns a call")?;
    writeln!(out, "interpreted  {interpreted_ns} ns a call, {:.0} times as long", measured.interpreted_by_compiled)?;
    if let Some(average) = measured.load_average {
        writeln!(out, "load average {average:.1}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_all_times_lie_within_the_spread() {
        let spread = Spread::of((0..101).rev().map(f64::from).collect());
        assert_eq!(spread, Spread { median: 50.0, low: 25.0, high: 75.0 });
        assert_eq!(Spread::of(vec![3.0]), Spread { median: 3.0, low: 3.0, high: 3.0 });
    }
}
