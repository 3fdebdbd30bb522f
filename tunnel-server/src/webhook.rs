//! Sends events to the platform: a signed POST for each (`--webhook-url`), as Standard Webhooks 1.0.0 defines it.
//!
//! ```text
//!   events (ring of the last 1,024) ──▶ queue.rs: in turns of the runtimes ──POST──▶ platform
//! ```
//!
//! The events of one runtime are sent in their order, each until the platform has answered with 2xx, or the event is given
//! up. A platform that does not answer delays events, and nothing else of the server; those that are left out or given up
//! are replaced by an event `missed`, at most once a minute. What was not sent before the server stops is lost.

mod queue;

use std::{future::pending, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use http::{Method, Request, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use serde::Serialize;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};
use tunnel_directory::NodeName;
use tunnel_ops::{
    https::{HttpsClient, RequestError},
    tls_files::TlsFilesError,
};

use self::queue::{AfterFailure, EventQueue, QueuedEvent};
use crate::{
    allowance::Allowance,
    config::{Config, HttpUrl, WebhookSecret},
    events::{EventKind, EventView, Events, Reader, TooSlow},
    metrics::{LostEvent, Metrics},
    timestamp::Timestamp,
};

/// Time for an answer of the platform: what Standard Webhooks recommends at least.
const DEADLINE: Duration = Duration::from_secs(15);

/// The answer's content does not matter.
const ANSWER_BYTES: usize = 64 * 1024;

/// Most events that are sent at once, each of another runtime: one whose answer takes long delays the others little.
const AT_ONCE: usize = 4;

/// Log lines about events that the platform does not take: the first 20 at once, then one per second.
const LINES: u32 = 20;
const LINE_EACH: Duration = Duration::from_secs(1);

/// Where events are sent, and how they are signed.
pub(crate) struct Webhook {
    url: HttpUrl,
    kinds: Vec<EventKind>,
    secret: ArcSwap<WebhookSecret>,
    client: HttpsClient,
    node: Option<NodeName>,
    metrics: Arc<Metrics>,
    lines: Allowance,
}

/// The events on their way.
struct Sending {
    reader: Reader,
    events: Arc<Events>,
    queue: EventQueue,
}

/// The body of a delivery.
#[derive(Serialize)]
struct Payload<'a> {
    #[serde(rename = "type")]
    kind: EventKind,
    timestamp: Timestamp,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    #[serde(flatten)]
    event: &'a EventView,
}

/// What an answer means for a delivery.
enum Outcome {
    Delivered,
    /// The platform does not want it, and will not.
    Rejected(StatusCode),
    /// To be tried again.
    Failed(String),
}

