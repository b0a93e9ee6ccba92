//! Who takes part in a group of figures, with whom each is compared, and how samples become entries.

use std::collections::HashMap;

use super::record::{Entry, Skipped, Unit};
use super::sampler::Summary;

/// One figure of a group: what it counts, and which others it is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contestant {
    /// Id of the figure.
    pub id: String,
    /// What it counts.
    pub unit: Unit,
    rivals: Rivals,
    note: Option<String>,
    side: Side,
    home: Home,
}

/// Whose figure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Palimpsest's.
    Ours,
    /// What people do today, or a bound that nobody can beat.
    Rival,
}

/// Ids of the figures with which one is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rivals {
    /// The first that has a value is the baseline.
    InOrder(Vec<String>),
    /// The best is the baseline.
    BestFirst(Vec<String>),
}

/// Where the figure's code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// In packs, whose backing belongs to the entry.
    Packs,
    Elsewhere,
}

impl Contestant {
    /// Makes a figure of a rival, compared with nothing.
    #[must_use]
    pub fn new(id: impl Into<String>, unit: Unit) -> Self {
        let (rivals, side, home) = (Rivals::InOrder(Vec::new()), Side::Rival, Home::Elsewhere);
        Self { id: id.into(), unit, rivals, note: None, side, home }
    }

    /// Makes it Palimpsest's, compared with nothing.
    #[must_use]
    pub fn ours(mut self) -> Self {
        self.side = Side::Ours;
        self
    }

    /// Whether it is Palimpsest's.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.side == Side::Ours
    }

    /// Makes it Palimpsest's, compared with these; the first that has a value is the baseline.
    #[must_use]
    pub fn against<S: Into<String>>(mut self, rivals: impl IntoIterator<Item = S>) -> Self {
        self.rivals = Rivals::InOrder(rivals.into_iter().map(Into::into).collect());
        self.ours()
    }

    /// Makes it Palimpsest's, compared with these; the best of them is the baseline.
    #[must_use]
    pub fn against_best<S: Into<String>>(mut self, rivals: impl IntoIterator<Item = S>) -> Self {
        self.rivals = Rivals::BestFirst(rivals.into_iter().map(Into::into).collect());
        self.ours()
    }

    /// Notes what the figure includes or leaves out.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Makes it Palimpsest's, with its code in packs.
    #[must_use]
    pub fn in_packs(mut self) -> Self {
        self.home = Home::Packs;
        self.ours()
    }
}

/// Figures that are measured together, because they are each other's baselines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Common beginning of the ids.
    pub id: String,
    /// What the figures show, for a heading.
    pub title: String,
    /// Whose figures, in the order of the table.
    pub contestants: Vec<Contestant>,
}

impl Group {
    /// Makes a group with this shared beginning of ids, this heading and these figures.
    pub fn new(
        id: impl Into<String>,
        title: impl Into<String>,
        contestants: impl IntoIterator<Item = Contestant>,
    ) -> Self {
        Self { id: id.into(), title: title.into(), contestants: contestants.into_iter().collect() }
    }

    /// Returns the group with only the figures of these ids, in this order.
    #[must_use]
    pub fn only(mut self, ids: &[String]) -> Self {
        let mut rest = std::mem::take(&mut self.contestants);
        self.contestants = ids
            .iter()
            .filter_map(|id| rest.iter().position(|contestant| contestant.id == *id).map(|place| rest.remove(place)))
            .collect();
        self
    }

