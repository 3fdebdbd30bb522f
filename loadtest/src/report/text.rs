//! The report for people on a terminal: short, aligned, notes last.

use crate::report::{
    Level, Report, Run, Table, Usage,
    format::{bytes, bytes_per_second, count, per_second, seconds},
    tables,
};

/// More runs than these are left out when there are tables, which say it shorter.
const MOST_RUNS: usize = 10;

/// The report as it is written to standard output.
pub fn render(report: &Report) -> String {
    let mut lines = vec![report.title.clone()];
    let settings = report.settings.iter();
    let settings = settings.map(|setting| format!("{} {}", setting.name, setting.value));
    let settings = settings.collect::<Vec<_>>().join(", ");
    if !settings.is_empty() {
        lines.push(format!("  {settings}"));
    }
    if report.runs.len() > MOST_RUNS && !report.tables.is_empty() {
        let runs = report.runs.len();
        lines.push(format!("  {runs} runs: see --json or --report for each"));
    } else {
        lines.extend(report.runs.iter().flat_map(run));
    }
    lines.extend(report.tables.iter().flat_map(table));
    if !report.notes.is_empty() {
        lines.push(String::new());
    }
    lines.extend(report.notes.iter().map(|note| match note.level {
        Level::Info => format!("note: {}", note.text),
        Level::Warning => format!("warning: {}", note.text),
    }));
    lines.join("\n") + "\n"
}

/// An empty line, the name, and a line for each thing that is known.
fn run(run: &Run) -> Vec<String> {
    let mut lines = vec![String::new(), run.name.clone()];
    let mut row = |name: &str, value: String| lines.push(format!("  {name:<9} {value}"));
    let (completed, span) = (count(run.completed as f64), seconds(run.seconds));
    let rate = per_second(run.rate);
    row("rate", format!("{rate}  ({completed} in {span})"));
    if let Some(latency) = &run.latency {
        let figures = [
            ("p50", latency.p50),
            ("p90", latency.p90),
            ("p99", latency.p99),
            ("p99.9", latency.p999),
            ("max", latency.max),
        ];
        let figures = figures.map(|(name, value)| format!("{name} {}", seconds(value)));
        row("latency", figures.join("  "));
    }
    for (name, moved) in [("up", run.bytes_up), ("down", run.bytes_down)] {
        if moved > 0 {
            let each = bytes_per_second(moved as f64 / run.seconds);
            row(name, format!("{each}  ({})", bytes(moved as f64)));
        }
    }
    row("errors", errors(run));
    if let Some(cost) = run.cpu_us_per_request {
        let cost = seconds(cost / 1e6);
        row(
            "cost",
            format!("{cost} of processor time for each, by the target alone"),
        );
    }
    for (role, usage) in &run.usage {
        row("usage", format!("{role:<16} {}", used(usage, run.seconds)));
    }
    lines
}

fn errors(run: &Run) -> String {
    if run.errors.is_empty() {
        return "none".to_owned();
    }
    let kinds = run.errors.iter().map(|(kind, times)| {
        let (times, share) = (count(*times as f64), tables::share(run, *times));
        format!("{kind} {times} ({share})")
    });
    kinds.collect::<Vec<_>>().join("  ")
}

fn used(usage: &Usage, span: f64) -> String {
    let share = usage.cpu_seconds * 100.0 / span;
    let memory = bytes(usage.peak_rss as f64);
    let processes = match usage.processes {
        1 => String::new(),
        many => format!("  {many} processes"),
    };
    format!("{share:>6.1} % of a core  {memory:>9} resident{processes}")
}

/// An empty line, the title, and the rows with columns of even width.
fn table(table: &Table) -> Vec<String> {
    let width = |column: usize| {
        let cells = table.rows.iter().filter_map(|row| row.get(column));
        let cells = cells.chain(table.columns.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..table.columns.len()).map(width).collect();
    let row = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 => format!("  {cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.collect::<String>().trim_end().to_owned()
    };
    let rows = std::iter::once(&table.columns).chain(&table.rows).map(row);
    [String::new(), table.title.clone()]
        .into_iter()
        .chain(rows)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let mut report = Report::new("compare", "a title");
        report.tables.push(Table {
            title: "cost".to_owned(),
            columns: row(["target", "rate", "p99"]),
            rows: vec![
                row(["nginx", "9,000/s", "12.0 ms"]),
                row(["ours", "12,000/s", "900 µs"]),
            ],
        });
        report.warn("the generator was the limit");
        let expected = "a title\n\n\
            cost\n  \
              target      rate      p99\n  \
              nginx    9,000/s  12.0 ms\n  \
              ours    12,000/s   900 µs\n\n\
            warning: the generator was the limit\n";
        assert_eq!(render(&report), expected);
    }
}
