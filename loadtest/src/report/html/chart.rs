//! One chart as a figure: legend, axes, lines, and the values for the read-out under the pointer.
//!
//! In goes a chart; out comes HTML with an inline SVG that needs no script. Heights are pixels and
//! widths are parts of the whole, so that a chart fits any screen while its text keeps its size.

use serde::Serialize;

use crate::report::{Chart, format};

use super::{
    escape,
    lines::{self, HEIGHT, Line, WIDTH, number},
    scale::{Direction, Mark, Span},
    style::Families,
};

/// Width of a digit of the marks, pixels; on the large side, since fonts differ.
const DIGIT: f64 = 7.0;
/// Least widths of the area of the lines and its marks, pixels: on a telephone, and from where
/// `report.html` shows what is `roomy`.
const WIDTHS: [f64; 2] = [320.0, 520.0];

/// The figure; `id` is unique on the page.
pub(super) fn figure(chart: &Chart, id: &str, families: &Families<'_>) -> String {
    let mut lines = lines::of(chart, families);
    let values = |pick: fn(&lines::Point) -> f64| -> Vec<f64> {
        lines
            .iter()
            .flat_map(|line| &line.points)
            .map(pick)
            .collect()
    };
    let across = Span::over(&chart.x, Direction::Across, &values(|point| point.x));
    let up = Span::over(&chart.y, Direction::Up, &values(|point| point.y));
    lines.iter_mut().for_each(|line| line.place(&across, &up));
    let left = 14.0 + DIGIT * lines::longest(up.marks.iter().map(|mark| mark.text.as_str()));
    let (ends, right) = lines::ends(&lines, DIGIT);
    let is_empty = lines
        .iter()
        .flat_map(|line| &line.points)
        .all(|point| point.place.is_none());
    let drawing = if is_empty {
        "<p class=\"empty\">Nothing was measured.</p>".to_owned()
    } else {
        let axes = up_axis(&up) + &across_axis(&across, left);
        drawing(id, &axes, &lines, &ends) + &readout(chart, &lines)
    };
    format!(
        "<figure class=\"chart\" id=\"{id}\" style=\"--left:{}px;--right:{}px\">\
         <figcaption id=\"{id}-title\">{}</figcaption>{}\
         <p class=\"up\">{}</p>{drawing}<p class=\"across\">{}</p></figure>\n",
        number(left),
        number(right),
        escape(&chart.title),
        legend(&lines),
        escape(&chart.y.label),
        escape(&chart.x.label),
    )
}

fn legend(lines: &[Line<'_>]) -> String {
    if lines.len() < 2 {
        return String::new();
    }
    let entry = |line: &Line<'_>| {
        format!(
            "<li><svg class=\"key\" width=\"24\" height=\"8\" aria-hidden=\"true\">\
             <path class=\"{}\" d=\"M2 4H22\"/></svg>{}</li>",
            line.class,
            escape(line.name)
        )
    };
    format!(
        "<ul class=\"legend\">{}</ul>",
        lines.iter().map(entry).collect::<String>()
    )
}

fn drawing(id: &str, axes: &str, lines: &[Line<'_>], ends: &str) -> String {
    let paths: String = lines.iter().map(Line::path).collect();
    format!(
        "<div class=\"plot\" tabindex=\"0\"><svg class=\"frame\" width=\"100%\" height=\"{HEIGHT}\" \
         role=\"img\" aria-labelledby=\"{id}-title\">{axes}\
         <svg class=\"lines\" width=\"100%\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         preserveAspectRatio=\"none\">{paths}</svg>{ends}</svg></div>"
    )
}

fn up_axis(up: &Span) -> String {
    let mark = |Mark { position, text }: &Mark| {
        let y = number((1.0 - position) * HEIGHT);
        format!(
            "<line class=\"grid\" x2=\"100%\" y1=\"{y}\" y2=\"{y}\"/>\
             <text class=\"mark\" x=\"-8\" y=\"{y}\" dy=\".32em\" text-anchor=\"end\">{}</text>",
            escape(text)
        )
    };
    up.marks.iter().map(mark).collect()
}

/// Marks below the lines, as many as have room; those that have none on a narrow screen are `roomy`.
fn across_axis(across: &Span, left: f64) -> String {
    let [narrow, wide] = WIDTHS.map(|width| width - left);
    let wide = room(across.marks.iter().collect(), wide);
    let narrow = room(wide.clone(), narrow);
    let mark = |mark: &&Mark| {
        let class = if narrow.contains(mark) { "" } else { " roomy" };
        let x = number(mark.position * 100.0);
        format!(
            "<line class=\"grid across{class}\" x1=\"{x}%\" x2=\"{x}%\" y2=\"{HEIGHT}\"/>\
             <text class=\"mark{class}\" x=\"{x}%\" y=\"{HEIGHT}\" dy=\"18\" text-anchor=\"middle\">{}</text>",
            escape(&mark.text)
        )
    };
    let base = format!("<line class=\"base\" x2=\"100%\" y1=\"{HEIGHT}\" y2=\"{HEIGHT}\"/>");
    wide.iter().map(mark).collect::<String>() + &base
}

/// The marks that can be written side by side over a width, in pixels.
fn room(mut marks: Vec<&Mark>, width: f64) -> Vec<&Mark> {
    let mut free_from = f64::NEG_INFINITY;
    marks.retain(|mark| {
        let half = mark.text.chars().count() as f64 * DIGIT / 2.0;
        let middle = mark.position * width;
        let fits = middle - half >= free_from;
        if fits {
            free_from = middle + half + DIGIT;
        }
        fits
    });
    marks
}

/// A line for the script: how it looks, and its points as place and text.
#[derive(Serialize)]
struct Readout<'a> {
    name: &'a str,
    class: &'a str,
    points: Vec<(i64, i64, String, String)>,
}

