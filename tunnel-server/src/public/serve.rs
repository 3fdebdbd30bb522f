//! One request: checked, routed, carried, answered.
//!
//! Everything that happens between hyper's call of the service and the answer that it gets stands
//! here in order. How the bytes of the connection come and go is [`super::protocol`]'s business.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use tunnel_ops::telemetry::TraceParent;
use tunnel_proto::{exchange::RecvBody, problem::Problem};

use super::{
    answer::{self, AnswerBody},
    body::UpgradeSender,
    check::{CheckedRequest, check},
    connection::Connection,
    exchange,
    http1::InFlight,
    observe::{Observation, Subject},
    outgoing::{X_REQUEST_ID, outgoing},
    upgraded::Granted,
};
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
    // Over HTTP/1 there is no gRPC, but there are connections to be closed after a refusal.
    let is_grpc = connection.is_http2() && answer::is_grpc(&parts.headers);
    let answered = match check(parts) {
        Ok(checked) => carry(&connection, checked, incoming, &mut observation).await,
        Err(problem) => Err(problem),
    };
    let mut answer = match answered {
        Ok(Answered::Response(response)) => response,
        Ok(Answered::Upgrade(response, upload, download)) => {
            observation.on_status(response.status());
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
        observation.log(subject(connection, &checked, id.clone()));
    }
    let (received, upload) =
        exchange::carry(connection, &checked, (request, id), incoming, observation).await?;
    match upload {
        Some(upload) if received.status() == StatusCode::OK => {
            Ok(upgraded(&checked, received, upload))
        }
        _ => {
            connection.not_upgraded();
            answer::response(received, &checked.method, !connection.is_http2())
                .map(Answered::Response)
        }
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
