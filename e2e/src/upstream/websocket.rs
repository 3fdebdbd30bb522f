//! The WebSocket of [`super::Upstream`]: echoes each message until it is closed.

use futures_util::{SinkExt, StreamExt};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::derive_accept_key,
        protocol::{CloseFrame, Role},
    },
};

use super::{
    Body, Event, Shared, number,
    response::{status, text_body},
    target,
};

/// Agrees to the upgrade, takes the first subprotocol that is offered, and echoes.
pub(super) fn upgrade(
    mut request: Request<Incoming>,
    query: &str,
    shared: &Shared,
) -> Response<Body> {
    let mut response = Response::new(text_body(String::new()));
    if request.method() != Method::CONNECT {
        let Some(key) = request.headers().get(header::SEC_WEBSOCKET_KEY) else {
            return status(StatusCode::UPGRADE_REQUIRED);
        };
        let accept = derive_accept_key(key.as_bytes());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(
            header::SEC_WEBSOCKET_ACCEPT,
            HeaderValue::try_from(accept).unwrap(),
        );
    }
    let headers = response.headers_mut();
    if let Some(offered) = request.headers().get(header::SEC_WEBSOCKET_PROTOCOL) {
        let first = offered
            .to_str()
            .unwrap()
            .split(',')
            .next()
            .unwrap_or_default()
            .trim();
        headers.insert(
            header::SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_str(first).unwrap(),
        );
    }
    let close = number(query, "close").map(|code| u16::try_from(code).unwrap());
    let (record, at) = (shared.record.clone(), target(&request));
    let upgrade = hyper::upgrade::on(&mut request);
    shared.tasks.lock().spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let io = TokioIo::new(upgraded);
        let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
        if !echo(&mut socket, close).await {
            record.push(Event::HungUp(at));
        }
    });
    response
}

/// Echoes until the end; whether that was an orderly one.
async fn echo(
    socket: &mut WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>,
    close: Option<u16>,
) -> bool {
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Text(_) | Message::Binary(_) => {
                if socket.send(message).await.is_err() {
                    return false;
                }
                if let Some(code) = close {
                    let frame = CloseFrame {
                        code: code.into(),
                        reason: "as you asked".into(),
                    };
                    drop(socket.close(Some(frame)).await);
                }
            }
            Message::Close(_) => {
                // The library has queued the answer: it goes out while the end is awaited.
                while let Some(Ok(_)) = socket.next().await {}
                return true;
            }
            _ => {}
        }
    }
    false
}
