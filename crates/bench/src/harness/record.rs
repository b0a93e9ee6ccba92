//! What one run leaves behind: the JSON record, and how a ratio is formed.

use serde::{Deserialize, Serialize};

use super::sampler::Summary;

/// Version of the JSON layout. It changes when a field changes its meaning or disappears.
pub const FORMAT_VERSION: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Layout version, [`FORMAT_VERSION`].
    pub version: u32,
    /// Where the run took place.
    pub machine: Machine,
    /// How long the run took, in seconds.
    pub seconds: f64,
    /// One entry per measured figure, in the order in which they were measured.
    pub results: Vec<Entry>,
    /// What was asked for and could not be measured, with the reason and the way out.
    pub skipped: Vec<Skipped>,
}

/// The machine and the software a run took place on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model as the kernel names it.
    pub cpu: String,
    /// CPUs this process may use.
    pub cores: usize,
    /// Instruction set, for example `x86_64`.
    pub architecture: String,
    /// Kernel release, for example `6.18.0`.
    pub kernel: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Base page size in bytes.
    pub page_bytes: u64,
    /// Size of a huge page of the page-table level above, in bytes, where the kernel tells.
    pub huge_page_bytes: Option<u64>,
    /// Setting of `transparent_hugepage/enabled`.
    pub thp_enabled: Option<String>,
    /// Setting of `transparent_hugepage/shmem_enabled`.
    pub thp_shmem_enabled: Option<String>,
    /// Version of Palimpsest.
    pub palimpsest: String,
    /// The backing that Palimpsest chose for packs.
    pub backing: Option<String>,
    /// Better backings that this machine refused, each with its reason.
    pub refused: Vec<String>,
}

/// What a figure counts. Decides which direction is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Bytes.
    #[serde(rename = "bytes")]
    Bytes,
    /// Mappings of the process, lines of `/proc/self/maps`.
    #[serde(rename = "mappings")]
    Mappings,
    /// Reserved bytes per used byte.
    #[serde(rename = "reserved/used")]
    ReservedPerUsed,
    /// How often something happened.
    #[serde(rename = "count")]
    Count,
    /// A share in hundredths.
    #[serde(rename = "percent")]
    Percent,
    /// Operations per second.
    #[serde(rename = "per_second")]
    PerSecond,
}

impl Unit {
    /// The unit as a table shows it.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Microseconds => "µs",
            Self::Milliseconds => "ms",
            Self::Bytes => "B",
            Self::Mappings => "mappings",
            Self::ReservedPerUsed => "res/used",
            Self::Count => "count",
            Self::Percent => "%",
            Self::PerSecond => "/s",
        }
    }

    /// Returns how many times better `ours` is than `baseline`: above 1 means that ours is better. `None` if that would
    /// be a division by zero.
    #[must_use]
    pub fn ratio(self, ours: f64, baseline: f64) -> Option<f64> {
        let (above, below) = match self {
            Self::PerSecond => (ours, baseline),
            _ => (baseline, ours),
        };
        (below > 0.0).then(|| above / below)
    }
}

/// One measured figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Dotted name, stable across versions, for example `pack.call.20000.packed`.
    pub id: String,
    /// What `median`, `min` and `max` count.
    pub unit: Unit,
    /// Median over the runs.
    pub median: f64,
    /// Smallest value over the runs.
    pub min: f64,
    /// Largest value over the runs.
    pub max: f64,
    /// How many runs there were.
    pub runs: usize,
    /// Id of the entry that `ratio` compares with.
    pub baseline: Option<String>,
    /// [`Unit::ratio`] of the medians: above 1 means that we are better.
    pub ratio: Option<f64>,
    /// Ratios to further rivals of the same figure, same direction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versus: Vec<Versus>,
    /// What the figure includes or leaves out, if the id does not make that plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Backing of the packs behind a figure of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<String>,
    /// Whether the figure is Palimpsest's; records from before this field do not say, see [`Self::is_ours`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<bool>,
}

/// The ratio to one more rival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Versus {
    /// Id of the rival's entry.
    pub baseline: String,
    /// [`Unit::ratio`] of the medians.
    pub ratio: f64,
}

/// A figure that was asked for and has no value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Id, or the common beginning of several ids followed by `*`.
    pub id: String,
    /// Why, and what to do about it.
    pub reason: String,
}

