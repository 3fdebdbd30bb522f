//! Where a value stands along an axis, and which values get a mark there.
//!
//! In go an axis' unit and spacing and all values that it must show; out come positions from 0 to 1
//! and marks with their text. A value that the axis cannot show, such as zero on a logarithmic one
//! or what is not finite, has no position. Pixels are not known here.

use crate::report::{Axis, Scale, Unit, format};

/// Beyond this the difference of two values could overflow, and below its inverse a power of ten
/// could vanish; no measurement comes near.
const LARGEST: f64 = 1e100;
/// Up to so many different values are marked themselves, such as the numbers of connections tried.
const MARKED_THEMSELVES: usize = 8;
/// Marks that an axis should have at most, where a rule can choose.
const MARKS: f64 = 7.0;

/// Which of the two axes; they differ in what they do with the room around the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Begins and ends with the values.
    Across,
    /// Begins with zero where that makes sense, and ends with a mark.
    Up,
}

/// An axis with its limits, in the measure in which it is even.
#[derive(Debug, Clone)]
pub(super) struct Span {
    scale: Scale,
    low: f64,
    high: f64,
    /// The marks, by rising position.
    pub(super) marks: Vec<Mark>,
}

/// A value that is named beside the axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mark {
    /// From 0 to 1.
    pub(super) position: f64,
    /// Its text.
    pub(super) text: String,
}

impl Span {
    /// The span over all values; those that cannot be shown are passed over.
    pub(super) fn over(axis: &Axis, direction: Direction, values: &[f64]) -> Self {
        let mut shown: Vec<_> = (values.iter().copied())
            .filter(|value| even(axis.scale, *value).is_some())
            .collect();
        shown.sort_by(f64::total_cmp);
        shown.dedup();
        let (low, high) = match (shown.first(), shown.last()) {
            (Some(low), Some(high)) => (*low, *high),
            _ => (1.0, 1.0),
        };
        let mut span = match axis.scale {
            Scale::Linear => linear(axis.unit, direction, low, high),
            Scale::Log => logarithmic(axis.unit, direction, low, high),
            Scale::Tail => tail(low, high),
        };
        let few = (1..=MARKED_THEMSELVES).contains(&shown.len());
        if direction == Direction::Across && axis.scale != Scale::Tail && few {
            span.mark(axis.unit, shown);
        }
        span
    }

    /// From 0 to 1; none when the axis cannot show the value.
    pub(super) fn position(&self, value: f64) -> Option<f64> {
        let position = (even(self.scale, value)? - self.low) / (self.high - self.low);
        position.is_finite().then(|| position.clamp(0.0, 1.0))
    }

    /// Marks these values, as far as they lie within.
    fn mark(&mut self, unit: Unit, values: impl IntoIterator<Item = f64>) {
        let (low, high) = (self.low, self.high);
        let slack = (high - low) * 1e-9;
        let within = (values.into_iter()).filter(|value| {
            even(self.scale, *value).is_some_and(|at| at >= low - slack && at <= high + slack)
        });
        self.marks = within
            .filter_map(|value| {
                let reference = if self.scale == Scale::Linear {
                    low.abs().max(high.abs())
                } else {
                    value
                };
                let text = format::tick(unit, value, reference);
                Some(Mark {
                    position: self.position(value)?,
                    text,
                })
            })
            .collect();
    }
}

/// The value in the measure in which the scale is even.
fn even(scale: Scale, value: f64) -> Option<f64> {
    if !value.is_finite() || value.abs() > LARGEST {
        return None;
    }
    match scale {
        Scale::Linear => Some(value),
        Scale::Log => (value > 1.0 / LARGEST).then(|| value.log10()),
        Scale::Tail => (0.0..1.0).contains(&value).then(|| -(1.0 - value).log10()),
    }
}

fn linear(unit: Unit, direction: Direction, low: f64, high: f64) -> Span {
    // Lines that start near zero start at zero; heights always do, or they would exaggerate.
    let from_zero = low >= 0.0 && (direction == Direction::Up || low <= high / 4.0);
    let mut low = if from_zero { 0.0 } else { low };
    let mut high = if direction == Direction::Up {
        high.max(0.0)
    } else {
        high
    };
    if high - low <= high.abs().max(low.abs()) * 1e-9 {
        let room = if high == 0.0 { 1.0 } else { high.abs() / 2.0 };
        (low, high) = (if from_zero { 0.0 } else { low - room }, high + room);
    }
    let step = step(unit, low, high);
    if direction == Direction::Up {
        (low, high) = (
            (low / step + 1e-9).floor() * step,
            (high / step - 1e-9).ceil() * step,
        );
    }
    let mut span = Span {
        scale: Scale::Linear,
        low,
        high,
        marks: Vec::new(),
    };
    let first = (low / step - 1e-9).ceil();
    let steps = (0..=20).map(|index| (first + f64::from(index)) * step);
    span.mark(unit, steps);
    span
}

