//! The report for people on a terminal: short, aligned, warnings before the figures, other notes after them.

use crate::report::{NoteLevel, Report, Run, Table, tables};

/// More runs than these are left out when there are tables, which say it shorter.
const MOST_RUNS: usize = 10;

/// The report as it is written to standard output.
pub fn render(report: &Report) -> String {
    let mut lines = vec![report.title.clone()];
    lines.extend(report.verdict().map(|verdict| format!("  {verdict}")));
    let settings = report.settings();
    if !settings.is_empty() {
        lines.push(format!("  {settings}"));
    }
    lines.extend(notes(report, NoteLevel::Warning, "warning"));
    if report.runs.len() > MOST_RUNS && !report.tables.is_empty() {
        let runs = report.runs.len();
        lines.push(format!("  {runs} runs: see --json or --report for each"));
    } else {
        lines.extend(report.runs.iter().map(figures).flat_map(|run| table(&run)));
        let of_runs = [tables::errors(&report.runs), tables::used(&report.runs)];
        lines.extend(of_runs.iter().flat_map(table));
    }
    lines.extend(report.tables.iter().flat_map(table));
    lines.extend(notes(report, NoteLevel::Info, "note"));
    lines.join("\n") + "\n"
}

/// An empty line, and a line for each note of this level; nothing where there are none.
fn notes(report: &Report, level: NoteLevel, name: &str) -> Vec<String> {
    let notes = report.notes_of(level);
    let mut lines: Vec<_> = notes.map(|note| format!("{name}: {}", note.text)).collect();
    if !lines.is_empty() {
        lines.insert(0, String::new());
    }
    lines
}

/// The figures of a run under one another, since a terminal has more lines than columns.
fn figures(run: &Run) -> Table {
    let mut table = tables::results(std::slice::from_ref(run));
    let heads = table.columns.into_iter();
    let pairs = heads.zip(table.rows.into_iter().flatten());
    let mut pairs = pairs.map(|(head, cell)| vec![head, cell]);
    table.columns = pairs.next().unwrap_or_default();
    table.rows = pairs.collect();
    table
}

/// An empty line, the title, and the rows with columns of even width; nothing where there are no rows.
fn table(table: &Table) -> Vec<String> {
    if table.rows.is_empty() {
        return Vec::new();
    }
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
    fn tables_are_aligned_between_warnings_and_other_notes() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let mut report = Report::new("compare", "a title");
        report.tables.push(Table {
            title: "1 connection".to_owned(),
            columns: row(["target", "rate", "× nginx"]),
            rows: vec![
                row(["nginx", "9,000/s", "1.00"]),
                row(["ours", "12,000/s", "1.33"]),
            ],
        });
        report.note("one round");
        report.warn("the generator was the limit");
        let expected = "a title\n  \
            ours: 1.33 × nginx in rate, 1 connection\n\n\
            warning: the generator was the limit\n\n\
            1 connection\n  \
              target      rate  × nginx\n  \
              nginx    9,000/s     1.00\n  \
              ours    12,000/s     1.33\n\n\
            note: one round\n";
        assert_eq!(render(&report), expected);
    }
}
