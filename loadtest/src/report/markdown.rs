//! The tables of a report as Markdown, for pasting into documents. In goes a [`Report`], out comes
//! text; it knows nothing of scenarios, and leaves runs and charts to the other renderers.

use crate::report::{NoteLevel, Report, Table};

/// The report as it can be pasted into a document.
pub fn render(report: &Report) -> String {
    let (machine, settings) = (&report.machine, report.settings());
    let (processor, system) = (&machine.processor, &machine.system);
    let about = format!("{} cores, {processor}, {system}; {settings}", machine.cores);
    let about = format!("{}; {about}", report.started);
    let mut lines = vec![
        format!("**{}**", escaped(&report.title)),
        String::new(),
        escaped(&about),
    ];
    lines.extend(report.tables.iter().flat_map(table));
    if !report.notes.is_empty() {
        lines.push(String::new());
    }
    lines.extend(report.notes.iter().map(|note| match note.level {
        NoteLevel::Info => format!("- {}", escaped(&note.text)),
        NoteLevel::Warning => format!("- **Warning:** {}", escaped(&note.text)),
    }));
    lines.join("\n") + "\n"
}

fn table(table: &Table) -> Vec<String> {
    let row = |cells: &Vec<String>| {
        let cells: Vec<_> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |", cells.join(" | "))
    };
    let rule = format!(
        "| ---{} |",
        " | ---:".repeat(table.columns.len().saturating_sub(1))
    );
    let head = [
        String::new(),
        escaped(&table.title),
        String::new(),
        row(&table.columns),
        rule,
    ];
    head.into_iter().chain(table.rows.iter().map(row)).collect()
}

/// Escapes what would be read as marks of the table, and replaces line breaks by spaces.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
        .replace(['\n', '\r'], " ")
        .trim()
        .to_owned()
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
