//! What interleaved rounds say together: who goes when, medians, spreads, ratios.
//!
//! A machine drifts: it gets warmer, and neighbours come and go. So figures are compared within a
//! round only, and what is told is the median of those ratios with their spread.

use std::collections::BTreeMap;

use crate::{
    progress::Progress,
    report::{
        Axis, Chart, Note, Run, Scale, Series, Table,
        format::{cell, count},
        latency::Latencies,
        tables::{self, Figure},
    },
};

/// From this number of rounds on, the spread is given as quartiles, which one bad round does not move.
/// With fewer rounds quartiles would hide more than they tell.
const QUARTILES_FROM: usize = 8;

/// The order in which `count` targets take their turn in this round, from zero.
///
/// Each odd round goes backwards through the order of the round before, so that a steady drift
/// favours no target; every second round another target begins.
pub(crate) fn order(count: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..count)
        .map(|place| (place + round / 2) % count)
        .collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Calls `measure` once in each round for each of `names`, by its index and in the order of [`order`]. The progress says
/// which it is.
///
/// # Errors
/// Those of `measure`, at once.
pub(crate) async fn interleave(
    rounds: u16,
    names: &[String],
    progress: &Progress,
    mut measure: impl AsyncFnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for round in 0..usize::from(rounds) {
        for index in order(names.len(), round) {
            let name = names.get(index).map_or("", String::as_str);
            progress.label(format!("round {} of {rounds}, {name}", round + 1));
            measure(index).await?;
        }
    }
    progress.label("");
    Ok(())
}

/// All rounds of one target, level or phase.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// The run of each round. Their histograms are in `latencies`.
    runs: Vec<Run>,
    notes: Vec<Vec<Note>>,
    latencies: Option<Latencies>,
}

