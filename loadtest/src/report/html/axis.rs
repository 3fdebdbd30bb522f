//! An axis of a chart: where a value lies between its two ends, and which marks stand at it.

use crate::report::{Axis, Scale, Unit};

/// Larger values are not drawn: their squares are not finite.
const LARGEST: f64 = 1e100;

/// Up to this many distinct values on a horizontal axis are its marks, as the levels of `scale` are.
const OWN_MARKS: usize = 8;

/// About how many marks an axis has room for.
const MARKS: f64 = 7.0;

/// Which axis of a chart it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Orientation {
    /// Begins and ends with the values.
    Horizontal,
    /// Begins and ends with a mark; a linear one begins at zero.
    Vertical,
}

/// The stretch of an axis that is shown. Its ends are in the coordinates of [`even`].
#[derive(Debug)]
pub(super) struct Span {
    scale: Scale,
    low: f64,
    high: f64,
    /// The values to be marked, within the ends.
    pub(super) marks: Vec<f64>,
}

impl Span {
    /// The span that shows all `values` which the scale can show.
    pub(super) fn over(axis: &Axis, direction: Orientation, values: &[f64]) -> Self {
        let scale = axis.scale;
        let can_show = |value: &f64| even(scale, *value).is_some();
        let mut shown: Vec<f64> = values.iter().copied().filter(can_show).collect();
        shown.sort_by(f64::total_cmp);
        shown.dedup();
        let few = (1..=OWN_MARKS).contains(&shown.len());
        let (mut low, mut high) = match (shown.first(), shown.last()) {
            (Some(first), Some(last)) => (*first, *last),
            _ => (0.5, 0.99),
        };
        let is_vertical = direction == Orientation::Vertical;
        if scale == Scale::Linear {
            // From zero if that wastes little room.
            if low >= 0.0 && (is_vertical || low <= high / 4.0) {
                low = 0.0;
            }
            if high - low <= high.abs() * 1e-9 {
                high = low + low.abs().max(1.0);
            }
        }
        let mut marks = match scale {
            Scale::Linear => linear_marks(axis.unit, low, high),
            Scale::Log => log_marks(axis.unit, low, high),
            Scale::Tail => tail_marks(),
        };
        marks.retain(can_show);
        if is_vertical {
            let slack = |end: f64| end.abs() * 1e-9;
            let below = marks.iter().rfind(|mark| **mark <= low + slack(low));
            let above = marks.iter().find(|mark| **mark >= high - slack(high));
            (low, high) = (*below.unwrap_or(&low), *above.unwrap_or(&high));
        } else if scale != Scale::Tail && few {
            marks = shown;
        }
        let [mut low, mut high] = [low, high].map(|end| even(scale, end).unwrap_or(0.0));
        if high - low < 1e-6 && scale != Scale::Linear {
            (low, high) = (low - 0.5, high + 0.5);
        }
        let slack = (high - low) * 1e-9;
        let ends = low - slack..=high + slack;
        marks.retain(|mark| even(scale, *mark).is_some_and(|at| ends.contains(&at)));
        Self {
            scale,
            low,
            high,
            marks,
        }
    }

    /// The share of the axis's length at which a value lies.
    pub(super) fn position(&self, value: f64) -> Option<f64> {
        let position = (even(self.scale, value)? - self.low) / (self.high - self.low);
        position.is_finite().then(|| position.clamp(0.0, 1.0))
    }
}

/// The value in coordinates in which the scale is even; none if the scale cannot show it.
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

/// Multiples of 1, 2 or 5 times a power of ten (of sizes: times a power of 1024), from the one
/// below `low` on.
fn linear_marks(unit: Unit, low: f64, high: f64) -> Vec<f64> {
    let powers = match is_size(unit) {
        true => (high.abs().max(low.abs()).log2() / 10.0 + 1e-9).floor(),
        false => 0.0,
    };
    let base = 1024_f64.powf(powers.max(0.0));
    let least = (high - low) / base / MARKS;
    let power = 10_f64.powf(least.log10().floor());
    let mut steps = [1.0, 2.0, 5.0].map(|digit| digit * power).into_iter();
    let step = steps.find(|step| *step >= least * (1.0 - 1e-9));
    let step = step.unwrap_or(10.0 * power) * base;
    let first = (low / step + 1e-9).floor();
    let marks = (0..=20).map(|index| (first + f64::from(index)) * step);
    marks.collect()
}

