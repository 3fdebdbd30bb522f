//! Forwards a checked request through a session, and receives the head of its response.
//!
//! A request whose session ends before anything of the response was received is sent once more, if that is safe
//! (RFC 9110 section 9.2.2), so that a change of sessions loses few requests; so is a request that waits on a session that
//! has become silent, as soon as there is another one. A request whose body has begun cannot be sent twice; one of which
//! nothing has been sent can always use another session.

use std::{future::pending, sync::Arc};

use http::{HeaderMap, StatusCode};
use http_body::Body;
use tunnel_directory::RuntimeLabel;
use tunnel_http::{connection::http1_buffer_bytes, received::ReceivedBody};
use tunnel_proto::{
    exchange::{EncodedHead, open},
    problem::Problem,
    session::{OpenError, Session},
};

use super::{
    Connection, STREAM_WINDOW_BYTES,
    attempt::{
        AttemptError, Content, ForwardedExchange, Prepared, RoutedRequest, failure, not_opened,
    },
    cookies, forward,
    observe::Observation,
};
use crate::{
    budget::{sources, waiting},
    peers::Tried,
    registry::Slot,
    router::NextHop,
    tunnel::Tunnel,
};

/// Estimate of the bytes that a request over HTTP/2 without a declared length holds, as all gRPC calls are: a quarter of
/// the window. Whole windows would admit hardly any gRPC calls, of which most send little. A full window holds up to
/// four times the estimate; the connection's window bounds what one connection holds.
const UNDECLARED_BYTES: u64 = STREAM_WINDOW_BYTES as u64 / 4;

/// Most sessions on which opening an exchange is attempted, since each may just have ended.
const OPENINGS: u32 = 3;

/// The attempts that are left for one request.
struct Attempts {
    /// How many more sessions may be tried.
    openings: u32,
    /// The request may be sent once more.
    may_repeat: bool,
}

impl Attempts {
    fn new(may_repeat: bool) -> Self {
        Self {
            openings: OPENINGS,
            may_repeat,
        }
    }

    /// The exchange was not opened. Returns whether another session may be tried.
    fn on_not_opened(&mut self) -> bool {
        self.openings = self.openings.saturating_sub(1);
        self.openings > 0
    }

    /// The exchange was opened and lost. Returns whether it may be sent once more.
    fn on_lost(&mut self) -> bool {
        std::mem::take(&mut self.may_repeat)
    }
}

/// Forwards a request, whose outgoing head is given, to its runtime. `incoming` is its body, if it has one.
///
/// # Errors
/// With the problem of a request that could not be forwarded.
pub(super) async fn forward(
    connection: &Connection,
    routed: &RoutedRequest,
    head: &EncodedHead,
    incoming: &mut Option<ReceivedBody>,
    observation: &mut Observation,
) -> Result<ForwardedExchange, Problem> {
    let mut attempts = Attempts::new(routed.is_upgrade || incoming.is_none());
    let mut content = Content {
        incoming,
        prepared: None,
    };
    // The problem of a lost session, reported if there is no other session.
    let mut lost: Option<Problem> = None;
    let mut waits_until = None;
    let mut tried = Tried::default();
    if let Some(peers) = &connection.gateway.peers {
        peers.catch_up().await;
    }
    loop {
        let weight = || waiting_weight(connection, head, content.incoming.as_ref());
        let usage = connection.peer.usage.as_ref();
        let peers = connection.gateway.peers.as_ref();
        let other = |label: &RuntimeLabel| peers?.choose(label, &tried);
        let next_hop = (routed.route).next_hop(&mut waits_until, usage, weight, other);
        let may_repeat = attempts.may_repeat && routed.may_repeat();
        let attempt = match next_hop.await {
            Ok(NextHop::Local(tunnel, session)) => {
                // The list belongs to the tunnel, which may be another one after waiting.
                if waits_until.is_some()
                    && let Some(budget) = routed.route.budget()
                {
                    budget.admit(connection.client.address)?;
                }
                let local = (tunnel, session, &tried, may_repeat);
                send(connection, routed, head, &mut content, observation, local).await
            }
            Ok(NextHop::Peer(peer)) => {
                let holder = peer.holder.clone();
                let peer = (peer, may_repeat);
                // Boxed, so that requests of this node do not reserve space for it.
                let sent = forward::send(connection, routed, head, &mut content, observation, peer);
                let sent = Box::pin(sent).await;
                match &sent {
                    Err(AttemptError::NotSent(_)) => tried.on_refused(holder),
                    Err(AttemptError::Sent(_)) => tried.on_unheard(holder),
                    Err(AttemptError::Refused(_)) | Ok(_) => {}
                }
                sent
            }
            Err(problem) => return Err(lost.unwrap_or(problem)),
        };
        match attempt {
            Ok(exchange) => return Ok(exchange),
            Err(AttemptError::NotSent(_)) if attempts.on_not_opened() => {}
            Err(AttemptError::NotSent(problem) | AttemptError::Refused(problem)) => {
                return Err(lost.unwrap_or(problem));
            }
            Err(AttemptError::Sent(failure)) => {
                if !attempts.on_lost() || !failure.is_response_missing || !routed.may_repeat() {
                    return Err(failure.problem);
                }
                lost = Some(failure.problem);
            }
        }
    }
}

