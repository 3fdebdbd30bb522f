//! A chart of the page as SVG. It is scaled to the page's width; each point says its values when it is pointed at.

use crate::report::{Axis, Chart, Scale, Series, Unit, format, html::escape};

/// Size of the drawing, and of the plot in it: what is left of and below it is for marks.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 80.0;
const PLOT_WIDTH: f64 = WIDTH - LEFT - 30.0;
const PLOT_TOP: f64 = 10.0;
const PLOT_HEIGHT: f64 = HEIGHT - PLOT_TOP - 30.0;

/// Width of a digit of a mark.
const DIGIT: f64 = 7.0;

/// Lines of more points show them only when they are pointed at.
const DOTS: usize = 24;

/// Colours of lines, `c0` and up in the frame, and how they are dashed, `d0` and up.
const COLOURS: usize = 7;
const DASHES: usize = 4;

/// The chart as a `figure`. A line has the colour of its name's place in `names`.
pub(super) fn figure(chart: &Chart, names: &[&str]) -> String {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let (xs, ys): (Vec<_>, Vec<_>) = points().copied().unzip();
    let across = Span::over(&chart.x, Orientation::Horizontal, &xs);
    let up = Span::over(&chart.y, Orientation::Vertical, &ys);
    let (mut lines, mut legend) = (String::new(), String::new());
    for series in &chart.series {
        let place = names.iter().position(|name| *name == series.name);
        let place = place.unwrap_or_default();
        let class = format!("c{} d{}", place % COLOURS, place / COLOURS % DASHES);
        lines += &line(chart, series, &class, &across, &up);
        let name = escape(&series.name);
        legend += &format!(
            "<li><svg width=\"24\" height=\"8\"><path class=\"{class}\" d=\"M2 4H22\"/></svg>{name}</li>"
        );
    }
    let [title, x, y] = [&chart.title, &chart.x.label, &chart.y.label].map(|text| escape(text));
    let axes = vertical_marks(chart.y.unit, &up) + &horizontal_marks(chart.x.unit, &across);
    format!(
        "<figure><figcaption>{title}</figcaption><ul class=\"legend\">{legend}</ul><p>{y}</p>\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">{axes}{lines}</svg>\
         <p class=\"across\">{x}</p></figure>\n"
    )
}

fn line(chart: &Chart, series: &Series, class: &str, across: &Span, up: &Span) -> String {
    let (mut path, mut dots) = (String::new(), String::new());
    for (x, y) in &series.points {
        let Some((left, height)) = across.position(*x).zip(up.position(*y)) else {
            continue;
        };
        let (left, top) = (LEFT + left * PLOT_WIDTH, from_top(height));
        let step = if path.is_empty() { 'M' } else { 'L' };
        path += &format!("{step}{left:.1} {top:.1}");
        let [x, y] = [(&chart.x, x), (&chart.y, y)].map(|(axis, at)| format::value(axis.unit, *at));
        let text = escape(&format!("{}: {x}, {y}", series.name));
        dots += &format!(
            "<circle cx=\"{left:.1}\" cy=\"{top:.1}\" r=\"3\"><title>{text}</title></circle>"
        );
    }
    let is_many = series.points.len() > DOTS;
    let many = if is_many { " many" } else { "" };
    format!("<g class=\"{class}{many}\"><path d=\"{path}\"/>{dots}</g>")
}

fn vertical_marks(unit: Unit, up: &Span) -> String {
    let mark = |mark: &f64| {
        let y = from_top(up.position(*mark).unwrap_or_default());
        let (right, text, left) = (LEFT + PLOT_WIDTH, format::tick(unit, *mark), LEFT - 8.0);
        format!(
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>\
             <text x=\"{left}\" y=\"{y:.1}\" dy=\".32em\" text-anchor=\"end\">{text}</text>"
        )
    };
    up.marks.iter().map(mark).collect()
}

/// The marks without those that would overlap an earlier one.
fn horizontal_marks(unit: Unit, across: &Span) -> String {
    let mut free_from = f64::NEG_INFINITY;
    let mut marks = String::new();
    for mark in &across.marks {
        let text = format::tick(unit, *mark);
        let half = text.chars().count() as f64 * DIGIT / 2.0;
        let x = LEFT + across.position(*mark).unwrap_or_default() * PLOT_WIDTH;
        if x - half < free_from {
            continue;
        }
        free_from = x + half + DIGIT;
        let (bottom, below) = (PLOT_TOP + PLOT_HEIGHT, PLOT_TOP + PLOT_HEIGHT + 18.0);
        marks += &format!(
            "<path class=\"grid\" d=\"M{x:.1} {PLOT_TOP}V{bottom}\"/>\
             <text x=\"{x:.1}\" y=\"{below}\" text-anchor=\"middle\">{text}</text>"
        );
    }
    marks
}

fn from_top(height: f64) -> f64 {
    PLOT_TOP + (1.0 - height) * PLOT_HEIGHT
}

/// Larger values are not drawn: their squares are not finite. An axis may end beyond it.
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
        let can_show = |value: &f64| is_drawn(*value) && even(scale, *value).is_some();
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
        if !is_drawn(value) {
            return None;
        }
        let position = (even(self.scale, value)? - self.low) / (self.high - self.low);
        position.is_finite().then(|| position.clamp(0.0, 1.0))
    }
}

fn is_drawn(value: f64) -> bool {
    value.abs() <= LARGEST
}

/// The value in coordinates in which the scale is even; none if the scale cannot show it.
fn even(scale: Scale, value: f64) -> Option<f64> {
    match scale {
        Scale::Linear => value.is_finite().then_some(value),
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
    use crate::report::{Axis, Scale, format};

    fn drawn(scales: (Scale, Scale), points: &[(f64, f64)]) -> String {
        let x = Axis::new("across", Unit::Count, scales.0);
        let y = Axis::new("up", Unit::Seconds, scales.1);
        let series = [Series::new("one", points.to_vec())];
        figure(&Chart::new("a chart", x, y, series), &["other", "one"])
    }

    #[test]
    fn a_point_lies_where_its_values_say_and_says_them() {
        let html = drawn(
            (Scale::Linear, Scale::Linear),
            &[(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)],
        );
        let path = "<path d=\"M80.0 270.0L405.0 140.0L730.0 10.0\"/>";
        assert!(html.contains(path), "{html}");
        assert!(html.contains("<title>one: 1, 1.00 s</title>"), "{html}");
        // The colour is that of the name in the whole report.
        assert!(html.contains("<g class=\"c1 d0\">"), "{html}");
    }

    #[test]
    fn what_is_not_finite_never_reaches_the_page() {
        let odd = [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MAX,
            0.0,
            -1.0,
            0.5,
            1.0,
        ];
        let points: Vec<_> = odd.iter().flat_map(|x| odd.map(|y| (*x, y))).collect();
        for x in [Scale::Linear, Scale::Log, Scale::Tail] {
            for y in [Scale::Linear, Scale::Log] {
                let html = drawn((x, y), &points);
                assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
            }
        }
    }

    #[test]
    fn marks_without_room_are_left_out() {
        let axis = Axis::new("it", Unit::Bytes, Scale::Log);
        let tight = Span::over(&axis, Orientation::Horizontal, &[1e6, 1e6 + 1.0, 1e9]);
        assert_eq!(
            horizontal_marks(Unit::Bytes, &tight)
                .matches("<text")
                .count(),
            2
        );
    }

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
            values in proptest::collection::vec(
                prop_oneof![any::<f64>(), (0.01..=1.0).prop_map(|share| share * LARGEST)],
                0..40,
            ),
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
