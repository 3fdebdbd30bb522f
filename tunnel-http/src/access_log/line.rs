//! One line of the access log, as text or JSON.
//!
//! In: a message and fields, in order. Out: the bytes of a line. Its form is that of the log's other lines, so that
//! one reader understands both; it is made here since an event of tracing costs ten times as much.

use std::fmt::{Debug, Display};
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tunnel_ops::telemetry::LogFormat;

/// The key of a field, as a line of either form has it before the value, so that it is copied at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) text: &'static str,
    pub(super) json: &'static str,
    /// As before, with the quote that begins the value.
    pub(super) quoted_text: &'static str,
    pub(super) quoted_json: &'static str,
}

/// A [`Key`] of this name.
macro_rules! key {
    ($name:literal) => {
        $crate::access_log::line::Key {
            text: concat!(" ", $name, "="),
            json: concat!(",\"", $name, "\":"),
            quoted_text: concat!(" ", $name, "=\""),
            quoted_json: concat!(",\"", $name, "\":\""),
        }
    };
}

pub(super) use key;

/// Writes the fields of a line to the end of a buffer, in the order of the calls. A field without a value is left out.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    format: LogFormat,
    bytes: &'a mut Vec<u8>,
}

impl<'a> Fields<'a> {
    /// Appends fields to `bytes`.
    pub(super) fn new(format: LogFormat, bytes: &'a mut Vec<u8>) -> Self {
        Self { format, bytes }
    }

    /// The length of the buffer, at which its fields can be split.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Fields that were written to another buffer before.
    pub(super) fn written(&mut self, fields: &[u8]) {
        self.bytes.extend_from_slice(fields);
    }

    /// A text, which is quoted.
    pub(super) fn text(&mut self, key: Key, value: Option<&str>) {
        let Some(value) = value else {
            return;
        };
        if is_plain(value) {
            self.quoted(key, value);
        } else {
            self.key(key);
            quote(self.format, self.bytes, value);
        }
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, key: Key, value: bool) {
        self.key(key);
        let text: &[u8] = if value { b"true" } else { b"false" };
        self.bytes.extend_from_slice(text);
    }

    /// A number.
    pub(super) fn number(&mut self, key: Key, value: Option<u64>) {
        if let Some(value) = value {
            self.key(key);
            number(self.bytes, value);
        }
    }

    /// A text that is quoted in JSON only, and needs no escapes.
    pub(super) fn word(&mut self, key: Key, value: Option<&str>) {
        let Some(value) = value else {
            return;
        };
        match self.format {
            LogFormat::Text => {
                self.key(key);
                self.bytes.extend_from_slice(value.as_bytes());
            }
            LogFormat::Json => self.quoted(key, value),
        }
    }

    /// A duration in milliseconds, to the microsecond.
    pub(super) fn milliseconds(&mut self, key: Key, time: Duration) {
        self.key(key);
        let whole = time.as_secs().saturating_mul(1_000) + u64::from(time.subsec_millis());
        number(self.bytes, whole);
        self.bytes.push(b'.');
        digits::<3>(self.bytes, time.subsec_micros());
    }

    /// A value that needs no escapes.
    fn quoted(&mut self, key: Key, value: &str) {
        let key = match self.format {
            LogFormat::Text => key.quoted_text,
            LogFormat::Json => key.quoted_json,
        };
        self.bytes.reserve(key.len() + value.len() + 1);
        self.bytes.extend_from_slice(key.as_bytes());
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(b'"');
    }

    fn key(&mut self, key: Key) {
        let key = match self.format {
            LogFormat::Text => key.text,
            LogFormat::Json => key.json,
        };
        self.bytes.extend_from_slice(key.as_bytes());
    }
}

/// Makes lines, one after another, in one buffer.
#[derive(Debug)]
pub(super) struct LineMaker {
    line: Vec<u8>,
    /// The second of the last line since 1970, and its text, which most lines share with the line before.
    second: u64,
    second_text: Vec<u8>,
}

impl LineMaker {
    /// Has made no line yet.
    pub(super) const fn new() -> Self {
        Self {
            line: Vec::new(),
            second: 0,
            second_text: Vec::new(),
        }
    }

