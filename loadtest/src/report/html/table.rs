//! Tables: the first column names the row, figures stand right-aligned below each other.
//!
//! In go cells; out comes a table in a container of its own, which scrolls where it is too wide for
//! the screen, so that the page never does.

use crate::report::Table;

use super::escape;

/// A table that a scenario made, with its title.
pub(super) fn section(table: &Table) -> String {
    let figures: Vec<bool> = (0..table.columns.len())
        .map(|column| column > 0 && table.rows.iter().any(|row| is_figure(row.get(column))))
        .collect();
    let head: String = (table.columns.iter().zip(&figures))
        .map(|(name, figure)| format!("<th scope=\"col\"{}>{}</th>", class(*figure), escape(name)))
        .collect();
    let rows: String = table
        .rows
        .iter()
        .map(|row| self::row(row, &figures))
        .collect();
    format!(
        "<section><h2>{}</h2>{}</section>\n",
        escape(&table.title),
        scrolling(
            "",
            &escape(&table.title),
            &head,
            &format!("<tbody>{rows}</tbody>")
        ),
    )
}

/// A table of ready parts, in its container. People who use no mouse can reach and scroll it.
pub(super) fn scrolling(class: &str, label: &str, head: &str, bodies: &str) -> String {
    format!(
        "<div class=\"scroll {class}\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">\
         <table><thead><tr>{head}</tr></thead>{bodies}</table></div>"
    )
}

fn row(cells: &[String], figures: &[bool]) -> String {
    let cells: String = (figures.iter().enumerate())
        .map(|(column, figure)| {
            let text = escape(cells.get(column).map_or("", String::as_str));
            match column {
                0 => format!("<th scope=\"row\">{text}</th>"),
                _ => format!("<td{}>{text}</td>", class(*figure)),
            }
        })
        .collect();
    format!("<tr>{cells}</tr>")
}

/// Whether a cell is a number, with or without a sign and a unit.
fn is_figure(cell: Option<&String>) -> bool {
    let text = cell.map_or("", |text| {
        text.trim_start_matches(['+', '-', '−', '±', '<', '>', '~', ' '])
    });
    text.starts_with(|first: char| first.is_ascii_digit())
}

fn class(figure: bool) -> &'static str {
    if figure { " class=\"figure\"" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[&[&str]]) -> String {
        section(&Table {
            title: "a <table>".to_owned(),
            columns: vec![
                "target".to_owned(),
                "ratio".to_owned(),
                "verdict".to_owned(),
            ],
            rows: (rows.iter())
                .map(|row| row.iter().map(|cell| (*cell).to_owned()).collect())
                .collect(),
        })
    }

    #[test]
    fn figures_are_aligned_and_words_are_not() {
        let html = table(&[&["1st", "0.47 ± 0.02", "met"]]);
        assert!(html.contains("<th scope=\"row\">1st</th>"), "{html}");
        assert!(
            html.contains("<td class=\"figure\">0.47 ± 0.02</td><td>met</td>"),
            "{html}"
        );
    }

    #[test]
    fn rows_of_another_length_do_not_break_the_table() {
        let html = table(&[&["short"], &["long", "1", "2", "3"], &[]]);
        assert_eq!(html.matches("<td").count(), 6, "{html}");
    }

    #[test]
    fn cells_are_escaped() {
        let html = table(&[&["<script>alert(1)</script>", "\"1\"", "a&b"]]);
        assert!(!html.contains("<script"), "{html}");
        assert!(
            html.contains("a&amp;b") && html.contains("&quot;1&quot;"),
            "{html}"
        );
        assert!(html.contains("aria-label=\"a &lt;table&gt;\""), "{html}");
    }
}
