//! Sends events to the platform: a signed POST for each (`--webhook-url`), as Standard Webhooks 1.0.0 defines it.
//!
//! ```text
//!   events (ring of the last 1,024) ──▶ the sender, at its own pace ──POST──▶ platform
//! ```
//!
//! One event is sent after another, each until the platform has answered with 2xx. A platform that does not answer delays
//! events, and nothing else of the server; those that the ring has lost meanwhile are replaced by one event `missed`. What was
//! not sent before the server stops is lost.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use serde::Serialize;
use tokio::{sync::oneshot, time::sleep};
use tunnel_ops::{
    https::{HttpsClient, RequestError},
    tls_files::TlsFilesError,
};

use crate::{
    config::{Config, HttpUrl, WebhookSecret},
    directory::NodeName,
    events::{EventKind, EventView, Events, Reader},
    metrics::Metrics,
    timestamp::Timestamp,
};

/// Time for an answer of the platform: what Standard Webhooks recommends at least.
const DEADLINE: Duration = Duration::from_secs(15);

/// The answer's content does not matter.
const ANSWER_BYTES: usize = 64 * 1024;

/// Time to the second attempt; doubled after each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Longest time between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Where events are sent, and how they are signed.
pub(crate) struct Webhook {
    url: HttpUrl,
    kinds: Vec<EventKind>,
    secret: ArcSwap<WebhookSecret>,
    client: HttpsClient,
    node: Option<NodeName>,
    metrics: Arc<Metrics>,
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
        })))
    }

    /// Signs what is sent from now on by this secret.
    pub(crate) fn set_secret(&self, secret: WebhookSecret) {
        self.secret.store(Arc::new(secret));
    }

    /// Sends what the reader yields, until the sender of `running` is dropped and all is sent.
    pub(crate) async fn send_all(
        self: Arc<Self>,
        events: Arc<Events>,
        mut reader: Reader,
        mut running: oneshot::Receiver<()>,
    ) {
        loop {
            let next = tokio::select! {
                biased;
                next = reader.next() => next,
                _ = &mut running => return,
            };
            match next {
                Ok(views) => {
                    for view in views.iter().filter(|view| self.wants(view.kind)) {
                        self.deliver(view).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "events for the platform are lost");
                    reader = events.read_after("");
                }
            }
        }
    }

    /// Whether events of this kind are sent. That some are missing is always said.
    fn wants(&self, kind: EventKind) -> bool {
        kind == EventKind::Missed || self.kinds.contains(&kind)
    }

    /// Sends an event until the platform has taken or rejected it.
    async fn deliver(&self, view: &EventView) {
        // One that says that events are missing has no id of its own; it is made once, so that repetitions have the same.
        let id = view.id.clone();
        let id = id.unwrap_or_else(|| format!("missed-{}", view.time));
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
        let (mut pause, mut is_said) = (FIRST_PAUSE, false);
        loop {
            let outcome = self.attempt(&id, body.clone()).await;
            self.metrics.on_webhook_attempt(outcome.name());
            match outcome {
                Outcome::Delivered if is_said => {
                    tracing::info!(event = id, url = %self.url, "the platform takes events again");
                    return;
                }
                Outcome::Delivered => return,
                Outcome::Rejected(status) => {
                    tracing::warn!(event = id, url = %self.url, status = status.as_u16(), "the platform has rejected an event");
                    return;
                }
                Outcome::Failed(error) => {
                    if !std::mem::replace(&mut is_said, true) {
                        tracing::warn!(event = id, url = %self.url, error, "the platform does not take an event, trying again");
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
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
