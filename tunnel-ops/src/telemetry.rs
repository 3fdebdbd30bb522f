//! Logs, spans (`tracer.rs`), and the ids that correlate the logs of several programs.
//!
//! In: the configured format and filter. Out: one line per event on standard error, written by a separate
//! thread, so that a stalled reader never blocks a connection. The filter can be replaced at run time. The access log
//! is no event of tracing: the programs make its lines and pass them to a [`LineSink`] (`line_sink.rs`), which also
//! handles the rotation of its file.
//! [`RequestId`] and [`TraceParent`] are values only: the programs decide which messages carry them.

mod line_sink;
mod line_writer;
mod live_filter;
mod request_id;
mod text;
mod trace_parent;
pub mod tracer;

use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;
use tracing_subscriber::util::TryInitError;

use self::line_sink::LineOutput;
pub use self::line_sink::{AccessLogError, AccessLogTarget, LineSink};
use self::line_writer::{LineWriter, LostLines};
use self::live_filter::LiveFilter;
pub use self::request_id::RequestId;
pub use self::trace_parent::{TRACE_PARENT, TRACE_STATE, TraceParent};
use crate::config_value::ValueError;

/// Libraries that log much below the level of a warning, possibly with header values. A level for all
/// leaves them at `warn`; they can be set by name, as in `info,h2=debug`.
const RESERVED: [&str; 7] = [
    "h2",
    "hyper",
    "mio",
    "rustls",
    "tokio",
    "tungstenite",
    "yamux",
];

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people; coloured on a terminal.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The log levels: one for all targets, levels for single targets (`info,tunnel_server=debug`), or both.
#[derive(Debug, Clone, PartialEq)]
pub struct LogFilter {
    text: String,
    targets: Targets,
}

/// The guard of the log and of the access log. Dropping it writes the last lines and stops both.
#[derive(Debug)]
#[must_use = "the last lines are written when this is dropped"]
pub struct Telemetry {
    access_log: LineSink,
    stderr: LineWriter,
    filter: LiveFilter,
}

/// An access log's target that is open and not yet in use.
#[derive(Debug)]
#[must_use = "it is in use only after `Telemetry::set_access_log`"]
pub struct OpenedAccessLog(Option<LineOutput>);

impl Telemetry {
    /// Replaces the filter. Open spans are not affected.
    pub fn set_filter(&self, filter: &LogFilter) {
        self.filter.set(filter.targets.clone());
    }

    /// Takes the lines of the access log, which has no target at first.
    #[must_use]
    pub fn access_log(&self) -> LineSink {
        self.access_log.clone()
    }

    /// Opens another target of the access log.
    ///
    /// # Errors
    /// When the file cannot be opened, or the thread that writes it cannot be started.
    pub fn open_access_log(
        &self,
        target: &AccessLogTarget,
    ) -> Result<OpenedAccessLog, AccessLogError> {
        let stderr = self.stderr.queue();
        self.access_log.open(target, stderr).map(OpenedAccessLog)
    }

    /// Writes the access log to this target from now on. The lines before are written to the target before.
    pub fn set_access_log(&self, opened: OpenedAccessLog) {
        if let Some(output) = opened.0 {
            self.access_log.replace(output);
        }
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        // Before the log, in which its losses are reported.
        self.access_log.close();
    }
}