/// Sends a request through a session of this node.
async fn send(
    connection: &Connection,
    routed: &RoutedRequest,
    head: &EncodedHead,
    content: &mut Content<'_>,
    observation: &mut Observation,
    (tunnel, session, tried, may_repeat): (Arc<Tunnel>, Session, &Tried, bool),
) -> Result<ForwardedExchange, AttemptError> {
    if let Some(networks) = tunnel.allow_from() {
        sources::admit(networks, connection.client.address).map_err(AttemptError::Refused)?;
    }
    let slot = routed.route.slot().map_err(AttemptError::Refused)?;
    let peers = connection.gateway.peers.as_ref();
    let is_elsewhere = || peers.is_some_and(|peers| peers.has_choice(slot.label(), tried));
    let opened = tokio::select! {
        biased;
        opened = open(&session) => opened,
        // The session has become silent while the exchange waits to be opened.
        () = elsewhere(Some(&tunnel), &session, slot, is_elsewhere) => Err(OpenError::Closed),
    };
    let opened = opened.map_err(|error| match error {
        OpenError::Closed => AttemptError::NotSent(not_opened(error)),
        OpenError::TooMany => AttemptError::Refused(not_opened(error)),
    })?;
    let Prepared {
        body,
        upload,
        mut informational,
    } = content.prepare(connection, routed, &tunnel.metrics, observation);
    observation.on_routed(tunnel);
    let on_informational = move |status: StatusCode, mut headers: HeaderMap| {
        cookies::keep_apart(&connection.gateway, &mut headers);
        informational.push(status, &headers);
    };
    let tunnel = observation.tunnel().filter(|_| may_repeat);
    let elsewhere = elsewhere(tunnel, &session, slot, is_elsewhere);
    let response = opened.carry(head, body, on_informational, elsewhere);
    match response.await {
        Ok(response) => Ok(ForwardedExchange {
            response,
            upload,
            session,
        }),
        Err(error) => Err(AttemptError::Sent(failure(error))),
    }
}

/// Resolves when the session is silent and another one can have the request, of this tunnel or of another node; never
/// without a tunnel. Boxed when it is first polled, which few requests see.
async fn elsewhere(
    tunnel: Option<&Tunnel>,
    session: &Session,
    slot: &Slot,
    is_elsewhere: impl Fn() -> bool,
) {
    match tunnel {
        Some(tunnel) => Box::pin(slot.better_than(tunnel, session, is_elsewhere)).await,
        None => pending().await,
    }
}

/// The memory of a request while it waits for its runtime, in bytes: its head, and the part of its body that may be
/// received before it is read.
fn waiting_weight(
    connection: &Connection,
    head: &EncodedHead,
    incoming: Option<&ReceivedBody>,
) -> usize {
    let content = incoming.map_or(0, |body| {
        let length = body.size_hint().upper();
        match connection.is_http2() {
            true => length
                .unwrap_or(UNDECLARED_BYTES)
                .min(STREAM_WINDOW_BYTES.into()),
            false => {
                let most =
                    http1_buffer_bytes(connection.gateway.config().settings.max_head_size) as u64;
                length.map_or(most, |length| length.min(most))
            }
        }
    });
    waiting::weight(head.bytes(), content as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sessions_on_which_nothing_was_opened_count_and_there_is_a_bound() {
        let mut attempts = Attempts::new(true);
        assert!(attempts.on_not_opened() && attempts.on_not_opened());
        // The third one is opened, and lost.
        assert!(attempts.on_lost());
        assert!(!attempts.on_not_opened() && !attempts.on_not_opened());
        assert!(!attempts.on_lost());
        let mut attempts = Attempts::new(false);
        assert!(!attempts.on_lost() && attempts.on_not_opened());
    }
}