    /// Returns the ids of all figures.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.contestants.iter().map(|contestant| contestant.id.as_str())
    }

    /// Whether the figure `id` is one of them.
    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        self.ids().any(|own| own == id)
    }

    /// Makes an entry for each contestant that has samples, and notes why the others have none.
    pub(crate) fn evaluate(&self, mut samples: Samples, backing: Option<&str>) -> (Vec<Entry>, Vec<Skipped>) {
        let mut skipped = Vec::new();
        let mut entries: Vec<(&Contestant, Entry)> = Vec::with_capacity(self.contestants.len());
        for contestant in &self.contestants {
            let taken = samples.0.remove(&contestant.id).unwrap_or_default();
            let summary = Summary::of(&taken.values);
            let (None, Some(summary)) = (&taken.refused, summary) else {
                let reason = taken.refused.unwrap_or_else(|| "no sample was taken".to_owned());
                skipped.push(Skipped { id: contestant.id.clone(), reason });
                continue;
            };
            let mut entry = Entry::new(contestant.id.as_str(), contestant.unit, summary);
            let notes: Vec<String> = contestant.note.iter().cloned().chain(taken.notes).collect();
            entry.ours = Some(contestant.is_ours());
            entry.note = (!notes.is_empty()).then(|| notes.join("; "));
            if contestant.home == Home::Packs {
                entry.backing = backing.map(str::to_owned);
            }
            entries.push((contestant, entry));
        }
        debug_assert!(samples.0.is_empty(), "samples of no contestant of {}: {:?}", self.id, samples.0);
        let bare: Vec<Entry> = entries.iter().map(|(_, entry)| entry.clone()).collect();
        let compared = entries.into_iter().map(|(contestant, mut entry)| {
            entry.compare(&rivals(&contestant.rivals, &bare));
            entry
        });
        (compared.collect(), skipped)
    }
}

/// Returns the entries with the ids of `rivals`, the baseline first.
fn rivals<'e>(rivals: &Rivals, entries: &'e [Entry]) -> Vec<&'e Entry> {
    let (Rivals::InOrder(ids) | Rivals::BestFirst(ids)) = rivals;
    let mut found: Vec<&Entry> = ids.iter().filter_map(|id| entries.iter().find(|entry| entry.id == *id)).collect();
    if matches!(rivals, Rivals::BestFirst(_)) {
        found.sort_by(|left, right| {
            let order = left.median.total_cmp(&right.median);
            if left.unit == Unit::PerSecond { order.reverse() } else { order }
        });
    }
    found
}

/// What the contestants of a group have measured.
#[derive(Debug, Default)]
pub struct Samples(HashMap<String, Taken>);

#[derive(Debug, Default)]
struct Taken {
    values: Vec<f64>,
    refused: Option<String>,
    notes: Vec<String>,
}

impl Samples {
    /// Adds a sample of the figure `id`.
    pub fn add(&mut self, id: &str, value: f64) {
        self.of(id).values.push(value);
    }

    /// Adds samples of the figure `id`.
    pub fn extend(&mut self, id: &str, values: impl IntoIterator<Item = f64>) {
        self.of(id).values.extend(values);
    }

    /// Notes why the figure `id` cannot be measured. Of several reasons the first stays.
    pub fn refuse(&mut self, id: &str, reason: impl Into<String>) {
        self.of(id).refused.get_or_insert_with(|| reason.into());
    }

    /// Notes something about the figure `id` that is known only now.
    pub fn note(&mut self, id: &str, note: impl Into<String>) {
        self.of(id).notes.push(note.into());
    }

    /// Returns why the figure `id` cannot be measured, if so.
    #[must_use]
    pub fn refused(&self, id: &str) -> Option<&str> {
        self.0.get(id)?.refused.as_deref()
    }

    /// Median of the samples of the figure `id` so far.
    #[must_use]
    pub fn median(&self, id: &str) -> Option<f64> {
        Summary::of(&self.0.get(id)?.values).map(|summary| summary.median)
    }

    /// Takes the samples of `group`; those of other groups stay.
    #[must_use]
    pub fn take(&mut self, group: &Group) -> Self {
        Self(group.ids().filter_map(|id| self.0.remove_entry(id)).collect())
    }

