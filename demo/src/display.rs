//! The demo's output: its address, commands to try, and a line for each request.
//!
//! In: the address, the server's access log, and the log events of both programs. Out: lines on standard output. Events
//! are shown from level `warn` on.

use std::{
    fmt::{self, Write as _},
    io::{Write as _, stderr},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Deserialize;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    filter::LevelFilter,
    layer::{Context, SubscriberExt},
    util::{SubscriberInitExt, TryInitError},
};
use tunnel_http::access_log::AccessLog;
use tunnel_ops::telemetry::{LineSink, LogFormat};
use tunnel_ops::terminal::{self, Paint};

/// The output, and whether it shows requests already.
#[derive(Debug)]
pub(crate) struct Display {
    paint: Paint,
    /// Whether the welcome text was shown; requests are shown only after it.
    is_welcome: Arc<AtomicBool>,
}

impl Display {
    /// Shows log events from now on.
    ///
    /// # Errors
    /// When another subscriber of this process shows them already.
    pub(crate) fn start() -> Result<Self, TryInitError> {
        let this = Self {
            paint: Paint::for_terminal(),
            is_welcome: Arc::default(),
        };
        let warnings = Warnings { paint: this.paint };
        tracing_subscriber::registry()
            .with(warnings.with_filter(LevelFilter::WARN))
            .try_init()?;
        Ok(this)
    }

    /// An access log that shows each request when it has ended.
    pub(crate) fn access_log(&self) -> AccessLog {
        self.access_log_of(String::new(), |_| true)
    }

    /// The access log of a node, whose lines begin with its name; without the demo's own requests.
    pub(crate) fn access_log_of_node(&self, node: &str) -> AccessLog {
        self.access_log_of(format!("  {node}"), |exchange| !exchange.is_probe())
    }

    fn access_log_of(&self, prefix: String, is_shown: fn(&Exchange) -> bool) -> AccessLog {
        let (paint, is_welcome) = (self.paint, self.is_welcome.clone());
        AccessLog::new(LineSink::to_function(LogFormat::Json, move |line| {
            if is_welcome.load(Ordering::Acquire)
                && let Some(exchange) = Exchange::parse(line).filter(is_shown)
            {
                show(&format!("{prefix}{}\n", exchange.shown(paint)));
            }
        }))
    }

    /// Shows the address of the demo and commands to try.
    pub(crate) fn welcome(&self, host: &str, public: SocketAddr, upstream: Option<&str>) {
        let url = format!("http://{host}:{}", public.port());
        let mut text = format!(
            "\nThe tunnel is up. Open this in a browser:\n\n    {}\n\n\
             or try, in another terminal:\n\n",
            self.paint.bold(&format!("{url}/"))
        );
        for (command, shows) in commands(&url, upstream.is_none()) {
            let shows = self.paint.soft(&format!("# {shows}"));
            text.push_str(&format!("    {command:<72} {shows}\n"));
        }
        let old = format!("curl -H 'Host: {host}' http://127.0.0.1:{}/", public.port());
        let to = upstream.unwrap_or("the sample service");
        text.push_str(&format!(
            "\nNames under .localhost lead to this machine in browsers, and in curl since 7.78. \
             With others:\n\n    {old}\n\nRequests to {to}, each when it has ended \
             (Ctrl-C ends the demo):\n\n"
        ));
        show(&text);
        self.is_welcome.store(true, Ordering::Release);
    }

    /// Shows what the nodes do, after the welcome text.
    pub(crate) fn nodes(&self, nodes: &[(String, SocketAddr)]) {
        let nodes = nodes.iter();
        let nodes = nodes.map(|(name, public)| format!("{name} http://{public}"));
        let nodes = nodes.collect::<Vec<_>>().join(", ");
        self.say(&format!(
            "  behind that address: {nodes}\n  The demo sends a request every 100 ms, kills a node every few seconds, and \
             starts it again.\n"
        ));
    }

