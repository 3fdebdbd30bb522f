//! The spans of one exchange as messages of OTLP.
//!
//! In: what is known of the request, its attempts and its end. Out: one span for the exchange, and one for each attempt.
//! Text is cut to its beginning, so that a full queue holds little.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, SpanFlags, Status};
use tokio::time::Instant;

use super::{Ids, TraceState};
use crate::telemetry::beginning;

/// Longest text of an attribute, in bytes.
const TEXT_BYTES: usize = 1024;

/// The methods that spans name; any other one is [`OTHER_METHOD`], so that strangers cannot make up names.
const METHODS: [&str; 9] = [
    "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE",
];

const OTHER_METHOD: &str = "_OTHER";

/// The sampled flag of W3C Trace Context.
const SAMPLED: u32 = 1;

/// What a span says of the request of an exchange.
#[derive(Debug, Clone, Copy)]
pub struct TracedRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// `http` or `https`, if it is known.
    pub scheme: Option<&'a str>,
    /// The host without port.
    pub host: Option<&'a str>,
    /// The path without query.
    pub path: &'a str,
    /// The id of the request in all logs.
    pub request_id: Option<&'a str>,
    /// The platform client's address, if it is known.
    pub client: Option<&'a str>,
}

/// Where an attempt forwards a request to.
#[derive(Debug, Clone, Copy)]
pub enum AttemptTarget<'a> {
    /// Through a session of this node.
    Tunnel,
    /// Through another node, of this name.
    Node(&'a str),
    /// To a local service.
    Upstream {
        /// `http` or `https`.
        scheme: &'a str,
        /// Host and port for the URL.
        authority: &'a str,
        /// The host, or the path of a Unix socket.
        address: &'a str,
        /// The port; `None` for a Unix socket.
        port: Option<u16>,
        /// The path of the request without query.
        path: &'a str,
    },
}

/// How an exchange has ended.
#[derive(Debug, Clone, Copy)]
pub struct TracedEnd<'a> {
    /// When it began.
    pub began: Instant,
    /// The status of the response, if there was one.
    pub status: Option<u16>,
    /// The word for its end.
    pub end: &'static str,
    /// Reason and detail of the problem that it failed with.
    pub problem: Option<(&'static str, &'a str)>,
    /// The label of the runtime: of the tunnel server.
    pub runtime: Option<&'a str>,
    /// The name of the route: of the tunnel client.
    pub route: Option<&'a str>,
    /// Bytes of the request's content.
    pub request_bytes: u64,
    /// Bytes of the response's content.
    pub response_bytes: u64,
}

/// What is kept of a request until the end.
#[derive(Debug, Default)]
pub(super) struct RequestAttributes {
    /// The method as spans name it.
    method: &'static str,
    attributes: Vec<KeyValue>,
    /// When the head of the response came.
    head: Option<Instant>,
}

/// One attempt to forward a request.
#[derive(Debug)]
pub(super) struct Attempt {
    id: u64,
    began: Instant,
    ended: Option<Instant>,
    failure: Option<&'static str>,
    /// What the request is sent to, for the name of the span.
    target: Option<&'static str>,
    attributes: Vec<KeyValue>,
    /// When the request was sent once more, and where to.
    repeated: Option<(Instant, Vec<KeyValue>)>,
}

impl TracedRequest<'_> {
    pub(super) fn attributes(&self) -> RequestAttributes {
        let known = METHODS.into_iter().find(|known| *known == self.method);
        let method = known.unwrap_or(OTHER_METHOD);
        let original = known.is_none().then_some(self.method);
        let attributes = [
            ("http.request.method", Some(method)),
            ("http.request.method_original", original),
            ("url.scheme", self.scheme),
            ("url.path", Some(self.path)),
            ("server.address", self.host),
            ("client.address", self.client),
            ("tunnel.request_id", self.request_id),
        ];
        RequestAttributes {
            method,
            attributes: texts(attributes).collect(),
            head: None,
        }
    }
}

impl RequestAttributes {
    pub(super) fn on_head(&mut self) {
        self.head.get_or_insert_with(Instant::now);
    }
}

