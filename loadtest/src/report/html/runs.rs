//! The runs in figures: rate, latencies, errors and cost.
//!
//! In go the runs; out comes a section of the page. One run is shown as tiles, several as a table that
//! becomes cards on a narrow screen. A figure that no run has takes no room.

use crate::report::{Latency, Run, format};

use super::{escape, table::scrolling};

/// A figure of a run: its name, its value where the run has one, and how that is written.
struct Figure {
    name: &'static str,
    value: fn(&Run) -> Option<f64>,
    write: fn(f64) -> String,
    /// Whether a bar shows its share of the largest.
    bar: bool,
}

const FIGURES: [Figure; 10] = [
    figure(
        "Rate",
        |run| (run.completed > 0).then_some(run.rate),
        format::per_second,
    )
    .bar(),
    figure(
        "Up",
        |run| throughput(run, run.bytes_up),
        format::bytes_per_second,
    ),
    figure(
        "Down",
        |run| throughput(run, run.bytes_down),
        format::bytes_per_second,
    ),
    figure(
        "p50",
        |run| latency(run, |latency| latency.p50),
        format::seconds,
    ),
    figure(
        "p90",
        |run| latency(run, |latency| latency.p90),
        format::seconds,
    ),
    figure(
        "p99",
        |run| latency(run, |latency| latency.p99),
        format::seconds,
    )
    .bar(),
    figure(
        "p99.9",
        |run| latency(run, |latency| latency.p999),
        format::seconds,
    ),
    figure(
        "Max",
        |run| latency(run, |latency| latency.max),
        format::seconds,
    ),
    figure("Errors", |run| Some(errors(run) as f64), format::count),
    figure(
        "CPU/request",
        |run| run.cpu_us_per_request.map(|us| us / 1e6),
        format::seconds,
    )
    .bar(),
];

/// Figures that fewer readers ask for.
const MORE: [Figure; 7] = [
    figure("Completed", |run| Some(run.completed as f64), format::count),
    figure("Measured for", |run| Some(run.seconds), format::seconds),
    figure(
        "Sent",
        |run| (run.bytes_up > 0).then_some(run.bytes_up as f64),
        format::bytes,
    ),
    figure(
        "Received",
        |run| (run.bytes_down > 0).then_some(run.bytes_down as f64),
        format::bytes,
    ),
    figure(
        "Shortest",
        |run| latency(run, |latency| latency.min),
        format::seconds,
    ),
    figure(
        "Mean",
        |run| latency(run, |latency| latency.mean),
        format::seconds,
    ),
    figure(
        "Deviation",
        |run| latency(run, |latency| latency.deviation),
        format::seconds,
    ),
];

const fn figure(
    name: &'static str,
    value: fn(&Run) -> Option<f64>,
    write: fn(f64) -> String,
) -> Figure {
    Figure {
        name,
        value,
        write,
        bar: false,
    }
}

impl Figure {
    const fn bar(mut self) -> Self {
        self.bar = true;
        self
    }

    /// What is written for a run, as HTML.
    fn cell(&self, run: &Run) -> String {
        let Some(value) = (self.value)(run) else {
            return format!("<span class=\"none\">{}</span>", format::NONE);
        };
        let text = escape(&(self.write)(value));
        if self.name != "Errors" || value == 0.0 {
            return text;
        }
        format!(
            "<span class=\"bad\">{text}<small>{}</small></span>",
            share(value, run)
        )
    }

    /// The style that shows the share of the largest of all runs.
    fn share(&self, run: &Run, runs: &[Run]) -> String {
        let largest = runs.iter().filter_map(self.value).fold(0.0, f64::max);
        match (self.value)(run) {
            Some(value) if self.bar && value >= 0.0 && largest.is_finite() && largest > 0.0 => {
                format!(" style=\"--share:{:.3}\"", value / largest)
            }
            _ => String::new(),
        }
    }
}

/// The section with the figures of all runs.
pub(super) fn results(runs: &[Run]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let results = match runs {
        [run] => {
            let name = format!("<p class=\"of\">{}{}</p>", escape(&run.name), bound(run));
            format!(
                "{name}{}{}",
                tiles(&FIGURES, run, "tiles"),
                tiles(&MORE, run, "facts")
            )
        }
        _ => {
            let more = figures(&MORE, runs, "More figures of each run");
            let more =
                format!("<details><summary>More figures of each run</summary>{more}</details>");
            figures(&FIGURES, runs, "Results") + &more
        }
    };
    format!("<section id=\"results\"><h2>Results</h2>{results}</section>\n")
}