impl Entry {
    /// Makes an entry that is compared with nothing yet.
    #[must_use]
    pub fn new(id: impl Into<String>, unit: Unit, summary: Summary) -> Self {
        Self {
            id: id.into(),
            unit,
            median: summary.median,
            min: summary.min,
            max: summary.max,
            runs: summary.runs,
            baseline: None,
            ratio: None,
            versus: Vec::new(),
            note: None,
            backing: None,
            ours: None,
        }
    }

    /// Whether the figure is Palimpsest's. Where the record does not say, it is if it is compared with a rival or has
    /// its code in packs.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.ours.unwrap_or(self.ratio.is_some() || self.backing.is_some())
    }

    /// Returns the entry with a note.
    #[must_use]
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Compares this entry, which is ours, with `rivals`: the first one present becomes the baseline, the others go to
    /// `versus`.
    pub fn compare(&mut self, rivals: &[&Self]) {
        for rival in rivals {
            let Some(ratio) = self.unit.ratio(self.median, rival.median) else {
                continue;
            };
            if self.baseline.is_none() {
                self.baseline = Some(rival.id.clone());
                self.ratio = Some(ratio);
            } else {
                self.versus.push(Versus { baseline: rival.id.clone(), ratio });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, unit: Unit, median: f64) -> Entry {
        Entry::new(id, unit, Summary::of(&[median]).expect("one sample"))
    }

    #[test]
    fn smaller_times_and_bytes_and_larger_rates_are_better() {
        assert_eq!(Unit::Nanoseconds.ratio(10.0, 40.0), Some(4.0));
        assert_eq!(Unit::Bytes.ratio(40.0, 10.0), Some(0.25));
        assert_eq!(Unit::PerSecond.ratio(40.0, 10.0), Some(4.0));
        assert_eq!(Unit::Mappings.ratio(0.0, 1.0), None);
    }

    #[test]
    fn the_first_rival_is_the_baseline_and_the_others_are_kept() {
        let mut ours = entry("a.packed", Unit::Nanoseconds, 10.0);
        let page = entry("a.page_each", Unit::Nanoseconds, 40.0);
        let bucket = entry("a.bucket_128k", Unit::Nanoseconds, 60.0);
        ours.compare(&[&page, &bucket]);
        assert_eq!(ours.baseline.as_deref(), Some("a.page_each"));
        assert_eq!(ours.ratio, Some(4.0));
        assert_eq!(ours.versus, [Versus { baseline: "a.bucket_128k".into(), ratio: 6.0 }]);
    }

    #[test]
    fn records_from_before_it_was_stored_tell_ours_by_the_ratio() {
        let mut ours = entry("a.packed", Unit::Nanoseconds, 10.0);
        let rival = entry("a.page_each", Unit::Nanoseconds, 40.0);
        ours.compare(&[&rival]);
        assert!(ours.is_ours() && !rival.is_ours());
        ours.ours = Some(false);
        assert!(!ours.is_ours());
    }

    #[test]
    fn the_json_has_the_agreed_shape() {
        let mut ours = entry("pack.call.20000.packed", Unit::Nanoseconds, 40.0);
        ours.compare(&[&entry("pack.call.20000.page_each", Unit::Nanoseconds, 200.0)]);
        ours.backing = Some("collapsed-memfd".into());
        ours.ours = Some(true);
        let report = Report {
            version: FORMAT_VERSION,
            machine: Machine {
                cpu: "cpu".into(),
                cores: 2,
                architecture: "x86_64".into(),
                kernel: "6.18".into(),
                memory_bytes: 1,
                page_bytes: 4096,
                huge_page_bytes: Some(2 << 20),
                thp_enabled: Some("madvise".into()),
                thp_shmem_enabled: None,
                palimpsest: "0.1.0".into(),
                backing: None,
                refused: Vec::new(),
            },
            seconds: 1.5,
            results: vec![ours],
            skipped: vec![Skipped { id: "pack.load.jit_allocator".into(), reason: "why".into() }],
        };
        let json = serde_json::to_string_pretty(&report).expect("a report is serialisable");
        assert_eq!(json, include_str!("../../tests/golden/report.json").trim_end());
        let back: Report = serde_json::from_str(&json).expect("our own JSON");
        assert_eq!(back, report);
    }
}
