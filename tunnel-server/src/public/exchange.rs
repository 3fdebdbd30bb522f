//! A checked request through a session: routed, sent, and the head of its response received.
//!
//! What a session has lost before anything was heard of it is sent once more, as far as that is safe
//! (RFC 9110 section 9.2.2), so that a runtime which changes its session loses little. A body that
//! was begun cannot be sent twice, and is not.

use std::time::Duration;

use http::{HeaderMap, Response, StatusCode, Version};
use hyper::body::Incoming;
use tunnel_proto::{
    exchange::{EncodedHead, ExchangeError, RecvBody, exchange_encoded},
    problem::{Hop, Problem, Reason},
    session::OpenError,
};

use super::{
    body::{RequestBody, RequestBodyError, Unanswered, UpgradeSender},
    connection::Connection,
    observe::Observation,
    serve::Asked,
};
use crate::tunnel::Tunnel;

/// What `Retry-After` says when a session carries as many exchanges as it may: they end all the time.
const LIMIT_RETRY: Duration = Duration::from_secs(1);

/// A response's head, and what takes the platform client's bytes if an upgrade was asked for.
pub(super) type Carried = (Response<RecvBody>, Option<UpgradeSender>);

/// Why there is none.
struct Failure {
    problem: Problem,
    lost: Lost,
}

/// What is known of an exchange whose session has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// The tunnel client had it in its hands, or it failed otherwise.
    No,
    /// Nothing of it has left this server.
    Unsent,
    /// The tunnel client may have had it, but nothing was heard.
    Unheard,
}

impl Failure {
    /// Whether the request may be sent once more (RFC 9110 section 9.2.2).
    fn may_repeat(&self, asked: &Asked) -> bool {
        match self.lost {
            Lost::No => false,
            Lost::Unsent => true,
            // An upgrade is a GET to its upstream.
            Lost::Unheard => asked.is_upgrade || asked.method.is_idempotent(),
        }
    }
}

/// Carries a request, whose outgoing head is given, to its runtime. `incoming` is its body, if it has
/// one.
///
/// # Errors
/// With the answer to a request that could not be carried.
pub(super) async fn carry(
    connection: &Connection,
    asked: &Asked,
    head: &EncodedHead,
    incoming: &mut Option<Incoming>,
    observation: &mut Observation,
) -> Result<Carried, Problem> {
    let mut may_repeat = asked.is_upgrade || incoming.is_none();
    loop {
        let (tunnel, session) = asked.route.session().await?;
        let (body, upload, mut unanswered) =
            request_body(connection, asked, incoming.take(), &tunnel);
        observation.on_routed(tunnel);
        let on_informational = move |status: StatusCode, headers: HeaderMap| {
            if status == StatusCode::CONTINUE {
                // hyper says 100 by itself as soon as the body is read.
                unanswered.proceed();
            } else if asked.version == Version::HTTP_11 {
                connection.informational(status, &headers);
            }
        };
        let received = exchange_encoded(&session, head, body, on_informational).await;
        let failure = match received {
            Ok(response) => return Ok((response, upload)),
            Err(error) => failure(connection, error),
        };
        if !std::mem::take(&mut may_repeat) || !failure.may_repeat(asked) {
            return Err(failure.problem);
        }
    }
}

/// The body to send, and what is to be kept until it is answered.
fn request_body(
    connection: &Connection,
    asked: &Asked,
    incoming: Option<Incoming>,
    tunnel: &Tunnel,
) -> (RequestBody, Option<UpgradeSender>, Unanswered) {
    if asked.is_upgrade {
        let (body, upload) = RequestBody::upgrade(tunnel.metrics.traffic().bytes_in.clone());
        return (body, Some(upload), Unanswered::default());
    }
    let Some(incoming) = incoming else {
        return (RequestBody::empty(), None, Unanswered::default());
    };
    // Over HTTP/1 the connection's guard keeps the time.
    let idle = connection
        .is_http2()
        .then_some(connection.node.config.body_idle_timeout);
    let bytes = tunnel.metrics.traffic().bytes_in.clone();
    let (mut body, mut unanswered) = RequestBody::received(incoming, idle, bytes);
    if asked.expects_continue {
        body.expect(&mut unanswered, connection.node.config.expect_wait);
    }
    (body, None, unanswered)
}

fn failure(connection: &Connection, error: ExchangeError<RequestBodyError>) -> Failure {
    let problem = |reason, detail| Problem::new(Hop::Server, reason, detail);
    let (problem, lost) = match error {
        ExchangeError::NotOpened(OpenError::TooMany) => {
            let full = problem(Reason::ExchangeLimit, "max-exchanges are open");
            (full.retry_after(LIMIT_RETRY), Lost::No)
        }
        ExchangeError::NotOpened(OpenError::Closed) => {
            let detail = "the session ended before the exchange";
            (problem(Reason::SessionLost, detail), Lost::Unsent)
        }
        ExchangeError::RequestBody(error) => (request_body_problem(connection, &error), Lost::No),
        ExchangeError::Failed { problem, is_heard } => {
            let is_unheard = problem.reason() == Reason::SessionLost && !is_heard;
            (problem, if is_unheard { Lost::Unheard } else { Lost::No })
        }
    };
    Failure { problem, lost }
}

fn request_body_problem(connection: &Connection, error: &RequestBodyError) -> Problem {
    let problem = |reason, detail| Problem::new(Hop::Server, reason, detail);
    if let Some(violation) = connection.body_violation() {
        return problem(Reason::RequestMalformed, violation.reason());
    }
    match error {
        RequestBodyError::Idle => problem(Reason::RequestTimeout, "the body stopped arriving"),
        RequestBodyError::Received(_) | RequestBodyError::Upgraded(_) => {
            problem(Reason::RequestIncomplete, "the body did not arrive whole")
        }
    }
}
