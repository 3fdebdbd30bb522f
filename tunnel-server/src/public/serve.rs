//! Serves one request: checks, routes and forwards it, and makes the response.
//!
//! The steps between hyper's call of the service and its response are here in order. [`super::protocol`] handles the bytes
//! of the connection.

use std::{convert::Infallible, future::Future, sync::Arc};

use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header, request::Parts,
};
use http_body::Body;
use tunnel_directory::RuntimeLabel;
use tunnel_http::access_log::{self, LoggedRequest};
use tunnel_http::{
    answer::{ProblemAnswers, ProblemRequest},
    check::NotForwarded,
    http1::InFlight,
    http2::Reply,
    long_streams::{StreamFormat, reconnects},
    received::ReceivedBody,
    upgraded::UpgradeSender,
};
use tunnel_ops::telemetry::tracer::Trace;
use tunnel_proto::fields::X_REQUEST_ID;
use tunnel_proto::{
    exchange::{EncodedHead, RecvBody},
    problem::{Hop, Problem, Reason},
    session::Session,
};

use super::{
    Connection,
    answer::ResponseBody,
    attempt::{ForwardedExchange, RoutedRequest},
    check::{CHECKER, forwarded_head},
    cookies, exchange,
    observe::Observation,
    session_carrier::SessionCarrier,
    upgraded::{ExchangeUpgrade, GrantedUpgrade},
};
use crate::budget::{CountedHead, pace::Paced};

/// What a response of the server itself depends on in its request.
struct Requester {
    /// The method and the [fields](cors_fields) of a request of a page; `None` without `Origin`.
    page: Option<Box<(Method, HeaderMap)>>,
    problem: ProblemRequest,
}

impl Requester {
    fn new(parts: &Parts, is_http2: bool) -> Self {
        let page = || Box::new((parts.method.clone(), cors_fields(&parts.headers)));
        Self {
            page: parts.headers.contains_key(header::ORIGIN).then(page),
            problem: ProblemRequest::new(parts, is_http2),
        }
    }
}

/// Serves one request of a connection.
///
/// Everything that needs the received head is done before a future is returned.
pub(super) fn serve(
    connection: &Arc<Connection>,
    request: Request<ReceivedBody>,
    in_flight: Option<InFlight>,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + use<> {
    let mut observation = Observation::new(connection.gateway.clone());
    let (parts, mut incoming) = request.into_parts();
    let (reply, on_upgrade) = (incoming.reply(), incoming.on_upgrade());
    let requester = Requester::new(&parts, connection.is_http2());
    let mut id = None;
    let is_grpc = requester.problem.is_grpc();
    let accepted = accept(
        connection,
        &parts,
        reply,
        is_grpc,
        &mut observation,
        &mut id,
    );
    if let Err(NotForwarded::Problem(problem)) = &accepted
        && !observation.is_logged()
    {
        let address = connection.client.address;
        connection
            .gateway
            .log_refusal(address, Some(&parts), problem);
    }
    drop(parts);
    let mut incoming = (!incoming.is_end_stream()).then_some(incoming);
    let connection = connection.clone();
    async move {
        let answered = match &accepted {
            Ok((routed, head, _counted)) => {
                forward(&connection, routed, head, &mut incoming, &mut observation).await
            }
            Err(NotForwarded::LastHop) => Ok(ResponseBody::last_hop().into()),
            Err(NotForwarded::Problem(problem)) => Err(problem.clone()),
        };
        let mut answer = match answered {
            Ok(ForwardedResponse {
                response,
                upgrade: None,
            }) => response,
            Ok(ForwardedResponse {
                mut response,
                upgrade: Some(upgrade),
            }) => {
                let (upload, download, session) = *upgrade;
                observation.on_status(response.status());
                let granted = ExchangeUpgrade {
                    upload,
                    download: Paced::new(download, observation.download_shaper()),
                    carrier: SessionCarrier(session),
                    observer: observation,
                };
                connection.upgrade(GrantedUpgrade::Exchange(granted), on_upgrade);
                response.body_mut().observe(None, in_flight);
                return Ok(response);
            }
            Err(problem) => {
                observation.on_problem(&problem);
                own_answer(&connection, &requester, &problem, id.as_ref())
            }
        };
        observation.on_status(answer.status());
        if let Some(id) = id {
            answer.headers_mut().entry(X_REQUEST_ID).or_insert(id);
        }
        if connection.gateway.lifecycle.is_closing() && !connection.is_http2() {
            // Makes the client use another server for further requests.
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
        }
        answer.body_mut().observe(Some(observation), in_flight);
        Ok(answer)
    }
}

/// Checks a request, and makes and counts its outgoing head. Its id goes into `request_id` as soon as it has one.
fn accept(
    connection: &Connection,
    parts: &Parts,
    reply: Option<Reply>,
    is_grpc: bool,
    observation: &mut Observation,
    request_id: &mut Option<HeaderValue>,
) -> Result<(RoutedRequest, EncodedHead, Option<CountedHead>), NotForwarded> {
    let checked = CHECKER.to_forward(parts)?;
    if checked.upgrade.is_none() {
        connection.not_upgraded();
    }
    let listener = &connection.gateway;
    let trace = listener.tracer.trace(|| access_log::trace(parts));
    let (head, id) = forwarded_head(
        &checked,
        &connection.client,
        &listener.via,
        listener.config().settings.via,
        trace.as_ref(),
    )?;
    let id = request_id.insert(id);
    let route = listener
        .router
        .route(&checked.host, listener.config().settings.offline_wait);
    if listener.access_log.is_on() || trace.is_some() {
        let own = trace.as_ref().map(Trace::context);
        let request = LoggedRequest {
            method: parts.method.as_str(),
            scheme: Some(connection.client.scheme()),
            host: Some(&checked.host),
            path: &checked.path,
            is_upgrade: checked.upgrade.is_some(),
            runtime: route.label().map(RuntimeLabel::as_str),
            request_id: Some(id),
            trace: own.or_else(|| access_log::trace(parts)),
            peer: Some(connection.client.address_text()),
        };
        observation.log(&listener.access_log, trace, &request);
    }
    let mut counted = None;
    if let Some(budget) = route.budget() {
        budget.admit(connection.client.address)?;
        let usage = connection.peer.usage.as_ref();
        let permit = budget.enter(checked.upgrade.is_some(), usage, || head_bytes(parts))?;
        observation.on_permitted(permit);
        counted = budget.hold_head(usage, head.bytes())?;
    }
    let routed = RoutedRequest {
        route,
        method: checked.method,
        version: checked.version,
        reply,
        is_upgrade: checked.upgrade.is_some(),
        has_key: parts.headers.contains_key(header::SEC_WEBSOCKET_KEY),
        expects_continue: checked.expects_continue,
        is_grpc,
        reconnects: reconnects(&parts.method, &parts.headers),
    };
    Ok((routed, head, counted))
}

/// The fields of a request that its response depends on for CORS.
fn cors_fields(request: &HeaderMap) -> HeaderMap {
    let names = [
        header::ORIGIN,
        header::ACCESS_CONTROL_REQUEST_METHOD,
        header::ACCESS_CONTROL_REQUEST_HEADERS,
    ];
    let fields = names.into_iter().filter_map(|name| {
        let value = request.get(&name)?.clone();
        Some((name, value))
    });
    fields.collect()
}

/// The size of a request's head, as HTTP/1.1 writes it.
fn head_bytes(parts: &Parts) -> usize {
    const REQUEST_LINE: usize = "  HTTP/1.1\r\n\r\n".len();
    const FIELD: usize = ": \r\n".len();
    let fields = parts.headers.iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD);
    let target = parts
        .uri
        .path_and_query()
        .map_or(1, |path| path.as_str().len());
    parts.method.as_str().len() + target + REQUEST_LINE + fields.sum::<usize>()
}

