//! Serves one request at the listener: checks it, has the routes answer it, and converts the response to the platform
//! client's protocol.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, SEC_WEBSOCKET_KEY};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use tunnel_http::answer::ProblemRequest;
use tunnel_http::check::{CheckedRequest, NotForwarded};
use tunnel_http::http1::InFlight;
use tunnel_http::http2::OnUpgrade;
use tunnel_http::listener_body::{BodyOptions, ListenerBody, ListenerInformational};
use tunnel_http::long_streams::{StreamFormat, reconnects};
use tunnel_http::permits::Permit;
use tunnel_http::received::ReceivedBody;
use tunnel_http::{outgoing, upgraded::UpgradeSender};
use tunnel_proto::exchange::Protocol;
use tunnel_proto::fields::X_REQUEST_ID;
use tunnel_proto::problem::{Hop, Problem, Reason};
use tunnel_routing::request::{Informational, RequestBody};
use tunnel_routing::{CHECKER, RoutedBody};

use super::Connection;
use super::answer::{GrantedUpgrade, ResponseBody, RoutedContent, STOPPED, ServedExchange};

/// `Retry-After` of a request that is refused because `--max-exchanges` are open. Short, since of so many
/// exchanges some end soon.
const LIMIT_RETRY: Duration = Duration::from_secs(1);

/// How long a platform client that expects 100 waits for it when the upstream does not answer.
const EXPECT_WAIT: Duration = Duration::from_secs(1);

/// A checked request.
struct Accepted {
    /// The request in the form of those of a session.
    request: Request<RequestBody>,
    informational: ListenerInformational,
    /// The received method; `CONNECT` for an upgrade.
    method: Method,
    /// Takes the platform client's bytes if an upgrade was requested.
    upload: Option<UpgradeSender>,
    permit: Permit,
    request_id: HeaderValue,
    /// Whether the platform client requests an event stream again after its end, see [`reconnects`].
    reconnects: bool,
    /// Whether the request has a `Sec-WebSocket-Key`.
    has_key: bool,
}

/// Serves one request of a connection. The future does not hold the received head, which is used before.
pub(super) fn serve(
    connection: &Arc<Connection>,
    request: Request<ReceivedBody>,
    in_flight: Option<InFlight>,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + use<> {
    let (parts, mut incoming) = request.into_parts();
    let on_upgrade = incoming.on_upgrade();
    let asked = ProblemRequest::new(&parts, connection.is_http2());
    let accepted = accept(connection, &parts, incoming, asked.is_grpc());
    if let Err(NotForwarded::Problem(problem)) = &accepted {
        let exchanges = &connection.gateway.exchanges;
        exchanges.on_refused(Some(&parts), connection.client.address, problem);
    }
    drop(parts);
    let connection = Arc::clone(connection);
    async move {
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(refused) => {
                let mut response = refusal(&connection, &refused, asked);
                response.body_mut().observe(None, in_flight);
                return Ok(response);
            }
        };
        let request_id = accepted.request_id.clone();
        let forwarded = forward_request(&connection, accepted, on_upgrade).await;
        let (mut response, exchange) = forwarded.unwrap_or_else(|problem| {
            let answers = connection.gateway.problem_answers();
            let own = answers.response(&problem, asked, Some(&request_id));
            (ResponseBody::own_response(own), None)
        });
        let headers = response.headers_mut();
        headers.entry(X_REQUEST_ID).or_insert(request_id);
        response.body_mut().observe(exchange, in_flight);
        Ok(response)
    }
}

/// The response to a request that is not forwarded.
fn refusal(
    connection: &Connection,
    refused: &NotForwarded,
    asked: ProblemRequest,
) -> Response<ResponseBody> {
    connection.not_upgraded();
    match refused {
        NotForwarded::LastHop => ResponseBody::last_hop(),
        NotForwarded::Problem(problem) => {
            let answers = connection.gateway.problem_answers();
            ResponseBody::own_response(answers.response(problem, asked, None))
        }
    }
}