impl AttemptTarget<'_> {
    /// The word for it in the name of a span; an upstream needs none.
    fn name(&self) -> Option<&'static str> {
        match self {
            Self::Tunnel => Some("tunnel"),
            Self::Node(_) => Some("node"),
            Self::Upstream { .. } => None,
        }
    }

    fn attributes(&self) -> Vec<KeyValue> {
        match *self {
            Self::Tunnel => Vec::new(),
            Self::Node(name) => vec![text("tunnel.peer_node", name)],
            Self::Upstream {
                scheme,
                authority,
                address,
                port,
                path,
            } => {
                let path = beginning(path, TEXT_BYTES);
                let full = format!("{scheme}://{authority}{path}");
                let port = port.map(|port| number("server.port", port.into()));
                let mut attributes = vec![text("url.full", &full), text("server.address", address)];
                attributes.extend(port);
                attributes
            }
        }
    }
}

impl Attempt {
    pub(super) fn new(id: u64, began: Instant, target: &AttemptTarget<'_>) -> Self {
        Self {
            id,
            began,
            ended: None,
            failure: None,
            target: target.name(),
            attributes: target.attributes(),
            repeated: None,
        }
    }

    /// It ends, unless it has.
    pub(super) fn on_end(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    pub(super) fn on_failed(&mut self, reason: &'static str) {
        self.failure = Some(reason);
        self.on_end(Instant::now());
    }

    /// Of several repetitions the last one is kept.
    pub(super) fn on_repeated(&mut self, target: &AttemptTarget<'_>) {
        self.ended = None;
        self.failure = None;
        self.repeated = Some((Instant::now(), target.attributes()));
    }
}

/// Converts instants to the time of day, as it is at the end of an exchange.
struct Clock {
    now: Instant,
    since_epoch: Duration,
}

impl Clock {
    fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            now: Instant::now(),
            since_epoch: since_epoch.unwrap_or_default(),
        }
    }

    /// Nanoseconds since 1970.
    fn nanos(&self, instant: Instant) -> u64 {
        let ago = self.now.saturating_duration_since(instant);
        let time = self.since_epoch.saturating_sub(ago).as_nanos();
        u64::try_from(time).unwrap_or(u64::MAX)
    }
}

