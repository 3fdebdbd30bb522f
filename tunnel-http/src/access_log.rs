//! The access log: one line for each exchange, at its end, and one for each request that was refused before there
//! was an exchange. The spans of an exchange that is traced are made of the same record.
//!
//! A line never holds a query, a field's value other than the host and the two ids, or content. What it says of a
//! refused request is unchecked, so each part of it is cut to its beginning.

mod line;

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::{HOST, HeaderValue};
use http::request::Parts;
use http::uri::Authority;
use prometheus::IntCounter;
use tokio::time::Instant;
use tunnel_ops::telemetry::tracer::{Trace, TracedEnd, TracedRequest};
use tunnel_ops::telemetry::{self, LineSink, LogFormat, TRACE_PARENT, TraceParent};
use tunnel_proto::fields::X_REQUEST_ID;
use tunnel_proto::problem::{Hop, NOT_TAKEN_DETAIL, Problem, Reason};

pub use crate::end::End;

use self::line::{Fields, LineMaker, key};
use crate::tail::{ExchangeView, Tails};

/// Longest part of a refused request that is logged, in bytes.
const UNCHECKED_BYTES: usize = 256;

/// Room for the fields of a usual line without its path, so that they are seldom moved.
const LINE_BYTES: usize = 256;

/// Makes the lines of the access log, and gives what they say to those who are watching. Clones share both.
#[derive(Debug, Clone)]
pub struct AccessLog {
    sink: LineSink,
    tails: Arc<Tails>,
}

impl AccessLog {
    /// An access log whose lines go to `sink`.
    #[must_use]
    pub fn new(sink: LineSink) -> Self {
        Self {
            sink,
            tails: Arc::default(),
        }
    }

    /// No access log.
    #[must_use]
    pub fn off() -> Self {
        Self::new(LineSink::off())
    }

    /// Whether lines are written anywhere, or anybody is watching.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.sink.is_open() || self.tails.is_read()
    }

    /// Those who are watching.
    #[must_use]
    pub fn tails(&self) -> &Arc<Tails> {
        &self.tails
    }

    /// Counts lines that are lost, since they cannot be written or not in time, in `counter`.
    pub fn count_lost(&self, counter: IntCounter) {
        self.sink.count_lost(counter);
    }

    /// Writes the line of a request that was refused before there was an exchange. `head` is what was received of it,
    /// `None` if that could not be read; `problem` is the response. `runtime` has the label of a host's runtime.
    pub fn refused(
        &self,
        head: Option<&Parts>,
        peer: IpAddr,
        problem: &Problem,
        runtime: impl FnOnce(&str) -> Option<String>,
    ) {
        if !self.is_on() {
            return;
        }
        let host = head.and_then(unchecked_host);
        let request_id = head.and_then(|head| head.headers.get(X_REQUEST_ID));
        let request_id = request_id.and_then(|id| id.to_str().ok());
        let trace = head.and_then(trace);
        let text = |text: &str| beginning(text).to_owned();
        let mut view = ExchangeView {
            method: head.map(|head| text(head.method.as_str())),
            host: host.as_deref().map(text),
            path: head.map(|head| text(head.uri.path())),
            runtime: host.as_deref().and_then(runtime),
            status: Some(problem.status().as_u16()),
            end: problem.reason().name().to_owned(),
            hop: Some(problem.hop().name().to_owned()),
            detail: Some(problem.detail().to_owned()),
            request_id: request_id.map(text),
            trace_id: trace.as_ref().map(|trace| trace.trace_id().to_owned()),
            peer: Some(peer.to_string()),
            ..ExchangeView::default()
        };
        if self.sink.is_open() {
            self.write("request refused", |fields| {
                fields.text(key!("method"), view.method.as_deref());
                fields.text(key!("host"), view.host.as_deref());
                fields.text(key!("path"), view.path.as_deref());
                fields.text(key!("runtime"), view.runtime.as_deref());
                fields.number(key!("status"), view.status.map(Into::into));
                fields.text(key!("end"), Some(&view.end));
                fields.text(key!("hop"), view.hop.as_deref());
                fields.text(key!("detail"), view.detail.as_deref());
                fields.text(key!("request_id"), view.request_id.as_deref());
                fields.text(key!("trace_id"), view.trace_id.as_deref());
                fields.word(key!("peer"), view.peer.as_deref());
            });
        }
        if self.tails.is_read_for(view.runtime.as_deref()) {
            view.end_now();
            self.tails.record(view);
        }
    }

    fn write(&self, message: &str, add: impl FnOnce(&mut Fields<'_>)) {
        thread_local! {
            static LINES: RefCell<LineMaker> = const { RefCell::new(LineMaker::new()) };
        }
        LINES.with_borrow_mut(|lines| {
            self.sink
                .write(lines.line(message, self.sink.format(), add));
        });
    }
}