/// The distance between even marks: 1, 2 or 5 of a power of ten of the unit that people read.
fn step(unit: Unit, low: f64, high: f64) -> f64 {
    let base = match unit {
        Unit::Bytes | Unit::BytesPerSecond => {
            let powers = (high.abs().max(low.abs()).log2() / 10.0 + 1e-9).floor();
            1024_f64.powf(powers.max(0.0))
        }
        _ => 1.0,
    };
    let raw = (high - low) / base / MARKS;
    let power = 10_f64.powf(raw.log10().floor());
    let nice = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|nice| nice * power >= raw * (1.0 - 1e-9));
    nice.unwrap_or(10.0) * power * base
}

fn logarithmic(unit: Unit, direction: Direction, low: f64, high: f64) -> Span {
    let candidates = logarithmic_marks(unit, low, high);
    let (below, above) = match direction {
        // To the marks around the values.
        Direction::Up => (
            candidates
                .iter()
                .copied()
                .rfind(|mark| *mark <= low * (1.0 + 1e-9))
                .unwrap_or(low),
            candidates
                .iter()
                .copied()
                .find(|mark| *mark >= high * (1.0 - 1e-9))
                .unwrap_or(high),
        ),
        Direction::Across => (low, high),
    };
    let (mut from, mut to) = (below.log10(), above.log10());
    if to - from < 1e-6 {
        (from, to) = (from - 0.5, to + 0.5);
    }
    let mut span = Span {
        scale: Scale::Log,
        low: from,
        high: to,
        marks: Vec::new(),
    };
    span.mark(unit, candidates);
    span
}

/// Round values from below the lowest to above the highest.
fn logarithmic_marks(unit: Unit, low: f64, high: f64) -> Vec<f64> {
    if matches!(unit, Unit::Bytes | Unit::BytesPerSecond) {
        let (from, to) = (low.log2().floor() as i32, high.log2().ceil() as i32);
        let every = (f64::from(to - from) / MARKS).ceil().max(1.0) as i32;
        let first = from.div_euclid(every);
        return (first..=first + 20)
            .map(|index| 2_f64.powi(index * every))
            .collect();
    }
    let (from, to) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let decades = high.log10() - low.log10();
    if decades < 2.5 {
        // The fewer decades, the more marks in each.
        let within: &[f64] = match decades {
            ..0.8 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
            ..1.5 => &[1.0, 2.0, 5.0],
            _ => &[1.0, 3.0],
        };
        return (from..=to)
            .flat_map(|power| within.iter().map(move |digit| digit * 10_f64.powi(power)))
            .collect();
    }
    let every = (decades / MARKS).ceil() as i32;
    let first = from.div_euclid(every);
    (first..=first + 20)
        .map(|index| 10_f64.powi(index * every))
        .collect()
}