impl Rounds {
    /// Adds a round, and what to know about it. Its histogram is kept in the sum only, since it is large.
    pub(crate) fn add(&mut self, mut run: Run, notes: Vec<Note>) {
        if let Some(histogram) = run.histogram.take() {
            self.latencies.get_or_insert_default().merge(&histogram);
        }
        self.runs.push(run);
        self.notes.push(notes);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(crate) fn completed(&self) -> u64 {
        self.runs.iter().map(|run| run.completed).sum()
    }

    /// What failed in all rounds, by kind.
    pub(crate) fn errors(&self) -> BTreeMap<String, u64> {
        let mut errors = BTreeMap::new();
        for (kind, times) in self.runs.iter().flat_map(|run| &run.errors) {
            *errors.entry(kind.clone()).or_insert(0) += times;
        }
        errors
    }

    /// One figure of each round.
    pub(crate) fn figure(&self, figure: &Figure) -> Vec<Option<f64>> {
        self.runs.iter().map(figure.of).collect()
    }

    /// The median of those rounds that have the figure.
    pub(crate) fn median(&self, figure: &Figure) -> Option<f64> {
        let rounds = self.figure(figure).into_iter().flatten();
        Spread::of(rounds).map(|spread| spread.median)
    }

    /// All rounds together. Its course over time is known if there is one round.
    pub(crate) fn run(&self, name: String) -> Run {
        let latency = self.latencies.as_ref().and_then(Latencies::summary);
        if let [run] = &self.runs[..] {
            let latency = latency.or_else(|| run.latency.clone());
            return Run {
                name,
                latency,
                ..run.clone()
            };
        }
        let runs = || self.runs.iter();
        let mut sum = Run {
            name,
            latency: latency.or_else(|| runs().rev().find_map(|run| run.latency.clone())),
            seconds: runs().map(|run| run.seconds).sum(),
            completed: self.completed(),
            bytes_up: runs().map(|run| run.bytes_up).sum(),
            bytes_down: runs().map(|run| run.bytes_down).sum(),
            errors: self.errors(),
            generator_bound: runs().any(|run| run.generator_bound),
            ..Run::default()
        };
        runs().for_each(|run| tables::add(&mut sum.usage, &run.usage));
        sum.rate = sum.completed as f64 / sum.seconds.max(1e-3);
        if runs().any(|run| run.cpu_us_per_request.is_some()) {
            sum.cpu_us_per_request = tables::cpu_us_per_request(&sum.usage, sum.completed);
        }
        sum
    }

    /// What is to be known of the rounds, each kind of note once. Figures in them are of the first round
    /// that has it; with several rounds it is said in how many it was so.
    pub(crate) fn notes(&self, name: &str) -> Vec<Note> {
        let kind = |note: &Note| note.text.replace(|digit: char| digit.is_ascii_digit(), "");
        let mut found: Vec<(&Note, usize)> = Vec::new();
        for note in self.notes.iter().flatten() {
            match found
                .iter_mut()
                .find(|(other, _)| kind(other) == kind(note))
            {
                Some((_, times)) => *times += 1,
                None => found.push((note, 1)),
            }
        }
        let notes = found.into_iter().map(|(note, times)| Note {
            level: note.level,
            text: match self.notes.len() {
                1 => format!("{name}: {}", note.text),
                all => format!("{name}: {} (in {times} of {all} rounds)", note.text),
            },
        });
        notes.collect()
    }
}

/// A row of a table of rounds: its name, its rounds, and the rounds that ratios are to.
pub(crate) type Row<'a> = (String, &'a Rounds, Option<&'a Rounds>);

/// A table of medians. Beside each of the first `with_ratio` figures stands its ratio to the base, under
/// the head `ratio`.
pub(crate) fn table(
    title: String,
    names: &str,
    figures: &[Figure],
    (with_ratio, ratio): (usize, &str),
    rows: &[Row<'_>],
) -> Table {
    let mut columns = vec![names.to_owned()];
    for (index, figure) in figures.iter().enumerate() {
        columns.push(figure.title.to_owned());
        columns.extend((index < with_ratio).then(|| ratio.to_owned()));
    }
    let row = |(name, rounds, base): &Row<'_>| {
        let mut row = vec![name.clone()];
        for (index, figure) in figures.iter().enumerate() {
            row.push(figure.cell(rounds.median(figure)));
            if index < with_ratio {
                let base = base.map_or_else(Vec::new, |base| base.figure(figure));
                let ratio = ratios(&rounds.figure(figure), &base);
                row.push(cell(ratio, |ratio| ratio.ratio()));
            }
        }
        row
    };
    Table {
        title,
        rows: rows.iter().map(row).collect(),
        columns,
    }
}

impl Table {
    /// Adds the column of errors of all rounds.
    pub(crate) fn with_errors(mut self, rows: &[Row<'_>]) -> Self {
        self.columns.push("errors".to_owned());
        for (cells, (_, rounds, _)) in self.rows.iter_mut().zip(rows) {
            cells.push(match rounds.is_empty() {
                true => "not measured".to_owned(),
                false => count(rounds.errors().values().sum::<u64>() as f64),
            });
        }
        self
    }
}

/// A figure over levels or rounds, with a line for each name. Nothing if there is nothing to be drawn.
pub(crate) fn chart<'a>(
    title: String,
    figure: &Figure,
    x: Axis,
    lines: impl Iterator<Item = (&'a String, Vec<(f64, Option<f64>)>)>,
) -> Option<Chart> {
    let y = Axis::new(figure.title, figure.unit, Scale::Linear);
    // Zero has no place on a logarithmic axis.
    let is_shown = |at: f64| at > 0.0 || x.scale != Scale::Log;
    let lines = lines.map(|(name, points)| {
        let points = points.into_iter().filter(|(x, _)| is_shown(*x));
        let points = points.filter_map(|(x, y)| Some((x, y?)));
        let mut points: Vec<_> = points.collect();
        points.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        Series::new(name, points)
    });
    let lines: Vec<_> = lines.collect();
    Chart::new(title, x, y, lines).if_any()
}

/// A median and how far the rounds lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Half of the rounds are no higher.
    pub median: f64,
    /// The lowest round, or the lower quartile of many.
    pub low: f64,
    /// The highest round, or the upper quartile of many.
    pub high: f64,
}

impl Spread {
    /// Of these rounds; none when there is no finite figure among them.
    pub fn of(rounds: impl IntoIterator<Item = f64>) -> Option<Self> {
        let rounds: Vec<f64> = rounds.into_iter().collect();
        let ends = match rounds.len() {
            QUARTILES_FROM.. => (0.25, 0.75),
            _ => (0.0, 1.0),
        };
        Self::between(rounds, ends)
    }

    /// From the lowest to the highest, however many there are.
    pub fn of_all(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        Self::between(values.into_iter().collect(), (0.0, 1.0))
    }

    fn between(values: Vec<f64>, (low, high): (f64, f64)) -> Option<Self> {
        let mut sorted = values;
        sorted.retain(|value| value.is_finite());
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: quantile(&sorted, 0.5)?,
            low: quantile(&sorted, low)?,
            high: quantile(&sorted, high)?,
        })
    }

    /// As a ratio for people: `0.48 (0.46–0.51)`, or `1.00` where there is no spread.
    pub fn ratio(&self) -> String {
        let two = |value: f64| {
            if value < 100.0 {
                format!("{value:.2}")
            } else {
                format!("{value:.0}")
            }
        };
        let (median, low, high) = (two(self.median), two(self.low), two(self.high));
        match low == high {
            true => median,
            false => format!("{median} ({low}–{high})"),
        }
    }
}

/// The ratios of a figure to a base, from those rounds in which both were measured.
fn ratios(figure: &[Option<f64>], base: &[Option<f64>]) -> Option<Spread> {
    let both = figure.iter().zip(base);
    let both = both.filter_map(|(figure, base)| Some((*figure)? / (*base)?));
    Spread::of(both)
}

