//! What the demo shows to people: where it is, what to try, and each request as it passes.
//!
//! In come the address and the programs' log events; out go lines on standard output. An event
//! with method and status is a request; others are shown from level `warn` on.

use std::{
    fmt::{self, Write as _},
    io::{IsTerminal, Write as _, stderr, stdout},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    layer::{Context, SubscriberExt},
    util::{SubscriberInitExt, TryInitError},
};

/// What is shown, and since when.
#[derive(Debug)]
pub(crate) struct Display {
    paint: Paint,
    /// Requests are shown once people know what they see.
    is_welcome: Arc<AtomicBool>,
}

impl Display {
    /// Shows log events from now on.
    ///
    /// # Errors
    /// When something else in this process shows them already.
    pub(crate) fn start() -> Result<Self, TryInitError> {
        // Everything tells what it warns of; the server's access log tells of each exchange.
        let levels = Targets::new()
            .with_default(LevelFilter::WARN)
            .with_target("access", LevelFilter::INFO);
        let this = Self {
            paint: Paint::for_terminal(),
            is_welcome: Arc::default(),
        };
        let lines = Lines {
            paint: this.paint,
            is_welcome: this.is_welcome.clone(),
        };
        tracing_subscriber::registry()
            .with(lines.with_filter(levels))
            .try_init()?;
        Ok(this)
    }

    /// Says where the demo is and what to try.
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

    /// Says something in a line of its own.
    pub(crate) fn say(&self, text: &str) {
        show(&format!("{}\n", self.paint.soft(text)));
    }
}

/// Says why the demo ends.
pub(crate) fn complain(text: &str) {
    drop(writeln!(stderr().lock(), "{text}"));
}

/// What to try, and what it shows.
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
            (format!("curl -i {url}/"), "the same with its headers"),
            (format!("curl -T Cargo.lock {url}/"), "an upload to it"),
        ]
    }
}

/// Writes to standard output. A reader who is gone is no reason to end the demo.
fn show(text: &str) {
    let mut output = stdout().lock();
    drop(
        output
            .write_all(text.as_bytes())
            .and_then(|()| output.flush()),
    );
}

/// Makes a line of each event that is worth one.
struct Lines {
    paint: Paint,
    is_welcome: Arc<AtomicBool>,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut facts = Facts::default();
        event.record(&mut facts);
        if facts.status.is_some() && !self.is_welcome.load(Ordering::Acquire) {
            return;
        }
        if let Some(line) = facts.line(*event.metadata().level(), self.paint) {
            show(&format!("{line}\n"));
        }
    }
}

/// The fields of an event that are shown.
#[derive(Debug, Default)]
struct Facts {
    message: String,
    method: String,
    path: String,
    status: Option<u16>,
    duration_ms: String,
    /// How an exchange ended: `whole`, or what was wrong.
    end: String,
    detail: String,
    others: String,
}

impl Facts {
    fn line(&self, level: Level, paint: Paint) -> Option<String> {
        if let Some(status) = self.status.filter(|_| !self.method.is_empty()) {
            return Some(self.exchange(status, paint));
        }
        let Self {
            message,
            detail,
            others,
            ..
        } = self;
        let line = format!(
            "  {} {message}{others} {detail}",
            level.as_str().to_lowercase()
        );
        (level <= Level::WARN).then(|| paint.bad(line.trim_end()))
    }

    fn exchange(&self, status: u16, paint: Paint) -> String {
        let Self {
            method,
            path,
            duration_ms,
            end,
            detail,
            ..
        } = self;
        let code = match status {
            ..400 => paint.good(&status.to_string()),
            400.. => paint.bad(&status.to_string()),
        };
        let whole = duration_ms.parse::<f64>().map_or(0.0, f64::round);
        let took = paint.soft(&format!("{whole} ms"));
        let end = match end.as_str() {
            "" | "whole" => String::new(),
            "cancelled" => format!("  {}", paint.soft("given up by who asked")),
            _ => format!(
                "  {}",
                paint.bad(format!("{end}: {detail}").trim_end_matches(": "))
            ),
        };
        format!("  {code}  {method:<7} {path}  {took}{end}")
    }

    fn add(&mut self, name: &str, value: &str) {
        match name {
            "message" => self.message = value.to_owned(),
            "method" => self.method = value.to_owned(),
            "path" => self.path = value.to_owned(),
            "status" => self.status = value.parse().ok(),
            "duration_ms" => self.duration_ms = value.to_owned(),
            "end" => self.end = value.to_owned(),
            "detail" => self.detail = value.to_owned(),
            // A string cannot fail to be written to.
            _ => drop(write!(self.others, " {name}={value}")),
        }
    }
}

impl Visit for Facts {
    fn record_str(&mut self, field: &Field, value: &str) {
        // What somebody else sent must not steer this terminal.
        self.add(field.name(), &value.escape_debug().to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field.name(), &format!("{value:?}"));
    }
}

/// Colours, where there is a terminal to show them.
#[derive(Clone, Copy, Debug)]
struct Paint {
    coloured: bool,
}

impl Paint {
    fn for_terminal() -> Self {
        Self {
            coloured: stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        }
    }

    fn bold(&self, text: &str) -> String {
        self.with("1", text)
    }

    fn soft(&self, text: &str) -> String {
        self.with("2", text)
    }

    fn good(&self, text: &str) -> String {
        self.with("32", text)
    }

    fn bad(&self, text: &str) -> String {
        self.with("31", text)
    }

    fn with(&self, code: &str, text: &str) -> String {
        if self.coloured {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Paint = Paint { coloured: false };

    fn facts(fields: &[(&str, &str)]) -> Facts {
        let mut facts = Facts::default();
        fields
            .iter()
            .for_each(|(name, value)| facts.add(name, value));
        facts
    }

    #[test]
    fn an_exchange_is_a_line() {
        let mut fields = vec![
            ("message", "exchange"),
            ("method", "GET"),
            ("path", "/events"),
            ("status", "200"),
            ("duration_ms", "12.3456"),
            ("end", "whole"),
        ];
        let line = facts(&fields).line(Level::INFO, PLAIN).unwrap();
        assert_eq!(line, "  200  GET     /events  12 ms");

        fields.extend([
            ("status", "502"),
            ("end", "connection_refused"),
            ("detail", "port 1"),
        ]);
        let line = facts(&fields).line(Level::INFO, PLAIN).unwrap();
        assert_eq!(
            line,
            "  502  GET     /events  12 ms  connection_refused: port 1"
        );
    }

    #[test]
    fn other_events_are_shown_when_they_warn() {
        let facts = facts(&[("message", "cannot connect"), ("server", "a:1")]);
        assert_eq!(facts.line(Level::INFO, PLAIN), None);
        let line = facts.line(Level::WARN, PLAIN).unwrap();
        assert_eq!(line, "  warn cannot connect server=a:1");
    }
}