impl Webhook {
    /// What the settings describe; `None` without a URL. The settings are checked: with a URL there is a secret.
    ///
    /// # Errors
    /// When the CA certificates for the URL cannot be used.
    pub(crate) fn new(
        config: &Config,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<Arc<Self>>, TlsFilesError> {
        let settings = &config.settings;
        let secret = config.webhook_secret.clone();
        let Some((url, secret)) = settings.webhook_url.clone().zip(secret) else {
            return Ok(None);
        };
        Ok(Some(Arc::new(Self {
            url,
            kinds: settings.webhook_events.clone(),
            secret: ArcSwap::from_pointee(secret),
            client: HttpsClient::new(settings.auth_ca_file.as_deref(), DEADLINE)?,
            node: settings.node.clone(),
            metrics: metrics.clone(),
            lines: Allowance::new(LINES, LINE_EACH),
        })))
    }

    /// Signs what is sent from now on by this secret.
    pub(crate) fn set_secret(&self, secret: WebhookSecret) {
        self.secret.store(Arc::new(secret));
    }

    /// Sends what the reader yields, until the sender of `running` is dropped and all is sent that need not wait.
    pub(crate) async fn send_all(
        self: Arc<Self>,
        events: Arc<Events>,
        reader: Reader,
        mut running: oneshot::Receiver<()>,
    ) {
        let mut sending = Sending {
            reader,
            events,
            queue: EventQueue::default(),
        };
        let mut open = FuturesUnordered::new();
        let mut is_running = true;
        loop {
            while open.len() < AT_ONCE
                && let Some(event) = sending.queue.next(Instant::now())
            {
                open.push(self.send(event));
            }
            if !is_running && open.is_empty() && !sending.queue.is_ready() {
                return;
            }
            // With the most at once, the next one waits for an answer.
            let has_room = open.len() < AT_ONCE;
            let at = has_room.then(|| sending.queue.next_at()).flatten();
            tokio::select! {
                biased;
                Some((event, outcome)) = open.next() => {
                    self.on_outcome(&mut sending.queue, event, outcome);
                }
                next = sending.reader.next(), if is_running => self.take(&mut sending, next),
                () = reached(at) => {}
                _ = &mut running, if is_running => {
                    is_running = false;
                    while let Some(next) = sending.reader.next().now_or_never() {
                        self.take(&mut sending, next);
                    }
                }
            }
        }
    }

    fn take(&self, sending: &mut Sending, next: Result<Vec<EventView>, TooSlow>) {
        let views = next.unwrap_or_else(|error| {
            tracing::warn!(%error, "events for the platform are lost");
            // Begins with an event `missed`.
            sending.reader = sending.events.read_after("");
            Vec::new()
        });
        for view in views.into_iter().filter(|view| self.wants(view.kind)) {
            let left_out = sending.queue.push(view, Instant::now());
            self.metrics.webhook.on_loss(LostEvent::LeftOut, left_out);
        }
    }

    /// Whether events of this kind are sent. That some are missing is always said.
    fn wants(&self, kind: EventKind) -> bool {
        kind == EventKind::Missed || self.kinds.contains(&kind)
    }

    async fn send(&self, event: QueuedEvent) -> (QueuedEvent, Outcome) {
        let view = &event.view;
        let payload = Payload {
            kind: view.kind,
            timestamp: view.time,
            data: Data {
                node: self.node.as_ref().map(NodeName::as_str),
                event: view,
            },
        };
        // Serialising plain values cannot fail.
        let body: Bytes = serde_json::to_vec(&payload).unwrap_or_default().into();
        let outcome = self.attempt(&id(view), body).await;
        (event, outcome)
    }

    fn on_outcome(&self, queue: &mut EventQueue, event: QueuedEvent, outcome: Outcome) {
        self.metrics.webhook.on_attempt(outcome.name());
        let (id, attempts) = (id(&event.view), event.attempts);
        let url = &self.url;
        match outcome {
            Outcome::Delivered => {
                if attempts > 0
                    && let Some(lines_left_out) = self.lines.take()
                {
                    tracing::info!(event = id, %url, lines_left_out, "the platform takes events again");
                }
                queue.on_taken(event);
            }
            Outcome::Rejected(status) => {
                let status = status.as_u16();
                if let Some(lines_left_out) = self.lines.take() {
                    tracing::warn!(event = id, %url, status, lines_left_out, "the platform has rejected an event");
                }
                queue.on_taken(event);
            }
            Outcome::Failed(error) => match queue.on_failure(event, Instant::now()) {
                AfterFailure::Again => {
                    if attempts == 0
                        && let Some(lines_left_out) = self.lines.take()
                    {
                        tracing::warn!(event = id, %url, error, lines_left_out, "the platform does not take an event, trying again");
                    }
                }
                AfterFailure::GivenUp => {
                    self.metrics.webhook.on_loss(LostEvent::GivenUp, 1);
                    if let Some(lines_left_out) = self.lines.take() {
                        tracing::warn!(event = id, %url, error, attempts = attempts + 1, lines_left_out, "the platform does not take an event, which is given up");
                    }
                }
            },
        }
    }

    async fn attempt(&self, id: &str, body: Bytes) -> Outcome {
        let timestamp = Timestamp::now().seconds();
        let signature = self.secret.load().sign(id, timestamp, &body);
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.url.uri())
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", signature)
            .body(Full::new(body));
        let request = match request {
            Ok(request) => request,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        outcome(self.client.send(request, ANSWER_BYTES).await)
    }
}

impl Outcome {
    /// The label in the metric.
    fn name(&self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Rejected(_) => "rejected",
            Self::Failed(_) => "failed",
        }
    }
}

/// The id of a delivery. An event that says that events are missing has none of its own; its time is that at which it was
/// made, so that repetitions have the same.
fn id(view: &EventView) -> String {
    let id = view.id.clone();
    id.unwrap_or_else(|| format!("missed-{}", view.time))
}

async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

fn outcome(answer: Result<(StatusCode, Bytes), RequestError>) -> Outcome {
    let status = match answer {
        Ok((status, _)) | Err(RequestError::TooLarge { status, .. }) => status,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let is_passing = matches!(
        status,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
    );
    match status {
        status if status.is_success() => Outcome::Delivered,
        status if status.is_client_error() && !is_passing => Outcome::Rejected(status),
        status => Outcome::Failed(format!("it answered {status}")),
    }
}
