//! The text form of log lines.
//!
//! ```text
//!   2026-01-01T00:00:00.000000Z  INFO tunnel_server::server: listening listener="tunnel" address=0.0.0.0:443 error="two words"
//! ```
//!
//! The message comes first, then the fields in the order of the code. As in the access log all values but numbers, `true`,
//! `false`, addresses and lists stand in quotes. Spans are left out: the target says which part it is.

use std::fmt::{self, Debug, Write};
use std::net::{IpAddr, SocketAddr};

use tracing::{Event, Level, Subscriber, field::Field, field::Visit};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Formats one event as a line.
pub(super) struct TextLines;

impl<S, N> FormatEvent<S, N> for TextLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let is_coloured = writer.has_ansi_escapes();
        let (dim, colour, reset) = match is_coloured {
            true => ("\x1b[2m", colour(*event.metadata().level()), "\x1b[0m"),
            false => ("", "", ""),
        };
        writer.write_str(dim)?;
        SystemTime.format_time(&mut writer)?;
        let (level, target) = (event.metadata().level(), event.metadata().target());
        write!(
            writer,
            "{reset} {colour}{level:>5}{reset} {dim}{target}:{reset}"
        )?;
        let mut fields = Fields {
            writer: &mut writer,
            result: Ok(()),
        };
        event.record(&mut fields);
        fields.result?;
        writer.write_char('\n')
    }
}

fn colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG => "\x1b[34m",
        Level::TRACE => "\x1b[35m",
    }
}

struct Fields<'a, 'b> {
    writer: &'a mut Writer<'b>,
    result: fmt::Result,
}

impl Fields<'_, '_> {
    fn write(&mut self, field: &Field, value: &str, is_quoted: bool) {
        if self.result.is_err() {
            return;
        }
        self.result = match field.name() {
            "message" => write!(self.writer, " {}", Visible(value)),
            name if is_quoted => write!(self.writer, " {name}={value:?}"),
            name => write!(self.writer, " {name}={value}"),
        };
    }
}

impl Visit for Fields<'_, '_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.write(field, value, true);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write(field, &value.to_string(), false);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write(field, &value.to_string(), false);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.write(field, &value.to_string(), false);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write(field, &value.to_string(), false);
    }

    /// Called for values of `%` and `?`, whose text this is.
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        self.write(field, &value, needs_quotes(&value));
    }
}

fn needs_quotes(value: &str) -> bool {
    // Text that was made by `Debug`, and lists, are apart from what follows as they are.
    let stands = |first, last| value.len() > 1 && value.starts_with(first) && value.ends_with(last);
    if stands('"', '"') || stands('[', ']') {
        return value.chars().any(char::is_control);
    }
    value.parse::<SocketAddr>().is_err() && value.parse::<IpAddr>().is_err()
}

/// A message with its control characters escaped, so that it stays on its line.
struct Visible<'a>(&'a str);

impl fmt::Display for Visible<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter.is_control() {
                true => write!(f, "{}", letter.escape_default())?,
                false => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn a_line_can_be_taken_apart() {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .event_format(TextLines)
            .with_writer(lines.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("task", task = "x");
            let _in_span = span.enter();
            tracing::info!(
                runtime = "acme-prod",
                number = 2,
                instance = %"f935",
                peer = %"127.0.0.1:1",
                error = %"the token is unknown",
                says = "a \"b\"\n",
                "refused"
            );
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let (_, line) = text.split_once("INFO ").unwrap();
        let expected = "tunnel_ops::telemetry::text::tests: refused runtime=\"acme-prod\" number=2 instance=\"f935\" \
                        peer=127.0.0.1:1 error=\"the token is unknown\" says=\"a \\\"b\\\"\\n\"\n";
        assert_eq!(line, expected);
    }
}
