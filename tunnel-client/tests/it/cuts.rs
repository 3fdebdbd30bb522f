//! A message that is cut anywhere, by any cause, never looks whole to whoever gets it: answers of
//! HTTP/1.1 and HTTP/2 upstreams to the wire and to `serve`'s platform clients, and uploads the other way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tunnel_ops::task::Owned;

use crate::scripted::{Connection, Scripted};
use crate::serve::Served;
use crate::server::SOON;
use crate::setup::{Setup, get, piece, post_pieces};

/// How a test ends a message of HTTP/2 behind so much of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Trailers,
    /// Less than was declared.
    Short,
    /// Nothing, although a length was declared.
    Bare,
    Reset(Reason),
    Lost,
}

const ENDS: [End; 8] = [
    End::Whole,
    End::Trailers,
    End::Short,
    End::Bare,
    End::Reset(Reason::NO_ERROR),
    End::Reset(Reason::CANCEL),
    End::Reset(Reason::INTERNAL_ERROR),
    End::Lost,
];

impl End {
    fn is_whole(self) -> bool {
        matches!(self, Self::Whole | Self::Trailers)
    }
}

/// An h2c upstream whose every connection answers one request, and ends that answer like this once the
/// first half of its content has been read.
struct Answering {
    url: String,
    half_read: Arc<Notify>,
    _serving: Owned<()>,
}

async fn answering(end: End, has_length: bool) -> Answering {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let half_read = Arc::new(Notify::new());
    let is_half_read = Arc::clone(&half_read);
    let serving = Owned::spawn("upstream", async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let is_half_read = Arc::clone(&is_half_read);
            connections.spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
                let mut head = Response::builder();
                if has_length || matches!(end, End::Short | End::Bare) {
                    head = head.header("content-length", "8");
                }
                let head = head.body(()).unwrap();
                if end == End::Bare {
                    respond.send_response(head, true).unwrap();
                    while connection.accept().await.is_some() {}
                    return;
                }
                let mut stream = respond.send_response(head, false).unwrap();
                stream
                    .send_data(Bytes::from_static(b"half"), false)
                    .unwrap();
                let (went, mut gone) = mpsc::channel::<()>(1);
                let ending = async move {
                    is_half_read.notified().await;
                    match end {
                        End::Whole => stream.send_data(Bytes::from_static(b"half"), true).unwrap(),
                        End::Trailers => {
                            stream
                                .send_data(Bytes::from_static(b"half"), false)
                                .unwrap();
                            stream.send_trailers(HeaderMap::new()).unwrap();
                        }
                        End::Short => stream.send_data(Bytes::new(), true).unwrap(),
                        End::Reset(reason) => stream.send_reset(reason),
                        End::Bare | End::Lost => drop(went),
                    }
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    () = ending => {}
                    _ = gone.recv() => {}
                    _ = connection.accept() => {}
                }
            });
        }
    });
    Answering {
        url,
        half_read,
        _serving: serving,
    }
}

/// Whether an answer through a session is whole.
async fn is_whole_over_wire(upstream: &Answering) -> bool {
    let setup = Setup::new(&upstream.url).await;
    let Ok(response) = setup.session.ask(get("/")).await else {
        return false;
    };
    let mut body = response.into_body();
    while let Some(frame) = timeout(SOON, body.frame()).await.unwrap() {
        if frame.is_err() {
            return false;
        }
        upstream.half_read.notify_one();
    }
    true
}

/// Whether an answer over HTTP/2 is whole to `serve`'s platform client.
async fn is_whole_over_http2(upstream: &Answering) -> bool {
    let served = Served::start(&upstream.url);
    let socket = TcpStream::connect(served.front).await.unwrap();
    let (mut send, connection) = h2::client::handshake(socket).await.unwrap();
    let _driver = Owned::spawn("h2", async move {
        let _ = connection.await;
    });
    let request = Request::get("http://a/").body(()).unwrap();
    let (response, _) = send.send_request(request, true).unwrap();
    let Ok(response) = timeout(SOON, response).await.unwrap() else {
        return false;
    };
    let is_ok = response.status() == 200;
    let mut body = response.into_body();
    while let Some(data) = timeout(SOON, body.data()).await.unwrap() {
        if data.is_err() {
            return false;
        }
        upstream.half_read.notify_one();
    }
    is_ok && body.trailers().await.is_ok()
}

