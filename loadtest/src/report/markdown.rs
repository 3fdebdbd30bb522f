//! The tables of a report as Markdown, for pasting into documents. In goes a [`Report`], out comes
//! text; it knows nothing of scenarios, and leaves charts to the other renderers, and runs where tables sum them up.

use crate::report::{Note, NoteLevel, Report, Table, tables};

/// The report as it can be pasted into a document.
pub fn render(report: &Report) -> String {
    let (machine, settings) = (&report.machine, report.settings());
    let (processor, system) = (&machine.processor, &machine.system);
    let about = format!("{} cores, {processor}, {system}; {settings}", machine.cores);
    let about = format!("{}; {about}", report.started);
    let verdict = report.verdict().map(|verdict| escaped(&verdict));
    let head = std::iter::once(format!("**{}**", escaped(&report.title)));
    let head = head.chain(verdict).chain([escaped(&about)]);
    let mut lines = vec![head.collect::<Vec<_>>().join("\n\n")];
    lines.extend(notes(report, NoteLevel::Warning, "**Warning:** "));
    if report.tables.is_empty() {
        let of_runs = [tables::results, tables::errors, tables::used];
        let of_runs = of_runs.iter().map(|of| of(&report.runs));
        let of_runs = of_runs.filter(|table| !table.rows.is_empty());
        lines.extend(of_runs.flat_map(|all| table(&all)));
    }
    lines.extend(report.tables.iter().flat_map(table));
    lines.extend(notes(report, NoteLevel::Info, ""));
    lines.join("\n") + "\n"
}

/// An empty line, and a list of the notes of this level; nothing where there are none.
fn notes(report: &Report, level: NoteLevel, mark: &str) -> Vec<String> {
    let item = |note: &Note| format!("- {mark}{}", escaped(&note.text));
    let mut lines: Vec<_> = report.notes_of(level).map(item).collect();
    if !lines.is_empty() {
        lines.insert(0, String::new());
    }
    lines
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
    use crate::report::Run;

    #[test]
    fn a_table_can_be_pasted() {
        let mut report = Report::new("compare", "one against two");
        let cells = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        report.tables.push(Table {
            title: "64 connections".to_owned(),
            columns: cells(&["target", "p50", "× a|b"]),
            rows: vec![
                cells(&["a|b", "1.00 ms", "1.00"]),
                cells(&["two\nlines", "–", "–"]),
                cells(&["ours", "2.00 ms", "2.00"]),
            ],
        });
        report.note("one round");
        report.warn("not to be believed");
        let text = render(&report);
        let expected = "\n\n- **Warning:** not to be believed\n\n64 connections\n\n\
                        | target | p50 | × a\\|b |\n| --- | ---: | ---: |\n| a\\|b | 1.00 ms | 1.00 |\n\
                        | two lines | – | – |\n| ours | 2.00 ms | 2.00 |\n\n\
                        - one round\n";
        assert!(text.ends_with(expected), "{text}");
        let expected = "**one against two**\n\nours: 2.00 × a\\|b in p50, 64 connections\n\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(!text.contains("Results"), "{text}");
    }

    #[test]
    fn runs_that_no_table_sums_up_are_tables_of_their_own() {
        let mut report = Report::new("http", "one run");
        report.runs.push(Run {
            name: "small GET".to_owned(),
            completed: 9_000,
            rate: 4_500.0,
            seconds: 2.0,
            ..Run::default()
        });
        let text = render(&report);
        assert!(text.contains("| run | rate |"), "{text}");
        assert!(text.contains("| small GET | 4,500/s |"), "{text}");
    }
}
