//! Content of requests over HTTP/2, for which an upstream gives little window.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use testkit::http2::Frame as Http2Frame;
use testkit::scripted::{ScriptedConnection, ScriptedUpstream};
use testkit::tunnel::body::{data, fed};
use tokio::sync::Notify;

use super::*;

/// The window of a stream and of a connection before the upstream has given more (RFC 9113 section 6.9.2).
const FIRST_WINDOW: usize = 65_535;

/// Flow control limits content alone: neither the end of a stream nor trailers.
#[tokio::test]
async fn the_end_of_content_needs_no_window() {
    for has_trailers in [false, true] {
        let is_full = Arc::new(Notify::new());
        let on_full = Arc::clone(&is_full);
        let upstream = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
            let on_full = Arc::clone(&on_full);
            async move {
                connection.begin_http2_server().await;
                let mut bytes = 0;
                while let Some(frame) = connection.http2_frame().await {
                    if frame.kind == Http2Frame::DATA {
                        bytes += frame.payload.len();
                    }
                    if bytes == FIRST_WINDOW {
                        on_full.notify_one();
                    }
                    let is_message = [Http2Frame::DATA, Http2Frame::HEADERS].contains(&frame.kind);
                    if is_message && frame.flags & Http2Frame::END_STREAM != 0 {
                        let flags = Http2Frame::END_STREAM | Http2Frame::END_HEADERS;
                        let head = Http2Frame::new(Http2Frame::HEADERS, flags, 1, b"\x88");
                        connection.send(head.bytes()).await;
                    }
                }
            }
        })
        .await;
        let url = format!("h2c://{}", upstream.address());
        let route = Route::to(self::upstream(&url, &options()));
        let (pieces, content) = fed();
        let mut request = Request::post("https://a-b.tunnels.test/");
        if has_trailers {
            request = request.header("trailer", "x-sum");
        }
        let sending = async {
            pieces.send(data(vec![b'x'; FIRST_WINDOW])).await.unwrap();
            is_full.notified().await;
            if has_trailers {
                let sum = HeaderValue::from_static("42");
                let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), sum)]);
                pieces.send(Ok(Frame::trailers(trailers))).await.unwrap();
            }
            drop(pieces);
        };
        let (content, ()) = tokio::join!(route.fetch(request.body(content).unwrap()), sending);
        assert_eq!(content, "", "{has_trailers}");
    }
}
