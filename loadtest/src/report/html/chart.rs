//! A chart of the page as SVG. It is scaled to the page's width; each point says its values when it is pointed at.

use super::{
    axis::{Orientation, Span},
    escape,
};
use crate::report::{Chart, Series, Unit, format};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Axis, Scale};

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
}
