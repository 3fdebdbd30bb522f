//! What interleaved rounds say together: who goes when, medians, spreads, ratios.
//!
//! A machine drifts: it gets warmer, and neighbours come and go. So figures are compared within a
//! round only, and what is told is the median of those ratios with their spread. Figures in,
//! figures out; nothing here measures.

use std::collections::BTreeMap;

use crate::{
    measure::{Recording, Slice, usage},
    report::{Axis, Chart, Note, Run, Scale, Series, Unit, Usage, format, format::NONE},
};

/// From so many rounds on the spread is told by quartiles, which one bad round does not move.
/// With fewer rounds quartiles would hide more than they tell.
const QUARTILES_FROM: usize = 8;

/// The order in which `count` targets take their turn in this round, from zero.
///
/// Each odd round goes backwards through the order of the round before, so that a steady drift
/// favours nobody; every second round another target begins.
pub fn order(count: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..count)
        .map(|place| (place + round / 2) % count)
        .collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// A figure of each round: its name in tables and charts, and how it is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) title: &'static str,
    pub(crate) unit: Unit,
}

impl Figure {
    pub(crate) const fn new(title: &'static str, unit: Unit) -> Self {
        Self { title, unit }
    }

    /// The median of the rounds in words.
    pub(crate) fn cell(self, rounds: &[Option<f64>]) -> String {
        cell(median(rounds), |value| format::value(self.unit, value))
    }

    /// The figure over `x`; nothing if there is nothing to be drawn.
    pub(crate) fn chart(
        self,
        title: String,
        x: Axis,
        lines: impl Iterator<Item = Series>,
    ) -> Option<Chart> {
        let y = Axis::new(self.title, self.unit, Scale::Linear);
        Chart::new(title, x, y, lines).if_any()
    }
}

/// What one round measured.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// The figures, in an order that the scenario knows; a round that failed may have none.
    pub(crate) figures: Vec<Option<f64>>,
    pub(crate) counts: Slice,
    pub(crate) seconds: f64,
    pub(crate) usage: BTreeMap<String, Usage>,
    pub(crate) notes: Vec<Note>,
    pub(crate) generator_bound: bool,
}

/// All rounds of one target, level or phase.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    samples: Vec<Sample>,
    /// The counts of all samples.
    pub(crate) total: Slice,
}

impl Rounds {
    /// Adds a round. Its counts are kept in the sum only, since a histogram is large.
    pub(crate) fn add(&mut self, mut sample: Sample) {
        self.total.merge(&std::mem::take(&mut sample.counts));
        self.samples.push(sample);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// One figure of each round.
    pub(crate) fn figure(&self, index: usize) -> Vec<Option<f64>> {
        let figures = self.samples.iter();
        figures
            .map(|sample| sample.figures.get(index).copied().flatten())
            .collect()
    }

    /// All rounds together, without a cost.
    pub(crate) fn run(&self, name: String) -> Run {
        let mut total = Slice::default();
        total.merge(&self.total);
        let seconds: f64 = self.samples.iter().map(|sample| sample.seconds).sum();
        let recording = Recording {
            name: name.clone(),
            seconds: seconds.max(1e-3),
            total,
            timeline: Vec::new(),
        };
        let mut run = recording.into_run(name);
        for sample in &self.samples {
            usage::add(&mut run.usage, &sample.usage);
            run.generator_bound |= sample.generator_bound;
        }
        run
    }

    /// What is to be known of the rounds, each thing once.
    pub(crate) fn notes(&self, name: &str) -> Vec<Note> {
        let samples = self.samples.iter();
        let rounds: Vec<_> = samples.map(|sample| sample.notes.as_slice()).collect();
        notes(name, &rounds)
    }
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
        let mut sorted: Vec<f64> = rounds
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = if sorted.len() < QUARTILES_FROM {
            (0.0, 1.0)
        } else {
            (0.25, 0.75)
        };
        Some(Self {
            median: quantile(&sorted, 0.5)?,
            low: quantile(&sorted, low)?,
            high: quantile(&sorted, high)?,
        })
    }

    /// As a ratio for people: `0.48 (0.46–0.51)`.
    pub fn ratio(&self) -> String {
        let two = |value: f64| {
            if value < 100.0 {
                format!("{value:.2}")
            } else {
                format!("{value:.0}")
            }
        };
        format!(
            "{} ({}–{})",
            two(self.median),
            two(self.low),
            two(self.high)
        )
    }
}

/// The ratios of a figure to a base, from those rounds in which both were measured.
pub fn ratios(figure: &[Option<f64>], base: &[Option<f64>]) -> Option<Spread> {
    let both = figure
        .iter()
        .zip(base)
        .filter_map(|(figure, base)| Some(((*figure)?, (*base)?)));
    Spread::of(both.map(|(figure, base)| figure / base))
}

/// The median of those rounds that have a figure.
pub fn median(rounds: &[Option<f64>]) -> Option<f64> {
    Spread::of(rounds.iter().flatten().copied()).map(|spread| spread.median)
}

/// A cell with this figure, or with a dash.
pub fn cell<T>(figure: Option<T>, show: impl FnOnce(T) -> String) -> String {
    figure.map_or_else(|| NONE.to_owned(), show)
}

/// The notes of all rounds of one thing, each kind once. Figures in them are of the first round
/// that has it; with several rounds it is said in how many it was so.
pub fn notes(name: &str, rounds: &[&[Note]]) -> Vec<Note> {
    let kind = |note: &Note| note.text.replace(|digit: char| digit.is_ascii_digit(), "");
    let mut found: Vec<(String, Note, usize)> = Vec::new();
    for note in rounds.iter().copied().flatten() {
        let kind = kind(note);
        match found.iter_mut().find(|(other, ..)| *other == kind) {
            Some((_, _, times)) => *times += 1,
            None => found.push((kind, note.clone(), 1)),
        }
    }
    let told = found.into_iter().map(|(_, note, times)| Note {
        level: note.level,
        text: match rounds.len() {
            1 => format!("{name}: {}", note.text),
            all => format!("{name}: {} (in {times} of {all} rounds)", note.text),
        },
    });
    told.collect()
}

/// What the spread means, for a note.
pub fn meaning(rounds: usize) -> String {
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
        assert_eq!(median(&ours).unwrap() / median(&base).unwrap(), 0.6);
    }

    #[test]
    fn a_round_that_failed_counts_for_nothing() {
        let ours = [None, Some(30.0), Some(10.0)];
        let base = [Some(1.0), Some(10.0), None];
        assert_eq!(ratios(&ours, &base).unwrap().median, 3.0);
        assert_eq!(ratios(&ours, &[None, None, Some(0.0)]), None);
        assert_eq!(ratios(&[], &[]), None);
        assert_eq!(cell(None::<f64>, |_| String::new()), NONE);
    }

    #[test]
    fn what_is_told_of_many_rounds_is_told_once() {
        let busy = |share: u32| Note::warning(format!("busy for {share} % of the time"));
        let rounds = [
            vec![busy(96)],
            vec![],
            vec![busy(100), Note::warning("dead")],
        ];
        let rounds: Vec<_> = rounds.iter().map(Vec::as_slice).collect();
        let texts = |rounds: &[&[Note]]| -> Vec<String> {
            let notes = notes("a", rounds).into_iter();
            notes.map(|note| note.text).collect()
        };
        let expected = [
            "a: busy for 96 % of the time (in 2 of 3 rounds)",
            "a: dead (in 1 of 3 rounds)",
        ];
        assert_eq!(texts(&rounds), expected);
        assert_eq!(texts(&rounds[..1]), ["a: busy for 96 % of the time"]);
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
}
