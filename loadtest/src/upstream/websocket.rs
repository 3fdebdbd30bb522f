//! A WebSocket that echoes every message, over HTTP/1.1 (RFC 6455) and HTTP/2 (RFC 8441).

use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::{body::Incoming, ext::Protocol, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::server::create_response_with_body,
        protocol::{Role, WebSocketConfig},
    },
};

use crate::upstream::response::{Content, text};

/// Little memory for each of many sockets; a longer message takes more reads.
const READ_BUFFER: usize = 16 * 1024;

/// Agrees to a WebSocket, and echoes in a task of `sockets`; or says why not.
pub(super) fn accept(
    mut request: Request<Incoming>,
    sockets: &mut JoinSet<()>,
) -> Response<Content> {
    let content = || Either::Left(Full::default());
    let response = if request.method() == Method::CONNECT {
        let protocol = request.extensions().get::<Protocol>();
        protocol
            .filter(|protocol| protocol.as_str() == "websocket")
            .map(|_| Response::new(content()))
    } else {
        create_response_with_body(&request, content).ok()
    };
    let Some(response) = response else {
        return text(
            StatusCode::UPGRADE_REQUIRED,
            "this path is for WebSockets\n",
        );
    };
    sockets.spawn_local(echo(hyper::upgrade::on(&mut request)));
    while sockets.try_join_next().is_some() {}
    response
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