/// What the line and the span of an exchange say of its request.
#[derive(Debug)]
pub struct LoggedRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// `http` or `https`, if it is known. Only the span has it.
    pub scheme: Option<&'a str>,
    /// The authority; its port is not logged.
    pub host: Option<&'a str>,
    /// The path; its query is not logged.
    pub path: &'a str,
    /// Whether the request asks for an upgrade.
    pub is_upgrade: bool,
    /// The label of the host's runtime: of the tunnel server.
    pub runtime: Option<&'a str>,
    /// The request's id, as the upstream gets it.
    pub request_id: Option<&'a HeaderValue>,
    /// The trace that the request names. The line has it, unless the exchange is traced and so has one of its own.
    pub trace: Option<TraceParent>,
    /// The platform client's address as text, if it is known.
    pub peer: Option<&'a str>,
}

/// What is known of an exchange before its end, for those who get it then.
#[derive(Debug)]
struct Begun {
    log: AccessLog,
    /// For the line; `None` where no lines are written.
    fields: Option<BegunFields>,
    /// For those who are watching; `None` where nobody is. Boxed, since that is rare.
    view: Option<Box<ExchangeView>>,
}

impl Begun {
    /// `None` if nobody gets it.
    fn new(log: &AccessLog, request: &LoggedRequest<'_>) -> Option<Self> {
        let path = without_query(request.path);
        let fields = log.sink.is_open();
        let fields = fields.then(|| BegunFields::new(log.sink.format(), request, path));
        let view = log.tails.is_read_for(request.runtime);
        let view = view.then(|| Box::new(begun_view(request, path)));
        (fields.is_some() || view.is_some()).then(|| Self {
            log: log.clone(),
            fields,
            view,
        })
    }
}

/// The fields of an exchange's line that are known before its end, written out, so that the line keeps no buffer of
/// the request.
#[derive(Debug)]
struct BegunFields {
    written: Vec<u8>,
    /// Where the fields that come at the end are to be inserted.
    split: usize,
}

impl BegunFields {
    fn new(format: LogFormat, request: &LoggedRequest<'_>, path: &str) -> Self {
        let mut written = Vec::with_capacity(LINE_BYTES + path.len());
        let mut fields = Fields::new(format, &mut written);
        fields.text(key!("method"), Some(request.method));
        fields.text(key!("host"), request.host.map(without_port));
        fields.text(key!("path"), Some(path));
        fields.flag(key!("upgrade"), request.is_upgrade);
        fields.text(key!("runtime"), request.runtime);
        let split = fields.len();
        let id = request.request_id.and_then(|id| id.to_str().ok());
        fields.text(key!("request_id"), id);
        let trace = request.trace.as_ref();
        fields.text(key!("trace_id"), trace.map(TraceParent::trace_id));
        fields.word(key!("peer"), request.peer);
        Self { written, split }
    }
}

/// An exchange as [`BegunFields`] write it.
fn begun_view(request: &LoggedRequest<'_>, path: &str) -> ExchangeView {
    let id = request.request_id.and_then(|id| id.to_str().ok());
    let trace = request.trace.as_ref();
    ExchangeView {
        method: Some(request.method.to_owned()),
        host: request.host.map(|host| without_port(host).to_owned()),
        path: Some(path.to_owned()),
        upgrade: Some(request.is_upgrade),
        runtime: request.runtime.map(ToOwned::to_owned),
        request_id: id.map(ToOwned::to_owned),
        trace_id: trace.map(|trace| trace.trace_id().to_owned()),
        peer: request.peer.map(ToOwned::to_owned),
        ..ExchangeView::default()
    }
}