fn tiles(figures: &[Figure], run: &Run, class: &str) -> String {
    let tiles: String = (figures
        .iter()
        .filter(|figure| (figure.value)(run).is_some()))
    .map(|figure| {
        format!(
            "<div><dt>{}</dt><dd>{}</dd></div>",
            figure.name,
            figure.cell(run)
        )
    })
    .collect();
    format!("<dl class=\"{class}\">{tiles}</dl>")
}

fn figures(figures: &[Figure], runs: &[Run], label: &str) -> String {
    let shown: Vec<_> = (figures.iter())
        .filter(|figure| runs.iter().any(|run| (figure.value)(run).is_some()))
        .collect();
    let head: String = (shown.iter())
        .map(|figure| format!("<th scope=\"col\" class=\"figure\">{}</th>", figure.name))
        .collect();
    let rows: String = (runs.iter())
        .map(|run| {
            let cells: String = (shown.iter())
                .map(|figure| {
                    let (share, cell) = (figure.share(run, runs), figure.cell(run));
                    format!(
                        "<td class=\"figure\" data-name=\"{}\"{share}>{cell}</td>",
                        figure.name
                    )
                })
                .collect();
            format!(
                "<tr><th scope=\"row\">{}{}</th>{cells}</tr>",
                escape(&run.name),
                bound(run)
            )
        })
        .collect();
    let head = format!("<th scope=\"col\">Run</th>{head}");
    scrolling("cards", label, &head, &format!("<tbody>{rows}</tbody>"))
}

/// A mark on runs whose figures are the load generator's own.
fn bound(run: &Run) -> &'static str {
    if run.generator_bound {
        "<span class=\"bound\" title=\"The load generator's own CPU was the limit\">⚠ generator-bound</span>"
    } else {
        ""
    }
}

/// How many failed.
pub(super) fn errors(run: &Run) -> u64 {
    run.errors
        .values()
        .fold(0, |sum, count| sum.saturating_add(*count))
}

/// What part of all that were tried this is, in percent.
pub(super) fn share(count: f64, run: &Run) -> String {
    format!(
        "{} %",
        format::count(100.0 * count / (run.completed as f64 + errors(run) as f64))
    )
}

fn throughput(run: &Run, bytes: u64) -> Option<f64> {
    (bytes > 0).then_some(bytes as f64 / run.seconds)
}

fn latency(run: &Run, value: fn(&Latency) -> f64) -> Option<f64> {
    run.latency.as_ref().map(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::sample;

    #[test]
    fn errors_are_marked_only_where_there_are_any() {
        let mut run = sample::run("ours");
        assert!(!results(&[run.clone()]).contains("bad"));
        run.errors.insert("status 503".to_owned(), 0);
        assert!(!results(&[run.clone()]).contains("bad"));
        run.errors.insert("time-out".to_owned(), 25);
        let html = results(&[run]);
        assert!(
            html.contains("<dd><span class=\"bad\">25<small>2.44 %</small></span></dd>"),
            "{html}"
        );
    }

    #[test]
    fn a_figure_that_no_run_has_takes_no_room() {
        let mut runs = vec![sample::run("one"), sample::run("two")];
        for run in &mut runs {
            run.latency = None;
            run.cpu_us_per_request = None;
            run.bytes_up = 0;
        }
        let html = results(&runs);
        assert!(!html.contains("p99") && !html.contains("CPU/request") && !html.contains(">Up<"));
        runs[1].cpu_us_per_request = Some(41.0);
        let html = results(&runs);
        assert!(
            html.contains("41.0 µs") && html.contains("<span class=\"none\">–</span>"),
            "{html}"
        );
    }

    #[test]
    fn the_largest_has_the_longest_bar() {
        let mut runs = vec![sample::run("one"), sample::run("two")];
        runs[1].rate = runs[0].rate / 4.0;
        let html = results(&runs);
        assert!(
            html.contains("data-name=\"Rate\" style=\"--share:1.000\""),
            "{html}"
        );
        assert!(
            html.contains("data-name=\"Rate\" style=\"--share:0.250\""),
            "{html}"
        );
    }

    #[test]
    fn a_run_of_no_length_is_shown_with_dashes() {
        let mut run = sample::run("none");
        (run.seconds, run.rate) = (0.0, f64::NAN);
        let html = results(&[run.clone(), run]);
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
    }

    #[test]
    fn names_are_escaped_everywhere() {
        let mut run = sample::run("<script>alert('run')</script>");
        run.generator_bound = true;
        for runs in [vec![run.clone()], vec![run.clone(), run]] {
            let html = results(&runs);
            assert!(!html.contains("<script"), "{html}");
        }
    }
}
