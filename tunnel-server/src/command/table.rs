//! Tables and numbers for people.
//!
//! In: cells as text. Out: lines with aligned columns. Numbers are rounded; the JSON output has exact ones. The text of a
//! cell may come from a remote peer, so control characters are replaced.

use std::{fmt, time::Duration};

use tunnel_ops::terminal::printable;

/// Shown for a missing value.
pub(super) const NOTHING: &str = "-";

const GAP: &str = "  ";

/// Rows of cells, with a title for each column or none at all.
pub(super) struct Table {
    rows: Vec<Vec<String>>,
    /// The columns of numbers, which are aligned to the right.
    numeric: &'static [usize],
}

impl Table {
    /// A table whose columns have titles.
    pub(super) fn titled(titles: &[&str], numeric: &'static [usize]) -> Self {
        let titles = titles.iter().map(ToString::to_string).collect();
        Self {
            rows: vec![titles],
            numeric,
        }
    }

    /// A table of names and values.
    pub(super) fn named() -> Self {
        Self {
            rows: Vec::new(),
            numeric: &[],
        }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| printable(&cell));
        self.rows.push(cells.collect());
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let widths: Vec<usize> = (0..columns).map(|column| self.width(column)).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { GAP };
                line += &match self.numeric.contains(&column) {
                    true => format!("{gap}{cell:>width$}"),
                    false => format!("{gap}{cell:<width$}"),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A time as one number of the largest unit that fits: `45s`, `12m`, `3h`, `2d`.
pub(super) fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A number of bytes: `512 B`, `1.2 MiB`.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1_024 {
        return format!("{count} B");
    }
    #[allow(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let mut value = count as f64 / 1_024.0;
    let mut unit = 0;
    // A value that would be shown as 1024.0 is 1.0 of the next unit.
    while value >= 1_023.95 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A round-trip time in milliseconds: `0.13 ms`, `1.2 ms`, `12 ms`.
pub(super) fn round_trip(milliseconds: f64) -> String {
    match milliseconds {
        ..0.995 => format!("{milliseconds:.2} ms"),
        ..9.95 => format!("{milliseconds:.1} ms"),
        _ => format!("{milliseconds:.0} ms"),
    }
}

/// A count with its noun, in the plural with `s`.
pub(super) fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::titled(&["NAME", "COUNT", "REST"], &[1]);
        table.row(["a-long-name", "7", "x"].map(String::from));
        table.row(["b", "1234567", "-"].map(String::from));
        let expected = "\
NAME           COUNT  REST
a-long-name        7  x
b            1234567  -
";
        assert_eq!(table.to_string(), expected);
        assert_eq!(Table::named().to_string(), "");
    }

    #[test]
    fn control_characters_in_a_cell_are_replaced() {
        let mut table = Table::named();
        table.row(["a\x1b[2Jb\n\u{9b}c".to_owned()]);
        assert_eq!(table.to_string(), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c\n");
    }

    #[test]
    fn ages_have_one_unit() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3_599, "59m"),
            (3_600, "1h"),
            (86_399, "23h"),
            (86_400, "1d"),
            (864_000, "10d"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn bytes_have_one_decimal() {
        for (count, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_024, "1.0 KiB"),
            (1_258_291, "1.2 MiB"),
            (1_048_575, "1.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(count), text, "{count}");
        }
    }

    #[test]
    fn round_trips_have_two_or_three_digits() {
        for (milliseconds, text) in [
            (0.128, "0.13 ms"),
            (0.999, "1.0 ms"),
            (1.24, "1.2 ms"),
            (9.97, "10 ms"),
            (123.4, "123 ms"),
        ] {
            assert_eq!(round_trip(milliseconds), text);
        }
    }
}
