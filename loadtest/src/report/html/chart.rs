//! A chart of the page: a drawing that takes the width it is given, a legend, and the data of the readout.

use serde::Serialize;

use super::{
    axis::{Direction, Mark, Span},
    escape,
};
use crate::report::{Chart, Scale, Series, format};

const HEIGHT: f64 = 300.0;

/// Positions across are thousandths: the drawing is stretched to the width that it gets.
const WIDTH: f64 = 1000.0;

/// Lines of at most so many points show them as dots.
const DOTS: usize = 24;

/// Width of a digit of a mark, in pixels.
const DIGIT: f64 = 7.0;

/// Widths of narrow and of wide drawings, for which marks are thinned out.
const WIDTHS: [f64; 2] = [320.0, 520.0];

/// Colours of lines, `c0` and up in the frame, and how they are dashed, `d0` and up.
const COLOURS: usize = 7;
const DASHES: usize = 4;

/// The chart as a `figure` of this id. Lines have the colours of their families.
pub(super) fn figure(chart: &Chart, id: &str, families: &[&str]) -> String {
    let (across, up) = (across(chart), up(chart));
    let classes = classes(chart, families);
    let lines: Vec<_> = (chart.series.iter().zip(classes))
        .map(|(series, class)| SeriesLine::new(chart, series, class, &across, &up))
        .collect();
    let widest = up.marks.iter().map(|mark| mark.text.chars().count()).max();
    let left = 14.0 + DIGIT * widest.unwrap_or(0) as f64;
    let drawing = if lines.iter().all(|line| line.points.is_empty()) {
        "<p class=\"empty\">Nothing was measured.</p>".to_owned()
    } else {
        let axes = up_axis(&up) + &across_axis(&across, left);
        drawing(id, &axes, &lines) + &readout(&lines)
    };
    let [title, x, y] = [&chart.title, &chart.x.label, &chart.y.label].map(|text| escape(text));
    format!(
        "<figure class=\"chart\" id=\"{id}\" style=\"--left:{}px\">\
         <figcaption id=\"{id}-title\">{title}</figcaption>{}\
         <p class=\"up\">{y}</p>{drawing}<p class=\"across\">{x}</p></figure>\n",
        number(left),
        legend(&lines),
    )
}

fn across(chart: &Chart) -> Span {
    let xs = (chart.series.iter()).flat_map(|series| series.points.iter().map(|point| point.0));
    Span::over(&chart.x, Direction::Across, &xs.collect::<Vec<_>>())
}

fn up(chart: &Chart) -> Span {
    let ys = (chart.series.iter()).flat_map(|series| series.points.iter().map(|point| point.1));
    Span::over(&chart.y, Direction::Up, &ys.collect::<Vec<_>>())
}

/// What a line of that name belongs to: the target of `target, level`.
pub(super) fn family(name: &str) -> &str {
    name.split(',').next().unwrap_or(name)
}

/// The classes of a chart's lines: a colour for each family, and a dash for each of its members. Lines of one
/// family alone, or of more than there are dashes for, have colours of their own.
fn classes(chart: &Chart, families: &[&str]) -> Vec<String> {
    let names: Vec<_> = (chart.series.iter())
        .map(|series| series.name.as_str())
        .collect();
    let look = |(index, name): (usize, &&str)| {
        let colour = (families.iter()).position(|known| *known == family(name))?;
        let earlier = names[..index].iter();
        let dash = earlier
            .filter(|other| family(other) == family(name))
            .count();
        (families.len() > 1 && colour < COLOURS && dash < DASHES).then_some((colour, dash))
    };
    let looks: Option<Vec<_>> = names.iter().enumerate().map(look).collect();
    let by_index = |index: usize| (index % COLOURS, index / COLOURS % DASHES);
    let looks = looks.unwrap_or_else(|| (0..names.len()).map(by_index).collect());
    let class = |(colour, dash): (usize, usize)| format!("c{colour} d{dash}");
    looks.into_iter().map(class).collect()
}

