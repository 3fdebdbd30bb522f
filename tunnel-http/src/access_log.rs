//! The access log: one line for each exchange, at its end, and one for each request that was refused before there
//! was an exchange.
//!
//! A line never holds a query, a field's value other than the host and the two ids, or content. What it says of a
//! refused request is unchecked, so each part of it is cut to its beginning.

use std::net::IpAddr;
use std::time::Duration;

use http::header::{HOST, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{Method, StatusCode};
use tokio::time::Instant;
use tunnel_ops::telemetry::{TRACE_PARENT, TraceParent};
use tunnel_proto::fields::X_REQUEST_ID;
use tunnel_proto::problem::{Hop, NOT_TAKEN_DETAIL, Problem, Reason};

use crate::http1::host_length;

/// Longest part of a refused request that is logged, in bytes.
const UNCHECKED_BYTES: usize = 256;

/// Whether lines of the access log are written anywhere.
#[must_use]
pub fn is_enabled() -> bool {
    tracing::event_enabled!(target: "access", tracing::Level::INFO)
}

/// How an exchange ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The exchange was given up by the side that made the request. This is the end until another one is known.
    Cancelled,
    /// The response was sent to its end.
    Whole,
    /// The response was a long stream, ended in order before it was whole, because its tunnel or the program leaves.
    Moved,
    /// It failed. Boxed, since a problem is rare and larger than everything else.
    Problem(Box<Problem>),
}

impl End {
    /// The word of the log line: of a problem its reason.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Whole => "whole",
            Self::Moved => "moved",
            Self::Problem(problem) => problem.reason().name(),
        }
    }

    /// Why it failed, if it did.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::Cancelled | Self::Whole | Self::Moved => None,
        }
    }
}

/// What the line of an exchange says of its request.
#[derive(Debug)]
pub struct LoggedRequest {
    /// The method.
    pub method: Method,
    /// The authority; its port is not logged.
    pub host: Option<HeaderValue>,
    /// The path; its query is not logged.
    pub path: Option<PathAndQuery>,
    /// Whether the request asks for an upgrade.
    pub is_upgrade: bool,
    /// The request's id, as the upstream gets it.
    pub request_id: Option<HeaderValue>,
    /// The trace that the request belongs to.
    pub trace: Option<TraceParent>,
    /// The platform client's address, if it is known.
    pub peer: Option<IpAddr>,
}

/// Where a request was forwarded, for its line.
#[derive(Debug, Clone, Copy, Default)]
pub struct Forwarded<'a> {
    /// The label of the runtime: of the tunnel server.
    pub runtime: Option<&'a str>,
    /// The name of the route: of the tunnel client.
    pub route: Option<&'a str>,
    /// Bytes of the request's content that were forwarded.
    pub request_bytes: u64,
}

/// One exchange from its request to its end, as the access log tells it.
#[derive(Debug)]
pub struct ExchangeRecord {
    began: Instant,
    status: Option<StatusCode>,
    response_bytes: u64,
    end: End,
    /// `None` without an access log.
    request: Option<Box<LoggedRequest>>,
}

impl ExchangeRecord {
    /// An exchange that begins now.
    #[must_use]
    pub fn begin() -> Self {
        Self {
            began: Instant::now(),
            status: None,
            response_bytes: 0,
            end: End::Cancelled,
            request: None,
        }
    }

    /// Has a line written at the end.
    pub fn log(&mut self, request: LoggedRequest) {
        self.request = Some(Box::new(request));
    }

    /// Whether a line is written at the end.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.request.is_some()
    }

    /// The time since the exchange began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The status of the response; `None` before there is one.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        self.status
    }

    /// How it ended.
    #[must_use]
    pub fn end(&self) -> &End {
        &self.end
    }

    /// The response begins with this status.
    pub fn on_status(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    /// So many bytes of the response's content are on their way.
    pub fn on_bytes(&mut self, length: usize) {
        self.response_bytes += length as u64;
    }

    /// The exchange fails, with this problem as the response if there is none yet.
    pub fn on_problem(&mut self, problem: &Problem) {
        self.status.get_or_insert_with(|| problem.status());
        self.end = End::Problem(Box::new(problem.clone()));
    }

    /// The response was sent to its end. Changes nothing if another end is known.
    pub fn on_whole(&mut self) {
        if self.end == End::Cancelled {
            self.end = End::Whole;
        }
    }

    /// The response was ended in order before it was whole.
    pub fn on_moved(&mut self) {
        self.end = End::Moved;
    }

    /// The platform client took nothing of the response for too long. Changes nothing if the exchange has failed.
    pub fn on_not_taken(&mut self, hop: Hop) {
        if self.end.problem().is_none() {
            self.on_problem(&Problem::new(hop, Reason::NotTaken, NOT_TAKEN_DETAIL));
        }
    }

    /// Writes the line, if one is to be written.
    pub fn write(&self, forwarded: Forwarded<'_>) {
        let Some(request) = self.request.as_deref() else {
            return;
        };
        let id = request.request_id.as_ref();
        tracing::info!(
            target: "access",
            method = request.method.as_str(),
            host = request.host.as_ref().and_then(without_port),
            path = request.path.as_ref().map(PathAndQuery::path),
            upgrade = request.is_upgrade,
            runtime = forwarded.runtime,
            route = forwarded.route,
            status = self.status.map(|status| status.as_u16()),
            end = self.end.name(),
            detail = self.end.problem().map(Problem::detail),
            request_bytes = forwarded.request_bytes,
            response_bytes = self.response_bytes,
            duration_ms = milliseconds(self.elapsed()),
            request_id = id.and_then(|id| id.to_str().ok()),
            trace_id = request.trace.as_ref().map(TraceParent::trace_id),
            peer = request.peer.map(tracing::field::display),
            "exchange"
        );
    }
}

