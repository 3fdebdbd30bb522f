//! Upgraded connections.
//!
//! ```text
//!   tunnel ── content of the request ──▶ task ──▶ upstream
//!          ◀── content of the response ── body ◀──
//! ```
//!
//! An extended `CONNECT` becomes the upgrade that the upstream's protocol has: RFC 6455 with its 101 over HTTP/1.1,
//! RFC 8441 over HTTP/2. An upstream that agrees becomes a 200 whose content is what the upstream sends. The content
//! of the request is not touched before. Each direction ends by itself.

use std::io::{self, Cursor};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tunnel_http::answer::keep_end_to_end;
use tunnel_http::http2::StreamContent;
use tunnel_ops::task::Owned;
use tunnel_proto::exchange::{Protocol, copy_body, read_body};
use tunnel_proto::handshake::{accept_key, has_token, new_key};
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::destination::Destination;
use super::http2::Lease;
use super::outgoing;
use super::outgoing_body::OutgoingBody;
use super::progress::Progress;

/// How long the platform client's direction may stay open after the upstream has ended its own.
const LINGER: Duration = Duration::from_secs(60 * 60);

/// Upgraded connections whose upstream has ended its direction.
#[derive(Default)]
pub(super) struct HalfClosed {
    tasks: Mutex<JoinSet<()>>,
}

/// An upgraded connection: the direction from the upstream, and the task that serves the other.
pub(super) struct UpgradedConnection {
    received: Pin<Box<dyn Body<Data = Bytes, Error = io::Error> + Send>>,
    sending: Owned<()>,
    half_closed: Arc<HalfClosed>,
    /// The HTTP/2 connection on which this is a stream.
    lease: Option<Lease>,
}

/// The `Sec-WebSocket-Key` of an upgrade over HTTP/1.1.
pub(super) enum Key {
    /// That of the platform client, which checks the response to it.
    PlatformClients,
    /// Made here, since a platform client that speaks HTTP/2 sends none.
    Own(String),
}

/// The request for the upgrade over HTTP/1.1.
pub(super) fn http1(
    head: &Parts,
    protocol: Protocol,
    to: &Destination,
) -> Result<(Request<()>, Key), Problem> {
    let mut request = Request::new(());
    *request.uri_mut() = Uri::from(outgoing::target(head));
    let headers = request.headers_mut();
    if !outgoing::names_host(head) {
        headers.insert(HOST, value(to.authority())?);
    }
    outgoing::for_each_field(head, |name, value| {
        headers.append(name.clone(), value.clone());
    });
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(protocol.as_str()));
    headers
        .entry(SEC_WEBSOCKET_VERSION)
        .or_insert(HeaderValue::from_static("13"));
    let key = if headers.contains_key(SEC_WEBSOCKET_KEY) {
        Key::PlatformClients
    } else {
        let key = new_key();
        headers.insert(SEC_WEBSOCKET_KEY, value(&key)?);
        Key::Own(key)
    };
    Ok((request, key))
}

/// The request for the upgrade over HTTP/2.
pub(super) fn http2(
    head: &Parts,
    protocol: Protocol,
    to: &Destination,
    progress: &Arc<Progress>,
) -> Result<Request<()>, Problem> {
    let mut request = outgoing::http2(head, to, &OutgoingBody::empty(Arc::clone(progress)))?;
    *request.method_mut() = Method::CONNECT;
    // The stream takes the place of the key (RFC 8441 section 5), see `http2_agreed`.
    request.headers_mut().remove(SEC_WEBSOCKET_KEY);
    request
        .extensions_mut()
        .insert(h2::ext::Protocol::from_static(protocol.as_str()));
    Ok(request)
}