impl TracedEnd<'_> {
    /// The span of the exchange, followed by those of its attempts.
    pub(super) fn spans(&self, ids: Ids, state: TraceState) -> Vec<Span> {
        let clock = Clock::now();
        let TraceState { request, attempts } = state;
        let mut spans = Vec::with_capacity(1 + attempts.len());
        let method = request.method;
        spans.push(self.server_span(&clock, ids, request));
        let attempts = attempts.into_iter().enumerate();
        spans.extend(attempts.map(|(number, attempt)| {
            let mut span = self.attempt_span(&clock, method, number, attempt);
            span.trace_id = ids.trace.to_be_bytes().to_vec();
            span.parent_span_id = ids.server.to_be_bytes().to_vec();
            span
        }));
        spans
    }

    fn server_span(&self, clock: &Clock, ids: Ids, request: RequestAttributes) -> Span {
        let (reason, detail) = self.problem.unzip();
        let is_error = match self.status {
            Some(status @ 400..) => status >= 500,
            // A failure behind the head of a good response.
            _ => self.problem.is_some(),
        };
        let mut attributes = request.attributes;
        attributes.extend(texts([
            ("tunnel.runtime", self.runtime),
            ("tunnel.route", self.route),
            ("tunnel.end", Some(self.end)),
            ("tunnel.detail", detail),
        ]));
        attributes.push(number("http.request.body.size", self.request_bytes));
        attributes.push(number("http.response.body.size", self.response_bytes));
        add_result(&mut attributes, self.status, reason, is_error);
        let head = request.head.map(|head| {
            let at = clock.nanos(head);
            event(at, "tunnel.response_head", Vec::new())
        });
        let is_remote = ids
            .parent
            .map_or(0, |_| SpanFlags::ContextIsRemoteMask as u32);
        Span {
            trace_id: ids.trace.to_be_bytes().to_vec(),
            parent_span_id: ids
                .parent
                .map_or_else(Vec::new, |id| id.to_be_bytes().to_vec()),
            flags: flags() | is_remote,
            name: name(request.method, self.route),
            kind: SpanKind::Server as i32,
            start_time_unix_nano: clock.nanos(self.began),
            end_time_unix_nano: clock.nanos(clock.now),
            attributes,
            events: head.into_iter().collect(),
            status: status(is_error, detail),
            ..span(ids.server)
        }
    }

    /// The span of an attempt, but for the ids that it has from the exchange.
    fn attempt_span(
        &self,
        clock: &Clock,
        method: &'static str,
        number_before: usize,
        attempt: Attempt,
    ) -> Span {
        // One that has ended before the exchange gave no response.
        let is_last = attempt.ended.is_none();
        let answered = self.status.filter(|_| is_last);
        let of_exchange = self.problem.filter(|_| is_last).map(|(reason, _)| reason);
        let failure = attempt.failure.or(of_exchange);
        let is_error = failure.is_some() || answered.is_some_and(|status| status >= 400);
        let mut attributes = attempt.attributes;
        attributes.push(text("http.request.method", method));
        if number_before > 0 {
            let resent = number_before as u64;
            attributes.push(number("http.request.resend_count", resent));
        }
        add_result(&mut attributes, answered, failure, is_error);
        let repeated = attempt
            .repeated
            .map(|(at, attributes)| event(clock.nanos(at), "tunnel.request_repeated", attributes));
        Span {
            name: name(method, attempt.target),
            kind: SpanKind::Client as i32,
            start_time_unix_nano: clock.nanos(attempt.began),
            end_time_unix_nano: clock.nanos(attempt.ended.unwrap_or(clock.now)),
            attributes,
            events: repeated.into_iter().collect(),
            status: status(is_error, None),
            ..span(attempt.id)
        }
    }
}

fn span(id: u64) -> Span {
    Span {
        span_id: id.to_be_bytes().to_vec(),
        flags: flags(),
        ..Span::default()
    }
}

fn flags() -> u32 {
    SAMPLED | SpanFlags::ContextHasIsRemoteMask as u32
}

/// The name of a span: the method, and what the request is sent to, both from small sets.
fn name(method: &str, target: Option<&str>) -> String {
    let method = match method {
        OTHER_METHOD | "" => "HTTP",
        known => known,
    };
    target.map_or_else(|| method.to_owned(), |target| format!("{method} {target}"))
}

fn add_result(
    attributes: &mut Vec<KeyValue>,
    status: Option<u16>,
    failure: Option<&str>,
    is_error: bool,
) {
    if let Some(status) = status {
        attributes.push(number("http.response.status_code", status.into()));
    }
    match (failure, status) {
        (Some(reason), _) => attributes.push(text("error.type", reason)),
        (None, Some(status)) if is_error => {
            attributes.push(text("error.type", &status.to_string()));
        }
        _ => {}
    }
}

fn status(is_error: bool, message: Option<&str>) -> Option<Status> {
    let message = beginning(message.unwrap_or_default(), TEXT_BYTES);
    is_error.then(|| Status {
        code: StatusCode::Error as i32,
        message: message.to_owned(),
    })
}

fn event(time_unix_nano: u64, name: &str, attributes: Vec<KeyValue>) -> Event {
    Event {
        time_unix_nano,
        name: name.to_owned(),
        attributes,
        dropped_attributes_count: 0,
    }
}

/// Attributes of those texts that there are.
fn texts<'a, const N: usize>(
    texts: [(&'a str, Option<&'a str>); N],
) -> impl Iterator<Item = KeyValue> {
    let texts = texts.into_iter();
    texts.filter_map(|(key, value)| Some(text(key, value?)))
}

/// An attribute with a text.
pub(super) fn text(key: &str, value: &str) -> KeyValue {
    attribute(
        key,
        Value::StringValue(beginning(value, TEXT_BYTES).to_owned()),
    )
}

fn number(key: &str, value: u64) -> KeyValue {
    attribute(
        key,
        Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)),
    )
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}
