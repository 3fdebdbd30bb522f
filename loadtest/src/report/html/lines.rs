//! The lines of a chart: which points are drawn, where, and the names at their ends.
//!
//! In go a chart's series and the spans of its axes; out come SVG paths. A point that an axis cannot
//! show is a gap in its line, never a made-up value. Only finite numbers are written.

use crate::report::{Chart, Scale, Series};

use super::{
    escape,
    scale::Span,
    style::{self, Families},
};

/// Height of the area of the lines, pixels.
pub(super) const HEIGHT: f64 = 300.0;
/// Width of the same in its own measure; the browser stretches it.
pub(super) const WIDTH: f64 = 1000.0;
/// A line of more points is thinned: more cannot be seen, and the page should stay small.
const POINTS: usize = 500;
/// Up to so many points on a line, each gets a dot.
const DOTS: usize = 24;
/// Height of a line of text, pixels.
const TEXT: f64 = 16.0;
/// The longest name that is written at the end of a line, characters.
const NAME: f64 = 28.0;

/// A line with its points.
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    /// The name without what all lines of the chart have in common.
    short: &'a str,
    /// How it looks.
    pub(super) class: String,
    pub(super) points: Vec<Point>,
}

/// A point of a line.
pub(super) struct Point {
    /// As it was measured.
    pub(super) measured: (f64, f64),
    /// The values by which it is placed.
    pub(super) x: f64,
    pub(super) y: f64,
    /// Its place in the drawing; none is a gap.
    pub(super) place: Option<(f64, f64)>,
}

/// The lines of a chart, not yet placed.
pub(super) fn of<'a>(chart: &'a Chart, families: &Families<'_>) -> Vec<Line<'a>> {
    let names: Vec<_> = chart
        .series
        .iter()
        .map(|series| series.name.as_str())
        .collect();
    let looks = style::short(&names)
        .into_iter()
        .zip(families.classes(&names));
    (chart.series.iter().zip(looks))
        .map(|(series, (short, class))| Line {
            name: &series.name,
            short,
            class,
            points: points(series, chart.x.scale),
        })
        .collect()
}

/// The points to draw. The quantile 1 is endlessly far on a scale of nines: it stands half way
/// between the last quantile before it and the end.
fn points(series: &Series, across: Scale) -> Vec<Point> {
    let last = (series.points.iter().map(|point| point.0))
        .filter(|quantile| (0.0..1.0).contains(quantile))
        .fold(0.0, f64::max);
    let point = |measured: (f64, f64)| {
        let is_end = across == Scale::Tail && measured.0 == 1.0;
        let x = if is_end {
            f64::midpoint(last, 1.0)
        } else {
            measured.0
        };
        Point {
            measured,
            x,
            y: measured.1,
            place: None,
        }
    };
    thinned(&series.points).into_iter().map(point).collect()
}

/// At most about [`POINTS`] points; of each stretch the lowest and the highest stay, so that no
/// spike is lost.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= POINTS {
        return points.to_vec();
    }
    let by_height = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
    let extremes = |stretch: &[(f64, f64)]| {
        let low = stretch.iter().min_by(by_height).copied();
        let high = stretch.iter().max_by(by_height).copied();
        let mut both: Vec<_> = low.into_iter().chain(high).collect();
        both.sort_by(|a, b| a.0.total_cmp(&b.0));
        both.dedup();
        both
    };
    points
        .chunks(points.len().div_ceil(POINTS / 2))
        .flat_map(extremes)
        .collect()
}

impl Line<'_> {
    /// Gives each point its place.
    pub(super) fn place(&mut self, across: &Span, up: &Span) {
        for point in &mut self.points {
            point.place = (across.position(point.x).zip(up.position(point.y)))
                .map(|(x, y)| (x * WIDTH, (1.0 - y) * HEIGHT));
        }
    }

    /// The line, broken where there is a gap, and its dots.
    pub(super) fn path(&self) -> String {
        let places: Vec<_> = self.points.iter().map(|point| point.place).collect();
        let is_gap = |index: usize| places.get(index).copied().flatten().is_none();
        let (mut line, mut dots) = (String::new(), String::new());
        for (index, place) in places.iter().enumerate() {
            let Some((x, y)) = place else { continue };
            let at = format!("{} {}", number(*x), number(*y));
            let begins = index == 0 || is_gap(index - 1);
            line += &format!("{}{at}", if begins { 'M' } else { 'L' });
            // A point between two gaps has no line by which it could be seen.
            if places.len() <= DOTS || (begins && is_gap(index + 1)) {
                // The shortest line has round ends: a dot that is not stretched with the drawing.
                dots += &format!("M{at}h.01");
            }
        }
        let class = &self.class;
        let dots = match dots.is_empty() {
            true => dots,
            false => format!("<path class=\"{class} dots\" d=\"{dots}\"/>"),
        };
        format!("<g><path class=\"{class}\" d=\"{line}\"/>{dots}</g>")
    }

    /// Where the line ends.
    fn end(&self) -> Option<(f64, f64)> {
        self.points.iter().rev().find_map(|point| point.place)
    }
}