/// Whether an answer over HTTP/1.1 is.
async fn is_whole_over_http1(upstream: &Answering) -> bool {
    let served = Served::start(&upstream.url);
    let mut ingress = served.connect().await;
    ingress
        .send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .await;
    let head = ingress.head().await;
    if !head.starts_with("HTTP/1.1 200") {
        return false;
    }
    let mut text = String::new();
    while !text.ends_with("half") {
        text.push_str(std::str::from_utf8(&ingress.bytes(1).await).unwrap());
    }
    upstream.half_read.notify_one();
    let (rest, error) = ingress.rest().await;
    text.push_str(&rest);
    let is_ended = text.ends_with("\r\n0\r\n\r\n") || text == "halfhalf";
    is_ended && error.is_none()
}

#[tokio::test]
async fn an_answer_over_http2_is_whole_only_when_its_stream_has_ended() {
    for end in ENDS {
        for has_length in [false, true] {
            let what = format!("{end:?}, length {has_length}");
            let upstream = answering(end, has_length).await;
            let is_whole = is_whole_over_wire(&upstream).await;
            assert_eq!(is_whole, end.is_whole(), "wire: {what}");
            let upstream = answering(end, has_length).await;
            let is_whole = is_whole_over_http1(&upstream).await;
            assert_eq!(is_whole, end.is_whole(), "HTTP/1.1: {what}");
            let upstream = answering(end, has_length).await;
            let is_whole = is_whole_over_http2(&upstream).await;
            assert_eq!(is_whole, end.is_whole(), "HTTP/2: {what}");
        }
    }
}

#[tokio::test]
async fn an_answer_over_http1_that_is_cut_at_any_byte_is_never_whole() {
    let chunked =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n4\r\nhalf\r\n0\r\n\r\n";
    let length = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalfhalf";
    for answer in [chunked, length] {
        for is_reset in [false, true] {
            let upstream = Scripted::start(move |mut connection: Connection| async move {
                connection.head().await.unwrap();
                let cut = connection.number.min(answer.len());
                if is_reset {
                    let _ = connection.stream.set_zero_linger();
                }
                connection.send(&answer[..cut]).await;
            })
            .await;
            let setup = Setup::new(&upstream.url()).await;
            for cut in 0..=answer.len() {
                let is_whole = match setup.session.ask(get("/")).await {
                    Ok(response) => {
                        let collected = response.into_body().collect();
                        timeout(SOON, collected).await.unwrap().is_ok()
                    }
                    Err(_) => false,
                };
                let is_all = cut == answer.len();
                assert!(!is_whole || is_all, "{cut} of {answer:?}");
                assert!(is_whole || !is_all || is_reset, "all of {answer:?}");
            }
        }
    }
}

/// An HTTP/1.1 upstream that reads all that comes on a connection, and counts how many requests came
/// whole: by their last chunk, or by 7 bytes behind a head that declares them.
struct Counting {
    upstream: Scripted,
    whole: Arc<AtomicUsize>,
    ends: mpsc::Receiver<()>,
    /// What came last on any connection so far.
    latest: watch::Receiver<String>,
}

async fn counting() -> Counting {
    let whole = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&whole);
    let (seen, ends) = mpsc::channel(1024);
    let (came, latest) = watch::channel(String::new());
    let upstream = Scripted::start(move |mut connection: Connection| {
        let (counted, seen, came) = (Arc::clone(&counted), seen.clone(), came.clone());
        async move {
            let mut text = String::new();
            let mut bytes = [0; 1024];
            while let Ok(read @ 1..) = connection.stream.read(&mut bytes).await {
                text.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
                came.send_replace(text.clone());
            }
            let content = text
                .split_once("\r\n\r\n")
                .map_or("", |(_, content)| content);
            if content.ends_with("0\r\n\r\n")
                || text.contains("content-length") && content.len() >= 7
            {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            let _ = seen.send(()).await;
        }
    })
    .await;
    Counting {
        upstream,
        whole,
        ends,
        latest,
    }
}

