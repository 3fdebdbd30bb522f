//! Times, durations and text of peers, as people read them.

use std::time::{Duration, SystemTime};

use crate::dial::page_text::one_line;

/// A moment to the second, in UTC.
pub(super) fn moment(time: SystemTime) -> String {
    // The last second with a four-digit year; later ones cannot be shown.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_seconds(time.clamp(SystemTime::UNIX_EPOCH, last)).to_string()
}

/// A duration with no more than its two largest units.
pub(super) fn span(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        return format!("{} ms", duration.as_millis());
    }
    let text = humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string();
    let units: Vec<String> = text.split(' ').take(2).map(unit).collect();
    units.join(" ")
}

/// A number and its unit, apart if the unit is a word: `1 day`, `5m`.
fn unit(text: &str) -> String {
    let digits = text.len()
        - text
            .trim_start_matches(|letter: char| letter.is_ascii_digit())
            .len();
    let (number, unit) = text.split_at(digits);
    match unit.len() > 2 {
        true => format!("{number} {unit}"),
        false => text.to_owned(),
    }
}

/// Text of a peer on one line of bounded length, without control characters.
pub(super) fn printable(text: &str) -> String {
    one_line(text)
}

/// Elements of a list in a sentence.
pub(super) fn listed<T: ToString>(all: &[T]) -> String {
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(moment(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00Z");
        assert_eq!(span(Duration::from_millis(250)), "250 ms");
        assert_eq!(span(Duration::from_millis(61_900)), "1m 1s");
        assert_eq!(span(Duration::from_secs(90_061)), "1 day 1h");
    }

    #[test]
    fn strangers_words_stay_words() {
        assert_eq!(printable(" a\u{1b}[2J\nb "), "a [2J b");
        // Read from the right, the second half of this would say something else.
        assert_eq!(
            printable("a\u{202e}b\u{2066}c\u{2028}d\u{200b}e"),
            "a b c d e"
        );
        assert_eq!(printable("Zürich 東京"), "Zürich 東京");
        assert!(printable(&"x".repeat(1_000)).chars().count() < 400);
    }
}
