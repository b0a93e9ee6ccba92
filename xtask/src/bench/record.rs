//! Figures, as a table and in the JSON of `palimpsest bench` (`crates/bench/src/record.rs`, version 1).

use std::{fmt::Write as _, fs, path::Path, time::Duration};

use serde_json::{Value, json};

use super::BenchError;
use crate::step::StepError;

/// The version of the layout that is written.
const FORMAT_VERSION: u32 = 1;

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Operations per second: more is better.
    PerSecond,
    /// Microseconds: less is better.
    Microseconds,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "per_second",
            Self::Microseconds => "us",
        }
    }

    fn symbol(self) -> &'static str {
        match self {
            Self::PerSecond => "/s",
            Self::Microseconds => "µs",
        }
    }

    /// How many times better `ours` is than `theirs`.
    fn ratio(self, ours: f64, theirs: f64) -> Option<f64> {
        let (above, below) = if self == Self::PerSecond { (ours, theirs) } else { (theirs, ours) };
        (below > 0.0).then(|| above / below)
    }
}

/// One measured figure.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    /// Dotted name, stable across versions.
    pub(super) id: String,
    /// What it counts.
    pub(super) unit: Unit,
    /// One value per round, in the order in which they were measured.
    pub(super) samples: Vec<f64>,
    /// Ids of figures that it is compared with; the first is the baseline.
    pub(super) rivals: Vec<String>,
    /// What else belongs to it.
    pub(super) note: Option<String>,
}

impl Figure {
    /// Middle value; 0 without samples.
    pub(super) fn median(&self) -> f64 {
        let sorted = self.sorted();
        match sorted.len() {
            0 => 0.0,
            len if len % 2 == 1 => sorted[len / 2],
            len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
        }
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    fn ends(&self) -> (f64, f64) {
        let sorted = self.sorted();
        (sorted.first().copied().unwrap_or(0.0), sorted.last().copied().unwrap_or(0.0))
    }
}

/// How many times better `figure` is than the figure `rival`.
pub(super) fn ratio(figures: &[Figure], figure: &str, rival: &str) -> Option<f64> {
    let find = |id: &str| figures.iter().find(|figure| figure.id == id);
    let (ours, theirs) = (find(figure)?, find(rival)?);
    ours.unit.ratio(ours.median(), theirs.median())
}

/// The figures for people.
pub(super) fn table(figures: &[Figure]) -> String {
    let width = figures.iter().map(|figure| figure.id.len()).max().unwrap_or(0);
    let mut text = String::new();
    for figure in figures {
        let (min, max) = figure.ends();
        let compared: Vec<String> = figure
            .rivals
            .iter()
            .filter_map(|rival| {
                Some(format!(
                    "{:.2} × {}",
                    ratio(figures, &figure.id, rival)?,
                    rival.rsplit('.').next().unwrap_or(rival)
                ))
            })
            .collect();
        let line = format!(
            "{:width$}  {:>10.1} {:<2}  {min:.1}…{max:.1}  {}  {}",
            figure.id,
            figure.median(),
            figure.unit.symbol(),
            compared.join(", "),
            figure.note.as_deref().unwrap_or_default()
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Writes the figures as JSON.
pub(super) fn write(path: &Path, figures: &[Figure], took: Duration) -> Result<(), BenchError> {
    let report = json!({
        "version": FORMAT_VERSION,
        "machine": machine(),
        "seconds": took.as_secs_f64(),
        "results": figures.iter().map(|figure| entry(figures, figure)).collect::<Vec<_>>(),
        "skipped": [],
    });
    let text =
        serde_json::to_string_pretty(&report).map_err(|source| BenchError::Json { what: "the record", source })?;
    fs::write(path, text + "\n").map_err(|source| StepError::File {
        action: "write",
        path: path.to_owned(),
        source,
    })?;
    Ok(())
}

fn entry(figures: &[Figure], figure: &Figure) -> Value {
    let (min, max) = figure.ends();
    let mut ratios = figure
        .rivals
        .iter()
        .filter_map(|rival| Some((rival, ratio(figures, &figure.id, rival)?)))
        .collect::<Vec<_>>()
        .into_iter();
    let baseline = ratios.next();
    let mut entry = json!({
        "id": figure.id,
        "unit": figure.unit.name(),
        "median": figure.median(),
        "min": min,
        "max": max,
        "runs": figure.samples.len(),
        "baseline": baseline.map(|(rival, _)| rival),
        "ratio": baseline.map(|(_, ratio)| ratio),
    });
    let versus: Vec<Value> = ratios.map(|(rival, ratio)| json!({ "baseline": rival, "ratio": ratio })).collect();
    if !versus.is_empty() {
        entry["versus"] = versus.into();
    }
    if let Some(note) = &figure.note {
        entry["note"] = note.as_str().into();
    }
    entry
}

/// Where the figures were measured. What the kernel does not tell stays empty.
fn machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).ok();
    let field = |path: &str, name: &str| {
        read(path)?
            .lines()
            .find_map(|line| Some(line.strip_prefix(name)?.trim_start_matches([' ', '\t', ':']).to_owned()))
    };
    // The word in brackets of `always [madvise] never`.
    let selected = |path: &str| Some(read(path)?.split_once('[')?.1.split_once(']')?.0.to_owned());
    let kibibytes = field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    json!({
        "cpu": field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
        "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "architecture": std::env::consts::ARCH,
        "kernel": rustix::system::uname().release().to_string_lossy(),
        "memory_bytes": kibibytes * 1024,
        "page_bytes": rustix::param::page_size(),
        "huge_page_bytes": read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").and_then(|text| text.trim().parse::<u64>().ok()),
        "thp_enabled": selected("/sys/kernel/mm/transparent_hugepage/enabled"),
        "thp_shmem_enabled": selected("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "palimpsest": env!("CARGO_PKG_VERSION"),
        "backing": null,
        "refused": [],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Vec<Figure> {
        let figure = |id: &str, samples: &[f64], rivals: &[&str]| Figure {
            id: id.into(),
            unit: Unit::PerSecond,
            samples: samples.to_vec(),
            rivals: rivals.iter().map(|rival| (*rival).to_owned()).collect(),
            note: None,
        };
        vec![
            figure("afl.plain", &[40.0, 60.0, 50.0], &[]),
            figure("afl.frozen", &[4000.0, 6000.0], &["afl.plain", "afl.gone"]),
        ]
    }

    #[test]
    fn medians_and_ratios_are_as_in_palimpsest_bench() {
        let figures = figures();
        assert_eq!(figures[0].median(), 50.0);
        assert_eq!(ratio(&figures, "afl.frozen", "afl.plain"), Some(100.0));
        assert_eq!(ratio(&figures, "afl.frozen", "afl.gone"), None);
        assert_eq!(Unit::Microseconds.ratio(1.0, 8.0), Some(8.0));
        assert!(table(&figures).contains("100.00 × plain"), "{}", table(&figures));
    }

    #[test]
    fn an_entry_has_the_agreed_shape() {
        let figures = figures();
        let expected = json!({
            "id": "afl.frozen", "unit": "per_second", "median": 5000.0, "min": 4000.0, "max": 6000.0,
            "runs": 2, "baseline": "afl.plain", "ratio": 100.0,
        });
        assert_eq!(entry(&figures, &figures[1]), expected);
        assert_eq!(entry(&figures, &figures[0])["baseline"], Value::Null);
    }
}
