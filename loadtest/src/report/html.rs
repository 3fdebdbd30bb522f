//! The report as one page for a browser: needs nothing but itself, fits screens from a telephone up.
//!
//! In goes a [`Report`]; out comes HTML with its style, its drawings and a little script inside. The
//! page asks for nothing from anywhere and can be read without the script. All text that comes from
//! outside is escaped here; `report.html` is the frame into which the parts are set.

mod axis;
mod chart;
mod runs;
#[cfg(test)]
mod sample;
mod table;

use super::{Level, Note, Report, Setting, Table};

/// The frame, with names in double braces where the parts go.
const FRAME: &str = include_str!("report.html");

/// The whole page.
pub(crate) fn render(report: &Report) -> String {
    fill(FRAME, |name| match name {
        "scenario" => escape(&report.scenario),
        "title" => escape(&report.title),
        "version" => escape(&report.version),
        "facts" => facts(report),
        "notes" => notes(&report.notes),
        "results" => runs::results(&report.runs),
        "errors" => runs::errors_by_kind(&report.runs),
        "usage" => runs::usage_by_role(&report.runs),
        "charts" => charts(report),
        "tables" => report.tables.iter().map(table).collect(),
        _ => String::new(),
    })
}

/// Replaces each `{{name}}` of the frame once; what is put in is not looked at again.
fn fill(frame: &str, part: impl Fn(&str) -> String) -> String {
    let mut pieces = frame.split("{{");
    let mut page = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or(("", piece));
        page += &part(name);
        page += rest;
    }
    page
}

/// When, where and how it was measured.
fn facts(report: &Report) -> String {
    let machine = &report.machine;
    let cores = if machine.cores == 1 { "core" } else { "cores" };
    let facts = [
        ("Started", instant(&report.started)),
        (
            "Machine",
            format!("{}, {} {cores}", machine.processor, machine.cores),
        ),
        ("System", machine.system.clone()),
    ];
    let facts = facts.iter().map(|(name, value)| fact(name, value, ""));
    let settings = report
        .settings
        .iter()
        .map(|Setting { name, value }| fact(name, value, " class=\"flag\""));
    let list = |class: &str, items: String| format!("<dl class=\"facts {class}\">{items}</dl>");
    let mut out = list("place", facts.collect());
    if !report.settings.is_empty() {
        out += &list("settings", settings.collect());
    }
    out
}

fn fact(name: &str, value: &str, class: &str) -> String {
    format!(
        "<div><dt{class}>{}</dt><dd>{}</dd></div>",
        escape(name),
        escape(value)
    )
}

/// `2026-10-03T18:29:05Z` as `2026-10-03 18:29:05 UTC`; another text stays.
fn instant(text: &str) -> String {
    match text.strip_suffix('Z').and_then(|text| text.split_once('T')) {
        Some((date, time)) => {
            let time = time.split_once('.').map_or(time, |(seconds, _)| seconds);
            format!("{date} {time} UTC")
        }
        None => text.to_owned(),
    }
}

/// The notes, warnings first.
fn notes(notes: &[Note]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let of = |level: Level, class: &str, mark: &str| -> String {
        (notes.iter().filter(|note| note.level == level))
            .map(|note| {
                format!(
                    "<li class=\"{class}\"><b>{mark}</b><span>{}</span></li>",
                    escape(&note.text)
                )
            })
            .collect()
    };
    let warnings = of(Level::Warning, "warning", "⚠ Warning");
    let others = of(Level::Info, "info", "Note");
    format!("<ul class=\"notes\" aria-label=\"Notes\">{warnings}{others}</ul>\n")
}

