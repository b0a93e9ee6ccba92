//! What a suite is, and the run that drives suites.

use std::time::Instant;

use super::contestant::Group;
use super::context::Context;
use super::error::BenchError;
use super::progress::Progress;
use super::record::{Entry, FORMAT_VERSION, Machine, Report, Skipped};
use super::request::{Request, Wanted};

/// Whether a suite runs in a run that names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It does.
    Always,
    /// It measures a program of others, which takes its time: only if it is named.
    ByName,
}

/// A set of figures with their baselines.
pub trait Suite {
    /// First part of the ids, and the name on the command line.
    fn id(&self) -> &'static str;

    /// One sentence for `--list`.
    fn description(&self) -> &'static str;

    /// Whether it runs when it is not named.
    fn asked(&self) -> Asked {
        Asked::Always
    }

    /// Everything the suite can measure.
    fn groups(&self) -> Vec<Group>;

    /// Measures those groups that [`Context::wants`]; records or skips each of them.
    ///
    /// # Errors
    ///
    /// A figure that cannot be trusted ends the run. One that this machine or build cannot measure is skipped.
    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError>;
}

/// Returns those of `known` with these names; without names, all that need not be named.
///
/// # Errors
///
/// [`BenchError::UnknownSuite`] names the one that does not exist and those that do.
pub fn named(known: Vec<Box<dyn Suite>>, names: &[String]) -> Result<Vec<Box<dyn Suite>>, BenchError> {
    if let Some(name) = names.iter().find(|name| !known.iter().any(|suite| suite.id() == name.as_str())) {
        let known = known.iter().map(|suite| suite.id()).collect::<Vec<_>>().join(", ");
        return Err(BenchError::UnknownSuite { name: name.clone(), known });
    }
    let chosen = |suite: &dyn Suite| match names {
        [] => suite.asked() == Asked::Always,
        names => names.iter().any(|name| suite.id() == name),
    };
    Ok(known.into_iter().filter(|suite| chosen(&**suite)).collect())
}

/// Runs those of `suites` that `request` asks for, on `machine`.
///
/// # Errors
///
/// [`BenchError::UnknownSuite`] and [`BenchError::NothingMatches`] before anything has run; the others end the run, and
/// [`BenchError::Cut`] has what was measured until then.
pub fn run(
    suites: Vec<Box<dyn Suite>>,
    machine: Machine,
    request: &Request,
    progress: &dyn Progress,
) -> Result<Report, BenchError> {
    let started = Instant::now();
    let chosen = named(suites, &request.suites)?;
    let wanted = Wanted::matching(request.filter.clone());
    let groups: Vec<Group> =
        chosen.iter().flat_map(|suite| suite.groups()).filter(|group| wanted.group(group)).collect();
    if groups.is_empty() {
        return Err(BenchError::NothingMatches { filter: request.filter.clone().unwrap_or_default() });
    }
    let mut context =
        Context::new(request.effort, wanted, request.program.as_deref(), progress, machine.backing.as_deref());
    progress.start(groups.len());
    let outcome = chosen.iter().try_for_each(|suite| suite.run(&mut context));
    progress.end();
    let (results, mut skipped) = context.into_results();
    if outcome.is_err() {
        skipped
            .extend(groups.iter().filter(|group| !is_done(group, &results, &skipped)).map(missing).collect::<Vec<_>>());
    }
    let report =
        Report { version: FORMAT_VERSION, machine, seconds: started.elapsed().as_secs_f64(), results, skipped };
    match outcome {
        Ok(()) => Ok(report),
        Err(source) if report.results.is_empty() => Err(source),
        Err(source) => Err(BenchError::Cut { report: Box::new(report), source: Box::new(source) }),
    }
}

/// Whether a run has come to a group: it has a figure of it, or says why not.
fn is_done(group: &Group, results: &[Entry], skipped: &[Skipped]) -> bool {
    let whole = format!("{}.*", group.id);
    let is_told = |id: &str| results.iter().any(|one| one.id == id) || skipped.iter().any(|one| one.id == id);
    is_told(&whole) || group.contestants.iter().any(|contestant| is_told(&contestant.id))
}

