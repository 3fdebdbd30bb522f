//! Answers that are made before the request's content was read.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response, Version};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use proptest::prelude::*;
use testkit::deadline::{at_once, soon};
use testkit::http1::{End, RawConnection};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tunnel_http::listener_body::{BodyOptions, ListenerBody};
use tunnel_http::received::ReceivedBody;
use tunnel_proto::problem::Hop;

use crate::rig::{Content, Rig, ok};

/// How much content may be missing so that the connection is kept.
const KEPT: usize = 256 * 1024;

const NEXT: &str = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";

/// How a request says how long its content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length,
    Chunked,
    Expect,
}

/// What is done with the content before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// It is dropped, as for an unknown host.
    Drops,
    /// Its first piece is read.
    ReadsOne,
    /// It is held until the answer is whole.
    Holds,
}

fn head(framing: Framing, length: usize) -> String {
    let fields = match framing {
        Framing::Length => format!("Content-Length: {length}"),
        Framing::Chunked => "Transfer-Encoding: chunked".to_owned(),
        Framing::Expect => format!("Content-Length: {length}\r\nExpect: 100-continue"),
    };
    format!("POST /post HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n")
}

/// The bytes of content of this length.
fn content(framing: Framing, length: usize) -> Vec<u8> {
    let bytes = vec![b'x'; length];
    match framing {
        Framing::Length | Framing::Expect => bytes,
        Framing::Chunked => {
            let size = format!("{length:x}\r\n");
            [size.as_bytes(), &bytes, b"\r\n0\r\n\r\n"].concat()
        }
    }
}

/// Answers early what is not for `/next`.
async fn rig(reader: Reader) -> Rig {
    Rig::answering(move |request: Request<ReceivedBody>| async move {
        if request.uri().path() == "/next" {
            return ok("next");
        }
        let mut content = request.into_body();
        match reader {
            Reader::Drops => ok("early"),
            Reader::ReadsOne => {
                let _ = content.frame().await;
                ok("early")
            }
            Reader::Holds => Response::new(holding(content)),
        }
    })
    .await
}

/// The content of an answer that keeps a request's until its end.
fn holding(content: ReceivedBody) -> Content {
    let frames = stream::unfold(Some(content), |content| async move {
        let frame = Frame::data(Bytes::from_static(b"early"));
        content.map(|content| {
            drop(content);
            (Ok(frame), None)
        })
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

/// Asserts that the answer comes, and that the connection is used again or was announced to end.
async fn exchange(rig: &Rig, framing: Framing, length: usize, ahead: usize) -> bool {
    let what = format!("{framing:?}, {length} bytes, {ahead} ahead of the answer");
    let mut raw = rig.connect().await;
    let content = content(framing, length);
    let (before, behind) = content.split_at(ahead.min(content.len()));
    raw.send([head(framing, length).as_bytes(), before].concat())
        .await;
    // The rest comes when the client has the answer.
    let answer = raw.response().await;
    assert_eq!(
        (answer.head.status(), &*answer.text()),
        (200, "early"),
        "{what}"
    );
    assert!(answer.informational.is_empty(), "{what}");
    raw.send(behind).await;
    match answer.head.value("connection") {
        Some("close") => {
            assert_eq!(raw.closes().await, End::Clean, "{what}");
            false
        }
        _ => {
            assert_eq!(raw.ask(NEXT).await.text(), "next", "{what}");
            true
        }
    }
}

#[tokio::test]
async fn small_content_is_discarded_and_the_connection_used_again() {
    for reader in [Reader::Drops, Reader::ReadsOne, Reader::Holds] {
        let rig = rig(reader).await;
        for length in [1, 5, 100_000, KEPT] {
            for ahead in [1, length / 2, length] {
                let ahead = ahead.max(usize::from(reader == Reader::ReadsOne));
                let is_kept = exchange(&rig, Framing::Length, length, ahead).await;
                assert!(is_kept, "{reader:?} {length} {ahead}");
            }
        }
    }
    let dropping = rig(Reader::Drops).await;
    assert!(exchange(&dropping, Framing::Length, KEPT, 0).await);
    assert!(!exchange(&dropping, Framing::Length, KEPT + 1, 0).await);
}

#[tokio::test]
async fn a_connection_is_announced_to_end_when_it_is_not_known_what_still_comes() {
    for reader in [Reader::Drops, Reader::Holds] {
        let rig = rig(reader).await;
        for (framing, length) in [
            (Framing::Length, 2 * 1024 * 1024),
            (Framing::Chunked, 100_000),
            (Framing::Expect, 5),
        ] {
            assert!(
                !exchange(&rig, framing, length, 0).await,
                "{reader:?} {framing:?}"
            );
        }
    }
}

#[tokio::test]
async fn large_content_keeps_the_connection_when_little_of_it_is_missing() {
    let rig = Rig::answering(|request: Request<ReceivedBody>| async move {
        let mut content = request.into_body();
        let mut read = 0;
        while read < 3 * KEPT {
            read += content
                .frame()
                .await
                .unwrap()
                .unwrap()
                .into_data()
                .unwrap()
                .len();
        }
        ok("early")
    })
    .await;
    assert!(exchange_whole(&rig, 3 * KEPT + 1000).await);
}

/// Sends content at once with its head, and says whether the connection is used again.
async fn exchange_whole(rig: &Rig, length: usize) -> bool {
    let mut raw = rig.connect().await;
    raw.send(head(Framing::Length, length)).await;
    raw.send(content(Framing::Length, length)).await;
    raw.response().await.head.value("connection") == Some("keep-alive")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_early_answer_leaves_a_connection_that_is_used_again_or_said_to_end(
        reader in prop_oneof![Just(Reader::Drops), Just(Reader::Holds)],
        framing in prop_oneof![Just(Framing::Length), Just(Framing::Chunked), Just(Framing::Expect)],
        length in prop_oneof![1..2_000_usize, 1..2 * KEPT],
        ahead in 0..2 * KEPT,
    ) {
        // A client that expects a 100 sends nothing before it has one or an answer.
        let ahead = if framing == Framing::Expect { 0 } else { ahead };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let rig = rig(reader).await;
            exchange(&rig, framing, length, ahead).await
        });
    }
}

#[tokio::test(start_paused = true)]
async fn small_content_that_does_not_come_ends_the_connection_soon() {
    let rig = rig(Reader::Drops).await;
    let mut raw = rig.connect().await;
    raw.send(head(Framing::Length, 5)).await;
    assert_eq!(at_once(raw.response()).await.text(), "early");
    let began = Instant::now();
    assert_eq!(raw.closes().await, End::Clean);
    assert_eq!(began.elapsed().as_secs(), 2);
}

#[tokio::test]
async fn content_is_discarded_while_a_long_answer_is_written() {
    let (more, frames) = mpsc::channel::<Bytes>(1);
    let frames = std::sync::Mutex::new(Some(frames));
    let rig = Rig::answering(move |request: Request<ReceivedBody>| {
        let frames = frames.lock().unwrap().take();
        async move {
            drop(request);
            let frames = stream::iter(frames)
                .map(|mut frames| stream::poll_fn(move |cx| frames.poll_recv(cx)))
                .flatten()
                .map(|bytes| Ok(Frame::data(bytes)));
            Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)))
        }
    })
    .await;
    let mut raw = rig.connect().await;
    // Much more than the kernel's buffers take.
    let length = 64 * 1024 * 1024;
    raw.send(head(Framing::Length, length)).await;
    let answer = raw.head().await.unwrap();
    assert_eq!(answer.value("connection"), Some("close"));
    raw.send(content(Framing::Length, length)).await;
    more.send(Bytes::from_static(b"late")).await.unwrap();
    drop(more);
    let content = raw.content(answer.response_framing("POST")).await;
    assert_eq!((&*content.bytes, content.end), (&b"late"[..], End::Clean));
    assert_eq!(raw.closes().await, End::Clean);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_on_for_long_still_gets_its_answer() {
    let rig = rig(Reader::Drops).await;
    let (mut reading, mut writing) = rig.connect().await.split();
    writing.send(head(Framing::Chunked, 0)).await;
    // In all longer than a silent peer is waited for.
    for _ in 0..10 {
        assert!(writing.try_send(b"1\r\nx\r\n").await);
        sleep(Duration::from_secs(1)).await;
    }
    writing.finish().await;
    let answer = soon("the answer", reading.response()).await;
    assert_eq!(answer.text(), "early");
    assert_eq!(reading.closes().await, End::Clean);
}