fn charts(report: &Report) -> String {
    if report.charts.is_empty() {
        return String::new();
    }
    let mut families = Vec::new();
    for family in report.runs.iter().map(|run| chart::family(&run.name)) {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    let figures: String = (report.charts.iter().enumerate())
        .map(|(index, chart)| chart::figure(chart, &format!("chart-{}", index + 1), &families))
        .collect();
    format!("<section id=\"charts\"><h2>Charts</h2>{figures}</section>\n")
}

/// A table of the report. A column that has a number in any row holds figures.
fn table(table: &Table) -> String {
    let column = |(index, name): (usize, &String)| {
        let is_figure = |row: &Vec<String>| row.get(index).is_some_and(|cell| is_figure(cell));
        (escape(name), index > 0 && table.rows.iter().any(is_figure))
    };
    let columns: Vec<_> = table.columns.iter().enumerate().map(column).collect();
    let row = |row: &Vec<String>| row.iter().map(|cell| escape(cell).into()).collect();
    let rows = table.rows.iter().map(row).collect();
    let title = escape(&table.title);
    let group = table::Group { name: None, rows };
    let table = table::table("", &title, &columns, &[group]);
    format!("<section><h2>{title}</h2>{table}</section>\n")
}

fn is_figure(cell: &str) -> bool {
    let text = cell.trim_start_matches(['+', '-', '−', '±', '<', '>', '~', ' ']);
    text.starts_with(|first: char| first.is_ascii_digit())
}

/// Text that means nothing to the browser, in elements and in attributes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_report_is_a_whole_page() {
        let page = render(&sample::empty());
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        assert!(!page.contains("{{") && !page.contains("}}"));
        assert!(
            !page.contains("<section") && !page.contains("<ul"),
            "{page}"
        );
    }

    #[test]
    fn the_page_asks_for_nothing_from_anywhere() {
        let page = render(&sample::comparison());
        for address in ["=\"http", "src=", "url(", "@import", "fetch("] {
            assert!(!page.contains(address), "{address}");
        }
        assert!(page.contains("default-src 'none'"));
    }

    #[test]
    fn text_from_outside_is_escaped_wherever_it_stands() {
        let evil = "</title><script>alert(\"x\")</script>'&{{title}}";
        let mut report = sample::comparison();
        let all = [
            &mut report.scenario,
            &mut report.title,
            &mut report.started,
            &mut report.version,
            &mut report.machine.processor,
            &mut report.machine.system,
        ];
        all.into_iter().for_each(|text| *text = evil.to_owned());
        report.settings = vec![Setting {
            name: evil.to_owned(),
            value: evil.to_owned(),
        }];
        report.notes = vec![Note {
            level: Level::Warning,
            text: evil.to_owned(),
        }];
        report.runs[0].name = evil.to_owned();
        report.charts[0].title = evil.to_owned();
        report.charts[0].series[0].name = evil.to_owned();
        report.tables[0].title = evil.to_owned();
        report.tables[0].rows[0][1] = evil.to_owned();
        let (page, harmless) = (render(&report), render(&sample::comparison()));
        assert!(
            page.contains("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&#39;&amp;{{title}}")
        );
        for tag in ["<script", "</script", "</title"] {
            assert_eq!(
                page.matches(tag).count(),
                harmless.matches(tag).count(),
                "{tag}"
            );
        }
    }

    #[test]
    fn warnings_come_first() {
        let note = |level, text: &str| Note {
            level,
            text: text.to_owned(),
        };
        let html = notes(&[note(Level::Info, "first"), note(Level::Warning, "second")]);
        assert!(html.find("second").unwrap() < html.find("first").unwrap());
    }

    #[test]
    fn the_instant_is_written_for_people() {
        assert_eq!(instant("2026-10-03T18:29:05Z"), "2026-10-03 18:29:05 UTC");
        assert_eq!(
            instant("2026-10-03T18:29:05.123456Z"),
            "2026-10-03 18:29:05 UTC"
        );
        assert_eq!(instant("yesterday"), "yesterday");
    }

    #[test]
    fn figures_are_aligned_and_words_are_not() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let rows = vec![
            row(&["1st", "0.47 ± 0.02", "met"]),
            row(&["short"]),
            row(&["a", "1", "b", "c"]),
        ];
        let html = table(&Table::new(
            "a <table>",
            &["target", "ratio", "verdict"],
            rows,
        ));
        assert!(html.contains("<th scope=\"row\">1st</th>"), "{html}");
        assert!(
            html.contains("<td class=\"figure\">0.47 ± 0.02</td><td>met</td>"),
            "{html}"
        );
        assert!(html.contains("aria-label=\"a &lt;table&gt;\""), "{html}");
        // Rows of another length do not break the table.
        assert_eq!(html.matches("<td").count(), 6, "{html}");
    }
}
