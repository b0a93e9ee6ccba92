//! What a suite is, and the run that drives suites.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::placers::{Contestant, Packed};
use crate::progress::Progress;
use crate::record::{Entry, FORMAT_VERSION, Report, Skipped, Unit};
use crate::sampler::{Rounds, Summary};
use crate::{BenchError, PlaceError, host};
use palimpsest_sys::Causes;

/// How much time a run may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Effort {
    /// Under a minute for all suites together.
    Quick,
    /// A few minutes; narrower medians.
    #[default]
    Full,
}

impl Effort {
    /// Limits of a sampling: `least` and `most` rounds of a full run and its time; a quick one has a fifth of the time.
    pub(crate) fn rounds(self, least: usize, most: usize, budget: Duration) -> Rounds {
        match self {
            Self::Quick => Rounds { least: (least / 3).max(2), most: (most / 3).max(2), budget: budget / 5 },
            Self::Full => Rounds { least, most, budget },
        }
    }

    /// `quick` or `full`, whichever this is.
    #[must_use]
    pub fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// Figures that are measured together, because they are each other's baselines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Common beginning of the ids.
    pub id: String,
    /// What the figures show, for a heading.
    pub title: String,
    /// The ids of all figures.
    pub figures: Vec<String>,
}

/// A set of figures with their baselines.
pub trait Suite {
    /// First part of the ids, and the name on the command line.
    fn id(&self) -> &'static str;

    /// One sentence for `--list`.
    fn description(&self) -> &'static str;

    /// Everything the suite can measure.
    fn groups(&self) -> Vec<Group>;

    /// Measures those groups that [`Context::wants`].
    ///
    /// # Errors
    ///
    /// A figure that cannot be trusted ends the run. One that this machine or build cannot measure is
    /// [`Context::skip`]ped.
    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError>;
}

/// What to measure.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Names of suites; all if empty.
    pub suites: Vec<String>,
    /// Measure only groups with an id that contains this text.
    pub filter: Option<String>,
    /// How long to measure.
    pub effort: Effort,
    /// Program and first arguments that start a process which calls [`crate::suites::pack::probe_memory`] with the
    /// arguments that follow, and prints the result. Without it, figures of memory are skipped: they need a process
    /// without a past.
    pub memory_probe: Option<Vec<PathBuf>>,
    /// Program and first arguments that start a process which calls [`crate::suites::fork::work`] with the arguments
    /// that follow. Without it, the suites `fork` and `reset` are skipped: each contestant needs a process with a heap
    /// of its own.
    pub fork_worker: Option<Vec<PathBuf>>,
}

/// The part of a [`Request`] that decides which figures are measured.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    filter: Option<String>,
}

impl Wanted {
    /// Only groups with an id that contains `filter`; all if there is none.
    #[must_use]
    pub fn matching(filter: Option<String>) -> Self {
        Self { filter }
    }

    /// Whether any figure of `group` is asked for.
    #[must_use]
    pub fn group(&self, group: &Group) -> bool {
        self.filter.as_deref().is_none_or(|filter| group.figures.iter().any(|id| id.contains(filter)))
    }
}

/// What a suite is given, and where it leaves what it found.
pub struct Context<'a> {
    /// How long to measure.
    pub effort: Effort,
    wanted: Wanted,
    pub(crate) memory_probe: Option<&'a [PathBuf]>,
    pub(crate) fork_worker: Option<&'a [PathBuf]>,
    progress: &'a dyn Progress,
    results: Vec<Entry>,
    skipped: Vec<Skipped>,
    backing: Option<String>,
}

impl Context<'_> {
    /// Whether to measure `group`.
    #[must_use]
    pub fn wants(&self, group: &Group) -> bool {
        self.wanted.group(group)
    }

    /// Tells that the group with this id is being measured.
    pub fn begin(&self, id: &str) {
        self.progress.figure(id);
    }

    /// Tells that the group is done.
    pub fn done(&self) {
        self.progress.figure_done();
    }

    /// The backing of packs in this run.
    pub(crate) fn backing(&self) -> Option<String> {
        self.backing.clone()
    }

    /// Records a figure.
    pub fn record(&mut self, entry: Entry) {
        self.results.push(entry);
    }

    /// Records that `id` has no value, and why.
    pub fn skip(&mut self, id: impl Into<String>, reason: impl Into<String>) {
        self.skipped.push(Skipped { id: id.into(), reason: reason.into() });
    }

    /// Skips `id` because its contestant failed, with all the causes.
    pub(crate) fn skip_failed(&mut self, id: impl Into<String>, error: &PlaceError) {
        self.skip(id, Causes(error).to_string());
    }

    /// Records one group from the samples of its contestants: `ours` are compared with `rivals`, the most important
    /// rival first.
    pub(crate) fn record_group(&mut self, unit: Unit, measured: Vec<Measured>) {
        let mut entries: Vec<(Option<Contestant>, Entry)> = Vec::with_capacity(measured.len());
        for figure in measured {
            let Some(summary) = Summary::of(&figure.samples) else {
                continue;
            };
            let mut entry = Entry::new(figure.id, unit, summary);
            entry.note = figure.note;
            if figure.contestant.is_some_and(Contestant::is_ours) {
                entry.backing.clone_from(&self.backing);
            }
            entries.push((figure.contestant, entry));
        }
        let rivals: Vec<(Contestant, Entry)> = entries
            .iter()
            .filter_map(|(who, entry)| Some(((*who).filter(|who| who.is_rival())?, entry.clone())))
            .collect();
        for (who, mut entry) in entries {
            if let Some(who) = who.filter(|who| who.is_ours()) {
                let counterpart = rivals.iter().find(|(rival, _)| Some(*rival) == who.counterpart());
                match counterpart {
                    Some((_, rival)) => entry.compare(&[rival]),
                    None => entry.compare(&rivals.iter().map(|(_, rival)| rival).collect::<Vec<_>>()),
                }
            }
            self.results.push(entry);
        }
    }
}

