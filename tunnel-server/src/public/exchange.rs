//! Forwards a checked request through a session, and receives the head of its response.
//!
//! A request whose session ends before anything of the response was received is sent once more, if that is safe
//! (RFC 9110 section 9.2.2), so that a change of sessions loses few requests; so is a request that waits on a session that
//! has become suspect, as soon as there is another one. A request whose body has begun cannot be sent twice; one of which
//! nothing has been sent can always use another session.

use std::{future::pending, sync::Arc, time::Duration};

use http::{HeaderMap, Method, Response, StatusCode, Version};
use http_body::Body;
use tunnel_http::{
    connection::http1_buffer_bytes,
    listener_body::{BodyOptions, ListenerBody, ListenerInformational},
    received::ReceivedBody,
    upgraded::UpgradeSender,
};
use tunnel_proto::{
    exchange::{EncodedHead, ExchangeError, RecvBody, open},
    problem::{Hop, Problem, Reason},
    session::{OpenError, Session},
};

use super::{
    Connection, STREAM_WINDOW_BYTES, body::RequestBody, cookies, forward, observe::Observation,
};
use crate::{
    budget::{pace::Paced, sources, waiting},
    metrics::RuntimeMetrics,
    peers::Tried,
    router::{Route, Way},
    runtimes::RuntimeLabel,
    tunnel::Tunnel,
};

/// `Retry-After` for a session with the greatest number of exchanges, which end frequently.
const LIMIT_RETRY: Duration = Duration::from_secs(1);

/// Estimate of the bytes that a request over HTTP/2 without a declared length holds, as all gRPC calls are: a quarter of
/// the window. Whole windows would admit hardly any gRPC calls, of which most send little. A full window holds up to
/// four times the estimate; the connection's window bounds what one connection holds.
const UNDECLARED_BYTES: u64 = STREAM_WINDOW_BYTES as u64 / 4;

/// Most sessions on which opening an exchange is attempted, since each may just have ended.
const OPENINGS: u32 = 3;

/// The properties of a request that are kept once its outgoing head is made, so that the connection can reuse the memory
/// of the received head.
pub(super) struct RoutedRequest {
    /// `CONNECT` for an upgrade.
    pub(super) method: Method,
    pub(super) version: Version,
    pub(super) is_upgrade: bool,
    pub(super) expects_continue: bool,
    /// It is a gRPC call.
    pub(super) is_grpc: bool,
    /// The platform client repeats the request when the event stream in its response ends.
    pub(super) reconnects: bool,
    /// The route to its runtime.
    pub(super) route: Route,
}

/// A request that was forwarded, with the head of its response.
pub(super) struct ForwardedExchange {
    /// The head of the response, with its body.
    pub(super) response: Response<RecvBody>,
    /// Receives the platform client's bytes if an upgrade was requested.
    pub(super) upload: Option<UpgradeSender>,
    /// The session that carries it.
    pub(super) session: Session,
}

/// Why a request was not forwarded.
pub(super) struct Failure {
    pub(super) problem: Problem,
    /// The session has ended before anything of the response was received; the tunnel client may have had the request.
    pub(super) is_unheard: bool,
}

impl RoutedRequest {
    /// Whether a request of this kind may be sent once more (RFC 9110 section 9.2.2). An upgrade is a GET to
    /// its upstream.
    fn may_repeat(&self) -> bool {
        self.is_upgrade || self.method.is_idempotent()
    }
}

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

