//! An axis of a chart: where a value lies between its two ends, and which marks stand at it.

use crate::report::{Axis, Scale, Unit, format};

/// Larger values are not drawn: their squares are not finite.
const LARGEST: f64 = 1e100;

/// Up to so many different values across are marked themselves, as the levels of a scale are.
const MARKED_THEMSELVES: usize = 8;

/// About how many marks an axis has room for.
const MARKS: f64 = 7.0;

/// Which axis of a chart it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Begins and ends with the values.
    Across,
    /// Begins and ends with a mark; a linear one begins at zero.
    Up,
}

/// The stretch of an axis that is shown, with its ends as [`even`] gives them.
#[derive(Debug, Clone)]
pub(super) struct Span {
    scale: Scale,
    low: f64,
    high: f64,
    pub(super) marks: Vec<Mark>,
}

/// A mark, at a share of the axis's length.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mark {
    pub(super) position: f64,
    pub(super) text: String,
}

impl Span {
    /// The span that shows all `values` which the scale can show.
    pub(super) fn over(axis: &Axis, direction: Direction, values: &[f64]) -> Self {
        let mut shown: Vec<_> = (values.iter().copied())
            .filter(|value| even(axis.scale, *value).is_some())
            .collect();
        shown.sort_by(f64::total_cmp);
        shown.dedup();
        let ends = shown.first().copied().zip(shown.last().copied());
        let (mut low, mut high) = ends.unwrap_or(match axis.scale {
            Scale::Tail => (0.0, 0.99),
            Scale::Linear | Scale::Log => (1.0, 1.0),
        });
        if axis.scale == Scale::Linear {
            (low, high) = widened(direction, low, high);
        }
        let mut marks = match axis.scale {
            Scale::Linear => linear_marks(axis.unit, low, high),
            Scale::Log => logarithmic_marks(axis.unit, low, high),
            Scale::Tail => tail_marks(),
        };
        // The next mark may be beyond what the scale can show.
        marks.retain(|mark| even(axis.scale, *mark).is_some());
        if direction == Direction::Up {
            let slack = |end: f64| end.abs() * 1e-9;
            let below = (marks.iter().copied()).rfind(|mark| *mark <= low + slack(low));
            let above = (marks.iter().copied()).find(|mark| *mark >= high - slack(high));
            (low, high) = (below.unwrap_or(low), above.unwrap_or(high));
        } else if axis.scale != Scale::Tail && (1..=MARKED_THEMSELVES).contains(&shown.len()) {
            marks = shown;
        }
        Self::between(axis, low, high).marked(axis.unit, &marks)
    }

    fn between(axis: &Axis, low: f64, high: f64) -> Self {
        let [mut low, mut high] = [low, high].map(|end| even(axis.scale, end).unwrap_or(0.0));
        if axis.scale != Scale::Linear && high - low < 1e-6 {
            (low, high) = (low - 0.5, high + 0.5);
        }
        Self {
            scale: axis.scale,
            low,
            high,
            marks: Vec::new(),
        }
    }

    /// The share of the axis's length at which a value lies.
    pub(super) fn position(&self, value: f64) -> Option<f64> {
        let position = (even(self.scale, value)? - self.low) / (self.high - self.low);
        position.is_finite().then(|| position.clamp(0.0, 1.0))
    }

    /// Marks those of the values that lie within.
    fn marked(mut self, unit: Unit, values: &[f64]) -> Self {
        let slack = (self.high - self.low) * 1e-9;
        let within = (self.low - slack)..=(self.high + slack);
        let largest = self.low.abs().max(self.high.abs());
        let mark = |value: &f64| {
            even(self.scale, *value).filter(|at| within.contains(at))?;
            let reference = match self.scale {
                Scale::Linear => largest,
                Scale::Log | Scale::Tail => *value,
            };
            Some(Mark {
                position: self.position(*value)?,
                text: format::tick(unit, *value, reference),
            })
        };
        self.marks = values.iter().filter_map(mark).collect();
        self
    }
}

/// The value where the scale is even, or nothing if the scale cannot show it.
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

/// The ends of a linear axis: from zero if that wastes little room, and never of no length.
fn widened(direction: Direction, low: f64, high: f64) -> (f64, f64) {
    let from_zero = low >= 0.0 && (direction == Direction::Up || low <= high / 4.0);
    let low = if from_zero { 0.0 } else { low };
    let high = match direction {
        Direction::Up => high.max(0.0),
        Direction::Across => high,
    };
    if high - low > high.abs().max(low.abs()) * 1e-9 {
        return (low, high);
    }
    let room = if high == 0.0 { 1.0 } else { high.abs() / 2.0 };
    (if from_zero { 0.0 } else { low - room }, high + room)
}

/// Multiples of 1, 2 or 5 times a power of ten (of sizes: times a power of 1024), from the one below `low` on.
fn linear_marks(unit: Unit, low: f64, high: f64) -> Vec<f64> {
    let base = match unit {
        Unit::Bytes | Unit::BytesPerSecond => {
            let powers = (high.abs().max(low.abs()).log2() / 10.0 + 1e-9).floor();
            1024_f64.powf(powers.max(0.0))
        }
        _ => 1.0,
    };
    let raw = (high - low) / base / MARKS;
    let power = 10_f64.powf(raw.log10().floor());
    let nice = [1.0, 2.0, 5.0].into_iter();
    let nice = nice
        .map(|nice| nice * power)
        .find(|nice| *nice >= raw * (1.0 - 1e-9));
    let step = nice.unwrap_or(10.0 * power) * base;
    let first = (low / step + 1e-9).floor();
    (0..=20)
        .map(|index| (first + f64::from(index)) * step)
        .collect()
}