/// An exchange under observation while its response is sent. `E` is the error of the response's content.
pub trait Observer<E> {
    /// The program, as its problems name it.
    const HOP: Hop;

    /// The record of the exchange.
    fn record(&mut self) -> &mut ExchangeRecord;

    /// Counts bytes of the response in the program's metrics.
    fn count_bytes(&mut self, bytes: u64);

    /// The problem that an error of the response's content is; `None` if the program ends by itself.
    fn problem(error: &E) -> Option<Problem>;

    /// So many bytes of the response's content are on their way.
    fn on_bytes(&mut self, length: usize) {
        self.record().on_bytes(length);
        self.count_bytes(length as u64);
    }

    /// The response's content has failed.
    fn on_error(&mut self, error: &E) {
        if let Some(problem) = Self::problem(error) {
            self.record().on_problem(&problem);
        }
    }
}

/// The host of an authority.
fn without_port(authority: &HeaderValue) -> Option<&str> {
    let text = authority.to_str().ok()?;
    let length = host_length(text.as_bytes()).unwrap_or(text.len());
    text.get(..length)
}

/// A time in milliseconds, of whole microseconds: a line has no digits that are noise of a float.
#[must_use]
pub fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}

/// The trace that a head names, if it is a valid one.
#[must_use]
pub fn trace(head: &Parts) -> Option<TraceParent> {
    let trace = head.headers.get(TRACE_PARENT)?;
    TraceParent::parse(trace.as_bytes())
}

/// Writes the line of a request that was refused before there was an exchange. `head` is what was received of it,
/// `None` if that could not be read; `problem` is the response.
pub fn log_refused(head: Option<&Parts>, peer: IpAddr, problem: &Problem) {
    if !is_enabled() {
        return;
    }
    let host = head.and_then(unchecked_host);
    let request_id = head.and_then(|head| head.headers.get(X_REQUEST_ID));
    let request_id = request_id.and_then(|id| id.to_str().ok());
    let trace = head.and_then(trace);
    tracing::info!(
        target: "access",
        method = head.map(|head| beginning(head.method.as_str())),
        host = host.as_deref().map(beginning),
        path = head.map(|head| beginning(head.uri.path())),
        status = problem.status().as_u16(),
        end = problem.reason().name(),
        detail = problem.detail(),
        request_id = request_id.map(beginning),
        trace_id = trace.as_ref().map(TraceParent::trace_id),
        %peer,
        "request refused"
    );
}

/// The host that an unchecked head names, without the user information that may precede it.
fn unchecked_host(head: &Parts) -> Option<String> {
    if let Some(host) = head.uri.host() {
        return Some(host.to_owned());
    }
    let named = Authority::try_from(head.headers.get(HOST)?.as_bytes()).ok()?;
    Some(named.host().to_owned())
}

/// The part of a text that is logged.
fn beginning(text: &str) -> &str {
    let mut end = text.len().min(UNCHECKED_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn problem(reason: Reason) -> Problem {
        Problem::new(Hop::Server, reason, "")
    }

    #[test]
    fn an_exchange_is_cancelled_until_another_end_is_known_and_a_problem_stays() {
        let mut record = ExchangeRecord::begin();
        assert_eq!(record.end().name(), "cancelled");
        record.on_status(StatusCode::OK);
        record.on_whole();
        assert_eq!(record.end().name(), "whole");
        record.on_problem(&problem(Reason::SessionLost));
        record.on_whole();
        assert_eq!(record.end().name(), "session_lost");
        assert_eq!(record.status(), Some(StatusCode::OK));
        record.on_not_taken(Hop::Server);
        assert_eq!(record.end().name(), "session_lost");

        let mut refused = ExchangeRecord::begin();
        refused.on_problem(&problem(Reason::RuntimeOffline));
        assert_eq!(refused.status(), Some(StatusCode::SERVICE_UNAVAILABLE));
    }

    #[test]
    fn a_host_is_logged_without_its_port() {
        for (authority, host) in [
            ("app.example:8443", "app.example"),
            ("app.example", "app.example"),
            ("[::1]:80", "[::1]"),
            ("no host", "no host"),
        ] {
            let authority = HeaderValue::from_static(authority);
            assert_eq!(without_port(&authority), Some(host));
        }
    }

    #[test]
    fn a_time_is_written_without_noise() {
        for micros in [0, 1, 7, 1_234, 299_999, 1_000_003, 86_400_000_001] {
            let text = milliseconds(Duration::from_nanos(micros * 1_000 + 999)).to_string();
            let digits = text.split_once('.').map_or(0, |(_, digits)| digits.len());
            assert!(digits <= 3, "{text}");
        }
        assert_eq!(
            milliseconds(Duration::from_micros(1_234)).to_string(),
            "1.234"
        );
    }

    #[test]
    fn of_an_unchecked_head_neither_a_password_nor_more_than_a_beginning_is_told() {
        let host = |request: http::request::Builder| {
            unchecked_host(&request.body(()).unwrap().into_parts().0)
        };
        let named = |host: &str| Request::get("/").header(HOST, host);
        assert_eq!(
            host(named("user:word@app.example:80")).unwrap(),
            "app.example"
        );
        let absolute = Request::get("http://user:word@app.example/x").header(HOST, "other");
        assert_eq!(host(absolute).unwrap(), "app.example");
        assert_eq!(host(named("user:word@")), None);
        assert_eq!(host(named("user word")), None);
        assert_eq!(host(Request::get("/")), None);
        assert_eq!(beginning("/short"), "/short");
        let long = format!("{}ü", "x".repeat(UNCHECKED_BYTES - 1));
        assert_eq!(beginning(&long), "x".repeat(UNCHECKED_BYTES - 1));
    }
}
