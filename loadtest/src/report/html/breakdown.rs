//! What stands behind the sums: errors by kind, and what each role used.
//!
//! In go the runs; out come tables with a group of rows for each run. A run without rows is left
//! out, and so is a table without runs.

use crate::report::{Run, Usage, format};

use super::{escape, runs, table::scrolling};

/// Errors by kind; nothing where nothing failed.
pub(super) fn errors_by_kind(runs: &[Run]) -> String {
    let rows = |run: &Run| -> Vec<String> {
        let kinds = run.errors.iter().filter(|(_, count)| **count > 0);
        let row = kinds.map(|(kind, count)| {
            let (kind, count) = (escape(kind), *count as f64);
            let (number, share) = (format::count(count), runs::share(count, run));
            format!(
                "<th scope=\"row\">{kind}</th><td class=\"figure bad\">{number}</td>\
                 <td class=\"figure\">{share}</td>"
            )
        });
        row.collect()
    };
    section(
        "errors",
        "Errors by kind",
        &["Kind", "Count", "Share"],
        runs,
        rows,
    )
}

/// CPU and memory by role; nothing where no process is known.
pub(super) fn usage_by_role(runs: &[Run]) -> String {
    let columns = [
        "Role",
        "Peak RSS",
        "RSS at end",
        "Cores busy",
        "CPU time",
        "Processes",
    ];
    let rows = |run: &Run| -> Vec<String> {
        (run.usage.iter())
            .map(|(role, usage)| self::usage(role, usage, run.seconds))
            .collect()
    };
    section("usage", "What the programs used", &columns, runs, rows)
}

fn usage(role: &str, usage: &Usage, seconds: f64) -> String {
    let cores = usage.cpu_seconds / seconds;
    let cores = if cores.is_finite() {
        format!("{cores:.2}")
    } else {
        format::NONE.to_owned()
    };
    let figures = [
        format::bytes(usage.peak_rss as f64),
        format::bytes(usage.rss as f64),
        cores,
        format::seconds(usage.cpu_seconds),
        format::count(usage.processes as f64),
    ];
    let cells = figures
        .map(|figure| format!("<td class=\"figure\">{figure}</td>"))
        .concat();
    format!("<th scope=\"row\">{}</th>{cells}", escape(role))
}

/// A table with a group for each run that has rows, under its name where there are several runs.
fn section(
    id: &str,
    title: &str,
    columns: &[&str],
    runs: &[Run],
    rows: impl Fn(&Run) -> Vec<String>,
) -> String {
    let group = |run: &Run| {
        let rows: String = rows(run)
            .iter()
            .map(|row| format!("<tr>{row}</tr>"))
            .collect();
        let name = match runs {
            [_] => String::new(),
            _ => format!(
                "<tr class=\"run\"><th scope=\"rowgroup\" colspan=\"{}\">{}</th></tr>",
                columns.len(),
                escape(&run.name)
            ),
        };
        if rows.is_empty() {
            rows
        } else {
            format!("<tbody>{name}{rows}</tbody>")
        }
    };
    let groups: String = runs.iter().map(group).collect();
    if groups.is_empty() {
        return groups;
    }
    let head = |(index, name): (usize, &&str)| {
        let class = if index == 0 { "" } else { " class=\"figure\"" };
        format!("<th scope=\"col\"{class}>{name}</th>")
    };
    let head: String = columns.iter().enumerate().map(head).collect();
    let table = scrolling("groups", title, &head, &groups);
    format!("<section id=\"{id}\"><h2>{title}</h2>{table}</section>\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::sample;

    #[test]
    fn kinds_that_never_happened_and_runs_without_errors_are_left_out() {
        let mut runs = vec![sample::run("well"), sample::run("ill")];
        runs[1].errors.insert("status 503".to_owned(), 0);
        assert_eq!(errors_by_kind(&runs), "");
        runs[1].errors.insert("time-out".to_owned(), 25);
        let html = errors_by_kind(&runs);
        assert!(
            html.contains("time-out</th><td class=\"figure bad\">25</td>"),
            "{html}"
        );
        assert!(
            html.contains("ill") && !html.contains("well") && !html.contains("503"),
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
    fn a_run_of_no_length_has_no_busy_cores() {
        let mut run = sample::run("none");
        run.seconds = 0.0;
        let html = usage_by_role(&[run]);
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
    }

    #[test]
    fn names_are_escaped() {
        let mut run = sample::run("<script>run");
        run.errors.insert("<script>kind".to_owned(), 1);
        let usage = run.usage["upstream"].clone();
        run.usage.insert("<script>role".to_owned(), usage);
        let runs = [run.clone(), run];
        let html = errors_by_kind(&runs) + &usage_by_role(&runs);
        assert!(!html.contains("<script"), "{html}");
        for name in ["run", "kind", "role"] {
            assert!(
                html.contains(&format!("&lt;script&gt;{name}")),
                "{name}: {html}"
            );
        }
    }
}
