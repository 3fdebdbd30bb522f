//! Sends spans to the collector: OTLP as protobuf over HTTP.
//!
//! ```text
//!   exchanges ─▶ queue, bounded ─▶ batches ─▶ POST …/v1/traces
//!                   └── full: dropped, counted     ├── no answer, 429, 502, 503, 504: the batch waits, and is sent again
//!                                                  └── any other refusal: the batch is dropped, counted
//! ```
//!
//! The messages are those of `opentelemetry-proto`. The exporter of `opentelemetry-otlp` is not used: it says only in text
//! whether a batch may be sent again, and its queue does not say what it drops.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::Full;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prometheus::IntCounter;
use prost::Message;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::span::text;
use super::{Tracer, TracerSettings};
use crate::https::HttpsClient;
use crate::metrics::Families;
use crate::signals::{Shutdown, Trigger};
use crate::task::Owned;
use crate::tls_files::TlsFilesError;

/// Exchanges whose spans wait at once: the default of the standard. With usual paths about 3 MB.
const QUEUE: usize = 2_048;

/// Spans that are sent at once: the default of the standard.
const BATCH: usize = 512;

/// How long spans are gathered for a batch.
const GATHER: Duration = Duration::from_secs(1);

/// Time for a batch to be sent and answered: the default of the standard.
const ANSWER: Duration = Duration::from_secs(10);

/// Longest answer that is read, in bytes.
const ANSWER_BYTES: usize = 64 * 1024;

/// Waits before a batch is sent again: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Time in which the last spans are sent when the program stops. The grace periods of the programs end 5 s before that of
/// Kubernetes does.
const LAST: Duration = Duration::from_secs(2);

/// The counters of spans, by what became of them.
#[derive(Debug, Clone)]
pub struct SpanCounters {
    /// The collector has taken them.
    sent: IntCounter,
    /// The queue was full, or the program has stopped.
    dropped: IntCounter,
    /// The collector has refused them.
    refused: IntCounter,
}

/// Takes spans and never waits.
#[derive(Debug, Clone)]
pub(super) struct SpanQueue {
    pub(super) sender: Sender<Vec<Span>>,
    pub(super) dropped: IntCounter,
}

/// Sends the spans of a [`Tracer`].
pub struct Exporter {
    queue: Receiver<Vec<Span>>,
    client: HttpsClient,
    url: Uri,
    headers: HeaderMap,
    resource: Resource,
    scope: InstrumentationScope,
    counters: SpanCounters,
    state: CollectorState,
}

/// A running [`Exporter`], which ends when this is dropped.
#[derive(Debug)]
pub struct Exporting {
    stop: Trigger,
    task: Owned<()>,
}

/// What the last batch has shown. Only a change of it is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CollectorState {
    Taking,
    Away,
    Refusing,
}

/// What became of a batch that was sent.
enum Delivery {
    /// It was taken, but for so many spans.
    Taken(u64),
    /// It may be sent again.
    Failed(String),
    /// It was refused for good.
    Refused(String),
}

impl SpanCounters {
    /// The counters, in the program's metrics.
    ///
    /// # Errors
    /// When they are there already.
    pub fn new(families: &mut Families) -> prometheus::Result<Self> {
        let results = ["sent", "dropped", "refused"];
        let counters = families.counters_of(
            "spans_total",
            "Spans for the collector: sent; dropped, since they could not be sent in time; or refused by it",
            "result",
            results,
        )?;
        Ok(Self {
            sent: counters.get_metric_with_label_values(&["sent"])?,
            dropped: counters.get_metric_with_label_values(&["dropped"])?,
            refused: counters.get_metric_with_label_values(&["refused"])?,
        })
    }
}

impl SpanQueue {
    pub(super) fn send(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        if self.sender.try_send(spans).is_err() {
            self.dropped.inc_by(count);
        }
    }
}

impl Tracer {
    /// A tracer, and what sends its spans; off without settings. `attributes` describe this program, unless the settings
    /// do.
    ///
    /// # Errors
    /// When the CA file cannot be used.
    pub fn with_exporter(
        settings: Option<&TracerSettings>,
        attributes: &[(&str, &str)],
        counters: &SpanCounters,
    ) -> Result<(Self, Option<Exporter>), TlsFilesError> {
        let Some(settings) = settings else {
            return Ok((Self::default(), None));
        };
        let (sender, receiver) = mpsc::channel(QUEUE);
        let queue = SpanQueue {
            sender,
            dropped: counters.dropped.clone(),
        };
        let set = settings.attributes.iter();
        let set = set.map(|(key, value)| (key.as_str(), value.as_str()));
        let is_set = |key: &str| settings.attributes.iter().any(|(set, _)| set == key);
        let own = attributes.iter().copied().filter(|(key, _)| !is_set(key));
        let attributes = own.chain(set).map(|(key, value)| text(key, value));
        let exporter = Exporter {
            queue: receiver,
            client: HttpsClient::new(settings.ca_file.as_deref(), ANSWER)?,
            url: settings.url.clone(),
            headers: settings.headers.clone(),
            resource: Resource {
                attributes: attributes.collect(),
                ..Resource::default()
            },
            scope: InstrumentationScope {
                name: "tunnel".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            },
            counters: counters.clone(),
            state: CollectorState::Taking,
        };
        Ok((Self::new(settings.sampler, queue), Some(exporter)))
    }
}