    /// Shows a line that stands out.
    pub(crate) fn announce(&self, text: &str) {
        show(&format!("\n  {}\n", self.paint.bold(text)));
    }

    /// Shows a line of text.
    pub(crate) fn say(&self, text: &str) {
        show(&format!("{}\n", self.paint.soft(text)));
    }
}

/// Writes an error to standard error.
pub(crate) fn print_error(text: &str) {
    drop(writeln!(stderr().lock(), "{text}"));
}

/// Examples to try, and what each shows.
fn commands(url: &str, is_sample: bool) -> [(String, &'static str); 3] {
    if is_sample {
        [
            (format!("curl {url}/"), "the page"),
            (format!("curl -N {url}/events"), "an event each second"),
            (
                format!("curl -T Cargo.lock {url}/checksum"),
                "an upload's checksum",
            ),
        ]
    } else {
        [
            (format!("curl {url}/"), "your service"),
            (
                format!("curl -i {url}/"),
                "your service's response with its headers",
            ),
            (format!("curl -T Cargo.lock {url}/"), "an upload to it"),
        ]
    }
}

/// Writes to standard output. A failure to write does not end the demo.
fn show(text: &str) {
    drop(terminal::print(text));
}

/// Makes a line of each warning.
struct Warnings {
    paint: Paint,
}

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = event.metadata().level().as_str().to_lowercase();
        let line = format!("  {level} {}{}", text.message, text.fields);
        show(&format!("{}\n", self.paint.bad(&line)));
    }
}

/// An event as it is shown.
#[derive(Debug, Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        // Received text must not steer this terminal.
        self.record_debug(field, &format_args!("{}", value.escape_debug()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// What is shown of an exchange.
#[derive(Debug, Deserialize)]
struct Exchange {
    method: String,
    path: String,
    status: Option<u16>,
    #[serde(default)]
    duration_ms: f64,
    /// How it ended: `whole`, or what was wrong.
    end: String,
    #[serde(default)]
    detail: String,
}

impl Exchange {
    /// Parses a line of the access log; `None` if it has no method or path, since the request could not be read.
    fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// Whether the demo itself has sent it.
    fn is_probe(&self) -> bool {
        self.method == "HEAD" && self.path == "/"
    }

    fn shown(&self, paint: Paint) -> String {
        let Self { method, end, .. } = self;
        let code = match self.status {
            Some(status @ ..400) => paint.good(&status.to_string()),
            Some(status) => paint.bad(&status.to_string()),
            None => paint.soft("---"),
        };
        // Received text must not steer this terminal.
        let path = self.path.escape_debug();
        let took = paint.soft(&format!("{} ms", self.duration_ms.round()));
        let end = match end.as_str() {
            "whole" => String::new(),
            "cancelled" => format!("  {}", paint.soft("cancelled by the platform client")),
            _ => {
                let text = format!("{end}: {}", self.detail.escape_debug());
                format!("  {}", paint.bad(text.trim_end_matches(": ")))
            }
        };
        format!("  {code}  {method:<7} {path}  {took}{end}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_a_line() {
        let line = |end: &str| {
            let line = format!(
                r#"{{"message":"exchange","method":"GET","path":"/events","duration_ms":12.345,{end}}}"#
            );
            Exchange::parse(line.as_bytes())
                .unwrap()
                .shown(Paint::PLAIN)
        };
        let whole = line(r#""status":200,"end":"whole""#);
        assert_eq!(whole, "  200  GET     /events  12 ms");
        let failed = line(r#""status":502,"end":"connection_refused","detail":"port 1""#);
        assert_eq!(
            failed,
            "  502  GET     /events  12 ms  connection_refused: port 1"
        );
        let cancelled = line(r#""end":"cancelled""#);
        assert!(cancelled.starts_with("  ---  GET"), "{cancelled}");
    }

    #[test]
    fn a_request_whose_head_could_not_be_read_is_not_shown() {
        let line = br#"{"message":"request refused","status":400,"end":"request_malformed"}"#;
        assert!(Exchange::parse(line).is_none());
    }
}