/// Checks the 101 of an upstream.
pub(super) fn check_switch(
    mut headers: HeaderMap,
    protocol: Protocol,
    key: &Key,
) -> Result<Response<()>, Problem> {
    // Both are required of a server (RFC 6455 section 4.1, RFC 9110 section 7.8).
    if !has_token(&headers, CONNECTION, "upgrade") {
        return Err(failed("the upstream's 101 has no `Connection: upgrade`"));
    }
    if !has_token(&headers, UPGRADE, protocol.as_str()) {
        return Err(failed(
            "the upstream switched to another protocol than the requested one",
        ));
    }
    keep_end_to_end(&mut headers);
    if let Key::Own(key) = key {
        let accept = headers.remove(SEC_WEBSOCKET_ACCEPT);
        if accept.is_none_or(|accept| accept != accept_key(key.as_bytes()).as_str()) {
            return Err(failed(
                "the upstream's sec-websocket-accept does not fit the key",
            ));
        }
    }
    Ok(agreed(headers))
}

/// The response to an upgrade that the upstream has agreed to over HTTP/2, with these fields.
pub(super) fn http2_agreed(mut headers: HeaderMap, head: &Parts) -> Result<Response<()>, Problem> {
    // A platform client over HTTP/1.1 has a key, which the upstream has not received.
    match head.headers.get(SEC_WEBSOCKET_KEY) {
        Some(key) => headers.insert(SEC_WEBSOCKET_ACCEPT, value(&accept_key(key.as_bytes()))?),
        None => headers.remove(SEC_WEBSOCKET_ACCEPT),
    };
    Ok(agreed(headers))
}

/// The response that means an upgrade in the tunnel.
fn agreed(mut headers: HeaderMap) -> Response<()> {
    // Some upstreams send `Content-Length: 0`; here it would limit what the upstream sends.
    headers.remove(CONTENT_LENGTH);
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::OK;
    *response.headers_mut() = headers;
    response
}

fn value(text: &str) -> Result<HeaderValue, Problem> {
    HeaderValue::from_str(text).map_err(|error| failed(error.to_string()))
}

/// Refuses a response without upgrade that the tunnel would take for an agreement.
pub(super) fn check_declined(status: StatusCode) -> Result<(), Problem> {
    if status.is_success() {
        let detail = format!(
            "the upstream answered the request for a WebSocket with {} as an ordinary one: there is no WebSocket at this path",
            status.as_u16()
        );
        return Err(failed(detail));
    }
    Ok(())
}

/// The problem of an upgrade that failed.
pub(super) fn failed(detail: impl Into<std::borrow::Cow<'static, str>>) -> Problem {
    Problem::new(Hop::Client, Reason::UpgradeFailed, detail)
}

