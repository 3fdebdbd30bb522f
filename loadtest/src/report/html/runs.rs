//! What is shown of runs: their results, errors by kind, and what each role used.

use super::{
    escape,
    table::{Cell, Column, Group, table},
};
use crate::report::{Latency, Run, Unit, format};

/// A figure of a run: its name, how it is written, and its value where the run has it.
type Figure = (&'static str, Unit, fn(&Run) -> Option<f64>);

const FIGURES: [Figure; 10] = [
    ("Rate", Unit::PerSecond, |run| {
        (run.completed > 0).then_some(run.rate)
    }),
    ("Up", Unit::BytesPerSecond, |run| {
        throughput(run, run.bytes_up)
    }),
    ("Down", Unit::BytesPerSecond, |run| {
        throughput(run, run.bytes_down)
    }),
    ("p50", Unit::Seconds, |run| {
        latency(run, |latency| latency.p50)
    }),
    ("p90", Unit::Seconds, |run| {
        latency(run, |latency| latency.p90)
    }),
    ("p99", Unit::Seconds, |run| {
        latency(run, |latency| latency.p99)
    }),
    ("p99.9", Unit::Seconds, |run| {
        latency(run, |latency| latency.p999)
    }),
    ("Max", Unit::Seconds, |run| {
        latency(run, |latency| latency.max)
    }),
    (ERRORS, Unit::Count, |run| Some(errors(run) as f64)),
    ("CPU/request", Unit::Seconds, |run| {
        Some(run.cpu_us_per_request? / 1e6)
    }),
];

const MORE: [Figure; 7] = [
    ("Completed", Unit::Count, |run| Some(run.completed as f64)),
    ("Measured for", Unit::Seconds, |run| Some(run.seconds)),
    ("Sent", Unit::Bytes, |run| above_zero(run.bytes_up)),
    ("Received", Unit::Bytes, |run| above_zero(run.bytes_down)),
    ("Shortest", Unit::Seconds, |run| {
        latency(run, |latency| latency.min)
    }),
    ("Mean", Unit::Seconds, |run| {
        latency(run, |latency| latency.mean)
    }),
    ("Deviation", Unit::Seconds, |run| {
        latency(run, |latency| latency.deviation)
    }),
];

const ERRORS: &str = "Errors";

/// Figures with a bar that compares the runs.
const BARS: [&str; 3] = ["Rate", "p99", "CPU/request"];

/// The section of results: of one run tiles, of several a table.
pub(super) fn results(runs: &[Run]) -> String {
    let results = match runs {
        [] => return String::new(),
        [run] => {
            let (tiles, facts) = (tiles(&FIGURES, run, "tiles"), tiles(&MORE, run, "facts"));
            format!("<p class=\"of\">{}</p>{tiles}{facts}", name(run))
        }
        _ => {
            let title = "More figures of each run";
            let more = figures(&MORE, runs, title);
            let results = figures(&FIGURES, runs, "Results");
            format!("{results}<details><summary>{title}</summary>{more}</details>")
        }
    };
    format!("<section id=\"results\"><h2>Results</h2>{results}</section>\n")
}

fn tiles(figures: &[Figure], run: &Run, class: &str) -> String {
    let shown = figures.iter().filter(|(.., value)| value(run).is_some());
    let tile = |figure: &Figure| {
        format!(
            "<div><dt>{}</dt><dd>{}</dd></div>",
            figure.0,
            shown_as(figure, run)
        )
    };
    let tiles: String = shown.map(tile).collect();
    format!("<dl class=\"{class}\">{tiles}</dl>")
}

/// A table of the figures that at least one run has.
fn figures(figures: &[Figure], runs: &[Run], label: &str) -> String {
    let shown: Vec<_> = (figures.iter())
        .filter(|(.., value)| runs.iter().any(|run| value(run).is_some()))
        .collect();
    let heads = shown.iter().map(|(name, ..)| ((*name).to_owned(), true));
    let columns: Vec<Column> = std::iter::once(("Run".to_owned(), false))
        .chain(heads)
        .collect();
    let row = |run: &Run| {
        let cells = shown.iter().map(|figure| Cell {
            attributes: format!(" data-name=\"{}\"{}", figure.0, bar(figure, run, runs)),
            html: shown_as(figure, run),
        });
        std::iter::once(name(run).into()).chain(cells).collect()
    };
    let rows = runs.iter().map(row).collect();
    table("cards", label, &columns, &[Group { name: None, rows }])
}

fn name(run: &Run) -> String {
    let bound = if run.generator_bound {
        "<span class=\"bound\" title=\"The load generator's own CPU was the limit\">⚠ generator-bound</span>"
    } else {
        ""
    };
    escape(&run.name) + bound
}

fn shown_as((name, unit, value): &Figure, run: &Run) -> String {
    let Some(value) = value(run) else {
        return format!("<span class=\"none\">{}</span>", format::NONE);
    };
    let text = escape(&format::value(*unit, value));
    if *name != ERRORS || value == 0.0 {
        return text;
    }
    format!(
        "<span class=\"bad\">{text}<small>{}</small></span>",
        share(value, run)
    )
}

/// The length of the bar under a figure, as a share of the largest.
fn bar((name, _, value): &Figure, run: &Run, runs: &[Run]) -> String {
    let largest = runs.iter().filter_map(value).fold(0.0, f64::max);
    match value(run) {
        Some(value)
            if BARS.contains(name) && value >= 0.0 && largest.is_finite() && largest > 0.0 =>
        {
            format!(" style=\"--share:{:.3}\"", value / largest)
        }
        _ => String::new(),
    }
}

/// The section of errors by kind; nothing where nothing failed.
pub(super) fn errors_by_kind(runs: &[Run]) -> String {
    let rows = |run: &Run| {
        let kinds = run.errors.iter().filter(|(_, count)| **count > 0);
        let row = |(kind, count): (&String, &u64)| {
            let number = format!(
                "<span class=\"bad\">{}</span>",
                format::count(*count as f64)
            );
            [escape(kind), number, share(*count as f64, run)]
                .map(Cell::from)
                .into()
        };
        kinds.map(row).collect()
    };
    section(
        "errors",
        "Errors by kind",
        &["Kind", "Count", "Share"],
        runs,
        rows,
    )
}

/// The section of processor time and memory by role; nothing where no process is known.
pub(super) fn usage_by_role(runs: &[Run]) -> String {
    let columns = [
        "Role",
        "Peak RSS",
        "RSS at end",
        "Cores busy",
        "CPU time",
        "Processes",
    ];
    let rows = |run: &Run| {
        let row = |(role, usage): (&String, &crate::report::Usage)| {
            let cores = usage.cpu_seconds / run.seconds;
            let cores = Some(cores).filter(|cores| cores.is_finite());
            let cells = [
                escape(role),
                format::bytes(usage.peak_rss as f64),
                format::bytes(usage.rss as f64),
                cores.map_or_else(|| format::NONE.to_owned(), |cores| format!("{cores:.2}")),
                format::seconds(usage.cpu_seconds),
                format::count(usage.processes as f64),
            ];
            cells.map(Cell::from).into()
        };
        run.usage.iter().map(row).collect()
    };
    section("usage", "What the programs used", &columns, runs, rows)
}

/// A table with a group for each run that has rows, named where there are several runs.
fn section(
    id: &str,
    title: &str,
    columns: &[&str],
    runs: &[Run],
    rows: impl Fn(&Run) -> Vec<Vec<Cell>>,
) -> String {
    let group = |run: &Run| Group {
        name: (runs.len() > 1).then(|| escape(&run.name)),
        rows: rows(run),
    };
    let mut groups: Vec<_> = runs.iter().map(group).collect();
    groups.retain(|group| !group.rows.is_empty());
    if groups.is_empty() {
        return String::new();
    }
    let columns = columns.iter().enumerate();
    let columns: Vec<Column> = columns
        .map(|(index, name)| ((*name).to_owned(), index > 0))
        .collect();
    let table = table("groups", title, &columns, &groups);
    format!("<section id=\"{id}\"><h2>{title}</h2>{table}</section>\n")
}

fn errors(run: &Run) -> u64 {
    let counts = run.errors.values();
    counts.fold(0, |sum, count| sum.saturating_add(*count))
}

fn share(count: f64, run: &Run) -> String {
    let all = run.completed as f64 + errors(run) as f64;
    format!("{} %", format::count(100.0 * count / all))
}

fn above_zero(bytes: u64) -> Option<f64> {
    (bytes > 0).then_some(bytes as f64)
}

fn throughput(run: &Run, bytes: u64) -> Option<f64> {
    Some(above_zero(bytes)? / run.seconds)
}

fn latency(run: &Run, value: fn(&Latency) -> f64) -> Option<f64> {
    run.latency.as_ref().map(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::sample;

    #[test]
    fn errors_are_shown_only_where_there_are_any() {
        let mut runs = vec![sample::run("well"), sample::run("ill")];
        runs[1].errors.insert("status 503".to_owned(), 0);
        assert!(!results(&runs).contains("bad"));
        assert_eq!(errors_by_kind(&runs), "");
        runs[1].errors.insert("time-out".to_owned(), 25);
        let html = results(&runs[1..]);
        assert!(
            html.contains("<dd><span class=\"bad\">25<small>2.44 %</small></span></dd>"),
            "{html}"
        );
        let html = errors_by_kind(&runs);
        assert!(
            html.contains("time-out</th><td class=\"figure\"><span class=\"bad\">25</span></td>"),
            "{html}"
        );
        assert!(
            html.contains("ill") && !html.contains("well") && !html.contains("503"),
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
    fn usage_is_by_role_and_by_run() {
        let runs = [sample::run("one"), sample::run("two")];
        let html = usage_by_role(&runs);
        assert_eq!(html.matches("tunnel server").count(), 2);
        assert!(
            html.contains(">one</th>") && html.contains("<td class=\"figure\">0.60</td>"),
            "{html}"
        );
        // One run needs no name: it stands above.
        assert!(!usage_by_role(&runs[..1]).contains("one"));
        assert_eq!(usage_by_role(&[]), "");
    }

    #[test]
    fn a_run_of_no_length_is_shown_with_dashes() {
        let mut run = sample::run("none");
        (run.seconds, run.rate) = (0.0, f64::NAN);
        let runs = [run.clone(), run];
        let html = results(&runs) + &usage_by_role(&runs);
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
    }

    #[test]
    fn names_are_escaped_everywhere() {
        let mut run = sample::run("<script>run");
        run.generator_bound = true;
        run.errors.insert("<script>kind".to_owned(), 1);
        let usage = run.usage["upstream"].clone();
        run.usage.insert("<script>role".to_owned(), usage);
        for runs in [vec![run.clone()], vec![run.clone(), run]] {
            let html = results(&runs) + &errors_by_kind(&runs) + &usage_by_role(&runs);
            assert!(!html.contains("<script"), "{html}");
            for name in ["run", "kind", "role"] {
                assert!(
                    html.contains(&format!("&lt;script&gt;{name}")),
                    "{name}: {html}"
                );
            }
        }
    }
}
