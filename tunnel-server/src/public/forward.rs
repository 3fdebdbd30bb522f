//! Forwards a request to another node, whose session serves it.
//!
//! The content waits until the other node has said that it has a session: if it has none, all of the request can go
//! another way.

use std::{
    future::pending,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tunnel_directory::NodeName;
use tunnel_proto::{
    exchange::{EncodedHead, ExchangeError, open},
    problem::{Hop, Problem, Reason},
};

use super::{
    Connection,
    attempt::{
        AttemptError, Content, Failure, ForwardedExchange, Prepared, RoutedRequest, failure,
        not_opened,
    },
    body::UploadBody,
    cookies,
    observe::Observation,
};
use crate::{
    metrics::Forwarding,
    peers::{Forward, HELD, Hints, Note},
};

/// The content of a request, which is not touched before the other node asks for it.
struct GatedBody {
    /// `None` once it is open.
    gate: Option<oneshot::Receiver<()>>,
    /// The content until then. `send` takes it back if the other node does not ask for it.
    waiting: Arc<Mutex<Option<UploadBody>>>,
    body: Option<UploadBody>,
    is_empty: bool,
}

/// Sends a request to another node. With `may_repeat` it is sent once more if nothing is received for it.
pub(super) async fn send(
    connection: &Connection,
    routed: &RoutedRequest,
    head: &EncodedHead,
    content: &mut Content<'_>,
    observation: &mut Observation,
    (peer, may_repeat): (Forward, bool),
) -> Result<ForwardedExchange, AttemptError> {
    let metrics = &connection.gateway.metrics.peers;
    let Forward {
        session,
        epoch,
        holder: (node, _),
        has_other,
    } = peer;
    let hints = Hints {
        has_other,
        may_repeat,
    };
    let slot = routed.route.slot().map_err(AttemptError::Refused)?;
    let opened = open(&session).await;
    // Another node may be less busy.
    let opened = opened.map_err(|error| AttemptError::NotSent(not_opened(error)))?;
    let address = connection.client.address_text();
    let head = head.forwarded(&Note::text(slot.label(), epoch, address), hints.text());
    let runtime = slot.forwarded_series(&connection.gateway.metrics);
    let is_received = content.is_received();
    let Prepared {
        body,
        upload,
        mut informational,
    } = content.prepare(connection, routed, &runtime, observation);
    observation.on_forwarded(runtime, &node);
    let (body, waiting, mut gate) = GatedBody::new(body, is_received);
    let mut is_passed_on = false;
    let on_informational = |status: StatusCode, mut headers: HeaderMap| {
        if status.as_u16() == HELD {
            if let Some(gate) = gate.take() {
                // The exchange may have ended meanwhile.
                let _ = gate.send(());
            }
            return;
        }
        cookies::keep_apart(&connection.gateway, &mut headers);
        informational.push(status, &headers);
        is_passed_on = true;
    };
    let response = opened.carry(&head, body, on_informational, pending());
    let error = match response.await {
        Ok(response) => {
            metrics.on_forwarded(Forwarding::Answered);
            return Ok(ForwardedExchange {
                response,
                upload,
                session,
            });
        }
        Err(error) => error,
    };
    let untouched = waiting.lock().take();
    let (forwarding, error) = attempt_error(
        error,
        &node,
        (untouched.is_some(), is_received),
        is_passed_on,
    );
    metrics.on_forwarded(forwarding);
    if matches!(error, AttemptError::NotSent(_)) {
        content.prepared = untouched.filter(|_| is_received).map(|body| Prepared {
            body,
            upload,
            informational,
        });
    }
    Err(error)
}

/// What a failed exchange with another node means for its request, and how it is counted. A request of which the node has
/// nothing but the head, or which it did not accept, was not sent: what a tunnel client may have got is no complete request.
fn attempt_error(
    error: ExchangeError<Problem>,
    node: &NodeName,
    (is_untouched, is_received): (bool, bool),
    is_passed_on: bool,
) -> (Forwarding, AttemptError) {
    let is_link_lost = is_of_link(&error);
    let failure = failure(error);
    let is_not_held = failure.problem.reason() == Reason::NotHeld;
    let is_incomplete = is_link_lost && is_untouched;
    if is_incomplete || is_not_held && (is_untouched || !is_received) {
        let forwarding = match is_not_held {
            true => Forwarding::NotHeld,
            false => Forwarding::Lost,
        };
        return (forwarding, AttemptError::NotSent(failure.problem));
    }
    let forwarding = match is_link_lost {
        true => Forwarding::Lost,
        false => Forwarding::Failed,
    };
    let failure = sent(failure, node, is_link_lost, is_passed_on);
    (forwarding, AttemptError::Sent(failure))
}

/// The failure of a request that was sent to another node. [`HELD`] does not count as a response: if only that came
/// before the link was lost, nothing was received.
fn sent(failure: Failure, node: &NodeName, is_link_lost: bool, is_passed_on: bool) -> Failure {
    let detail = "the link to the server node that holds the runtime was lost";
    let problem = match is_link_lost {
        true => Problem::new(Hop::Server, Reason::PeerLost, detail),
        false => failure.problem.through(node.as_str()),
    };
    Failure {
        problem,
        is_response_missing: !is_passed_on && (is_link_lost || failure.is_response_missing),
    }
}

/// Whether the link has ended, rather than that the other node has named a failure.
fn is_of_link(error: &ExchangeError<Problem>) -> bool {
    matches!(error, ExchangeError::Failed { close: Some(_), .. })
}

type WaitingBody = Arc<Mutex<Option<UploadBody>>>;

impl GatedBody {
    /// A body behind a gate, or one that needs none. Also returns where it waits, and what opens the gate.
    fn new(body: UploadBody, is_gated: bool) -> (Self, WaitingBody, Option<oneshot::Sender<()>>) {
        let is_empty = body.is_end_stream();
        let waiting = WaitingBody::default();
        if !is_gated {
            let body = Self {
                gate: None,
                waiting: waiting.clone(),
                body: Some(body),
                is_empty,
            };
            return (body, waiting, None);
        }
        let (open, gate) = oneshot::channel();
        *waiting.lock() = Some(body);
        let body = Self {
            gate: Some(gate),
            waiting: waiting.clone(),
            body: None,
            is_empty,
        };
        (body, waiting, Some(open))
    }
}

impl Body for GatedBody {
    type Data = Bytes;
    type Error = Problem;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Problem>>> {
        let this = &mut *self;
        if let Some(gate) = &mut this.gate {
            if ready!(Pin::new(gate).poll(cx)).is_err() {
                // The answer came without a need for the content; the end of the exchange ends this, too.
                return Poll::Pending;
            }
            this.gate = None;
            this.body = this.waiting.lock().take();
        }
        match &mut this.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Some(body) => body.is_end_stream(),
            None => self.is_empty,
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(SizeHint::default, Body::size_hint)
    }
}