/// A line as the readout of the page gets it.
#[derive(Serialize)]
struct SeriesLine<'a> {
    name: &'a str,
    class: String,
    /// Where a point lies in the drawing, and its two values in words.
    points: Vec<(f64, f64, String, String)>,
}

impl<'a> SeriesLine<'a> {
    fn new(chart: &Chart, series: &'a Series, class: String, across: &Span, up: &Span) -> Self {
        let quantiles = series.points.iter().map(|point| point.0);
        let last = quantiles.filter(|at| *at < 1.0).fold(0.0, f64::max);
        let point = |&(x, y): &(f64, f64)| {
            // The longest of all has no place on a scale of nines: it stands half as far from the end as the last.
            let is_end = chart.x.scale == Scale::Tail && x == 1.0;
            let at = if is_end { f64::midpoint(last, 1.0) } else { x };
            let (at, height) = across.position(at).zip(up.position(y))?;
            let words = (
                format::value(chart.x.unit, x),
                format::value(chart.y.unit, y),
            );
            let round = |position: f64| (position * 10.0).round() / 10.0;
            Some((
                round(at * WIDTH),
                round((1.0 - height) * HEIGHT),
                words.0,
                words.1,
            ))
        };
        Self {
            name: &series.name,
            class,
            points: series.points.iter().filter_map(point).collect(),
        }
    }

    fn path(&self) -> String {
        let class = &self.class;
        let places = self.points.iter();
        let places: Vec<_> = places
            .map(|(x, y, ..)| format!("{} {}", number(*x), number(*y)))
            .collect();
        let dots = if places.len() <= DOTS {
            let dots: String = places.iter().map(|at| format!("M{at}h.01")).collect();
            format!("<path class=\"{class} dots\" d=\"{dots}\"/>")
        } else {
            String::new()
        };
        let line = places.join("L");
        format!("<g><path class=\"{class}\" d=\"M{line}\"/>{dots}</g>")
    }
}

fn legend(lines: &[SeriesLine<'_>]) -> String {
    if lines.len() < 2 {
        return String::new();
    }
    let entry = |line: &SeriesLine<'_>| {
        format!(
            "<li><svg class=\"key\" width=\"24\" height=\"8\" aria-hidden=\"true\">\
             <path class=\"{}\" d=\"M2 4H22\"/></svg>{}</li>",
            line.class,
            escape(line.name)
        )
    };
    let entries: String = lines.iter().map(entry).collect();
    format!("<ul class=\"legend\">{entries}</ul>")
}

