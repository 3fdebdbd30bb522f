//! The report for people on a terminal: short, aligned, notes last.

use std::fmt::{Arguments, Write as _};

use crate::report::{
    Level, Report, Run, Table, Usage,
    format::{bytes, bytes_per_second, count, per_second, seconds},
};

/// More than these nobody reads on a terminal when there are tables, which say it shorter.
const MOST_RUNS: usize = 10;

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    line(&mut out, format_args!("{}", report.title));
    let settings = report.settings.iter();
    let settings: Vec<_> = settings
        .map(|setting| format!("{} {}", setting.name, setting.value))
        .collect();
    if !settings.is_empty() {
        line(&mut out, format_args!("  {}", settings.join(", ")));
    }
    if report.runs.len() > MOST_RUNS && !report.tables.is_empty() {
        let runs = report.runs.len();
        line(
            &mut out,
            format_args!("  {runs} runs: see --json or --report for each"),
        );
    } else {
        for run in &report.runs {
            out.push('\n');
            show_run(&mut out, run);
        }
    }
    for table in &report.tables {
        out.push('\n');
        show_table(&mut out, table);
    }
    if !report.notes.is_empty() {
        out.push('\n');
    }
    for note in &report.notes {
        let level = match note.level {
            Level::Info => "note",
            Level::Warning => "warning",
        };
        line(&mut out, format_args!("{level}: {}", note.text));
    }
    out
}

fn show_run(out: &mut String, run: &Run) {
    line(out, format_args!("{}", run.name));
    let mut row = |name: &str, value: &str| line(out, format_args!("  {name:<9} {value}"));
    let completed = count(run.completed as f64);
    let span = seconds(run.seconds);
    row(
        "rate",
        &format!("{}  ({completed} in {span})", per_second(run.rate)),
    );
    if let Some(latency) = &run.latency {
        let figures = [
            ("p50", latency.p50),
            ("p90", latency.p90),
            ("p99", latency.p99),
            ("p99.9", latency.p999),
            ("max", latency.max),
        ];
        let figures = figures.map(|(name, value)| format!("{name} {}", seconds(value)));
        row("latency", &figures.join("  "));
    }
    for (name, moved) in [("up", run.bytes_up), ("down", run.bytes_down)] {
        if moved > 0 {
            let each = bytes_per_second(moved as f64 / run.seconds);
            row(name, &format!("{each}  ({})", bytes(moved as f64)));
        }
    }
    row("errors", &errors(run));
    if let Some(cost) = run.cpu_us_per_request {
        let cost = seconds(cost / 1e6);
        row(
            "cost",
            &format!("{cost} of processor time for each, by the target alone"),
        );
    }
    for (role, usage) in &run.usage {
        row("usage", &format!("{role:<16} {}", used(usage, run.seconds)));
    }
}

fn errors(run: &Run) -> String {
    if run.errors.is_empty() {
        return "none".to_owned();
    }
    let all = run.completed + run.errors.values().sum::<u64>();
    let kinds = run.errors.iter().map(|(kind, times)| {
        let share = *times as f64 * 100.0 / all as f64;
        format!("{kind} {} ({share:.2} %)", count(*times as f64))
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

fn show_table(out: &mut String, table: &Table) {
    line(out, format_args!("{}", table.title));
    let width = |column: usize| {
        let cells = table.rows.iter().filter_map(|row| row.get(column));
        let cells = cells.chain(table.columns.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..table.columns.len()).map(width).collect();
    for row in std::iter::once(&table.columns).chain(&table.rows) {
        let mut text = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // The first column names the row; the others are figures.
            let _ = match column {
                0 => write!(text, "  {cell:<width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        line(out, format_args!("{}", text.trim_end()));
    }
}

fn line(out: &mut String, text: Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{text}");
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
