//! Long streams of a load that are HTTP: events, and a WebSocket.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::Request;
use http_body_util::BodyExt;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, protocol::CloseFrame},
};

use super::{End, TIME_LIMIT, Worker, ask, within_time_limit};
use crate::{entry::Entry, platform::empty};

/// The code of a server that goes away (RFC 6455 section 7.4.1).
const GOING_AWAY: u16 = 1001;

/// How long the other side may take to end a connection after its close was answered.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

pub(super) async fn events(worker: &mut Worker, entry: &Entry) -> End {
    let target = format!("/events?every_ms={}", worker.pace.as_millis());
    // As browsers' EventSource: only such readers are given an orderly end, since they come again.
    let request = Request::get(target).header("accept", "text/event-stream");
    let request = request.body(empty()).unwrap();
    let opened = within_time_limit(async {
        let mut connection = ask::Connection::open(entry).await?;
        let response = connection.send(request).await;
        let response = response.map_err(ask::Unanswered::on_new_connection)?;
        Ok((connection, response))
    });
    // The connection goes when the stream has ended, not before.
    let (_connection, response) = match opened.await {
        Ok(opened) => opened,
        Err(what) => return End::Failed(what),
    };
    let status = response.status();
    let mut body = response.into_body();
    if status != 200 {
        let text = body
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        return End::Failed(format!("{status} {text:?}"));
    }
    let mut is_between = true;
    loop {
        let frame = tokio::select! {
            frame = timeout(TIME_LIMIT, body.frame()) => frame,
            () = worker.wait_stopped() => return End::Whole,
        };
        match frame {
            Err(_) => return End::Failed(format!("no event within {TIME_LIMIT:?}")),
            Ok(None) if is_between => return End::ByProtocol,
            Ok(None) => return End::Failed("ended in the middle of an event".to_owned()),
            Ok(Some(Err(error))) => return End::Failed(format!("cut: {error:?}")),
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    is_between = data.ends_with(b"\n\n");
                    worker.tick();
                }
            }
        }
    }
}

pub(super) async fn websocket(worker: &mut Worker, entry: &Entry) -> End {
    let opened = within_time_limit(async {
        let url = entry.websocket_url("/websocket");
        let opened = client_async(url, ask::dial(entry).await?).await;
        opened.map_err(|error| format!("opening: {error:?}"))
    });
    let mut socket = match opened.await {
        Ok((socket, _)) => socket,
        Err(what) => return End::Failed(what),
    };
    let mut pace = interval(worker.pace);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sent = None;
    loop {
        // Read all the time: a close is answered when it comes, not when the next echo is due.
        let message = tokio::select! {
            message = timeout(TIME_LIMIT, socket.next()) => message,
            _ = pace.tick(), if sent.is_none() => {
                let text = worker.text();
                sent = Some(text.clone());
                // That it cannot be sent is seen, with the reason, by the next read.
                drop(socket.send(Message::text(text)).await);
                continue;
            }
            () = worker.wait_stopped() => {
                drop(socket.close(None).await);
                return End::Whole;
            }
        };
        match message {
            Err(_) => return End::Failed(format!("no echo within {TIME_LIMIT:?}")),
            Ok(Some(Ok(Message::Text(text)))) => {
                if sent.take().is_none_or(|sent| sent != text.as_str()) {
                    return End::Failed(format!("another echo came: {text}"));
                }
                worker.tick();
            }
            Ok(Some(Ok(Message::Close(frame)))) => return closed(socket, frame).await,
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(error))) => return End::Failed(format!("cut: {error:?}")),
            Ok(None) => return End::Failed("cut without a close".to_owned()),
        }
    }
}

/// Answers a close, as the library does while it reads on, and says what it was.
async fn closed<S>(mut socket: WebSocketStream<S>, frame: Option<CloseFrame>) -> End
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let rest = timeout(CLOSE_LIMIT, async {
        while let Some(Ok(_)) = socket.next().await {}
    });
    drop(rest.await);
    match frame {
        Some(frame) if u16::from(frame.code) == GOING_AWAY => End::ByProtocol,
        other => End::Failed(format!("closed with {other:?}")),
    }
}
