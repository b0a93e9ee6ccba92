//! Writes a record of what other programs measure.
//!
//! ```text
//! samples RECORD PROGRAM [ARGUMENT…]
//! samples RECORD --turns CONTESTANT=PROGRAM… [-- ARGUMENT…]
//! ```
//!
//! A program is started with `--samples` before its arguments, and prints a line for each value: id, unit, value. Ids
//! are `SUITE.WHAT.COUNT.CONTESTANT`; the contestant `packs`, or `frozen`, is compared with the others of its group.
//! With `--turns`, the programs of several contestants are started by turns, several times each, and told whose values
//! they print. `cargo xtask bench adapters` runs it for adapters that are not measured by an example of their own.

use std::error::Error;
use std::process::{Command, Stdio};
use std::{env, fs};

use palimpsest_bench::harness::progress::Silent;
use palimpsest_bench::harness::record::Unit;
use palimpsest_bench::harness::{self, BenchError, Contestant, Context, Group, Request, Samples, Suite, host};
use palimpsest_text::Packs;

/// Our contestants.
const OURS: [&str; 2] = ["packs", "frozen"];

/// How often each program is started that others are measured by turns with.
const TURNS: usize = 5;

/// What is measured of each suite, with its heading.
const TITLES: [(&str, &str); 8] = [
    ("start", "start of a worker, median of eight"),
    ("freeze", "the freeze"),
    ("load", "load one function, or script"),
    ("call", "call one function of all, in turn"),
    ("free", "free one function"),
    ("bytes", "resident memory for each function, or of all processes"),
    ("mappings", "mappings for each function"),
    ("left", "mappings for each function after all are freed"),
];

/// Values with the same id.
struct Figure {
    id: String,
    unit: Unit,
    values: Vec<f64>,
}

/// The values that the program has printed.
struct Measured(Vec<Figure>);

impl Measured {
    fn parse(text: &str) -> Result<Self, Box<dyn Error>> {
        let mut figures: Vec<Figure> = Vec::new();
        for line in text.lines() {
            let wrong = || format!("`{line}` is not an id, a unit and a value");
            let [id, unit, value] = line.split(' ').collect::<Vec<_>>()[..] else { return Err(wrong().into()) };
            let unit = serde_json::from_value(unit.into()).map_err(|_| wrong())?;
            let value: f64 = value.parse().map_err(|_| wrong())?;
            if id.split('.').count() != 4 {
                return Err(wrong().into());
            }
            match figures.iter_mut().find(|figure| figure.id == id) {
                Some(figure) => figure.values.push(value),
                None => figures.push(Figure { id: id.to_owned(), unit, values: vec![value] }),
            }
        }
        if figures.is_empty() { Err("the program printed no values".into()) } else { Ok(Self(figures)) }
    }

    /// Returns the figures whose ids differ only in the contestant.
    fn of_group<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a Figure> {
        self.0.iter().filter(move |figure| group_of(&figure.id) == group)
    }
}

fn group_of(id: &str) -> &str {
    id.rsplit_once('.').map_or(id, |(group, _)| group)
}

fn contestant_of(id: &str) -> &str {
    id.rsplit_once('.').map_or(id, |(_, contestant)| contestant)
}

impl Suite for Measured {
    fn id(&self) -> &'static str {
        "adapters"
    }

    fn description(&self) -> &'static str {
        "adapters in other languages, beside what their hosts have themselves"
    }

    fn groups(&self) -> Vec<Group> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.0.iter().map(|figure| group_of(&figure.id)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let group = |name: &str| {
            let parts: Vec<&str> = name.split('.').collect();
            let title = TITLES.iter().find(|(what, _)| *what == parts[1]).map_or(parts[1], |(_, title)| title);
            let contestants = self.of_group(name).map(|figure| {
                let contestant = Contestant::new(&figure.id, figure.unit);
                let ours = contestant_of(&figure.id);
                if !OURS.contains(&ours) {
                    return contestant;
                }
                let rivals = self.of_group(name).map(|rival| &rival.id).filter(|id| contestant_of(id) != ours);
                let contestant = if ours == "packs" { contestant.in_packs() } else { contestant };
                contestant.against_best(rivals)
            });
            Group::new(name, format!("{}, {}: {title}", parts[0], parts[2]), contestants)
        };
        names.into_iter().map(group).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        for group in self.groups() {
            let mut samples = Samples::default();
            for figure in self.of_group(&group.id) {
                samples.extend(&figure.id, figure.values.iter().copied());
            }
            context.record(&group, samples);
        }
        Ok(())
    }
}

/// Returns what `program` prints.
fn printed(program: &str, arguments: &[String]) -> Result<String, Box<dyn Error>> {
    let output = Command::new(program).arg("--samples").args(arguments).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{program} cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program}: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns what the programs of `contestants` print, each `CONTESTANT=PROGRAM`, by turns.
fn by_turns(contestants: &[String], arguments: &[String]) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    for _ in 0..TURNS {
        for contestant in contestants {
            let (name, program) =
                contestant.split_once('=').ok_or_else(|| format!("`{contestant}` is not CONTESTANT=PROGRAM"))?;
            text += &printed(program, &[&[name.to_owned()], arguments].concat())?;
        }
    }
    Ok(text)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (record, text) = match &arguments[..] {
        [record, turns, rest @ ..] if turns == "--turns" => {
            let mut parts = rest.splitn(2, |argument| argument == "--");
            let (contestants, arguments) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            (record, by_turns(contestants, arguments)?)
        }
        [record, program, arguments @ ..] => (record, printed(program, arguments)?),
        _ => return Err("name the file for the record, and the program".into()),
    };
    let measured = Measured::parse(&text)?;
    let mut machine = host::describe();
    machine.backing = Some(Packs::new()?.backing().to_string());
    let report = harness::run(vec![Box::new(measured)], machine, &Request::default(), &Silent)?;
    fs::write(record, serde_json::to_string_pretty(&report)?)?;
    Ok(())
}
