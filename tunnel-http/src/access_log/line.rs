//! One line of the access log, as text or JSON.
//!
//! In: a message and fields, in order. Out: the bytes of a line. Its form is that of the log's other lines, so that
//! one reader understands both; it is made here since an event of tracing costs ten times as much.

use std::fmt::{Debug, Display};
use std::io::Write;
use std::time::{Duration, SystemTime};

use tunnel_ops::telemetry::LogFormat;

/// Fields of a line, in the order of their making. A field without a value is left out.
#[derive(Debug)]
pub(super) struct Fields {
    format: LogFormat,
    bytes: Vec<u8>,
}

impl Fields {
    /// No fields yet.
    pub(super) fn new(format: LogFormat, capacity: usize) -> Self {
        Self {
            format,
            bytes: Vec::with_capacity(capacity),
        }
    }

    /// The length of the fields so far, at which they can be split.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// A text, which is quoted.
    pub(super) fn text(&mut self, key: &str, value: Option<&str>) {
        let Some(value) = value else {
            return;
        };
        self.key(key);
        if is_plain(value) {
            self.bytes.push(b'"');
            self.bytes.extend_from_slice(value.as_bytes());
            self.bytes.push(b'"');
        } else {
            quote(self.format, &mut self.bytes, value);
        }
    }

    /// A number, or `true` or `false`.
    pub(super) fn plain(&mut self, key: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.key(key);
            append(&mut self.bytes, value);
        }
    }

    /// A value that is quoted in JSON only, and needs no escapes.
    pub(super) fn word(&mut self, key: &str, value: Option<impl Display>) {
        let Some(value) = value else {
            return;
        };
        self.key(key);
        match self.format {
            LogFormat::Text => append(&mut self.bytes, value),
            LogFormat::Json => append(&mut self.bytes, format_args!("\"{value}\"")),
        }
    }

    /// A duration in milliseconds, to the microsecond.
    pub(super) fn milliseconds(&mut self, key: &str, time: Duration) {
        let micros = time.as_micros();
        let text = format_args!("{}.{:03}", micros / 1_000, micros % 1_000);
        self.plain(key, Some(text));
    }

    fn key(&mut self, key: &str) {
        let (before, after): (&[u8], &[u8]) = match self.format {
            LogFormat::Text => (b" ", b"="),
            LogFormat::Json => (b",\"", b"\":"),
        };
        self.bytes.extend_from_slice(before);
        self.bytes.extend_from_slice(key.as_bytes());
        self.bytes.extend_from_slice(after);
    }
}

/// Writes a line of these fields, of `level` INFO and with the target `access`, to `line`, which is empty.
pub(super) fn write_line(line: &mut Vec<u8>, message: &str, fields: &[&[u8]], format: LogFormat) {
    let now = humantime::format_rfc3339_micros(SystemTime::now());
    match format {
        LogFormat::Text => append(line, format_args!("{now}  INFO access: {message}")),
        LogFormat::Json => append(
            line,
            format_args!(r#"{{"timestamp":"{now}","level":"INFO","message":"{message}""#),
        ),
    }
    for part in fields {
        line.extend_from_slice(part);
    }
    line.extend_from_slice(match format {
        LogFormat::Text => b"\n",
        LogFormat::Json => b",\"target\":\"access\"}\n",
    });
}

impl AsRef<[u8]> for Fields {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Whether a text is written as it is in both formats.
fn is_plain(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\')
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

    fn line(format: LogFormat, add: impl FnOnce(&mut Fields)) -> String {
        let mut fields = Fields::new(format, 0);
        add(&mut fields);
        let mut line = Vec::new();
        write_line(&mut line, "exchange", &[fields.as_ref()], format);
        String::from_utf8(line).unwrap()
    }

    fn every_kind(fields: &mut Fields) {
        fields.text("path", Some("/a\"b\\c\u{1b}ü"));
        fields.text("host", None);
        fields.plain("status", Some(200));
        fields.word("peer", Some("::1"));
        fields.milliseconds("duration_ms", Duration::from_nanos(1_003_999));
    }

    #[test]
    fn a_text_line_has_the_form_of_the_log_s_other_lines() {
        let line = line(LogFormat::Text, every_kind);
        let (time, rest) = line.split_once("  INFO ").unwrap();
        assert_eq!(time.len(), "2026-01-02T03:04:05.678901Z".len());
        assert_eq!(
            rest,
            "access: exchange path=\"/a\\\"b\\\\c\\u{1b}ü\" status=200 peer=::1 duration_ms=1.003\n"
        );
    }

    #[test]
    fn a_json_line_has_the_form_of_the_log_s_other_lines() {
        let line = line(LogFormat::Json, every_kind);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["path"], "/a\"b\\c\u{1b}ü");
        assert_eq!(value["status"], 200);
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
            let line_of = |format| line(format, |fields| fields.text("path", Some(&text)));
            let json = line_of(LogFormat::Json);
            let value: serde_json::Value = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(value["path"].as_str(), Some(text.as_str()));
            for line in [json, line_of(LogFormat::Text)] {
                prop_assert!(!line.trim_end_matches('\n').contains(|c: char| c < ' '));
            }
        }
    }
}