/// The response of a forwarded request.
struct ForwardedResponse {
    response: Response<ResponseBody>,
    /// Present if the upgrade was granted; the response has no body then. Boxed, since it
    /// is rare.
    upgrade: Option<Box<(UpgradeSender, RecvBody, Session)>>,
}

impl From<Response<ResponseBody>> for ForwardedResponse {
    fn from(response: Response<ResponseBody>) -> Self {
        Self {
            response,
            upgrade: None,
        }
    }
}

async fn forward(
    connection: &Connection,
    routed: &RoutedRequest,
    head: &EncodedHead,
    incoming: &mut Option<ReceivedBody>,
    observation: &mut Observation,
) -> Result<ForwardedResponse, Problem> {
    let ForwardedExchange {
        response: mut received,
        upload,
        session,
    } = exchange::forward(connection, routed, head, incoming, observation).await?;
    cookies::keep_apart(&connection.gateway, received.headers_mut());
    match upload {
        Some(upload) if received.status() == StatusCode::OK => {
            return Ok(upgraded(routed, received, upload, session));
        }
        Some(_) => {
            connection.not_upgraded();
            observation.on_not_upgraded();
        }
        None => {}
    }
    let is_http2 = connection.is_http2();
    let shaper = observation.download_shaper();
    let received = received.map(|body| Paced::new(body, shaper));
    let mut response = ResponseBody::forward(received, &routed.method, !is_http2)
        .map_err(|what| Problem::new(Hop::Server, Reason::WireMalformed, what))?;
    if let Some(format) = StreamFormat::of_response(response.headers(), is_http2, routed.reconnects)
    {
        let listener = &connection.gateway;
        response
            .body_mut()
            .follow(format, SessionCarrier(session), listener.lifecycle.ending());
    }
    Ok(response.into())
}

fn own_answer(
    connection: &Connection,
    requester: &Requester,
    problem: &Problem,
    request_id: Option<&HeaderValue>,
) -> Response<ResponseBody> {
    let config = connection.gateway.config();
    let answers = ProblemAnswers {
        detail: config.settings.problem_detail,
        page: &config.problem_page,
    };
    let own = answers.response(problem, requester.problem, request_id);
    let mut answer = ResponseBody::own_response(own);
    if let Some((method, headers)) = requester.page.as_deref() {
        connection
            .gateway
            .cors
            .load()
            .apply(method, headers, &mut answer);
    }
    answer
}

/// The response to a granted upgrade, in the form of the platform client's protocol.
fn upgraded(
    routed: &RoutedRequest,
    received: Response<RecvBody>,
    upload: UpgradeSender,
    session: Session,
) -> ForwardedResponse {
    let (parts, download) = received.into_parts();
    let is_http2 = routed.version == Version::HTTP_2;
    ForwardedResponse {
        response: ResponseBody::switching_protocols(parts.headers, is_http2, routed.has_key),
        upgrade: Some(Box::new((upload, download, session))),
    }
}
