//! A WebSocket that echoes every message, over HTTP/1.1 (RFC 6455) and HTTP/2 (RFC 8441).

use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::{body::Incoming, ext::Protocol, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};

use crate::upstream::answer::{Content, text};

/// Little memory for each of many sockets; a longer message takes more reads.
const READ_BUFFER: usize = 16 * 1024;

/// Agrees to a WebSocket, and echoes in a task of `sockets`; or says why not.
pub(super) fn accept(
    mut request: Request<Incoming>,
    sockets: &mut JoinSet<()>,
) -> Response<Content> {
    let mut response = Response::new(Either::Left(Full::default()));
    if request.method() == Method::CONNECT {
        let protocol = request.extensions().get::<Protocol>();
        if protocol.is_none_or(|protocol| protocol.as_str() != "websocket") {
            return text(StatusCode::UPGRADE_REQUIRED, "this is for WebSockets\n");
        }
    } else {
        let Some(key) = key(&request) else {
            return text(StatusCode::UPGRADE_REQUIRED, "this is for WebSockets\n");
        };
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, key);
    }
    sockets.spawn_local(echo(hyper::upgrade::on(&mut request)));
    while sockets.try_join_next().is_some() {}
    response
}

fn key(request: &Request<Incoming>) -> Option<HeaderValue> {
    let upgrade = request.headers().get(header::UPGRADE)?;
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY)?;
    if !upgrade.as_bytes().eq_ignore_ascii_case(b"websocket") {
        return None;
    }
    HeaderValue::try_from(derive_accept_key(key.as_bytes())).ok()
}

/// Echoes until either side is done. What goes wrong is the peer's to tell.
async fn echo(upgrade: OnUpgrade) {
    let Ok(upgraded) = upgrade.await else { return };
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .max_message_size(None)
        .max_frame_size(None);
    let io = TokioIo::new(upgraded);
    let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    while let Some(Ok(message)) = socket.next().await {
        let is_echoed = matches!(message, Message::Text(_) | Message::Binary(_));
        if is_echoed && socket.send(message).await.is_err() {
            return;
        }
    }
}