#[tokio::test(start_paused = true)]
async fn content_that_nobody_asked_for_is_awaited_while_the_answer_goes_on() {
    let rig = Rig::answering(|request: Request<ReceivedBody>| async move {
        let options = BodyOptions {
            hop: Hop::Server,
            guard: None,
            reply: None,
            version: Version::HTTP_11,
            expect_wait: Some(Duration::from_secs(3_600)),
            idle: None,
        };
        let (content, informational) =
            ListenerBody::received(request.into_body(), &options, |content| content);
        // The final response of an upstream that has sent no 100.
        drop(informational);
        let frames = stream::unfold((content, 0), |(mut content, count)| async move {
            let sent = match count {
                0 | 1 => tokio::select! {
                    frame = content.frame() => panic!("{frame:?}"),
                    () = sleep(Duration::from_secs(40)) => "tick",
                },
                2 => content.frame().await.unwrap().unwrap_err().reason().name(),
                _ => return None,
            };
            Some((Ok(Frame::data(Bytes::from(sent))), (content, count + 1)))
        });
        Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)))
    })
    .await;
    let mut raw = rig.connect().await;
    raw.send(head(Framing::Expect, 5)).await;
    let answer = at_once(raw.head()).await.unwrap();
    assert_eq!(
        (answer.status(), answer.value("connection")),
        (200, Some("close"))
    );
    let began = Instant::now();
    let ticks = [&b"4\r\ntick\r\n"[..]; 2].concat();
    let given_up = b"12\r\nrequest_incomplete\r\n0\r\n\r\n";
    let all = [&ticks[..], given_up].concat();
    // Not by the connection's own reader, each wait of which is shorter.
    let (mut stream, mut content) = raw.into_parts();
    while content.len() < all.len() {
        stream.read_buf(&mut content).await.unwrap();
    }
    assert_eq!(
        content.escape_ascii().to_string(),
        all.escape_ascii().to_string()
    );
    assert_eq!(began.elapsed().as_secs(), 40 + 40 + 60);
}

#[tokio::test]
async fn a_pool_in_front_loses_no_request_of_others() {
    let rig = rig(Reader::Drops).await;
    let mut pool: Vec<RawConnection> = Vec::new();
    let mut lost = 0;
    for turn in 0..400 {
        let mut raw = match pool.pop() {
            Some(kept) => kept,
            None => rig.connect().await,
        };
        // Every other one is of a user who posts to an unknown host.
        let request = match turn % 2 {
            0 => [
                head(Framing::Length, 100_000).into_bytes(),
                content(Framing::Length, 100_000),
            ]
            .concat(),
            _ => NEXT.into(),
        };
        raw.send(request).await;
        let Ok(answer) = raw.head().await else {
            lost += 1;
            continue;
        };
        raw.content(answer.response_framing("GET")).await;
        if answer.value("connection") != Some("close") {
            pool.push(raw);
        }
    }
    assert_eq!(lost, 0);
}