    /// A line of level INFO, with the target `access` and the fields that `add` writes.
    pub(super) fn line(
        &mut self,
        message: &str,
        format: LogFormat,
        add: impl FnOnce(&mut Fields<'_>),
    ) -> &[u8] {
        let (start, level, end) = match format {
            LogFormat::Text => ("", "  INFO access: ", "\n"),
            LogFormat::Json => (
                r#"{"timestamp":""#,
                r#"","level":"INFO","message":""#,
                ",\"target\":\"access\"}\n",
            ),
        };
        self.line.clear();
        self.line.extend_from_slice(start.as_bytes());
        self.time();
        self.line.extend_from_slice(level.as_bytes());
        self.line.extend_from_slice(message.as_bytes());
        if format == LogFormat::Json {
            self.line.push(b'"');
        }
        add(&mut Fields::new(format, &mut self.line));
        self.line.extend_from_slice(end.as_bytes());
        &self.line
    }

    /// Appends the time to the line, to the microsecond.
    fn time(&mut self) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        if now.as_secs() != self.second {
            self.second = now.as_secs();
            let second = UNIX_EPOCH + Duration::from_secs(self.second);
            self.second_text.clear();
            append(
                &mut self.second_text,
                humantime::format_rfc3339_seconds(second),
            );
            // The zone, which follows the fraction.
            self.second_text.pop();
        }
        self.line.extend_from_slice(&self.second_text);
        self.line.push(b'.');
        digits::<6>(&mut self.line, now.subsec_micros());
        self.line.push(b'Z');
    }
}

fn number(bytes: &mut Vec<u8>, value: u64) {
    bytes.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends the last `N` decimal digits of a number.
fn digits<const N: usize>(bytes: &mut Vec<u8>, mut number: u32) {
    let mut text = [b'0'; N];
    for digit in text.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    bytes.extend_from_slice(&text);
}

/// Whether a text is written as it is in both formats.
fn is_plain(text: &str) -> bool {
    // Without a branch in the loop, so that the compiler checks many bytes at once.
    text.bytes().fold(true, |plain, byte| {
        plain & matches!(byte, b' '..=b'~') & (byte != b'"') & (byte != b'\\')
    })
}

fn quote(format: LogFormat, bytes: &mut Vec<u8>, text: &str) {
    match format {
        LogFormat::Text => append_debug(bytes, text),
        LogFormat::Json => {
            // Writing to memory does not fail.
            let _ = serde_json::to_writer(bytes, text);
        }
    }
}

fn append(bytes: &mut Vec<u8>, value: impl Display) {
    // Writing to memory does not fail.
    let _ = write!(bytes, "{value}");
}

fn append_debug(bytes: &mut Vec<u8>, value: impl Debug) {
    let _ = write!(bytes, "{value:?}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(format: LogFormat, add: impl FnOnce(&mut Fields<'_>)) -> String {
        let mut maker = LineMaker::new();
        let line = maker.line("exchange", format, add);
        String::from_utf8(line.to_vec()).unwrap()
    }

    fn every_kind(fields: &mut Fields<'_>) {
        fields.text(key!("path"), Some("/a\"b\\c\u{1b}ü"));
        fields.text(key!("host"), None);
        fields.number(key!("status"), Some(200));
        fields.flag(key!("upgrade"), false);
        fields.word(key!("peer"), Some("::1"));
        fields.milliseconds(key!("duration_ms"), Duration::from_nanos(1_003_999));
    }

    #[test]
    fn a_text_line_has_the_form_of_the_log_s_other_lines() {
        let line = line(LogFormat::Text, every_kind);
        let (time, rest) = line.split_once("  INFO ").unwrap();
        assert_eq!(time.len(), "2026-01-02T03:04:05.678901Z".len());
        assert_eq!(
            rest,
            "access: exchange path=\"/a\\\"b\\\\c\\u{1b}ü\" status=200 upgrade=false peer=::1 duration_ms=1.003\n"
        );
    }

    #[test]
    fn a_json_line_has_the_form_of_the_log_s_other_lines() {
        let line = line(LogFormat::Json, every_kind);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["path"], "/a\"b\\c\u{1b}ü");
        assert_eq!(value["status"], 200);
        assert_eq!(value["upgrade"], false);
        assert_eq!(value["peer"], "::1");
        assert_eq!(value["duration_ms"], 1.003);
        assert_eq!(value["level"], "INFO");
        assert_eq!(value["target"], "access");
        assert_eq!(value["message"], "exchange");
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1);
    }

    proptest! {
        #[test]
        fn any_text_stays_on_its_line_and_comes_back_from_json(text in any::<String>()) {
            let line_of = |format| line(format, |fields| fields.text(key!("path"), Some(&text)));
            let json = line_of(LogFormat::Json);
            let value: serde_json::Value = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(value["path"].as_str(), Some(text.as_str()));
            for line in [json, line_of(LogFormat::Text)] {
                prop_assert!(!line.trim_end_matches('\n').contains(|c: char| c < ' '));
            }
        }
    }
}