impl UpgradedConnection {
    /// Joins an upgraded connection to the content of request and response. `unread` was read past the response.
    pub(super) fn new<IO>(
        io: IO,
        unread: Bytes,
        content: OutgoingBody,
        half_closed: &Arc<HalfClosed>,
    ) -> Self
    where
        IO: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (read, write) = tokio::io::split(io);
        let sending = Owned::spawn("upgrade", async move {
            // An error is one of the connection or of the exchange, which the other direction reports.
            let _ = copy_body(content, write).await;
        });
        Self {
            received: Box::pin(read_body(Cursor::new(unread).chain(read))),
            sending,
            half_closed: Arc::clone(half_closed),
            lease: None,
        }
    }

    /// An upgraded connection that is a stream of HTTP/2, to which `sending` sends.
    pub(super) fn over_http2(
        (received, sending, lease): (StreamContent, Owned<()>, Lease),
        half_closed: &Arc<HalfClosed>,
    ) -> Self {
        Self {
            received: Box::pin(received.map_err(io::Error::other)),
            sending,
            half_closed: Arc::clone(half_closed),
            lease: Some(lease),
        }
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.received.as_mut().poll_frame(cx)
    }

    /// The upstream has ended its direction; the other goes on, for a limited time.
    pub(super) fn end(mut self) {
        if self.sending.is_finished() {
            if let Some(lease) = &mut self.lease {
                lease.on_whole();
            }
            return;
        }
        let mut tasks = self.half_closed.tasks.lock();
        while tasks.try_join_next().is_some() {}
        let (sending, lease) = (self.sending, self.lease);
        tasks.spawn(async move {
            let sent = timeout(LINGER, sending).await;
            if let (Ok(_), Some(mut lease)) = (sent, lease) {
                lease.on_whole();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::connect("/socket?x=1").header("host", "a.test");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn destination() -> Destination {
        Destination::new("http://127.0.0.1:3000".parse().unwrap())
    }

    fn over_http1(fields: &[(&str, &str)]) -> (Request<()>, Key) {
        http1(&head(fields), Protocol::WEBSOCKET, &destination()).unwrap()
    }

    fn switch(fields: &[(&str, &str)], key: &Key) -> Result<Response<()>, Reason> {
        let mut response = Response::builder().header("upgrade", "WebSocket");
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        let headers = response.body(()).unwrap().into_parts().0.headers;
        check_switch(headers, Protocol::WEBSOCKET, key).map_err(|problem| problem.reason())
    }

    #[test]
    fn a_connect_becomes_a_websocket_handshake() {
        let (request, key) = over_http1(&[("sec-websocket-protocol", "chat"), ("te", "trailers")]);
        assert_eq!(request.method(), Method::GET);
        assert_eq!(request.uri(), "/socket?x=1");
        let headers = request.headers();
        for (name, value) in [
            ("host", "a.test"),
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "chat"),
        ] {
            assert_eq!(headers[name], value);
        }
        let Key::Own(key) = key else {
            panic!("there was no other")
        };
        assert_eq!(headers["sec-websocket-key"], key.as_str());
    }

    #[test]
    fn the_platform_clients_key_and_version_go_on() {
        let given = [
            ("sec-websocket-key", "dGhlIHNhbXBsZQ=="),
            ("sec-websocket-version", "8"),
        ];
        let (request, key) = over_http1(&given);
        assert!(matches!(key, Key::PlatformClients));
        for (name, value) in given {
            assert_eq!(request.headers()[name], value);
        }
        let accept = ("sec-websocket-accept", "for the platform client to judge");
        let response = switch(&[accept, ("connection", "upgrade")], &key).unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let names: Vec<_> = response
            .headers()
            .keys()
            .map(|name| name.as_str())
            .collect();
        assert_eq!(names, ["sec-websocket-accept"]);
    }

    #[test]
    fn our_own_key_is_checked_and_its_answer_ends_here() {
        let key = Key::Own("dGhlIHNhbXBsZSBub25jZQ==".to_owned());
        let right = ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let switched = ("connection", "Upgrade");
        let protocol = ("sec-websocket-protocol", "chat");
        let response = switch(&[right, protocol, switched], &key).unwrap();
        assert_eq!(response.headers().len(), 1);
        assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
        let wrong = ("sec-websocket-accept", "x");
        for answer in [&[switched][..], &[switched, wrong], &[right, protocol]] {
            assert_eq!(switch(answer, &key).unwrap_err(), Reason::UpgradeFailed);
        }
    }

    #[test]
    fn another_protocol_is_no_agreement() {
        let headers = HeaderMap::from_iter([
            (UPGRADE, HeaderValue::from_static("h2c")),
            (CONNECTION, HeaderValue::from_static("upgrade")),
        ]);
        let answer = check_switch(headers, Protocol::WEBSOCKET, &Key::PlatformClients);
        assert_eq!(answer.unwrap_err().reason(), Reason::UpgradeFailed);
    }

    #[test]
    fn over_http2_there_is_no_key() {
        let head = head(&[
            ("sec-websocket-key", "x"),
            ("sec-websocket-protocol", "chat"),
        ]);
        let request = http2(
            &head,
            Protocol::WEBSOCKET,
            &destination(),
            &Progress::of_test(),
        )
        .unwrap();
        assert_eq!(request.method(), Method::CONNECT);
        assert_eq!(request.uri(), "http://a.test/socket?x=1");
        let names: Vec<_> = request.headers().keys().map(|name| name.as_str()).collect();
        assert_eq!(names, ["sec-websocket-protocol"]);
    }
}