/// Powers of ten, with digits between them over few decades; of sizes powers of two.
fn log_marks(unit: Unit, low: f64, high: f64) -> Vec<f64> {
    let base: f64 = if is_size(unit) { 2.0 } else { 10.0 };
    let powers = high.log(base) - low.log(base);
    let digits: &[f64] = match powers {
        ..1.5 if !is_size(unit) => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let every = (powers / MARKS).ceil().max(1.0) as i32;
    let first = (low.log(base).floor() as i32).div_euclid(every);
    let marks = (first..=first + 12).flat_map(|index| {
        let power = base.powi(index * every);
        digits.iter().map(move |digit| digit * power)
    });
    marks.collect()
}

fn tail_marks() -> Vec<f64> {
    let nines = (1..=15).map(|nines| 1.0 - 10_f64.powi(-nines));
    [0.0, 0.5, 0.75].into_iter().chain(nines).collect()
}

fn is_size(unit: Unit) -> bool {
    matches!(unit, Unit::Bytes | Unit::BytesPerSecond)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::format;

    #[test]
    fn marks_fit_the_values() {
        use Orientation::{Horizontal, Vertical};
        use Scale::{Linear, Log, Tail};
        let gib = 1_073_741_824.0;
        let powers: Vec<f64> = (0..=20).map(|power| f64::from(1 << power)).collect();
        let cases: [(Unit, Scale, Orientation, &[f64], &str); 7] = [
            (
                Unit::PerSecond,
                Linear,
                Vertical,
                &[900.0, 4_300.0],
                "0/s|1,000/s|2,000/s|3,000/s|4,000/s|5,000/s",
            ),
            (
                Unit::BytesPerSecond,
                Linear,
                Vertical,
                &[3.0 * gib],
                "0 B/s|512 MiB/s|1 GiB/s|1.5 GiB/s|2 GiB/s|2.5 GiB/s|3 GiB/s",
            ),
            (Unit::Count, Log, Horizontal, &[64.0, 1.0, 16.0], "1|16|64"),
            (
                Unit::Bytes,
                Log,
                Horizontal,
                &powers,
                "1 B|8 B|64 B|512 B|4 KiB|32 KiB|256 KiB",
            ),
            (
                Unit::Quantile,
                Tail,
                Horizontal,
                &[0.0, 0.5, 0.99, 0.999],
                "0 %|50 %|75 %|90 %|99 %|99.9 %",
            ),
            (
                Unit::Seconds,
                Log,
                Vertical,
                &[0.000_2, 0.3],
                "100 µs|1 ms|10 ms|100 ms|1 s",
            ),
            (
                Unit::Seconds,
                Log,
                Vertical,
                &[0.001_2, 0.012],
                "1 ms|2 ms|5 ms|10 ms|20 ms",
            ),
        ];
        for (unit, scale, direction, values, expected) in cases {
            let span = Span::over(&Axis::new("it", unit, scale), direction, values);
            let texts: Vec<_> = span
                .marks
                .iter()
                .map(|mark| format::tick(unit, *mark))
                .collect();
            assert_eq!(texts.join("|"), expected);
        }
    }

    #[test]
    fn nines_are_evenly_spaced() {
        let axis = Axis::new("it", Unit::Quantile, Scale::Tail);
        let span = Span::over(&axis, Orientation::Horizontal, &[0.0, 0.9999]);
        let at = |value| span.position(value).unwrap();
        assert!((at(0.9) - 0.25).abs() < 1e-9 && (at(0.999) - 0.75).abs() < 1e-9);
        assert_eq!(span.position(1.0), None);
    }

    proptest! {
        #[test]
        fn any_values_have_a_span_and_few_marks(
            values in proptest::collection::vec(any::<f64>(), 0..40),
            unit in prop::sample::select(vec![Unit::Count, Unit::Bytes, Unit::Quantile, Unit::Seconds]),
            scale in prop::sample::select(vec![Scale::Linear, Scale::Log, Scale::Tail]),
            direction in prop::sample::select(vec![Orientation::Horizontal, Orientation::Vertical]),
            same in any::<bool>(),
        ) {
            let values = if same { vec![values.first().copied().unwrap_or(0.0); 3] } else { values };
            let span = Span::over(&Axis::new("it", unit, scale), direction, &values);
            prop_assert!(span.low.is_finite() && span.high.is_finite() && span.low < span.high, "{span:?}");
            prop_assert!(span.marks.len() <= 40);
            for value in values.iter().chain(&span.marks) {
                prop_assert!(span.position(*value).is_none_or(|at| (0.0..=1.0).contains(&at)));
            }
        }
    }
}
