//! The WebSocket of the sample: it echoes every text and binary message.

use futures_util::{SinkExt, StreamExt};
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::{
    body::Incoming,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc::Sender;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};

use super::{Body, text, whole};

/// Passes the upgrade from the service to the connection's task, which echoes on it.
pub(super) type Upgrades = Sender<OnUpgrade>;

/// The longest message that is echoed: what a person would paste, with room to spare.
const MESSAGE_BYTES: usize = 1024 * 1024;

/// Accepts the upgrade, or responds with the reason why it cannot.
pub(super) fn accept(mut request: Request<Incoming>, upgrades: Upgrades) -> Response<Body> {
    let Some(accept) = handshake(&request) else {
        return text(
            StatusCode::UPGRADE_REQUIRED,
            "this path is for WebSockets\n",
        );
    };
    if upgrades.try_send(hyper::upgrade::on(&mut request)).is_err() {
        return text(
            StatusCode::SERVICE_UNAVAILABLE,
            "this connection cannot be upgraded\n",
        );
    }
    let mut response = Response::new(whole(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    response
}

fn handshake(request: &Request<Incoming>) -> Option<HeaderValue> {
    let upgrade = request.headers().get(header::UPGRADE)?;
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY)?;
    if !upgrade.as_bytes().eq_ignore_ascii_case(b"websocket") {
        return None;
    }
    HeaderValue::try_from(derive_accept_key(key.as_bytes())).ok()
}

/// Echoes until one side closes the WebSocket.
pub(super) async fn echo(upgrade: OnUpgrade) {
    let ended = match upgrade.await {
        Ok(upgraded) => echo_messages(upgraded).await,
        Err(error) => return tracing::debug!(%error, "an upgrade at the sample upstream failed"),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a WebSocket at the sample upstream ended early");
    }
}

async fn echo_messages(upgraded: Upgraded) -> Result<(), Error> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES))
        .max_frame_size(Some(MESSAGE_BYTES));
    let io = TokioIo::new(upgraded);
    let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    while let Some(message) = socket.next().await {
        let message = message?;
        if matches!(message, Message::Text(_) | Message::Binary(_)) {
            socket.send(message).await?;
        }
    }
    Ok(())
}