/// Why one attempt to forward a request has failed.
pub(super) enum AttemptError {
    /// Nothing was sent that any tunnel client has got, so that any request can go another way.
    NotSent(Problem),
    /// Nothing was sent, and another way is no help.
    Refused(Problem),
    /// It was sent, at least in part.
    Sent(Failure),
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
    loop {
        let weight = || waiting_weight(connection, head, content.incoming.as_ref());
        let usage = connection.peer.as_ref();
        let peers = connection.gateway.peers.as_ref();
        let other = |label: &RuntimeLabel| peers?.choose(label, &tried);
        let way = routed.route.way(&mut waits_until, usage, weight, other);
        let attempt = match way.await {
            Ok(Way::Local(tunnel, session)) => {
                // The list belongs to the tunnel, which may be another one after waiting.
                if waits_until.is_some()
                    && let Some(budget) = routed.route.budget()
                {
                    budget.admit(connection.origin.address)?;
                }
                let may_repeat = attempts.may_repeat && routed.may_repeat();
                let way = (tunnel, session, may_repeat);
                send(connection, routed, head, &mut content, observation, way).await
            }
            Ok(Way::Peer(peer)) => {
                tried.add(peer.holder.clone());
                // Boxed, so that requests of this node do not reserve space for it.
                let sent = forward::send(connection, routed, head, &mut content, observation, peer);
                Box::pin(sent).await
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
                if !attempts.on_lost() || !failure.is_unheard || !routed.may_repeat() {
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
    (tunnel, session, may_repeat): (Arc<Tunnel>, Session, bool),
) -> Result<ForwardedExchange, AttemptError> {
    if let Some(networks) = tunnel.allow_from() {
        sources::admit(networks, connection.origin.address).map_err(AttemptError::Refused)?;
    }
    let opened = tokio::select! {
        biased;
        opened = open(&session) => opened,
        // The session has become suspect while the exchange waits to be opened.
        () = elsewhere(Some(&tunnel), &session, true) => Err(OpenError::Closed),
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
    let elsewhere = elsewhere(observation.tunnel(), &session, may_repeat);
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

/// Resolves when the session is suspect and another one can have the request; never if it may not be sent twice.
/// Boxed when it is first polled, which few requests see.
async fn elsewhere(tunnel: Option<&Tunnel>, session: &Session, may_repeat: bool) {
    match tunnel.filter(|_| may_repeat) {
        Some(tunnel) => Box::pin(tunnel.better_than(session)).await,
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

/// The content of a request, until it is sent.
pub(super) struct Content<'a> {
    /// As it is received; `None` if there is none, or it was prepared.
    incoming: &'a mut Option<ReceivedBody>,
    /// What another node did not take.
    pub(super) prepared: Option<Prepared>,
}

/// The body to send, and the receivers of an upgraded connection's bytes and of informational heads.
pub(super) struct Prepared {
    pub(super) body: RequestBody,
    pub(super) upload: Option<UpgradeSender>,
    pub(super) informational: ListenerInformational,
}

impl Content<'_> {
    /// Whether there is content that was received as such.
    pub(super) fn is_received(&self) -> bool {
        self.incoming.is_some() || self.prepared.is_some()
    }

    /// What is to be sent. `runtime` has the counter of its bytes.
    pub(super) fn prepare(
        &mut self,
        connection: &Connection,
        routed: &RoutedRequest,
        runtime: &RuntimeMetrics,
        observation: &mut Observation,
    ) -> Prepared {
        if let Some(prepared) = self.prepared.take() {
            return prepared;
        }
        let config = || connection.gateway.config();
        // Over HTTP/1 the connection's guard has the timer. The response to a gRPC call may begin at any time,
        // or never: budgets and the shares of addresses limit how many are open.
        let has_idle_limit = connection.is_http2() && !routed.is_grpc;
        let options = BodyOptions {
            hop: Hop::Server,
            guard: connection.guard(),
            version: routed.version,
            expect_wait: routed
                .expects_continue
                .then(|| config().settings.expect_wait),
            idle: has_idle_limit.then(|| config().settings.body_idle_timeout),
        };
        let counter = || runtime.traffic().bytes_in.clone();
        if routed.is_upgrade {
            let (body, sender, informational) = ListenerBody::upgrade(&options);
            let counted = Some(observation.on_upload(counter()));
            return Prepared {
                body: RequestBody {
                    body,
                    upload: counted,
                },
                upload: Some(sender),
                informational,
            };
        }
        let Some(incoming) = self.incoming.take() else {
            let (body, informational) = ListenerBody::empty(&options);
            return Prepared {
                body: RequestBody { body, upload: None },
                upload: None,
                informational,
            };
        };
        let shaper = observation.upload_shaper();
        let paced = |content| Paced::new(content, shaper);
        let (body, informational) = ListenerBody::received(incoming, &options, paced);
        let counted = Some(observation.on_upload(counter()));
        Prepared {
            body: RequestBody {
                body,
                upload: counted,
            },
            upload: None,
            informational,
        }
    }
}

pub(super) fn failure(error: ExchangeError<Problem>) -> Failure {
    let (problem, is_unheard) = match error {
        ExchangeError::NotOpened(error) => (not_opened(error), false),
        ExchangeError::RequestBody(problem) => (problem, false),
        ExchangeError::Failed {
            problem, is_heard, ..
        } => {
            let is_lost = problem.reason() == Reason::SessionLost;
            (problem, is_lost && !is_heard)
        }
    };
    Failure {
        problem,
        is_unheard,
    }
}

pub(super) fn not_opened(error: OpenError) -> Problem {
    let problem = |reason, detail| Problem::new(Hop::Server, reason, detail);
    match error {
        OpenError::TooMany => {
            problem(Reason::ExchangeLimit, "max-exchanges are open").retry_after(LIMIT_RETRY)
        }
        OpenError::Closed => problem(Reason::SessionLost, "the session ended before the exchange"),
    }
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