fn drawing(id: &str, axes: &str, lines: &[SeriesLine<'_>]) -> String {
    let with_points = lines.iter().map(|line| match line.points.is_empty() {
        true => "<g></g>".to_owned(),
        false => line.path(),
    });
    let paths: String = with_points.collect();
    format!(
        "<div class=\"plot\" tabindex=\"0\"><svg class=\"frame\" width=\"100%\" height=\"{HEIGHT}\" \
         role=\"img\" aria-labelledby=\"{id}-title\">{axes}\
         <svg class=\"lines\" width=\"100%\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         preserveAspectRatio=\"none\">{paths}</svg></svg></div>"
    )
}

fn up_axis(up: &Span) -> String {
    let mark = |Mark { position, text }: &Mark| {
        let y = number((1.0 - position) * HEIGHT);
        let text = escape(text);
        format!(
            "<line class=\"grid\" x2=\"100%\" y1=\"{y}\" y2=\"{y}\"/>\
             <text class=\"mark\" x=\"-8\" y=\"{y}\" dy=\".32em\" text-anchor=\"end\">{text}</text>"
        )
    };
    up.marks.iter().map(mark).collect()
}

/// Marks for which a narrow drawing has no room have the class `roomy`.
fn across_axis(across: &Span, left: f64) -> String {
    let [narrow, wide] = WIDTHS.map(|width| width - left);
    let wide = with_room(across.marks.iter().collect(), wide);
    let narrow = with_room(wide.clone(), narrow);
    let mark = |mark: &&Mark| {
        let class = if narrow.contains(mark) { "" } else { " roomy" };
        let (x, text) = (number(mark.position * 100.0), escape(&mark.text));
        format!(
            "<line class=\"grid across{class}\" x1=\"{x}%\" x2=\"{x}%\" y2=\"{HEIGHT}\"/>\
             <text class=\"mark{class}\" x=\"{x}%\" y=\"{HEIGHT}\" dy=\"18\" text-anchor=\"middle\">{text}</text>"
        )
    };
    let marks: String = wide.iter().map(mark).collect();
    format!("{marks}<line class=\"base\" x2=\"100%\" y1=\"{HEIGHT}\" y2=\"{HEIGHT}\"/>")
}

/// The marks without those that would overlap an earlier one.
fn with_room(mut marks: Vec<&Mark>, width: f64) -> Vec<&Mark> {
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

fn readout(lines: &[SeriesLine<'_>]) -> String {
    let json = serde_json::to_string(lines).unwrap_or_default();
    let json = json.replace('<', "\\u003c");
    format!("<script type=\"application/json\">{json}</script>")
}

/// A coordinate with at most two digits after the point.
fn number(value: f64) -> String {
    let value = if value.is_finite() { value } else { 0.0 };
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Axis, Unit};

    fn chart(scales: (Scale, Scale), series: &[(&str, &[(f64, f64)])]) -> Chart {
        let x = Axis::new("across", Unit::Count, scales.0);
        let y = Axis::new("up", Unit::Seconds, scales.1);
        let series = series
            .iter()
            .map(|(name, points)| Series::new(*name, points.to_vec()));
        Chart::new("a chart", x, y, series)
    }

    fn drawn(chart: &Chart) -> String {
        figure(chart, "chart-1", &[])
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
        let points = [(0.0, 0.0), (1.0, 0.0)];
        let html = drawn(&chart((Scale::Linear, Scale::Linear), &[("one", &points)]));
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
        let points: Vec<_> = (odd.iter()).flat_map(|x| odd.map(|y| (*x, y))).collect();
        for x in [Scale::Linear, Scale::Log, Scale::Tail] {
            for y in [Scale::Linear, Scale::Log] {
                let html = drawn(&chart((x, y), &[("one", &points), ("two", &[])]));
                for bad in ["NaN", "inf", "null", "e+", "e3"] {
                    assert!(!html.contains(bad), "{bad} with {x:?} {y:?}: {html}");
                }
            }
        }
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
    fn a_family_shares_its_colour_in_every_chart() {
        let of = |names: &[&str]| {
            let series: Vec<(&str, &[(f64, f64)])> = names
                .iter()
                .map(|name| (*name, &[(1.0, 1.0)][..]))
                .collect();
            classes(
                &chart((Scale::Log, Scale::Log), &series),
                &["ours", "nginx"],
            )
        };
        assert_eq!(of(&["nginx", "ours"]), ["c1 d0", "c0 d0"]);
        let both = of(&["ours, 64", "ours, 256", "nginx, 64", "nginx, 256"]);
        assert_eq!(both, ["c0 d0", "c0 d1", "c1 d0", "c1 d1"]);
        assert_eq!(of(&["p50", "p99", "ours"]), ["c0 d0", "c1 d0", "c2 d0"]);
    }

    #[test]
    fn marks_without_room_are_left_out() {
        let mark = |index: i32| Mark {
            position: f64::from(index) / 10.0,
            text: "10,000".to_owned(),
        };
        let marks: Vec<_> = (0..=10).map(mark).collect();
        let kept = with_room(marks.iter().collect(), 250.0);
        let positions: Vec<_> = kept.iter().map(|mark| mark.position).collect();
        assert_eq!(positions, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
    }
}