/// The values for the script, as JSON that cannot end the element that holds it.
fn readout(chart: &Chart, lines: &[Line<'_>]) -> String {
    let lines = lines.iter().map(|line| Readout {
        name: line.name,
        class: &line.class,
        points: (line.points.iter())
            .filter_map(|point| {
                let (x, y) = point.place?;
                let across = format::value(chart.x.unit, point.measured.0);
                let up = format::value(chart.y.unit, point.measured.1);
                Some((x.round() as i64, y.round() as i64, across, up))
            })
            .collect(),
    });
    let lines = lines.collect::<Vec<_>>();
    let json = serde_json::to_string(&lines)
        .unwrap_or_default()
        .replace('<', "\\u003c");
    format!("<script type=\"application/json\">{json}</script>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Scale, Series, Unit, html::sample};

    fn chart(scales: (Scale, Scale), series: &[(&str, &[(f64, f64)])]) -> Chart {
        let series = series.iter().map(|(name, points)| Series {
            name: (*name).to_owned(),
            points: points.to_vec(),
        });
        sample::chart(
            "a chart",
            ("across", Unit::Count, scales.0),
            ("up", Unit::Seconds, scales.1),
            series.collect(),
        )
    }

    fn drawn(chart: &Chart) -> String {
        figure(chart, "chart-1", &Families::of(&[]))
    }

    #[test]
    fn a_single_point_is_a_dot() {
        let html = drawn(&chart(
            (Scale::Log, Scale::Linear),
            &[("one", &[(64.0, 0.25)])],
        ));
        assert!(html.contains("class=\"c0 d0 dots\" d=\"M500 "), "{html}");
        assert!(
            html.contains(">64</text>") && !html.contains("legend"),
            "{html}"
        );
    }

    #[test]
    fn all_zeros_are_a_line_at_the_bottom() {
        let html = drawn(&chart(
            (Scale::Linear, Scale::Linear),
            &[("one", &[(0.0, 0.0), (1.0, 0.0)])],
        ));
        assert!(html.contains("d=\"M0 300L1000 300\""), "{html}");
    }

    #[test]
    fn what_is_not_finite_never_reaches_the_page() {
        let odd = [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MAX,
            f64::MIN,
            0.0,
            -1.0,
            0.5,
            1.0,
        ];
        let points: Vec<_> = odd
            .iter()
            .flat_map(|x| odd.iter().map(|y| (*x, *y)))
            .collect();
        for x in [Scale::Linear, Scale::Log, Scale::Tail] {
            for y in [Scale::Linear, Scale::Log] {
                let html = drawn(&chart(
                    (x, y),
                    &[
                        ("one", &points),
                        ("two", &[]),
                        ("three", &odd.map(|x| (x, x))),
                    ],
                ));
                for bad in ["NaN", "inf", "null", "e+", "e3"] {
                    assert!(!html.contains(bad), "{bad} with {x:?} {y:?}: {html}");
                }
            }
        }
    }

    #[test]
    fn a_chart_without_points_says_so() {
        let html = drawn(&chart(
            (Scale::Log, Scale::Log),
            &[("one", &[]), ("two", &[(0.0, f64::NAN)])],
        ));
        assert!(
            html.contains("Nothing was measured") && !html.contains("<script"),
            "{html}"
        );
    }

    #[test]
    fn names_cannot_leave_their_place() {
        let evil = "</script><script>alert(1)</script>\"'&";
        let mut chart = chart(
            (Scale::Linear, Scale::Linear),
            &[(evil, &[(1.0, 1.0)]), ("two", &[(1.0, 2.0)])],
        );
        (chart.title, chart.x.label, chart.y.label) =
            (evil.to_owned(), evil.to_owned(), evil.to_owned());
        let html = drawn(&chart);
        assert_eq!(html.matches("<script").count(), 1, "{html}");
        assert_eq!(html.matches("</script").count(), 1, "{html}");
    }

    #[test]
    fn marks_without_room_are_left_out() {
        let marks: Vec<_> = (0..=10)
            .map(|index| Mark {
                position: f64::from(index) / 10.0,
                text: "10,000".to_owned(),
            })
            .collect();
        let kept = room(marks.iter().collect(), 250.0);
        let positions: Vec<_> = kept.iter().map(|mark| mark.position).collect();
        assert_eq!(positions, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
    }
}
