//! Streams of small frames between an `h2` server and a client whose driver reads ahead.

use std::future::poll_fn;

use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tunnel_ops::task::Owned;

use super::super::{DATA_FRAME_BUDGET, FrameParser, FrameReader, ReadFrames, drive};
use super::*;

/// Window of the streams, in bytes; that of the connection is the default of 65,535.
const WINDOW: u32 = 16 * 1024;

/// A client whose driver reads ahead.
struct Client {
    requests: h2::client::SendRequest<Bytes>,
    registry: Arc<ContentRegistry>,
    frames: ReadFrames,
    _driver: Owned<()>,
    _server: Owned<()>,
}

/// A client of a server that answers each request as told.
async fn client<F>(answer: impl Fn(h2::server::SendResponse<Bytes>) -> F + Send + 'static) -> Client
where
    F: Future<Output = ()> + Send + 'static,
{
    let (ours, theirs) = duplex(4096);
    let server = Owned::spawn("server", serve(theirs, answer));
    let (reader, frames) = FrameReader::new(ours, FrameParser::of_server());
    let (requests, mut connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(64 * WINDOW)
        .data_frame_budget(DATA_FRAME_BUDGET)
        .handshake(reader)
        .await
        .unwrap();
    let registry = Arc::new(ContentRegistry::default());
    let (read, contents) = (frames.clone(), Arc::clone(&registry));
    let driver = Owned::spawn("driver", async move {
        let _ = drive(&read, &contents, |cx| Pin::new(&mut connection).poll(cx)).await;
    });
    Client {
        requests,
        registry,
        frames,
        _driver: driver,
        _server: server,
    }
}

/// Runs a test as a task beside the others: the runtime seldom polls its first future.
async fn as_task(test: impl Future<Output = ()> + Send + 'static) {
    Owned::spawn("test", test).await.unwrap();
}

async fn serve<F>(
    socket: DuplexStream,
    answer: impl Fn(h2::server::SendResponse<Bytes>) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connection = h2::server::handshake(socket).await.unwrap();
    let mut answers = JoinSet::new();
    while let Some(Ok((_, respond))) = connection.accept().await {
        answers.spawn(answer(respond));
    }
}

impl Client {
    async fn get(&self) -> StreamContent {
        let mut requests = self.requests.clone();
        let (response, _) = requests.send_request(Request::new(()), true).unwrap();
        self.registry.content(response.await.unwrap().into_body())
    }
}

/// Sends data as soon as the window allows it, one frame for each piece.
async fn send_pieces(stream: &mut h2::SendStream<Bytes>, pieces: impl IntoIterator<Item = Bytes>) {
    for piece in pieces {
        stream.reserve_capacity(piece.len());
        while stream.capacity() < piece.len() {
            match poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(Ok(_)) => {}
                _ => return,
            }
        }
        if stream.send_data(piece, false).is_err() {
            return;
        }
    }
}

fn pieces(length: usize, count: usize) -> impl Iterator<Item = Bytes> {
    (0..count).map(move |number| {
        let byte = u8::try_from(number % 251).unwrap();
        Bytes::from(vec![byte; length])
    })
}

#[tokio::test]
async fn streams_of_small_frames_that_nobody_takes_end_no_connection_and_lose_nothing() {
    as_task(async {
        const LENGTH: usize = 3;
        const COUNT: usize = 20_000;
        let client = client(async |mut respond| {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            send_pieces(&mut stream, pieces(LENGTH, COUNT)).await;
            let trailers = HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                http::HeaderValue::from_static("0"),
            )]);
            stream.send_trailers(trailers).unwrap();
        })
        .await;
        // What stands still is worth more than what `h2` allows for small frames on a connection.
        let mut unread = Vec::new();
        for _ in 0..10 {
            unread.push(client.get().await);
        }
        let mut read = client.get().await;
        let mut all = Vec::new();
        while let Some(frame) = read.frame().await {
            if let Ok(data) = frame.unwrap().into_data() {
                all.extend(data);
            }
        }
        let expected: Vec<u8> = pieces(LENGTH, COUNT).flatten().collect();
        assert!(all == expected);
        drop(read);
        for content in unread {
            let whole = content.collect().await.unwrap();
            assert_eq!(whole.trailers().unwrap()["grpc-status"], "0");
            assert!(whole.to_bytes() == expected);
        }
        assert!(client.registry.streams.lock().is_empty());
    })
    .await;
}

#[tokio::test]
async fn no_more_than_a_window_is_read_ahead_and_it_is_given_back_when_it_was_taken() {
    for length in [1, 100, 2_000] {
        read_ahead(length).await;
    }
}

/// Reads content in frames of this length after it has stood still.
async fn read_ahead(length: usize) {
    as_task(async move {
        let count = 10 * WINDOW as usize / length;
        let client = client(move |mut respond| async move {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            send_pieces(&mut stream, pieces(length, count)).await;
            stream.send_data(Bytes::new(), true).unwrap();
        })
        .await;
        let mut content = client.get().await;
        let joined = |content: &StreamContent| content.state.lock().joined.len();
        let mut reads = client.frames.reads();
        // It stands still when two looks see the same.
        loop {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let now = client.frames.reads();
            if std::mem::replace(&mut reads, now) == now {
                break;
            }
        }
        let waiting = joined(&content);
        let window = WINDOW as usize / length * length;
        assert!(
            waiting <= window && waiting + 4 * length > window,
            "{waiting}"
        );
        let first = content.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), waiting, "in one piece");
        let rest = content.collect().await.unwrap().to_bytes();
        assert_eq!(first.len() + rest.len(), count * length);
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_is_reset_in_order_has_not_ended() {
    as_task(async {
        let first = Arc::new(Notify::new());
        let was_read = Arc::clone(&first);
        let client = client(move |mut respond| {
            let was_read = Arc::clone(&was_read);
            async move {
                let mut stream = respond.send_response(Response::new(()), false).unwrap();
                send_pieces(&mut stream, pieces(1, 100)).await;
                was_read.notified().await;
                stream.send_reset(h2::Reason::NO_ERROR);
            }
        })
        .await;
        let mut content = client.get().await;
        assert!(content.frame().await.unwrap().unwrap().is_data());
        first.notify_one();
        let error = loop {
            match content.frame().await.expect("no end") {
                Ok(frame) => assert!(frame.is_data()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.reason(), Some(h2::Reason::NO_ERROR));
    })
    .await;
}

#[tokio::test]
async fn small_frames_of_cancelled_streams_end_no_connection() {
    as_task(async {
        let client = client(async |mut respond| {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            // As much as the window allows, however early the stream is reset.
            send_pieces(&mut stream, pieces(1, WINDOW as usize)).await;
            let _ = stream.send_data(Bytes::new(), true);
        })
        .await;
        for _ in 0..20 {
            let content = client.get().await;
            drop(content);
        }
        let mut content = client.get().await;
        content.frame().await.unwrap().unwrap();
    })
    .await;
}
