//! The report as one page for a browser: needs nothing but itself, fits screens from a telephone up.
//!
//! In goes a [`Report`]; out comes HTML with its style and its drawings inside. The page has no script and asks for
//! nothing from anywhere. All text that comes from outside is escaped here; `report.html` is the frame into which the
//! parts are set.

mod chart;

use super::{Note, NoteLevel, Report, Table, tables};

/// The frame, with names in double braces where the parts go.
const FRAME: &str = include_str!("report.html");

/// The whole page.
pub(crate) fn render(report: &Report) -> String {
    let mut pieces = FRAME.split("{{");
    let mut page = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or(("", piece));
        page += &part(report, name);
        page += rest;
    }
    page
}

fn part(report: &Report, name: &str) -> String {
    let of_runs = [tables::results, tables::errors, tables::used];
    match name {
        "scenario" => escape(&report.scenario),
        "title" => escape(&report.title),
        "version" => escape(&report.version),
        "verdict" => verdict(report),
        "facts" => facts(report),
        "notes" => notes(report),
        "runs" => of_runs.iter().map(|of| table(&of(&report.runs))).collect(),
        "charts" => charts(report),
        "tables" => report.tables.iter().map(table).collect(),
        _ => String::new(),
    }
}

/// The result in one line; nothing where there is none.
fn verdict(report: &Report) -> String {
    let verdict = report.verdict().map(|verdict| escape(&verdict));
    verdict.map_or_else(String::new, |verdict| {
        format!("<p class=\"verdict\">{verdict}</p>")
    })
}

/// When, where and how it was measured.
fn facts(report: &Report) -> String {
    let machine = &report.machine;
    let (processor, system) = (&machine.processor, &machine.system);
    let machine = format!("{processor}, {} cores, {system}", machine.cores);
    let facts = [("started", &report.started), ("machine", &machine)];
    let settings = report.settings.iter();
    let settings = settings.map(|setting| (setting.name.as_str(), &setting.value));
    let item = |(name, value): (&str, &String)| {
        let (name, value) = (escape(name), escape(value));
        format!("<div><dt>{name}</dt><dd>{value}</dd></div>")
    };
    let items: String = facts.into_iter().chain(settings).map(item).collect();
    format!("<dl>{items}</dl>")
}

/// The notes, warnings first.
fn notes(report: &Report) -> String {
    let of = |level: NoteLevel, class: &str| -> String {
        let item = |note: &Note| format!("<li class=\"{class}\">{}</li>", escape(&note.text));
        report.notes_of(level).map(item).collect()
    };
    let all = of(NoteLevel::Warning, "warning") + &of(NoteLevel::Info, "info");
    format!("<ul class=\"notes\">{all}</ul>\n")
}

/// All charts; a line's name has one colour in all of them.
fn charts(report: &Report) -> String {
    let mut names: Vec<&str> = Vec::new();
    for series in report.charts.iter().flat_map(|chart| &chart.series) {
        if !names.contains(&series.name.as_str()) {
            names.push(&series.name);
        }
    }
    let charts = report.charts.iter();
    charts.map(|chart| chart::figure(chart, &names)).collect()
}

/// A table that scrolls if it is wider than the page; nothing where it has no rows.
fn table(table: &Table) -> String {
    if table.rows.is_empty() {
        return String::new();
    }
    let row = |tag: &str, cells: &[String]| {
        let cells = cells
            .iter()
            .map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
        format!("<tr>{}</tr>", cells.collect::<String>())
    };
    let head = row("th", &table.columns);
    let rows: String = table.rows.iter().map(|cells| row("td", cells)).collect();
    let title = escape(&table.title);
    format!(
        "<section><h2>{title}</h2><div class=\"scroll\"><table>{head}{rows}</table></div></section>\n"
    )
}

/// Text that means nothing to the browser, in elements and in attributes.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Axis, Chart, Run, Scale, Series, Setting, Unit};

    /// A report that says `text` wherever text from outside can stand.
    fn saying(text: &str) -> Report {
        let text = || text.to_owned();
        let axis = || Axis::new("it", Unit::Count, Scale::Linear);
        let series = [Series::new(text(), vec![(1.0, 1.0)])];
        let mut run = Run {
            name: text(),
            ..Run::default()
        };
        run.errors.insert(text(), 1);
        let mut report = Report::new(&text(), text());
        report.machine.processor = text();
        report.settings = vec![Setting {
            name: text(),
            value: text(),
        }];
        report.runs = vec![run];
        let of_ratios = format!("target,{text},× {text}", text = text());
        let ours = ["ours".to_owned(), text(), text()].to_vec();
        report.tables = vec![
            Table::new(text(), &text(), vec![vec![text()]]),
            Table::new(text(), &of_ratios, vec![ours]),
        ];
        report.charts = vec![Chart::new(text(), axis(), axis(), series)];
        report.note(text());
        report
    }

    #[test]
    fn text_from_outside_is_escaped_wherever_it_stands() {
        let evil = "</title><script>alert(\"x\")</script>'&{{title}}";
        let (page, harmless) = (render(&saying(evil)), render(&saying("harmless")));
        let escaped = "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&#39;&amp;{{title}}";
        let times = harmless.matches("harmless").count();
        assert!(times > 12, "{harmless}");
        assert_eq!(page.matches(escaped).count(), times);
        assert!(harmless.contains("harmless × harmless in harmless, harmless</p>"));
        assert!(!page.contains("<script"));
    }

    #[test]
    fn the_page_asks_for_nothing_from_anywhere() {
        let page = render(&saying("a"));
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        for address in ["=\"http", "src=", "url(", "@import", "{{"] {
            assert!(!page.contains(address), "{address}");
        }
        assert!(page.contains("default-src 'none'"));
    }

    #[test]
    fn warnings_come_first() {
        let mut report = Report::new("http", "notes");
        report.note("first");
        report.warn("second");
        let html = notes(&report);
        assert!(html.find("second").unwrap() < html.find("first").unwrap());
    }
}