/// Powers of ten, with digits between them over few decades; of sizes powers of two.
fn logarithmic_marks(unit: Unit, low: f64, high: f64) -> Vec<f64> {
    let base: f64 = match unit {
        Unit::Bytes | Unit::BytesPerSecond => 2.0,
        _ => 10.0,
    };
    let powers = high.log(base) - low.log(base);
    let digits: &[f64] = match powers {
        _ if base < 10.0 => &[1.0],
        ..0.8 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
        ..1.5 => &[1.0, 2.0, 5.0],
        ..2.5 => &[1.0, 3.0],
        _ => &[1.0],
    };
    let every = (powers / MARKS).ceil().max(1.0) as i32;
    let first = (low.log(base).floor() as i32).div_euclid(every);
    let few = if digits.len() > 1 { 4 } else { 20 };
    (first..=first + few)
        .flat_map(|index| (digits.iter()).map(move |digit| digit * base.powi(index * every)))
        .collect()
}

fn tail_marks() -> Vec<f64> {
    let nines = (1..=15).map(|nines| 1.0 - 10_f64.powi(-nines));
    [0.0, 0.5, 0.75].into_iter().chain(nines).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(unit: Unit, scale: Scale, direction: Direction, values: &[f64]) -> Vec<String> {
        let span = Span::over(&Axis::new("it", unit, scale), direction, values);
        span.marks.into_iter().map(|mark| mark.text).collect()
    }

    #[test]
    fn marks_fit_the_values() {
        use Direction::{Across, Up};
        use Scale::{Linear, Log, Tail};
        let gib = 1_073_741_824.0;
        let powers: Vec<f64> = (0..=20).map(|power| f64::from(1 << power)).collect();
        let cases: [(Unit, Scale, Direction, &[f64], &str); 8] = [
            (
                Unit::PerSecond,
                Linear,
                Up,
                &[900.0, 4_300.0],
                "0 1,000/s 2,000/s 3,000/s 4,000/s 5,000/s",
            ),
            (
                Unit::BytesPerSecond,
                Linear,
                Up,
                &[3.0 * gib],
                "0 0.5_GiB/s 1_GiB/s 1.5_GiB/s 2_GiB/s 2.5_GiB/s 3_GiB/s",
            ),
            (
                Unit::Count,
                Log,
                Across,
                &[64.0, 1.0, 16.0, 16.0],
                "1 16 64",
            ),
            (
                Unit::Bytes,
                Log,
                Across,
                &powers,
                "1_B 8_B 64_B 512_B 4_KiB 32_KiB 256_KiB",
            ),
            (
                Unit::Quantile,
                Tail,
                Across,
                &[0.0, 0.5, 0.99, 0.999],
                "0_% 50_% 75_% 90_% 99_% 99.9_%",
            ),
            (
                Unit::Seconds,
                Log,
                Up,
                &[0.000_2, 0.3],
                "100_µs 1_ms 10_ms 100_ms 1_s",
            ),
            (
                Unit::Seconds,
                Log,
                Up,
                &[0.001_2, 0.004_1],
                "1_ms 1.5_ms 2_ms 3_ms 4_ms 5_ms",
            ),
            (
                Unit::Seconds,
                Log,
                Up,
                &[0.001_2, 0.012],
                "1_ms 2_ms 5_ms 10_ms 20_ms",
            ),
        ];
        for (unit, scale, direction, values, expected) in cases {
            let texts = texts(unit, scale, direction, values);
            assert_eq!(
                texts.join("|").replace(' ', "_").replace('|', " "),
                expected
            );
        }
    }

    #[test]
    fn nines_are_evenly_spaced() {
        let axis = Axis::new("it", Unit::Quantile, Scale::Tail);
        let span = Span::over(&axis, Direction::Across, &[0.0, 0.9999]);
        let at = |value| span.position(value).unwrap();
        assert!((at(0.9) - 0.25).abs() < 1e-9 && (at(0.999) - 0.75).abs() < 1e-9);
        assert_eq!(span.position(1.0), None);
    }

    #[test]
    fn the_largest_values_are_within_their_span() {
        for scale in [Scale::Linear, Scale::Log] {
            let axis = Axis::new("it", Unit::PerSecond, scale);
            let span = Span::over(&axis, Direction::Up, &[3e13, 7.4e97, 1e100]);
            assert!(span.low < span.high, "{span:?}");
            assert_eq!(span.position(1e100), Some(1.0));
        }
    }

    proptest! {
        #[test]
        fn any_values_have_a_span_and_few_marks(
            values in proptest::collection::vec(any::<f64>(), 0..40),
            unit in prop::sample::select(vec![Unit::Count, Unit::Bytes, Unit::PerSecond, Unit::Quantile, Unit::Seconds]),
            scale in prop::sample::select(vec![Scale::Linear, Scale::Log, Scale::Tail]),
            direction in prop::sample::select(vec![Direction::Across, Direction::Up]),
            same in any::<bool>(),
        ) {
            let values = if same { vec![values.first().copied().unwrap_or(0.0); 3] } else { values };
            let span = Span::over(&Axis::new("it", unit, scale), direction, &values);
            prop_assert!(span.low.is_finite() && span.high.is_finite() && span.low < span.high, "{span:?}");
            prop_assert!(span.marks.len() <= 40);
            let positions = values.iter().filter_map(|value| span.position(*value));
            for position in positions.chain(span.marks.iter().map(|mark| mark.position)) {
                prop_assert!((0.0..=1.0).contains(&position));
            }
        }
    }
}