/// Names beside the ends of the lines, moved apart where they would overlap, and the room that they
/// need in pixels. No names where they do not fit: the legend has them all.
pub(super) fn ends(lines: &[Line<'_>], character: f64) -> (String, f64) {
    let mut ends: Vec<_> = lines
        .iter()
        .filter_map(|line| Some((line, line.end()?)))
        .collect();
    let longest = longest(lines.iter().map(|line| line.short));
    if ends.len() < 2 || ends.len() as f64 * TEXT > HEIGHT || longest > NAME {
        return (String::new(), 24.0);
    }
    ends.sort_by(|(_, a), (_, b)| a.1.total_cmp(&b.1));
    let heights = apart(ends.iter().map(|(_, end)| end.1).collect());
    let label = |((line, (x, y)), height): (&(&Line<'_>, (f64, f64)), f64)| {
        let (x, y, height) = (number(x / WIDTH * 100.0), number(*y), number(height));
        let class = &line.class;
        format!(
            "<line class=\"lead {class}\" x1=\"{x}%\" x2=\"100%\" y1=\"{y}\" y2=\"{y}\"/>\
             <svg x=\"100%\" class=\"end\"><path class=\"lead {class}\" d=\"M0 {y}L14 {height}\"/>\
             <text x=\"18\" y=\"{height}\" dy=\".32em\">{}</text></svg>",
            escape(line.short)
        )
    };
    let labels: String = ends.iter().zip(heights).map(label).collect();
    (
        format!("<g class=\"ends\">{labels}</g>"),
        24.0 + character * longest,
    )
}

/// The heights, given by rising value, moved so that lines of text fit between them.
fn apart(mut heights: Vec<f64>) -> Vec<f64> {
    let mut least = f64::NEG_INFINITY;
    for height in &mut heights {
        *height = height.max(least);
        least = *height + TEXT;
    }
    let mut most = HEIGHT;
    for height in heights.iter_mut().rev() {
        *height = height.min(most);
        most = *height - TEXT;
    }
    heights
}

/// A coordinate: short, and never other than a finite number.
pub(super) fn number(value: f64) -> String {
    let value = if value.is_finite() { value } else { 0.0 };
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The length of the longest text, characters.
pub(super) fn longest<'a>(texts: impl Iterator<Item = &'a str>) -> f64 {
    texts
        .map(|text| text.chars().count())
        .max()
        .unwrap_or_default() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(places: &[Option<(f64, f64)>]) -> Line<'static> {
        let point = |place: &Option<(f64, f64)>| Point {
            measured: (0.0, 0.0),
            x: 0.0,
            y: 0.0,
            place: *place,
        };
        Line {
            name: "it",
            short: "it",
            class: "c0 d0".to_owned(),
            points: places.iter().map(point).collect(),
        }
    }

    #[test]
    fn a_gap_breaks_the_line() {
        let mut places = vec![Some((1.0, 2.5)); DOTS];
        places.extend([
            None,
            Some((7.0, 7.0)),
            None,
            Some((8.0, 8.0)),
            Some((9.0, 9.0)),
        ]);
        let path = line(&places).path();
        assert!(
            path.ends_with("L1 2.5M7 7M8 8L9 9\"/><path class=\"c0 d0 dots\" d=\"M7 7h.01\"/></g>"),
            "{path}"
        );
    }

    #[test]
    fn few_points_are_dots_too() {
        let path = line(&[Some((1.0, 2.0)), Some((3.0, 4.0))]).path();
        assert!(
            path.contains("d=\"M1 2L3 4\"") && path.contains("d=\"M1 2h.01M3 4h.01\""),
            "{path}"
        );
    }

    #[test]
    fn thinning_keeps_the_spikes_and_the_order() {
        let mut points: Vec<_> = (0..10_000).map(|index| (f64::from(index), 1.0)).collect();
        points[5_432].1 = 99.0;
        points[7_777].1 = 0.0;
        let thinned = thinned(&points);
        assert!(thinned.len() <= POINTS + 2, "{}", thinned.len());
        assert!(thinned.contains(&(5_432.0, 99.0)) && thinned.contains(&(7_777.0, 0.0)));
        assert!(thinned.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn names_at_the_ends_do_not_overlap() {
        for heights in [
            vec![0.0, 1.0, 2.0],
            vec![298.0, 299.0, 300.0],
            vec![10.0, 150.0, 152.0, 290.0],
        ] {
            let moved = apart(heights.clone());
            assert!(
                moved
                    .windows(2)
                    .all(|pair| pair[1] - pair[0] >= TEXT - 1e-9),
                "{moved:?}"
            );
            assert!(
                moved.iter().all(|height| (0.0..=HEIGHT).contains(height)),
                "{moved:?}"
            );
        }
    }

    #[test]
    fn the_last_quantile_is_drawn_past_the_one_before() {
        let series = Series {
            name: "it".to_owned(),
            points: vec![(0.5, 1.0), (0.99, 2.0), (1.0, 3.0)],
        };
        let points = points(&series, Scale::Tail);
        assert_eq!(points[2].x, 0.995);
        assert_eq!(points[2].measured, (1.0, 3.0));
    }
}