fn tail(low: f64, high: f64) -> Span {
    let (low, high) = (
        even(Scale::Tail, low).unwrap_or(0.0),
        even(Scale::Tail, high).unwrap_or(2.0),
    );
    let (low, high) = if high - low < 1e-6 {
        ((low - 1.0).max(0.0), low + 1.0)
    } else {
        (low, high)
    };
    let mut span = Span {
        scale: Scale::Tail,
        low,
        high,
        marks: Vec::new(),
    };
    let nines = (1..=15).map(|nines| 1.0 - 10_f64.powi(-nines));
    span.mark(Unit::Quantile, [0.0, 0.5, 0.75].into_iter().chain(nines));
    span
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn axis(unit: Unit, scale: Scale) -> Axis {
        Axis {
            label: "it".to_owned(),
            unit,
            scale,
        }
    }

    fn texts(span: &Span) -> Vec<&str> {
        span.marks.iter().map(|mark| mark.text.as_str()).collect()
    }

    #[test]
    fn heights_begin_with_zero_and_end_with_a_mark() {
        let span = Span::over(
            &axis(Unit::PerSecond, Scale::Linear),
            Direction::Up,
            &[900.0, 4_300.0],
        );
        assert_eq!(
            texts(&span),
            ["0", "1,000/s", "2,000/s", "3,000/s", "4,000/s", "5,000/s"]
        );
        assert_eq!(span.position(5_000.0), Some(1.0));
        assert_eq!(span.position(0.0), Some(0.0));
    }

    #[test]
    fn few_values_are_marked_themselves() {
        let values = [64.0, 1.0, 16.0, 4.0, 256.0, 16.0];
        let span = Span::over(&axis(Unit::Count, Scale::Log), Direction::Across, &values);
        assert_eq!(texts(&span), ["1", "4", "16", "64", "256"]);
        assert_eq!(span.position(16.0), Some(0.5));
    }

    #[test]
    fn sizes_are_marked_by_powers_of_two() {
        let values: Vec<f64> = (0..=20).map(|power| f64::from(1 << power)).collect();
        let span = Span::over(&axis(Unit::Bytes, Scale::Log), Direction::Across, &values);
        assert_eq!(
            texts(&span),
            ["1 B", "8 B", "64 B", "512 B", "4 KiB", "32 KiB", "256 KiB"]
        );
        let rate = axis(Unit::BytesPerSecond, Scale::Linear);
        let span = Span::over(&rate, Direction::Up, &[3.0 * 1_073_741_824.0]);
        assert_eq!(texts(&span).last(), Some(&"3 GiB/s"));
    }

    #[test]
    fn nines_are_evenly_spaced() {
        let values = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999];
        let span = Span::over(
            &axis(Unit::Quantile, Scale::Tail),
            Direction::Across,
            &values,
        );
        assert_eq!(
            texts(&span),
            ["0 %", "50 %", "75 %", "90 %", "99 %", "99.9 %", "99.99 %"]
        );
        let at = |value| span.position(value).unwrap();
        assert!((at(0.9) - 0.25).abs() < 1e-9 && (at(0.999) - 0.75).abs() < 1e-9);
        assert_eq!(span.position(1.0), None);
    }

    #[test]
    fn durations_over_decades_are_marked_by_powers_of_ten() {
        let values = [0.000_2, 0.3];
        let span = Span::over(&axis(Unit::Seconds, Scale::Log), Direction::Up, &values);
        assert_eq!(texts(&span), ["100 µs", "1 ms", "10 ms", "100 ms", "1 s"]);
        let values = [0.001_2, 0.004_1];
        let span = Span::over(&axis(Unit::Seconds, Scale::Log), Direction::Up, &values);
        assert_eq!(
            texts(&span),
            ["1 ms", "1.5 ms", "2 ms", "3 ms", "4 ms", "5 ms"]
        );
        let values = [0.001_2, 0.012];
        let span = Span::over(&axis(Unit::Seconds, Scale::Log), Direction::Up, &values);
        assert_eq!(texts(&span), ["1 ms", "2 ms", "5 ms", "10 ms", "20 ms"]);
    }

    #[test]
    fn nothing_and_one_value_and_zeros_have_a_span_too() {
        let cases: [&[f64]; 4] = [&[], &[0.0, 0.0], &[7.0], &[f64::NAN, f64::INFINITY]];
        for scale in [Scale::Linear, Scale::Log, Scale::Tail] {
            for direction in [Direction::Across, Direction::Up] {
                for values in cases {
                    let span = Span::over(&axis(Unit::Count, scale), direction, values);
                    assert!(
                        span.low < span.high,
                        "{scale:?} {direction:?} {values:?}: {span:?}"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn positions_are_within_and_marks_are_few(
            values in proptest::collection::vec(any::<f64>(), 0..40),
            unit in prop::sample::select(vec![
                Unit::Count, Unit::Bytes, Unit::BytesPerSecond, Unit::PerSecond, Unit::Quantile, Unit::Seconds,
            ]),
            scale in prop::sample::select(vec![Scale::Linear, Scale::Log, Scale::Tail]),
            direction in prop::sample::select(vec![Direction::Across, Direction::Up]),
        ) {
            let span = Span::over(&axis(unit, scale), direction, &values);
            prop_assert!(span.low.is_finite() && span.high.is_finite() && span.low < span.high);
            prop_assert!(span.marks.len() <= 21);
            for position in values.iter().filter_map(|value| span.position(*value)) {
                prop_assert!((0.0..=1.0).contains(&position));
            }
            for mark in &span.marks {
                prop_assert!((0.0..=1.0).contains(&mark.position), "{mark:?}");
            }
        }
    }
}