/// Returns why a group has no figures after a run that an error has cut short.
fn missing(group: &Group) -> Skipped {
    Skipped { id: format!("{}.*", group.id), reason: "an error ended the run before".into() }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::contestant::{Contestant, Samples};
    use super::super::host;
    use super::super::progress::Silent;
    use super::super::record::Unit;
    use super::*;

    /// A suite with two groups, of which it measures the first and skips the second.
    struct Two(&'static str, Asked);

    impl Suite for Two {
        fn id(&self) -> &'static str {
            self.0
        }

        fn description(&self) -> &'static str {
            ""
        }

        fn asked(&self) -> Asked {
            self.1
        }

        fn groups(&self) -> Vec<Group> {
            let group = |name| {
                let id = format!("{}.{name}", self.0);
                Group::new(id.as_str(), "", [Contestant::new(format!("{id}.figure"), Unit::Count)])
            };
            vec![group("one"), group("two")]
        }

        fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
            let [one, two] = &self.groups()[..] else { return Ok(()) };
            if context.wants(one) {
                context.begin(&one.id);
                let mut samples = Samples::default();
                samples.extend(&one.contestants[0].id, [3.0, 1.0, 2.0]);
                context.record(one, samples);
            }
            if context.wants(two) {
                context.skip(two, "there is no second");
            }
            Ok(())
        }
    }

    fn suites() -> Vec<Box<dyn Suite>> {
        vec![Box::new(Two("a", Asked::Always)), Box::new(Two("b", Asked::ByName)), Box::new(Two("c", Asked::Always))]
    }

    #[test]
    fn suites_are_chosen_by_name_and_keep_their_order() {
        let ids = |names: &[&str]| -> String {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            named(suites(), &names).expect("they exist").iter().map(|suite| suite.id()).collect()
        };
        assert_eq!((ids(&[]), ids(&["b"]), ids(&["b", "a"])), ("ac".into(), "b".into(), "ab".into()));
    }

    #[test]
    fn unknown_suites_and_empty_selections_are_errors() {
        let unknown = Request::default().suites(["nosuch"]);
        let error = run(suites(), host::describe(), &unknown, &Silent).expect_err("there is no such suite");
        assert!(error.to_string().contains("`nosuch`"));
        let empty = Request::default().filter("nosuch");
        let error = run(suites(), host::describe(), &empty, &Silent).expect_err("nothing matches");
        assert!(matches!(error, BenchError::NothingMatches { .. }));
    }

    /// A suite that fails.
    struct Failing;

    impl Suite for Failing {
        fn id(&self) -> &'static str {
            "failing"
        }

        fn description(&self) -> &'static str {
            ""
        }

        fn groups(&self) -> Vec<Group> {
            vec![Group::new("failing", "", [Contestant::new("failing.figure", Unit::Count)])]
        }

        fn run(&self, _: &mut Context<'_>) -> Result<(), BenchError> {
            Err(BenchError::Helper { contestant: "it".into(), reason: "no".into() })
        }
    }

    #[test]
    fn what_was_measured_before_an_error_is_kept() {
        let suites = || -> Vec<Box<dyn Suite>> {
            vec![Box::new(Two("a", Asked::Always)), Box::new(Failing), Box::new(Two("c", Asked::Always))]
        };
        let error = run(suites(), host::describe(), &Request::default(), &Silent).expect_err("one suite fails");
        let BenchError::Cut { report, source } = error else { panic!("{error}") };
        let skipped: Vec<&str> = report.skipped.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(report.results.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["a.one.figure"]);
        assert_eq!(skipped, ["a.two.*", "failing.*", "c.one.*", "c.two.*"], "a record of a part says so");
        assert!(matches!(*source, BenchError::Helper { .. }));
        let alone = Request::default().suites(["failing"]);
        let error = run(suites(), host::describe(), &alone, &Silent).expect_err("it fails");
        assert!(matches!(error, BenchError::Helper { .. }), "there is no report to keep");
    }

    /// Records its calls.
    #[derive(Default)]
    struct Told(RefCell<Vec<String>>);

    impl Progress for Told {
        fn start(&self, groups: usize) {
            self.0.borrow_mut().push(format!("{groups} groups"));
        }

        fn begin(&self, what: &str) {
            self.0.borrow_mut().push(what.to_owned());
        }

        fn done(&self, group: &Group, entries: &[Entry], skipped: &[Skipped]) {
            self.0.borrow_mut().push(format!("{} {} {}", group.id, entries.len(), skipped.len()));
        }

        fn end(&self) {
            self.0.borrow_mut().push("end".to_owned());
        }
    }

    #[test]
    fn a_run_records_every_group_and_tells_of_each() {
        let told = Told::default();
        let request = Request::default().suites(["b"]);
        let report = run(suites(), host::describe(), &request, &told).expect("nothing fails");
        assert_eq!((report.results[0].id.as_str(), report.results[0].median), ("b.one.figure", 2.0));
        assert_eq!(
            (report.skipped[0].id.as_str(), report.skipped[0].reason.as_str()),
            ("b.two.*", "there is no second")
        );
        assert_eq!(told.0.into_inner(), ["2 groups", "b.one", "b.one 1 0", "b.two 0 1", "end"]);
    }
}
