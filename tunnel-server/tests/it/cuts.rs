//! A message that is cut at any byte, by any cause, never looks whole to whoever gets it: uploads over
//! HTTP/1.1 and HTTP/2 to the wire, and answers from the wire over HTTP/1.0, HTTP/1.1 and HTTP/2.

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;
use testkit::http2::Frame;
use testkit::tunnel::{
    body::{BodyEnd, Failure, data, endings, fed, full, internal},
    client::FakeClient,
};
use testkit::{
    deadline::soon,
    http1::{End, RawConnection},
};
use tokio::{io::AsyncWriteExt, sync::mpsc, task::JoinSet};

use crate::{
    frames,
    http2_client::{self, Http2},
    rig::{PROD, PROD_HOST, Rig, connect},
};

/// The bytes of whole uploads, each with what has to come before it can be cut, and is part of no upload.
fn uploads() -> Vec<(&'static str, Vec<u8>)> {
    let head = format!("POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\n");
    let chunked =
        format!("{head}transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
    let trailers = format!(
        "{head}transfer-encoding: chunked\r\ntrailer: x\r\n\r\n3\r\nabc\r\n0\r\nx: 1\r\n\r\n"
    );
    let length = format!("{head}content-length: 7\r\n\r\nabcdefg");
    vec![
        ("chunked", chunked.into()),
        ("trailers", trailers.into()),
        ("length", length.into()),
        (
            "http2",
            http2_upload(&[], &[(Frame::DATA, Frame::END_STREAM, b"efg")]),
        ),
        (
            "http2 length",
            http2_upload(
                &[("content-length", "7")],
                &[(Frame::DATA, Frame::END_STREAM, b"efg")],
            ),
        ),
        (
            "http2 trailers",
            http2_upload(
                &[],
                &[(
                    Frame::HEADERS,
                    Frame::END_STREAM | Frame::END_HEADERS,
                    &frames::block(&[("x", "1")]),
                )],
            ),
        ),
    ]
}

fn http2_upload(fields: &[(&str, &str)], last: &[(u8, u8, &[u8])]) -> Vec<u8> {
    let mut head = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", PROD_HOST),
    ];
    head.extend(fields);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(Frame::new(Frame::SETTINGS, 0, 0, &[]).bytes());
    bytes.extend(Frame::new(Frame::HEADERS, Frame::END_HEADERS, 1, &frames::block(&head)).bytes());
    bytes.extend(Frame::new(Frame::DATA, 0, 1, b"abcd").bytes());
    for (kind, flags, payload) in last {
        bytes.extend(Frame::new(*kind, *flags, 1, payload).bytes());
    }
    bytes
}

/// A client that says of each request whether it came whole, and answers it.
async fn reading(rig: &Rig) -> (FakeClient, mpsc::Receiver<BodyEnd>) {
    let (endings, ends) = endings();
    let client = FakeClient::new(rig, PROD, move |request| {
        let mut ending = endings.next();
        async move {
            ending.on_read(&request.into_body().collect().await);
            Ok(Response::new(full("read")))
        }
    })
    .await;
    (client, ends)
}

/// Ends of the exchanges so far; there are no more open.
async fn seen(client: &FakeClient, ends: &mut mpsc::Receiver<BodyEnd>) -> Vec<BodyEnd> {
    client.rests().await;
    std::iter::from_fn(|| ends.try_recv().ok()).collect()
}

#[tokio::test]
async fn an_upload_that_is_cut_at_any_byte_never_arrives_whole() {
    let rig = Rig::start().await;
    let (client, mut ends) = reading(&rig).await;
    for (name, bytes) in uploads() {
        let mut cuts = JoinSet::new();
        for cut in 0..bytes.len() {
            for is_reset in [false, true] {
                let part = bytes[..cut].to_vec();
                let mut socket = connect(rig.addresses.public).await;
                cuts.spawn(async move {
                    if is_reset {
                        let _ = socket.set_zero_linger();
                    }
                    let _ = socket.write_all(&part).await;
                    if !is_reset {
                        // Waits until the server has seen it, too.
                        let mut raw = RawConnection::over(socket);
                        raw.finish().await;
                        raw.rest().await;
                    }
                });
            }
        }
        cuts.join_all().await;
        // One that is whole is seen, behind those that were cut.
        let mut raw = RawConnection::over(connect(rig.addresses.public).await);
        raw.send(&bytes).await;
        while soon("a whole upload", ends.recv()).await != Some(BodyEnd::Whole) {}
        let answered = soon("an answer", raw.try_bytes(1)).await;
        assert!(answered.is_ok(), "{name}");
        let seen = seen(&client, &mut ends).await;
        assert!(!seen.contains(&BodyEnd::Whole), "{name}");
    }
}