    fn of(&mut self, id: &str) -> &mut Taken {
        self.0.entry(id.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(ours: Contestant) -> Group {
        let rival = |id| Contestant::new(id, Unit::Nanoseconds);
        Group::new("a", "", [ours, rival("a.page_each"), rival("a.bucket"), rival("a.copy")])
    }

    fn samples(values: &[(&str, f64)]) -> Samples {
        let mut samples = Samples::default();
        values.iter().for_each(|(id, value)| samples.add(id, *value));
        samples
    }

    const ALL: [(&str, f64); 4] = [("a.packed", 10.0), ("a.page_each", 60.0), ("a.bucket", 40.0), ("a.copy", 5.0)];

    #[test]
    fn the_first_rival_with_a_value_is_the_baseline() {
        let ours = Contestant::new("a.packed", Unit::Nanoseconds).against(["a.page_each", "a.bucket"]);
        let (entries, skipped) = group(ours.clone()).evaluate(samples(&ALL), Some("memfd"));
        assert_eq!((entries[0].baseline.as_deref(), entries[0].ratio), (Some("a.page_each"), Some(6.0)));
        assert_eq!(entries[0].versus[0].baseline, "a.bucket");
        assert!(entries[1..].iter().all(|rival| rival.ratio.is_none()) && skipped.is_empty());
        assert!(entries[0].is_ours() && entries[1..].iter().all(|rival| !rival.is_ours()));
        assert_eq!(entries[0].backing, None);
        let mut without = samples(&ALL[..1]);
        without.refuse("a.page_each", "too many mappings");
        without.add("a.bucket", 40.0);
        let (entries, skipped) = group(ours.in_packs()).evaluate(without, Some("memfd"));
        assert_eq!((entries[0].baseline.as_deref(), entries[0].ratio), (Some("a.bucket"), Some(4.0)));
        assert_eq!(entries[0].backing.as_deref(), Some("memfd"));
        let reasons: Vec<&str> = skipped.iter().map(|skip| skip.reason.as_str()).collect();
        assert_eq!(reasons, ["too many mappings", "no sample was taken"]);
    }

    #[test]
    fn ours_is_ours_when_every_rival_is_refused() {
        let ours = Contestant::new("a.packed", Unit::Nanoseconds).against_best(["a.page_each", "a.bucket"]);
        let (entries, skipped) = group(ours).evaluate(samples(&ALL[..1]), None);
        assert_eq!((entries.len(), skipped.len(), entries[0].ratio), (1, 3, None));
        assert!(entries[0].is_ours());
    }

    #[test]
    fn the_best_rival_can_be_the_baseline() {
        let ours = Contestant::new("a.packed", Unit::Nanoseconds).against_best(["a.page_each", "a.bucket"]);
        let (entries, _) = group(ours).evaluate(samples(&ALL), None);
        assert_eq!((entries[0].baseline.as_deref(), entries[0].ratio), (Some("a.bucket"), Some(4.0)));
        let rate = |id| Contestant::new(id, Unit::PerSecond);
        let ours = rate("b.ours").against_best(["b.slow", "b.fast"]);
        let group = Group::new("b", "", [ours, rate("b.slow"), rate("b.fast")]);
        let (entries, _) = group.evaluate(samples(&[("b.ours", 8.0), ("b.slow", 1.0), ("b.fast", 4.0)]), None);
        assert_eq!((entries[0].baseline.as_deref(), entries[0].ratio), (Some("b.fast"), Some(2.0)));
    }

    #[test]
    fn a_part_of_a_group_is_compared_within() {
        let ours = Contestant::new("a.packed", Unit::Nanoseconds).against(["a.page_each", "a.bucket"]);
        let part = group(ours).only(&["a.bucket".to_owned(), "a.packed".to_owned()]);
        assert!(part.ids().eq(["a.bucket", "a.packed"]));
        let (entries, _) = part.evaluate(samples(&[ALL[0], ALL[2]]), None);
        assert_eq!((entries[1].baseline.as_deref(), entries[1].ratio), (Some("a.bucket"), Some(4.0)));
        assert!(entries[1].versus.is_empty());
    }

    #[test]
    fn notes_of_the_contestant_and_of_the_run_stand_together() {
        let mut taken = samples(&ALL);
        taken.note("a.packed", "460 bytes");
        let ours = Contestant::new("a.packed", Unit::Nanoseconds).note("one by one");
        let (entries, _) = group(ours).evaluate(taken, None);
        assert_eq!(entries[0].note.as_deref(), Some("one by one; 460 bytes"));
    }

    #[test]
    fn samples_of_several_groups_are_told_apart() {
        let mut all = samples(&ALL);
        all.add("b.packed", 1.0);
        let own = all.take(&group(Contestant::new("a.packed", Unit::Nanoseconds)));
        assert_eq!((own.median("a.packed"), own.median("b.packed")), (Some(10.0), None));
        assert_eq!((all.median("a.packed"), all.median("b.packed")), (None, Some(1.0)));
    }
}
