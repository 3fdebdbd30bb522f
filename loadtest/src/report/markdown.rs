//! The tables of a report as Markdown, for pasting into documents. In goes a [`Report`], out comes
//! text; it knows nothing of scenarios, and leaves runs and charts to the other renderers.

use crate::report::{Level, Report, Table};

/// Title, settings, tables and notes.
pub fn render(report: &Report) -> String {
    let mut out = format!("**{}**\n\n", escaped(&report.title));
    let settings = report
        .settings
        .iter()
        .map(|setting| format!("{} {}", setting.name, setting.value));
    let settings: Vec<_> = settings.collect();
    let machine = &report.machine;
    let machine = format!(
        "{} cores, {}, {}",
        machine.cores, machine.processor, machine.system
    );
    let about = format!("{}; {machine}; {}", report.started, settings.join(", "));
    line(&mut out, format_args!("{}", escaped(&about)));
    for table in &report.tables {
        out.push('\n');
        show(&mut out, table);
    }
    if !report.notes.is_empty() {
        out.push('\n');
    }
    for note in &report.notes {
        let level = match note.level {
            Level::Info => "",
            Level::Warning => "**Warning:** ",
        };
        line(&mut out, format_args!("- {level}{}", escaped(&note.text)));
    }
    out
}

fn show(out: &mut String, table: &Table) {
    line(out, format_args!("{}\n", escaped(&table.title)));
    row(out, table.columns.iter().map(|head| escaped(head)));
    // The first column names the row; the others are figures.
    row(
        out,
        (0..table.columns.len()).map(|column| if column == 0 { "---" } else { "---:" }.to_owned()),
    );
    for cells in &table.rows {
        row(out, cells.iter().map(|cell| escaped(cell)));
    }
}

fn row(out: &mut String, cells: impl Iterator<Item = String>) {
    let cells: Vec<_> = cells.collect();
    line(out, format_args!("| {} |", cells.join(" | ")));
}

/// What would be read as the table's own marks, or as a second line.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
        .replace(['\n', '\r'], " ")
        .trim()
        .to_owned()
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.push_str(&text.to_string());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_can_be_pasted() {
        let mut report = Report::new("compare", "one against two");
        let cells = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        report.tables.push(Table {
            title: "64 connections".to_owned(),
            columns: cells(&["target", "p50"]),
            rows: vec![cells(&["a|b", "1.00 ms"]), cells(&["two\nlines", "–"])],
        });
        report.warn("not to be believed");
        let text = render(&report);
        let expected = "64 connections\n\n\
                        | target | p50 |\n| --- | ---: |\n| a\\|b | 1.00 ms |\n| two lines | – |\n\n\
                        - **Warning:** not to be believed\n";
        assert!(text.ends_with(expected), "{text}");
        assert!(text.starts_with("**one against two**\n\n"), "{text}");
    }
}
