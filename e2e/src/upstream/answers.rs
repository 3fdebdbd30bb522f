//! The answers of [`super::Upstream`], one for each path.
//!
//! A request comes in, an answer goes out; what must go on after that is handed to
//! [`super::streams`] or [`super::websocket`].

use std::io;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use sha2::{Digest, Sha256};
use tokio_stream::iter;

use super::{
    Body, Echo, Event, Received, Shared, number, received_head,
    response::{json, status},
    streams, target, websocket,
};
use crate::{http1::fields, payload::hex};

/// What a webhook's sender and its receiver share.
const WEBHOOK_KEY: &[u8] = b"a secret of the webhook's two ends";

/// Answers one request.
pub(super) async fn answer(request: Request<Incoming>, shared: &Shared) -> Response<Body> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let path = request.uri().path();
    let path = path.strip_prefix(&*shared.prefix.lock()).unwrap_or(path);
    let path = path.to_owned();
    match path.as_str() {
        "/upload" => upload(request, shared).await,
        "/webhook" => webhook(request, shared).await,
        "/download" => streams::download(&request, &query, shared),
        "/duplex" => Response::new(request.into_body().map_err(io::Error::other).boxed_unsync()),
        "/events" => streams::events(&request, &query, shared),
        "/hold" => streams::hold(&request, shared).await,
        "/cookies" => cookies(),
        "/fields" => many_fields(&query),
        "/trailers" => trailers(),
        "/early" => status(StatusCode::PAYLOAD_TOO_LARGE),
        "/truncate" => streams::truncated(&request, shared),
        "/websocket" => websocket::upgrade(request, &query, shared),
        _ if path.starts_with("/e2e.Echo/") => shared.grpc.answer(request).await,
        _ => match path
            .strip_prefix("/status/")
            .and_then(|code| code.parse().ok())
        {
            Some(code) => status(StatusCode::from_u16(code).unwrap()),
            None => echo(request, shared).await,
        },
    }
}

async fn echo(request: Request<Incoming>, shared: &Shared) -> Response<Body> {
    let head = received_head(&request);
    match receive(request, shared).await {
        Ok(content) => json(&Echo { head, content }),
        Err(_) => status(StatusCode::BAD_REQUEST),
    }
}

async fn upload(request: Request<Incoming>, shared: &Shared) -> Response<Body> {
    match receive(request, shared).await {
        Ok(content) => json(&content),
        Err(_) => status(StatusCode::BAD_REQUEST),
    }
}

async fn webhook(request: Request<Incoming>, shared: &Shared) -> Response<Body> {
    let at = target(&request);
    let signature = request.headers().get("x-signature").cloned();
    let Ok(body) = request.into_body().collect().await else {
        return status(StatusCode::BAD_REQUEST);
    };
    let body = body.to_bytes();
    shared.record.push(Event::Content(Received {
        target: at,
        bytes: body.len() as u64,
        sha256: crate::payload::sha256(&body),
        trailers: Vec::new(),
        complete: true,
    }));
    let good = signature.is_some_and(|value| value.as_bytes() == sign(&body).as_bytes());
    status(if good {
        StatusCode::OK
    } else {
        StatusCode::UNAUTHORIZED
    })
}

/// The signature of a webhook's raw body.
pub fn sign(body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(WEBHOOK_KEY).unwrap();
    mac.update(body);
    format!("sha256={}", hex(&mac.finalize().into_bytes()))
}

/// Reads a content to its end, in constant memory, and records it.
async fn receive(request: Request<Incoming>, shared: &Shared) -> Result<Received, hyper::Error> {
    let mut received = Received {
        target: target(&request),
        bytes: 0,
        sha256: String::new(),
        trailers: Vec::new(),
        complete: false,
    };
    let mut digest = Sha256::new();
    let mut body = request.into_body();
    let result = loop {
        let frame = match body.frame().await {
            None => break Ok(()),
            Some(Err(error)) => break Err(error),
            Some(Ok(frame)) => frame,
        };
        if let Some(data) = frame.data_ref() {
            digest.update(data);
            received.bytes += data.len() as u64;
        } else if let Some(trailers) = frame.trailers_ref() {
            received.trailers = fields(trailers);
        }
    };
    received.complete = result.is_ok();
    received.sha256 = hex(&digest.finalize());
    shared.record.push(Event::Content(received.clone()));
    result.map(|()| received)
}

fn cookies() -> Response<Body> {
    let mut response = status(StatusCode::OK);
    for cookie in [
        "z=1; Path=/",
        "a=2; HttpOnly",
        "z=3; Expires=Wed, 21 Oct 2037 07:28:00 GMT",
    ] {
        response
            .headers_mut()
            .append(header::SET_COOKIE, HeaderValue::from_static(cookie));
    }
    response
}

fn many_fields(query: &str) -> Response<Body> {
    let bytes = usize::try_from(number(query, "bytes").unwrap_or(10)).unwrap();
    let mut response = status(StatusCode::OK);
    for index in 0..number(query, "count").unwrap_or(10) {
        let name = header::HeaderName::try_from(format!("x-field-{index}")).unwrap();
        let value = HeaderValue::try_from("v".repeat(bytes)).unwrap();
        response.headers_mut().append(name, value);
    }
    response
}

fn trailers() -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.append("x-checksum", HeaderValue::from_static("abc"));
    trailers.append("x-checksum", HeaderValue::from_static("def"));
    let frames = [
        Ok(Frame::data(Bytes::from_static(b"a text with "))),
        Ok(Frame::data(Bytes::from_static(b"trailers\n"))),
        Ok(Frame::trailers(trailers)),
    ];
    let mut response = Response::new(StreamBody::new(iter(frames)).boxed_unsync());
    response
        .headers_mut()
        .insert(header::TRAILER, HeaderValue::from_static("x-checksum"));
    response
}