#[tokio::test]
async fn an_upload_whose_stream_is_reset_or_left_never_arrives_whole() {
    const TIMES: usize = 25;
    let rig = Rig::start().await;
    let (client, mut ends) = reading(&rig).await;
    let begun = http2_upload(&[], &[]);
    let with_length = http2_upload(&[("content-length", "7")], &[]);
    for begun in [begun, with_length] {
        for code in [0_u32, 2, 8] {
            let reset = Frame::new(Frame::RST_STREAM, 0, 1, &code.to_be_bytes()).bytes();
            let mut goaway = 0_u32.to_be_bytes().to_vec();
            goaway.extend(code.to_be_bytes());
            let goaway = Frame::new(Frame::GOAWAY, 0, 0, &goaway).bytes();
            for last in [reset, goaway] {
                for _ in 0..TIMES {
                    let mut raw = RawConnection::over(connect(rig.addresses.public).await);
                    raw.send(&begun).await;
                    let count = client.seen().len();
                    if count == 0 {
                        client.request(1).await;
                    }
                    raw.send(&last).await;
                    raw.finish().await;
                    raw.rest().await;
                }
                let seen = seen(&client, &mut ends).await;
                assert!(!seen.contains(&BodyEnd::Whole), "{code} {last:?}");
            }
        }
    }
}

/// Causes for which an answer is cut, on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The client says that it failed.
    Problem,
    /// Its content ends before the length that it has declared.
    Short,
    /// The session is lost.
    Lost,
}

/// Who gets an answer, and whether it came whole.
async fn got(rig: &Rig, reader: &str, path: &str) -> bool {
    if reader == "http2" {
        let mut http2 = Http2::new(rig).await;
        return match http2.ask(http2_client::get(path)).await {
            Ok(response) => {
                let is_ok = response.status() == 200;
                http2_client::read(response.into_body()).await.is_ok() && is_ok
            }
            Err(_) => false,
        };
    }
    let mut raw = rig.raw().await;
    let request = format!("GET {path} {reader}\r\nhost: {PROD_HOST}\r\n\r\n");
    let answer = raw.ask(request).await;
    answer.head.status() == 200 && answer.content.end == End::Clean
}

#[tokio::test]
async fn an_answer_that_is_cut_anywhere_never_looks_whole() {
    let rig = Rig::start().await;
    for cause in [Cause::Problem, Cause::Short, Cause::Lost] {
        for has_length in [false, true] {
            if cause == Cause::Short && !has_length {
                continue;
            }
            for pieces in 0..4_usize {
                for reader in ["HTTP/1.0", "HTTP/1.1", "http2"] {
                    let (cut, mut cuts) = mpsc::channel(1);
                    let client = FakeClient::new(&rig, PROD, move |_| {
                        let cut = cut.clone();
                        async move {
                            let (feed, body) = fed();
                            for _ in 0..pieces {
                                feed.send(data(Bytes::from_static(b"ab"))).await.unwrap();
                            }
                            let _ = cut.send(feed).await;
                            let mut response = Response::builder();
                            if has_length {
                                response = response.header("content-length", "8");
                            }
                            Ok(response.body(body).unwrap())
                        }
                    })
                    .await;
                    let cutting = async {
                        let feed = soon("a request", cuts.recv()).await.unwrap();
                        match cause {
                            Cause::Problem => {
                                feed.send(Err(Failure(internal()))).await.unwrap();
                            }
                            Cause::Short => drop(feed),
                            Cause::Lost => {
                                client.die();
                                return;
                            }
                        }
                        std::future::pending().await
                    };
                    let is_whole = tokio::select! {
                        is_whole = got(&rig, reader, "/") => is_whole,
                        () = async { cutting.await; std::future::pending().await } => unreachable!(),
                    };
                    assert!(
                        !is_whole,
                        "{cause:?} after {pieces} to {reader}, {has_length}"
                    );
                }
            }
        }
    }
}