/// Where a request was forwarded, for its line.
#[derive(Debug, Clone, Copy, Default)]
pub struct Forwarded<'a> {
    /// The name of the route: of the tunnel client.
    pub route: Option<&'a str>,
    /// Bytes of the request's content that were forwarded.
    pub request_bytes: u64,
}

/// One exchange from its request to its end, as the access log records it.
#[derive(Debug)]
pub struct ExchangeRecord {
    began: Instant,
    status: Option<StatusCode>,
    response_bytes: u64,
    end: End,
    /// `None` if nobody gets it.
    begun: Option<Begun>,
    /// `None` if the exchange is not traced.
    trace: Option<Trace>,
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
            begun: None,
            trace: None,
        }
    }

    /// Has a line about this request written to `log` at the end, and those who are watching told, if that
    /// [is on](AccessLog::is_on), and its spans made if there is a trace. Of no use without any of them.
    pub fn log(&mut self, log: &AccessLog, trace: Option<Trace>, request: &LoggedRequest<'_>) {
        self.begun = Begun::new(log, request);
        if let Some(trace) = &trace {
            trace.on_request(&TracedRequest {
                method: request.method,
                scheme: request.scheme,
                host: request.host.map(without_port),
                path: without_query(request.path),
                runtime: request.runtime,
                request_id: request.request_id.and_then(|id| id.to_str().ok()),
                client: request.peer,
            });
        }
        self.trace = trace;
    }

    /// The trace of the exchange, if it is traced.
    #[must_use]
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Whether anybody gets it at the end.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.begun.is_some()
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
        if let Some(trace) = &self.trace {
            trace.on_head();
        }
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

    /// The program cuts the exchange in order to stop, or has just cut the session that carried it. Changes nothing if
    /// another end is known.
    pub fn on_cut_by_stop(&mut self) {
        let reason = self.end.problem().map(Problem::reason);
        if self.end == End::Cancelled || reason == Some(Reason::SessionLost) {
            self.end = End::CutByStop;
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

    /// Writes the line, tells those who are watching, and makes the spans, if there are to be any. The exchange is over.
    pub fn write(&mut self, forwarded: Forwarded<'_>) {
        if let Some(trace) = &self.trace {
            let problem = self.end.problem();
            trace.end(&TracedEnd {
                began: self.began,
                status: self.status.map(|status| status.as_u16()),
                end: self.end.name(),
                problem: problem.map(|problem| (problem.reason().name(), problem.detail())),
                route: forwarded.route,
                request_bytes: forwarded.request_bytes,
                response_bytes: self.response_bytes,
            });
        }
        let Some(Begun { log, fields, view }) = self.begun.take() else {
            return;
        };
        if let Some(BegunFields { written, split }) = fields {
            let (first, last) = written.split_at(split);
            log.write("exchange", |fields| {
                fields.written(first);
                fields.text(key!("route"), forwarded.route);
                fields.number(
                    key!("status"),
                    self.status.map(|status| status.as_u16().into()),
                );
                fields.text(key!("end"), Some(self.end.name()));
                let problem = self.end.problem();
                fields.text(key!("hop"), problem.map(|problem| problem.hop().name()));
                fields.text(key!("detail"), problem.map(Problem::detail));
                fields.number(key!("request_bytes"), Some(forwarded.request_bytes));
                fields.number(key!("response_bytes"), Some(self.response_bytes));
                fields.milliseconds(key!("duration_ms"), self.elapsed());
                fields.written(last);
            });
        }
        if let Some(view) = view {
            log.tails.record(self.ended(*view, forwarded));
        }
    }

    /// The exchange at its end.
    fn ended(&self, begun: ExchangeView, forwarded: Forwarded<'_>) -> ExchangeView {
        let problem = self.end.problem();
        let mut view = ExchangeView {
            route: forwarded.route.map(ToOwned::to_owned),
            status: self.status.map(|status| status.as_u16()),
            end: self.end.name().to_owned(),
            hop: problem.map(|problem| problem.hop().name().to_owned()),
            detail: problem.map(|problem| problem.detail().to_owned()),
            request_bytes: Some(forwarded.request_bytes),
            response_bytes: Some(self.response_bytes),
            ..begun
        };
        view.took(self.elapsed());
        view.end_now();
        view
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

fn without_query(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
}

/// The host of an authority.
fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        // An address of IPv6 is in brackets.
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// The trace that a head names, if it is a valid one.
#[must_use]
pub fn trace(head: &Parts) -> Option<TraceParent> {
    let trace = head.headers.get(TRACE_PARENT)?;
    TraceParent::parse(trace.as_bytes())
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
    telemetry::beginning(text, UNCHECKED_BYTES)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::tail::{TailFilter, Tailed};

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

    #[tokio::test]
    async fn who_is_watching_gets_what_the_json_line_says() {
        let (sent, lines) = std::sync::mpsc::channel();
        let sink = LineSink::to_function(LogFormat::Json, move |line| {
            drop(sent.send(serde_json::from_slice::<serde_json::Value>(line).unwrap()));
        });
        let log = AccessLog::new(sink);
        let mut tail = log
            .tails()
            .open(Some("acme-prod"), TailFilter::default())
            .unwrap();
        let id = HeaderValue::from_static("an-id");
        let trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let mut record = ExchangeRecord::begin();
        record.log(
            &log,
            None,
            &LoggedRequest {
                method: "PUT",
                scheme: None,
                host: Some("app.example:8443"),
                path: "/a\"b?secret=1",
                is_upgrade: true,
                runtime: Some("acme-prod"),
                request_id: Some(&id),
                trace: TraceParent::parse(trace),
                peer: Some("192.0.2.1"),
            },
        );
        record.on_bytes(7);
        record.on_problem(&Problem::new(Hop::Client, Reason::ConnectionRefused, "no"));
        record.write(Forwarded {
            route: Some("api"),
            request_bytes: 3,
        });
        let head = Request::get("http://app.example/x?secret=1")
            .body(())
            .unwrap();
        let head = head.into_parts().0;
        let refusal = problem(Reason::UriTooLong);
        let peer = IpAddr::from([192, 0, 2, 1]);
        let runtime = |host: &str| (host == "app.example").then(|| "acme-prod".to_owned());
        log.refused(Some(&head), peer, &refusal, runtime);
        let tailed = tail.next().await;
        assert_eq!(tailed.len(), 2);
        for one in tailed {
            let Tailed::Exchange(view) = one else {
                panic!("{one:?}")
            };
            let mut view = serde_json::to_value(&*view).unwrap();
            let mut line = lines.recv().unwrap();
            for object in [&mut view, &mut line] {
                let object = object.as_object_mut().unwrap();
                assert!(object.remove("timestamp").is_some());
                // Measured once more.
                let took = object.remove("duration_ms");
                assert_eq!(took.is_some(), object["method"] == "PUT");
                object.retain(|name, _| !["level", "message", "target"].contains(&name.as_str()));
            }
            assert_eq!(view, line);
        }
    }

    #[test]
    fn nothing_is_kept_of_an_exchange_that_nobody_gets() {
        let log = AccessLog::off();
        let request = |runtime| LoggedRequest {
            method: "GET",
            scheme: None,
            host: None,
            path: "/",
            is_upgrade: false,
            runtime,
            request_id: None,
            trace: None,
            peer: None,
        };
        let is_logged = |runtime| {
            let mut record = ExchangeRecord::begin();
            record.log(&log, None, &request(runtime));
            record.is_logged()
        };
        assert!(!log.is_on() && !is_logged(Some("acme-prod")));
        let tail = log.tails().open(Some("acme-prod"), TailFilter::default());
        assert!(log.is_on() && is_logged(Some("acme-prod")));
        assert!(!is_logged(Some("acme-test")) && !is_logged(None));
        drop(tail);
        assert!(!log.is_on());
    }

    #[test]
    fn a_host_is_logged_without_its_port() {
        for (authority, host) in [
            ("app.example:8443", "app.example"),
            ("app.example", "app.example"),
            ("[::1]:80", "[::1]"),
            ("no host", "no host"),
        ] {
            assert_eq!(without_port(authority), host);
        }
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