/// Checks a request, and converts it to the form of those of a session.
fn accept(
    connection: &Connection,
    parts: &Parts,
    incoming: ReceivedBody,
    is_grpc: bool,
) -> Result<Accepted, NotForwarded> {
    let checked = CHECKER.to_forward(parts)?;
    let front = &connection.gateway;
    let permit = front.exchange_permits.acquire(None).map_err(|_| {
        let detail = "max-exchanges are open";
        Problem::new(Hop::Client, Reason::ExchangeLimit, detail).retry_after(LIMIT_RETRY)
    })?;
    let mut headers = HeaderMap::with_capacity(parts.headers.len() + 8);
    if !checked.authority.is_empty() {
        // The first field, as in the tunnel.
        headers.insert(HOST, field(checked.authority)?);
    }
    let (client, via, sends_via) = (&connection.client, &front.via, front.settings.via);
    // The routes name the trace of each attempt.
    let request_id = outgoing::write_fields(&checked, client, via, sends_via, None, &mut headers)?;
    let reply = incoming.reply();
    let options = BodyOptions {
        hop: Hop::Client,
        guard: connection.guard(),
        reply: reply.as_ref(),
        version: checked.version,
        expect_wait: checked.expects_continue.then_some(EXPECT_WAIT),
        idle: (connection.is_http2() && !is_grpc).then_some(front.settings.body_idle_timeout),
    };
    let (body, upload, informational) = if checked.upgrade.is_some() {
        let (body, upload, informational) = ListenerBody::upgrade(&options);
        (body, Some(upload), informational)
    } else {
        connection.not_upgraded();
        let (body, informational) = ListenerBody::received(incoming, &options, Box::new);
        (body, None, informational)
    };
    let mut request = Request::new(RequestBody::Listener(body));
    *request.method_mut() = checked.method.clone();
    *request.uri_mut() = target(parts, &checked)?.into();
    *request.headers_mut() = headers;
    if let Some(protocol) = checked.upgrade {
        request.extensions_mut().insert::<Protocol>(protocol);
    }
    Ok(Accepted {
        request,
        informational,
        method: checked.method,
        upload,
        permit,
        request_id,
        reconnects: reconnects(&parts.method, &parts.headers),
        has_key: parts.headers.contains_key(SEC_WEBSOCKET_KEY),
    })
}

/// Path and query, byte for byte.
fn target(parts: &Parts, checked: &CheckedRequest<'_>) -> Result<PathAndQuery, Problem> {
    match parts.uri.path_and_query() {
        Some(same) if same.as_str() == checked.path => Ok(same.clone()),
        _ => PathAndQuery::try_from(&*checked.path).map_err(|error| malformed(&error)),
    }
}

fn field(text: &str) -> Result<HeaderValue, Problem> {
    HeaderValue::from_str(text).map_err(|error| malformed(&error))
}

fn malformed(error: &dyn std::error::Error) -> Problem {
    Problem::new(Hop::Client, Reason::RequestMalformed, error.to_string())
}

/// Forwards a request by the routes. Returns the response, and the exchange that ends with it, unless the exchange
/// continues as an upgraded connection.
async fn forward_request(
    connection: &Arc<Connection>,
    accepted: Accepted,
    on_upgrade: Option<OnUpgrade>,
) -> Result<(Response<ResponseBody>, Option<ServedExchange>), Problem> {
    let Accepted {
        request,
        informational,
        method,
        upload,
        permit,
        reconnects,
        has_key,
        ..
    } = accepted;
    let front = &connection.gateway;
    let informational = Informational::Listener(Box::new(Mutex::new(informational)));
    let peer = connection.client.address;
    let answered = front.exchanges.answer_peer(request, informational, peer);
    let answered = answered.await.inspect_err(|_| connection.not_upgraded());
    let (response, observation) = answered?;
    let exchange = ServedExchange {
        observation,
        _permit: permit,
    };
    if let Some(upload) = upload
        && response.status() == StatusCode::OK
    {
        let response = upgrade(connection, response, has_key, upload, exchange, on_upgrade);
        return Ok((response, None));
    }
    connection.not_upgraded();
    let (response, exchange) = forward(connection, response, exchange, &method, reconnects)?;
    Ok((response, Some(exchange)))
}

/// The response to the platform client. If its protocol allows that, its content ends in order when the client stops.
fn forward(
    connection: &Connection,
    response: Response<RoutedBody>,
    mut exchange: ServedExchange,
    method: &Method,
    reconnects: bool,
) -> Result<(Response<ResponseBody>, ServedExchange), Problem> {
    let is_http2 = connection.is_http2();
    let forwarded = ResponseBody::forward(response.map(RoutedContent), method, !is_http2);
    let mut response = forwarded.map_err(|what| {
        let detail = format!("the upstream's answer has {what}");
        let problem = Problem::new(Hop::Client, Reason::ResponseInvalid, detail);
        exchange.observation.on_problem(&problem);
        problem
    })?;
    if let Some(format) = StreamFormat::of_response(response.headers(), is_http2, reconnects) {
        let ending = &connection.gateway.ending;
        response.body_mut().follow(format, STOPPED, ending);
    }
    Ok((response, exchange))
}

/// Grants an upgrade: to an HTTP/1 connection as a whole, of HTTP/2 to the one stream. `has_key`: the request has a
/// `Sec-WebSocket-Key`.
fn upgrade(
    connection: &Arc<Connection>,
    response: Response<RoutedBody>,
    has_key: bool,
    upload: UpgradeSender,
    exchange: ServedExchange,
    on_upgrade: Option<OnUpgrade>,
) -> Response<ResponseBody> {
    let (parts, download) = response.into_parts();
    let granted = GrantedUpgrade {
        upload,
        download: RoutedContent(download),
        carrier: STOPPED,
        observer: exchange,
    };
    let response = ResponseBody::switching_protocols(parts.headers, connection.is_http2(), has_key);
    connection.upgrade(granted, on_upgrade);
    response
}