impl Exporter {
    /// Starts to send, on the current tokio runtime.
    pub fn start(self) -> Exporting {
        tracing::info!(collector = %self.url, "exchanges are traced");
        let (stop, stopping) = Shutdown::manual();
        Exporting {
            stop,
            task: Owned::spawn("spans", self.run(stopping)),
        }
    }

    async fn run(mut self, stopping: Shutdown) {
        loop {
            let first = tokio::select! {
                biased;
                first = self.queue.recv() => first,
                () = stopping.requested() => None,
            };
            // What was put into the queue before the stop is received first.
            let Some(mut spans) = first else {
                return;
            };
            let until = Instant::now() + GATHER;
            while spans.len() < BATCH {
                let more = tokio::select! {
                    biased;
                    more = timeout_at(until, self.queue.recv()) => more,
                    () = stopping.requested() => break,
                };
                let Ok(Some(more)) = more else {
                    break;
                };
                spans.extend(more);
            }
            self.deliver(spans, &stopping).await;
        }
    }

    /// Sends a batch until the collector has taken or refused it. Tries only once when the program stops.
    async fn deliver(&mut self, spans: Vec<Span>, stopping: &Shutdown) {
        let count = spans.len() as u64;
        let body = self.body(spans);
        let mut wait = RETRY.0;
        loop {
            match self.post(body.clone()).await {
                Delivery::Taken(rejected) => {
                    self.counters.sent.inc_by(count.saturating_sub(rejected));
                    self.counters.refused.inc_by(rejected);
                    return self.on_taken();
                }
                Delivery::Refused(fault) => {
                    self.counters.refused.inc_by(count);
                    return self.on_fault(CollectorState::Refusing, &fault);
                }
                Delivery::Failed(fault) => self.on_fault(CollectorState::Away, &fault),
            }
            if stopping.is_requested() {
                self.counters.dropped.inc_by(count);
                return;
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = stopping.requested() => {}
            }
            wait = (wait * 2).min(RETRY.1);
        }
    }

    fn body(&self, spans: Vec<Span>) -> Bytes {
        let request = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(self.scope.clone()),
                    spans,
                    schema_url: String::new(),
                }],
                schema_url: String::new(),
            }],
        };
        request.encode_to_vec().into()
    }

    async fn post(&self, body: Bytes) -> Delivery {
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.headers.clone();
        let content_type = HeaderValue::from_static("application/x-protobuf");
        request
            .headers_mut()
            .insert(header::CONTENT_TYPE, content_type);
        match self.client.send(request, ANSWER_BYTES).await {
            Ok((status, answer)) => Delivery::of(status, &answer),
            Err(error) => Delivery::Failed(error.to_string()),
        }
    }

    fn on_taken(&mut self) {
        if std::mem::replace(&mut self.state, CollectorState::Taking) != CollectorState::Taking {
            tracing::info!(collector = %self.url, "the collector takes spans again");
        }
    }

    fn on_fault(&mut self, state: CollectorState, fault: &str) {
        if std::mem::replace(&mut self.state, state) == state {
            return;
        }
        let collector = &self.url;
        match state {
            CollectorState::Away => tracing::warn!(
                %collector,
                fault,
                "spans cannot be sent: they wait, and are dropped when too many do; requests are not affected"
            ),
            _ => tracing::warn!(
                %collector,
                fault,
                "the collector refuses spans: check --otlp-endpoint and its headers; requests are not affected"
            ),
        }
    }
}

impl Delivery {
    /// What an answer means, by the specification of OTLP over HTTP.
    fn of(status: StatusCode, answer: &[u8]) -> Self {
        match status.as_u16() {
            200..=299 => {
                // An answer that cannot be read has no more to say than its status.
                let answer = ExportTraceServiceResponse::decode(answer).unwrap_or_default();
                let partial = answer.partial_success.unwrap_or_default();
                Self::Taken(u64::try_from(partial.rejected_spans).unwrap_or_default())
            }
            429 | 502 | 503 | 504 => Self::Failed(format!("the answer is {status}")),
            _ => Self::Refused(format!("the answer is {status}")),
        }
    }
}

impl Exporting {
    /// Sends what is still in the queue, for a short time and not once the program is forced to stop, and ends.
    pub async fn finish(exporting: Option<Self>, shutdown: &Shutdown) {
        Self::finish_within(LAST, exporting, shutdown).await;
    }

    /// As [`Self::finish`], within no more than this time.
    pub async fn finish_within(limit: Duration, exporting: Option<Self>, shutdown: &Shutdown) {
        let Some(Self { stop, task }) = exporting else {
            return;
        };
        stop.request();
        let is_done = tokio::select! {
            done = timeout(LAST.min(limit), task) => done.is_ok(),
            () = shutdown.forced() => false,
        };
        if !is_done {
            tracing::warn!("the last spans could not be sent in time, and are lost");
        }
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}
