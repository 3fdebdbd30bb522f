//! One request: checked, routed, carried, answered.
//!
//! Everything that happens between hyper's call of the service and the answer that it gets stands
//! here in order. How the bytes of the connection come and go is [`super::connection`]'s business.

use std::{convert::Infallible, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tunnel_ops::telemetry::TraceParent;
use tunnel_proto::{
    exchange::{ExchangeError, RecvBody, exchange},
    problem::{Hop, Problem, Reason},
    session::{OpenError, Session},
};

use super::{
    answer::{self, AnswerBody},
    body::{Continue, RequestBody, RequestBodyError, UpgradeSender},
    check::{CheckedRequest, check},
    connection::Connection,
    http1::InFlight,
    observe::{Observation, Subject},
    outgoing::{X_REQUEST_ID, outgoing},
};
use crate::tunnel::Tunnel;

/// An upgrade that was granted: what joins the platform client's bytes to the exchange's.
pub(super) struct Granted {
    /// Takes what the platform client sends.
    pub(super) upload: UpgradeSender,
    /// What the runtime sends.
    pub(super) download: RecvBody,
    /// Ends with the upgraded connection.
    pub(super) observation: Observation,
}

/// Serves one request of a connection.
pub(super) async fn serve(
    connection: Arc<Connection>,
    mut request: Request<Incoming>,
    in_flight: Option<InFlight>,
) -> Result<Response<AnswerBody>, Infallible> {
    let mut observation = Observation::new(connection.node.metrics.clone());
    let method = request.method().clone();
    let on_upgrade = connection
        .is_http2()
        .then(|| hyper::upgrade::on(&mut request));
    let (parts, incoming) = request.into_parts();
    // Kept for CORS only, so only when a page asked.
    let asked = parts
        .headers
        .contains_key(header::ORIGIN)
        .then(|| parts.headers.clone());
    let is_grpc = answer::is_grpc(&parts.headers);
    let answered = match check(parts) {
        Ok(checked) => carry(&connection, checked, incoming, &mut observation).await,
        Err(problem) => Err(problem),
    };
    let mut answer = match answered {
        Ok(Answered::Response(response)) => response,
        Ok(Answered::Upgrade(response, upload, download)) => {
            let granted = Granted {
                upload,
                download,
                observation,
            };
            connection.upgrade(granted, on_upgrade);
            return Ok(response.map(|()| AnswerBody::own(Bytes::new()).watched(None, in_flight)));
        }
        Err(problem) => {
            observation.on_problem(&problem);
            let mut answer = if is_grpc {
                answer::grpc_problem(&problem)
            } else {
                answer::problem(&problem, !connection.is_http2())
            };
            if let Some(asked) = &asked {
                connection.node.cors.apply(&method, asked, &mut answer);
            }
            answer
        }
    };
    observation.on_status(answer.status());
    if let Some(id) = observation.request_id() {
        answer.headers_mut().entry(X_REQUEST_ID).or_insert(id);
    }
    Ok(answer.map(|body| body.watched(Some(observation), in_flight)))
}

/// What an exchange came to.
enum Answered {
    Response(Response<AnswerBody>),
    /// The upgrade was granted; the response has no body.
    Upgrade(Response<()>, UpgradeSender, RecvBody),
}

async fn carry(
    connection: &Arc<Connection>,
    checked: CheckedRequest,
    incoming: Incoming,
    observation: &mut Observation,
) -> Result<Answered, Problem> {
    if checked.max_forwards == Some(0) {
        return Ok(Answered::Response(last_hop()));
    }
    if checked.upgrade.is_none() {
        connection.not_upgraded();
    }
    let node = &connection.node;
    let (request, id) = outgoing(&checked, &connection.origin, &node.via, ())?;
    observation.identify(id.clone());
    if node.access_log {
        observation.log(subject(connection, &checked, id));
    }
    let (tunnel, session) = node.router.session(checked.host()).await?;
    observation.on_routed(&tunnel);
    let (body, upload, proceed) = request_body(connection, &checked, incoming, &tunnel);
    let received = send(
        connection,
        &checked,
        &session,
        request.map(|()| body),
        proceed,
    )
    .await?;
    match upload {
        Some(upload) if received.status().is_success() => Ok(upgraded(&checked, received, upload)),
        _ => {
            connection.not_upgraded();
            answer::response(received, &checked.method).map(Answered::Response)
        }
    }
}

/// The body to send, and what opens it when it has to wait.
fn request_body(
    connection: &Connection,
    checked: &CheckedRequest,
    incoming: Incoming,
    tunnel: &Tunnel,
) -> (RequestBody, Option<UpgradeSender>, Option<Continue>) {
    let bytes = tunnel.metrics.bytes_in.clone();
    if checked.upgrade.is_some() {
        let (body, upload) = RequestBody::upgrade(bytes);
        return (body, Some(upload), None);
    }
    // Over HTTP/1 the connection's guard keeps the time.
    let idle = connection
        .is_http2()
        .then_some(connection.node.config.body_idle_timeout);
    let body = RequestBody::received(incoming, idle, bytes);
    if checked.expects_continue {
        let (body, proceed) = body.expecting(connection.node.config.expect_wait);
        return (body, None, Some(proceed));
    }
    (body, None, None)
}

async fn send(
    connection: &Connection,
    checked: &CheckedRequest,
    session: &Session,
    request: Request<RequestBody>,
    proceed: Option<Continue>,
) -> Result<Response<RecvBody>, Problem> {
    let takes_informational = checked.version == Version::HTTP_11;
    let mut proceed = proceed;
    let on_informational = |status: StatusCode, headers: HeaderMap| {
        if status == StatusCode::CONTINUE {
            // hyper says 100 by itself as soon as the body is read.
            if let Some(proceed) = proceed.take() {
                let _ = proceed.send(());
            }
        } else if takes_informational {
            connection.informational(status, &headers);
        }
    };
    exchange(session, request, on_informational)
        .await
        .map_err(|error| match error {
            ExchangeError::NotOpened(OpenError::TooMany) => {
                Problem::new(Hop::Server, Reason::ExchangeLimit, "max-exchanges are open")
                    .retry_after(std::time::Duration::from_secs(1))
            }
            ExchangeError::NotOpened(OpenError::Closed) => Problem::new(
                Hop::Server,
                Reason::SessionLost,
                "the session ended before the exchange",
            ),
            ExchangeError::RequestBody(error) => request_body_problem(connection, &error),
            ExchangeError::Failed { problem, .. } => problem,
        })
}

fn request_body_problem(connection: &Connection, error: &RequestBodyError) -> Problem {
    if let Some(violation) = connection.body_violation() {
        return Problem::new(Hop::Server, Reason::RequestMalformed, violation.reason());
    }
    match error {
        RequestBodyError::Idle => Problem::new(
            Hop::Server,
            Reason::RequestTimeout,
            "the body stopped arriving",
        ),
        RequestBodyError::Received(_) | RequestBodyError::Upgraded(_) => Problem::new(
            Hop::Server,
            Reason::RequestIncomplete,
            "the body did not arrive whole",
        ),
    }
}

/// The answer to a granted upgrade, in the form of the platform client's protocol.
fn upgraded(
    checked: &CheckedRequest,
    received: Response<RecvBody>,
    upload: UpgradeSender,
) -> Answered {
    let (parts, download) = received.into_parts();
    let mut response = Response::new(());
    *response.headers_mut() = answer::end_to_end(parts.headers);
    if checked.version == Version::HTTP_11 {
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    } else {
        // RFC 8441 section 5: there is no key to accept.
        response.headers_mut().remove(header::SEC_WEBSOCKET_ACCEPT);
    }
    Answered::Upgrade(response, upload, download)
}

/// RFC 9110 section 7.6.2: with no forwards left, this server is the one that is asked.
fn last_hop() -> Response<AnswerBody> {
    let mut answer = Response::new(AnswerBody::own(Bytes::new()));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

fn subject(connection: &Connection, checked: &CheckedRequest, request_id: HeaderValue) -> Subject {
    let trace = checked.headers.get("traceparent");
    Subject {
        // The method that was asked for, not the one that an upgrade has inside.
        method: match checked.upgrade {
            Some(_) if checked.version == Version::HTTP_11 => Method::GET,
            _ => checked.method.clone(),
        },
        host: checked.host().into(),
        path: checked.path.path().into(),
        request_id,
        trace: trace.and_then(|value| TraceParent::parse(value.as_bytes())),
        peer: connection.origin.address,
    }
}

/// A head as bytes of HTTP/1.1, up to where the empty line belongs. For the few heads that hyper
/// does not write: informational ones, and refusals of what it has never seen.
pub(super) fn http1_head(status: StatusCode, headers: &HeaderMap) -> BytesMut {
    let mut head = BytesMut::with_capacity(256);
    head.put_slice(b"HTTP/1.1 ");
    head.put_slice(status.as_str().as_bytes());
    head.put_u8(b' ');
    head.put_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    head.put_slice(b"\r\n");
    for (name, value) in headers {
        if !tunnel_proto::fields::is_connection_specific(name) && *name != header::CONTENT_LENGTH {
            head.put_slice(name.as_str().as_bytes());
            head.put_slice(b": ");
            head.put_slice(value.as_bytes());
            head.put_slice(b"\r\n");
        }
    }
    head
}

/// The upgrade that a connection has granted, until it is taken over.
pub(super) type GrantedSlot = Mutex<Option<Granted>>;
