//! One attempt to send a request, through a session of this node or through another node: what is sent, the result,
//! and how it fails.

use std::time::Duration;

use http::{Method, Response, Version};
use tunnel_http::{
    http2::Reply,
    listener_body::{BodyOptions, ListenerBody, ListenerInformational},
    received::ReceivedBody,
    upgraded::UpgradeSender,
};
use tunnel_proto::{
    exchange::{ExchangeError, RecvBody},
    problem::{Hop, Problem, Reason},
    session::{OpenError, Session},
};

use super::{Connection, body::UploadBody, observe::Observation};
use crate::{budget::pace::Paced, metrics::RuntimeMetrics, router::Route};

/// `Retry-After` for a session with the greatest number of exchanges, which end frequently.
const LIMIT_RETRY: Duration = Duration::from_secs(1);

/// The properties of a request that are kept once its outgoing head is made, so that the connection can reuse the memory
/// of the received head.
pub(super) struct RoutedRequest {
    /// `CONNECT` for an upgrade.
    pub(super) method: Method,
    pub(super) version: Version,
    /// `None` over HTTP/1.
    pub(super) reply: Option<Reply>,
    pub(super) is_upgrade: bool,
    /// It has a `Sec-WebSocket-Key`.
    pub(super) has_key: bool,
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
    /// The session or link ended before anything of the response was received; the tunnel client may have had the
    /// request.
    pub(super) is_response_missing: bool,
}

impl RoutedRequest {
    /// Whether a request of this kind may be sent once more (RFC 9110 section 9.2.2). An upgrade is a GET to
    /// its upstream.
    pub(super) fn may_repeat(&self) -> bool {
        self.is_upgrade || self.method.is_idempotent()
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

/// The content of a request, until it is sent.
pub(super) struct Content<'a> {
    /// As it is received; `None` if there is none, or it was prepared.
    pub(super) incoming: &'a mut Option<ReceivedBody>,
    /// Already prepared for another node, which did not take it.
    pub(super) prepared: Option<Prepared>,
}

/// The body to send, and the receivers of an upgraded connection's bytes and of informational heads.
pub(super) struct Prepared {
    pub(super) body: UploadBody,
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
            reply: routed.reply.as_ref(),
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
                body: UploadBody {
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
                body: UploadBody { body, upload: None },
                upload: None,
                informational,
            };
        };
        let shaper = observation.upload_shaper();
        let paced = |content| Paced::new(content, shaper);
        let (body, informational) = ListenerBody::received(incoming, &options, paced);
        let counted = Some(observation.on_upload(counter()));
        Prepared {
            body: UploadBody {
                body,
                upload: counted,
            },
            upload: None,
            informational,
        }
    }
}

pub(super) fn failure(error: ExchangeError<Problem>) -> Failure {
    let (problem, is_response_missing) = match error {
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
        is_response_missing,
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