/// What the spread means, for a note.
pub fn meaning(rounds: usize) -> String {
    if rounds == 1 {
        return "figures of one round, without a spread".to_owned();
    }
    let spread = if rounds < QUARTILES_FROM {
        "lowest and highest round"
    } else {
        "quartiles"
    };
    format!(
        "figures are medians of {rounds} interleaved rounds; each ratio is the median of the \
         ratios within a round, with {spread} in brackets"
    )
}

/// By linear interpolation between neighbours.
fn quantile(sorted: &[f64], quantile: f64) -> Option<f64> {
    let place = quantile * sorted.len().checked_sub(1)? as f64;
    let low = *sorted.get(place.floor() as usize)?;
    let high = *sorted.get(place.ceil() as usize)?;
    Some(low + (high - low) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_keeps_a_place() {
        assert_eq!(order(3, 0), [0, 1, 2]);
        assert_eq!(order(3, 1), [2, 1, 0]);
        assert_eq!(order(3, 2), [1, 2, 0]);
        assert_eq!(order(3, 3), [0, 2, 1]);
        assert!(order(0, 5).is_empty());
        for count in 1..7 {
            let mut places = vec![0; count];
            for round in 0..2 * count {
                for (place, target) in order(count, round).into_iter().enumerate() {
                    places[target] += place;
                }
            }
            assert!(places.iter().all(|sum| *sum == places[0]), "{places:?}");
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine got twice as slow in the second round, and everybody with it.
        let ours = [Some(10.0), Some(20.0), Some(12.0)];
        let base = [Some(20.0), Some(40.0), Some(20.0)];
        let spread = ratios(&ours, &base).unwrap();
        assert_eq!(
            spread,
            Spread {
                median: 0.5,
                low: 0.5,
                high: 0.6
            }
        );
        assert_eq!(spread.ratio(), "0.50 (0.50–0.60)");
        // The ratio of the medians would say 0.6.
        let median = |rounds: [Option<f64>; 3]| Spread::of(rounds.into_iter().flatten());
        assert_eq!(
            median(ours).unwrap().median / median(base).unwrap().median,
            0.6
        );
    }

    #[test]
    fn a_round_that_failed_counts_for_nothing() {
        let ours = [None, Some(30.0), Some(10.0)];
        let base = [Some(1.0), Some(10.0), None];
        assert_eq!(ratios(&ours, &base).unwrap().median, 3.0);
        assert_eq!(ratios(&ours, &[None, None, Some(0.0)]), None);
        assert_eq!(ratios(&[], &[]), None);
    }

    #[test]
    fn what_is_told_of_many_rounds_is_told_once() {
        let busy = |share: u32| Note::warning(format!("busy for {share} % of the time"));
        let texts = |rounds: &[Vec<Note>]| -> Vec<String> {
            let mut all = Rounds::default();
            for notes in rounds {
                all.add(Run::default(), notes.clone());
            }
            all.notes("a").into_iter().map(|note| note.text).collect()
        };
        let rounds = [
            vec![busy(96)],
            vec![],
            vec![busy(100), Note::warning("dead")],
        ];
        let expected = [
            "a: busy for 96 % of the time (in 2 of 3 rounds)",
            "a: dead (in 1 of 3 rounds)",
        ];
        assert_eq!(texts(&rounds), expected);
        assert_eq!(texts(&rounds[..1]), ["a: busy for 96 % of the time"]);
    }

    #[test]
    fn rounds_together_are_a_run() {
        let mut rounds = Rounds::default();
        for milliseconds in [1, 3] {
            let mut latencies = Latencies::new();
            latencies.record(std::time::Duration::from_millis(milliseconds));
            let mut run = Run {
                completed: 10 * milliseconds,
                seconds: 2.0,
                latency: latencies.summary(),
                histogram: Some(latencies),
                ..Run::default()
            };
            run.errors.insert("timeout".to_owned(), 1);
            rounds.add(run, Vec::new());
        }
        let run = rounds.run("all".to_owned());
        assert_eq!((run.completed, run.seconds, run.rate), (40, 4.0, 10.0));
        assert_eq!(run.errors["timeout"], 2);
        let latency = run.latency.unwrap();
        assert!(latency.count == 2 && latency.min < 0.0011 && latency.max > 0.0029);
    }

    #[test]
    fn many_rounds_are_told_by_quartiles() {
        let few = Spread::of((1..=5).map(f64::from)).unwrap();
        assert_eq!((few.low, few.median, few.high), (1.0, 3.0, 5.0));
        let many = Spread::of((1..=9).map(f64::from)).unwrap();
        assert_eq!((many.low, many.median, many.high), (3.0, 5.0, 7.0));
        let even = Spread::of([1.0, 2.0]).unwrap();
        assert_eq!(even.median, 1.5);
    }

    #[test]
    fn only_several_rounds_have_brackets() {
        assert_eq!(meaning(1), "figures of one round, without a spread");
        assert!(meaning(2).contains("2 interleaved rounds"));
        assert!(meaning(2).ends_with("lowest and highest round in brackets"));
        assert!(meaning(8).ends_with("quartiles in brackets"));
    }
}
