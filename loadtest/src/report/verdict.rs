//! The result of a comparison in one line, for the head of a report.

use crate::report::{Report, Table, format, tables::OURS};

/// Begins the head of a column of ratios; the name of what they are to follows.
const TIMES: &str = "× ";

impl Report {
    /// The first known ratio of our tunnel in the first table of ratios, in its words. None if there is no such table, if our
    /// tunnel is not in it, and if the ratios are to our tunnel.
    pub(crate) fn verdict(&self) -> Option<String> {
        let is_ratio = |head: &String| head.starts_with(TIMES);
        let has_ratios = |table: &&Table| table.columns.iter().any(is_ratio);
        let table = self.tables.iter().find(has_ratios)?;
        let is_ours = |row: &&Vec<String>| row.first().is_some_and(|name| name == OURS);
        let ours = table.rows.iter().find(is_ours)?;
        // A ratio stands beside its figure.
        let mut cells = table.columns.windows(2).zip(ours.iter().skip(1));
        cells.find_map(|(heads, cell)| match heads {
            [figure, base] if base.strip_prefix(TIMES)? != OURS && cell != format::NONE => Some(
                format!("{OURS}: {cell} {base} in {figure}, {}", table.title),
            ),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict on a table with this row, whose ratios are to `base`.
    fn verdict(base: &str, row: [&str; 5]) -> Option<String> {
        let mut report = Report::new("compare", "a title");
        assert_eq!(report.verdict(), None);
        let heads = format!("target,CPU/request,× {base},rate,× {base}");
        let row = row.map(str::to_owned).to_vec();
        report.tables = vec![
            Table::of_values("without ratios", "value", [(OURS, "1".to_owned())]),
            Table::new("64 connections", &heads, vec![row]),
        ];
        report.verdict()
    }

    #[test]
    fn the_first_ratio_that_is_known_is_the_verdict() {
        let [cost, rate] = [
            ["ours", "12.0 µs", "0.60 (0.50–0.75)", "9,000/s", "0.90"],
            ["ours", "12.0 µs", "–", "9,000/s", "0.90"],
        ]
        .map(|row| verdict("nginx", row));
        let expected = "ours: 0.60 (0.50–0.75) × nginx in CPU/request, 64 connections";
        assert_eq!(cost.as_deref(), Some(expected));
        let expected = "ours: 0.90 × nginx in rate, 64 connections";
        assert_eq!(rate.as_deref(), Some(expected));
    }

    #[test]
    fn without_a_ratio_of_ours_there_is_no_verdict() {
        assert_eq!(verdict("nginx", ["ours", "–", "–", "–", "–"]), None);
        assert_eq!(
            verdict("ours", ["ours", "1 µs", "1.00", "9/s", "1.00"]),
            None
        );
        assert_eq!(
            verdict("nginx", ["hop", "1 µs", "0.60", "9/s", "0.90"]),
            None
        );
    }
}