/// Why the log cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The writer's thread cannot be started.
    #[error("cannot start the thread that writes the log: {0}")]
    Writer(#[from] io::Error),
    /// Another part of the process has already set up a log.
    #[error("the log is already set up: {0}")]
    AlreadySet(#[from] TryInitError),
}

/// Starts the process's log on standard error.
pub fn init(format: LogFormat, filter: &LogFilter) -> Result<Telemetry, TelemetryError> {
    // https://no-color.org: any value but an empty one.
    let may_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let is_coloured = may_colour && io::stderr().is_terminal();
    let stderr = LineWriter::start(io::stderr(), report_lost)?;
    let queue = stderr.queue().clone();
    let make_lines = move || queue.clone();
    let filter = LiveFilter::new(filter.targets.clone());
    let registry = tracing_subscriber::registry().with(filter.clone());
    match format {
        LogFormat::Text => {
            registry
                .with(
                    tracing_subscriber::fmt::layer()
                        .event_format(text::TextLines)
                        .with_ansi(is_coloured)
                        .with_writer(make_lines),
                )
                .try_init()?;
        }
        LogFormat::Json => {
            let layer = tracing_subscriber::fmt::layer()
                .json()
                .flatten_event(true)
                .with_span_list(false);
            registry.with(layer.with_writer(make_lines)).try_init()?;
        }
    }
    Ok(Telemetry {
        access_log: LineSink::new(format, LineOutput::Off),
        stderr,
        filter,
    })
}

impl LogFormat {
    /// Logs why the program cannot go on, if its lines are read by a machine, for which a line in another form is lost.
    /// Returns whether it did.
    #[must_use]
    pub fn logs_fatal(self, error: &str) -> bool {
        let is_json = self == Self::Json;
        if is_json {
            for error in error.lines() {
                tracing::error!(error, "the program ends");
            }
        }
        is_json
    }
}

/// Reports lines that standard error did not take in time. Its own failure cannot be reported anywhere.
fn report_lost(lines: &LostLines) {
    if lines.error.is_none() {
        tracing::error!(
            lost = lines.count,
            "log lines were lost: their reader is too slow"
        );
    }
}

crate::word_value!(LogFormat {
    "text" => Self::Text,
    "json" => Self::Json,
});

crate::text_value!(LogFilter);

impl FromStr for LogFilter {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut default = LevelFilter::INFO;
        let mut named = Vec::new();
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                None => default = level(part)?,
                Some((target, word)) if is_target(target) => {
                    named.push((target.to_owned(), level(word)?))
                }
                Some(_) => return Err(expected_filter()),
            }
        }
        let reserved = RESERVED.map(|target| (target, default.min(LevelFilter::WARN)));
        let targets = Targets::new()
            .with_default(default)
            .with_targets(reserved)
            .with_targets(named);
        Ok(Self {
            text: text.to_owned(),
            targets,
        })
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        let reserved = RESERVED.map(|target| (target, LevelFilter::WARN));
        Self {
            text: "info".to_owned(),
            targets: Targets::new()
                .with_default(LevelFilter::INFO)
                .with_targets(reserved),
        }
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The beginning of a text: whole characters, and at most `most` bytes.
#[must_use]
pub fn beginning(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn level(word: &str) -> Result<LevelFilter, ValueError> {
    match word {
        "off" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(expected_filter()),
    }
}

fn is_target(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'))
}

fn expected_filter() -> ValueError {
    ValueError::new(
        "expected off, error, warn, info, debug or trace, or levels of parts such as `info,tunnel_server=debug`",
    )
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn targets(text: &str) -> Targets {
        text.parse::<LogFilter>().unwrap().targets
    }

    #[test]
    fn a_level_for_all_leaves_verbose_libraries_at_warn() {
        let debug = targets("debug");
        assert!(debug.would_enable("tunnel_server::public", &Level::DEBUG));
        assert!(debug.would_enable("h2", &Level::WARN));
        assert!(!debug.would_enable("hyper_util::client", &Level::INFO));
        assert!(!targets("error").would_enable("h2", &Level::WARN));
    }

    #[test]
    fn a_target_can_have_its_own_level() {
        let filter = targets("warn,h2=trace,tunnel_proto=debug");
        assert!(filter.would_enable("h2::codec", &Level::TRACE));
        assert!(filter.would_enable("tunnel_proto", &Level::DEBUG));
        assert!(!filter.would_enable("tunnel_server", &Level::INFO));
        assert!(targets("tunnel_proto=debug").would_enable("tunnel_server", &Level::INFO));
    }

    #[test]
    fn a_misspelt_level_is_refused_and_not_read_as_a_target() {
        for text in [
            "",
            "inf",
            "INFO!",
            "info,",
            "tunnel server=debug",
            "=debug",
            "tunnel_server=loud",
            "x[y]=info",
        ] {
            assert!(text.parse::<LogFilter>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_default_is_info() {
        assert_eq!(LogFilter::default(), "info".parse().unwrap());
    }
}