#[tokio::test]
async fn an_upload_that_is_cut_on_the_wire_never_reaches_an_upstream_whole() {
    let Counting {
        upstream,
        whole,
        mut ends,
        mut latest,
    } = counting().await;
    for pieces in 0..3 {
        let setup = Setup::new(&upstream.url()).await;
        let (sender, request) = post_pieces();
        for _ in 0..pieces {
            sender.send(piece("abc")).await.unwrap();
        }
        let dialled = upstream.connections();
        let asking = setup.session.ask(request);
        let begun = async {
            upstream.more_connections(dialled).await;
            let has_come = |text: &String| {
                let content = text.split_once("\r\n\r\n");
                content.is_some_and(|(_, content)| content.matches("abc").count() == pieces)
            };
            latest.wait_for(has_come).await.unwrap();
        };
        // Dropped, it resets the stream.
        tokio::select! {
            answered = asking => panic!("{answered:?}"),
            () = begun => {}
        }
        timeout(SOON, ends.recv()).await.unwrap().unwrap();
        assert_eq!(whole.load(Ordering::SeqCst), 0, "after {pieces}");
        drop(sender);
    }
}

#[tokio::test]
async fn an_upload_over_http1_that_is_cut_at_any_byte_never_reaches_an_upstream_whole() {
    let Counting {
        upstream,
        whole,
        mut ends,
        ..
    } = counting().await;
    let served = Served::start(&upstream.url());
    let head = "POST / HTTP/1.1\r\nhost: a\r\n";
    for request in [
        format!("{head}transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"),
        format!("{head}content-length: 7\r\n\r\nabcdefg"),
    ] {
        let mut cuts = JoinSet::new();
        let first = request.find("\r\n\r\n").unwrap() + 4;
        for cut in first..request.len() {
            for is_reset in [false, true] {
                let mut socket = TcpStream::connect(served.front).await.unwrap();
                let part = request[..cut].to_owned();
                cuts.spawn(async move {
                    socket.write_all(part.as_bytes()).await.unwrap();
                    if is_reset {
                        // A reset overtakes what was not read.
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                        socket.set_zero_linger().unwrap();
                    }
                });
            }
        }
        let count = cuts.len();
        cuts.join_all().await;
        for _ in 0..count {
            timeout(SOON, ends.recv()).await.unwrap().unwrap();
        }
        assert_eq!(whole.load(Ordering::SeqCst), 0, "{request:?}");
    }
}

#[tokio::test]
async fn an_upload_over_http2_that_is_cut_never_reaches_an_upstream_whole() {
    const TIMES: usize = 10;
    let Counting {
        upstream,
        whole,
        mut ends,
        ..
    } = counting().await;
    let served = Served::start(&upstream.url());
    for end in ENDS
        .into_iter()
        .filter(|end| matches!(end, End::Reset(_) | End::Lost))
    {
        for has_length in [false, true] {
            for _ in 0..TIMES {
                let socket = TcpStream::connect(served.front).await.unwrap();
                let (mut send, connection) = h2::client::handshake(socket).await.unwrap();
                let driver = Owned::spawn("h2", async move {
                    let _ = connection.await;
                });
                let mut request = Request::post("http://a/");
                if has_length {
                    request = request.header("content-length", "7");
                }
                let dialled = upstream.connections();
                let request = request.body(()).unwrap();
                let (_response, mut stream) = send.send_request(request, false).unwrap();
                stream.send_data(Bytes::from_static(b"abc"), false).unwrap();
                let begun = upstream.more_connections(dialled);
                timeout(SOON, begun).await.unwrap();
                match end {
                    End::Reset(reason) => stream.send_reset(reason),
                    _ => drop(driver),
                }
                timeout(SOON, ends.recv()).await.unwrap().unwrap();
            }
            let seen = whole.load(Ordering::SeqCst);
            assert_eq!(seen, 0, "{end:?}, length {has_length}");
        }
    }
}