/// Those of `known` with these names, all if there are no names.
///
/// # Errors
///
/// [`BenchError::UnknownSuite`] names the one that does not exist and those that do.
pub fn named(known: Vec<Box<dyn Suite>>, names: &[String]) -> Result<Vec<Box<dyn Suite>>, BenchError> {
    if let Some(name) = names.iter().find(|name| !known.iter().any(|suite| suite.id() == name.as_str())) {
        let known = known.iter().map(|suite| suite.id()).collect::<Vec<_>>().join(", ");
        return Err(BenchError::UnknownSuite { name: name.clone(), known });
    }
    Ok(known.into_iter().filter(|suite| names.is_empty() || names.iter().any(|name| suite.id() == name)).collect())
}

/// The samples behind one entry.
pub(crate) struct Measured {
    /// Id of the entry.
    pub(crate) id: String,
    /// Whose figure it is; `None` if it is neither ours nor a rival's.
    pub(crate) contestant: Option<Contestant>,
    /// One value per run.
    pub(crate) samples: Vec<f64>,
    /// What the figure includes.
    pub(crate) note: Option<String>,
}

/// Runs those of `suites` that `request` asks for.
///
/// # Errors
///
/// [`BenchError::UnknownSuite`] and [`BenchError::NothingMatches`] before anything has run; the others end the run.
pub fn run(suites: Vec<Box<dyn Suite>>, request: &Request, progress: &dyn Progress) -> Result<Report, BenchError> {
    let started = Instant::now();
    let chosen = named(suites, &request.suites)?;
    let wanted = Wanted::matching(request.filter.clone());
    let groups = chosen.iter().flat_map(|suite| suite.groups()).filter(|group| wanted.group(group)).count();
    if groups == 0 {
        return Err(BenchError::NothingMatches { filter: request.filter.clone().unwrap_or_default() });
    }
    let mut machine = host::describe();
    let packs = Packed::open().map_err(|source| BenchError::Contestant {
        id: "pack".to_owned(),
        contestant: Contestant::Packed.name().to_owned(),
        source,
    })?;
    machine.backing = Some(packs.backing());
    machine.refused = packs.refused();
    drop(packs);
    let mut context = Context {
        effort: request.effort,
        wanted,
        memory_probe: request.memory_probe.as_deref(),
        fork_worker: request.fork_worker.as_deref(),
        progress,
        results: Vec::new(),
        skipped: Vec::new(),
        backing: machine.backing.clone(),
    };
    progress.begin(groups);
    let outcome = chosen.iter().try_for_each(|suite| suite.run(&mut context));
    progress.end();
    outcome?;
    Ok(Report {
        version: FORMAT_VERSION,
        machine,
        seconds: started.elapsed().as_secs_f64(),
        results: context.results,
        skipped: context.skipped,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A suite with one group that is never measured.
    struct Named(&'static str);

    impl Suite for Named {
        fn id(&self) -> &'static str {
            self.0
        }

        fn description(&self) -> &'static str {
            ""
        }

        fn groups(&self) -> Vec<Group> {
            vec![Group { id: self.0.into(), title: String::new(), figures: vec![format!("{}.figure", self.0)] }]
        }

        fn run(&self, _: &mut Context<'_>) -> Result<(), BenchError> {
            Ok(())
        }
    }

    fn suites() -> Vec<Box<dyn Suite>> {
        vec![Box::new(Named("a")), Box::new(Named("b"))]
    }

    #[test]
    fn suites_are_chosen_by_name_and_keep_their_order() {
        let ids = |names: &[&str]| -> String {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            named(suites(), &names).expect("they exist").iter().map(|suite| suite.id()).collect()
        };
        assert_eq!((ids(&[]), ids(&["b"]), ids(&["b", "a"])), ("ab".into(), "b".into(), "ab".into()));
    }

    #[test]
    fn a_filter_takes_whole_groups() {
        let group = Group {
            id: "pack.load".into(),
            title: String::new(),
            figures: vec!["pack.load.packed".into(), "pack.load.page_each".into()],
        };
        assert!(Wanted::matching(None).group(&group));
        assert!(Wanted::matching(Some("page_each".into())).group(&group));
        assert!(!Wanted::matching(Some("call".into())).group(&group));
    }

    #[test]
    fn unknown_suites_and_empty_selections_are_errors() {
        let unknown = Request { suites: vec!["nosuch".into()], ..Request::default() };
        let error = run(suites(), &unknown, &crate::progress::Silent).expect_err("there is no such suite");
        assert!(error.to_string().contains("`nosuch`"));
        let empty = Request { filter: Some("nosuch".into()), ..Request::default() };
        let error = run(suites(), &empty, &crate::progress::Silent).expect_err("nothing matches");
        assert!(matches!(error, BenchError::NothingMatches { .. }));
    }
}
