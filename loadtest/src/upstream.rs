//! The sample upstream: answers with known delay, known errors and known sizes.
//!
//! HTTP/1.1 and h2c on one thread, as cheap as it can be, so that what is measured is in front of
//! it. Errors come evenly, not at random, so that a test can count them.
//!
//! | path | answer |
//! |---|---|
//! | `/bytes/N` | `N` bytes, as fast as they are taken |
//! | `/upload` | takes all content and answers how many bytes came |
//! | `/pace?rate=N` | bytes without end, `N` a second; `&bytes=N` ends it |
//! | `/events?rate=N` | Server-Sent Events that carry the time of sending; see `events` |
//! | `/echo` | a WebSocket that echoes, over HTTP/1.1 and HTTP/2 |
//! | any, with a gRPC content type | the messages that came, and the trailer `grpc-status: 0` |
//! | anything else | the plain answer, with its delay and its share of errors |

mod plain;

use std::{cell::RefCell, convert::Infallible, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use bytesize::ByteSize;
use futures_util::{SinkExt as _, Stream, StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt as _, Either, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, ext::Protocol, upgrade::OnUpgrade};
use hyper_util::{rt::TokioIo, server::conn::auto};
use tokio::{
    net::TcpStream,
    task::{JoinSet, yield_now},
    time::{Instant, sleep_until},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::server::create_response_with_body,
        protocol::{Role, WebSocketConfig},
    },
};

use crate::{
    client::{
        body::{self, CHUNK},
        connection::LocalExecutor,
    },
    measure::since_epoch,
    serve,
    upstream::plain::PlainAnswer,
};

/// Flow-control window of HTTP/2: uploads must not wait for it.
const WINDOW: u32 = 4 * 1024 * 1024;

/// How the sample upstream behaves.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Sample upstream")]
pub struct UpstreamArgs {
    /// Wait so long before each answer to a plain request
    #[arg(long = "delay", value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    pub delay: Duration,
    /// Answer this share (0 to 1) of plain requests with 503
    #[arg(long = "error-rate", value_name = "SHARE", default_value_t = 0.0, value_parser = parse_share)]
    pub error_rate: f64,
    /// Content of each answer to a plain request
    #[arg(long = "answer-size", value_name = "SIZE", default_value = "16B")]
    pub answer_size: ByteSize,
}

impl UpstreamArgs {
    /// These settings as flags of the subcommand.
    pub fn flags(&self) -> Vec<String> {
        vec![
            format!("--delay={}", humantime::format_duration(self.delay)),
            format!("--error-rate={}", self.error_rate),
            format!("--answer-size={}B", self.answer_size.as_u64()),
        ]
    }
}

/// Flags of `loadtest upstream`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where to listen
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8000")]
    pub listen: SocketAddr,
    /// How it behaves.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
}

/// Serves until the process ends. Says where it listens in one line on standard output.
///
/// # Errors
/// It cannot listen there.
pub fn run(args: Args) -> anyhow::Result<()> {
    let service = Service::new(&args.upstream);
    serve::run(args.listen, move |stream| {
        connection(stream, service.clone())
    })
}

async fn connection(stream: TcpStream, service: Service) {
    let Ok(Some(stream)) = plain::serve(stream, &service.plain).await else {
        return;
    };
    let answer = hyper::service::service_fn(move |request| service.clone().answer(request));
    let mut builder = auto::Builder::new(LocalExecutor);
    builder
        .http2()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .enable_connect_protocol();
    // The peer knows what went wrong with its own connection.
    drop(
        builder
            .serve_connection_with_upgrades(TokioIo::new(stream), answer)
            .await,
    );
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1".to_owned()),
    }
}

/// What all connections share.
#[derive(Clone, Debug)]
struct Service {
    plain: PlainAnswer,
    chunk: Bytes,
    sockets: Rc<RefCell<JoinSet<()>>>,
}

impl Service {
    fn new(args: &UpstreamArgs) -> Self {
        Self {
            plain: PlainAnswer::new(args),
            chunk: Bytes::from(vec![b'x'; CHUNK]),
            sockets: Rc::default(),
        }
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Content>, Infallible> {
        let path = request.uri().path();
        Ok(if let Some(length) = path.strip_prefix("/bytes/") {
            self.bytes(length)
        } else if path == "/upload" {
            upload(request.into_body()).await
        } else if path == "/pace" {
            let rate = query(&request, "rate").unwrap_or(1024.0 * 1024.0);
            let content = paced(self.chunk, rate, query(&request, "bytes"));
            Response::new(streamed(content))
        } else if path == "/events" {
            event_stream(&request)
        } else if path == "/echo" {
            accept(request, &mut self.sockets.borrow_mut())
        } else if is_grpc(request.headers()) {
            grpc_echo(request.into_body())
        } else {
            self.plain(request.into_body()).await
        })
    }

    async fn plain(self, content: Incoming) -> Response<Content> {
        // A connection whose content was not taken cannot carry the next request.
        if !content.is_end_stream() {
            let _ = length(content).await;
        }
        let status = self.plain.next().await;
        text(status, self.plain.content)
    }

    fn bytes(self, length: &str) -> Response<Content> {
        let Ok(length) = length.parse::<u64>() else {
            let wrong = "/bytes/N: N is a number of bytes\n";
            return text(StatusCode::BAD_REQUEST, wrong);
        };
        let mut response = Response::new(streamed(repeated(self.chunk, length)));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        response
    }
}

async fn upload(content: Incoming) -> Response<Content> {
    match length(content).await {
        Ok(length) => text(StatusCode::OK, length.to_string()),
        // The peer that could read it is gone.
        Err(_) => text(StatusCode::BAD_REQUEST, "the content was cut\n"),
    }
}

/// Takes all content.
async fn length(mut content: Incoming) -> Result<usize, hyper::Error> {
    let mut length = 0;
    while let Some(frame) = content.frame().await {
        length += frame?.data_ref().map_or(0, Bytes::len);
    }
    Ok(length)
}

fn event_stream(request: &Request<Incoming>) -> Response<Content> {
    let rate = query(request, "rate").unwrap_or(1.0);
    let size = query(request, "size").unwrap_or(0);
    let events = streamed(events(rate, query(request, "count"), size));
    let mut response = of_kind("text/event-stream", events);
    let never = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, never);
    response
}

/// A value of the query, if it is there and can be read.
fn query<T: std::str::FromStr>(request: &Request<Incoming>, name: &str) -> Option<T> {
    let pairs = request.uri().query()?.split('&');
    let mut values = pairs.filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    values.next()?.parse().ok()
}

/// The content of an answer: small ones without a box, since they are what is measured most.
type Content = Either<Full<Bytes>, UnsyncBoxBody<Bytes, hyper::Error>>;

/// A short answer that says something.
fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Content> {
    let mut response = of_kind("text/plain", Either::Left(Full::new(text.into())));
    *response.status_mut() = status;
    response
}

fn of_kind(kind: &'static str, content: Content) -> Response<Content> {
    let mut response = Response::new(content);
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Content in pieces.
fn streamed(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Content {
    let content = StreamBody::new(body::frames(pieces));
    Either::Right(content.map_err(|error| match error {}).boxed_unsync())
}

/// Whether a message with this head belongs to a call.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Answers with what comes, and a good status. A message with its prefix of five bytes is echoed byte for byte as it comes,
/// so one way of answering fits calls of all four kinds.
fn grpc_echo(content: Incoming) -> Response<Content> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let echo = content.with_trailers(std::future::ready(Some(Ok(trailers))));
    of_kind("application/grpc", Either::Right(echo.boxed_unsync()))
}

/// A stream of `rate` Server-Sent Events per second that ends after `count` events, if given. Each event has at least
/// `size` bytes.
///
/// An event is `id: N` and `data: NS PAD`. NS is the time of sending in nanoseconds since the Unix epoch, from which a
/// receiver on this machine computes the delay. N is the number of the event since the Unix epoch at this rate: all
/// subscribers of one rate get an event with one number, at one time, so that a receiver can count the events that it
/// missed, also while it was not subscribed.
fn events(rate: f64, count: Option<u64>, size: usize) -> impl Stream<Item = Bytes> + Send {
    let rate = Some(rate).filter(|rate| rate.is_finite()).unwrap_or(1.0);
    let every = (1e9 / rate.clamp(1e-5, 1e6)) as u64;
    let first = since_epoch() / every + 1;
    let pad: Arc<str> = "x".repeat(size).into();
    let end = count.map_or(u64::MAX, |count| first.saturating_add(count));
    stream::iter(first..end).then(move |number| {
        let pad = pad.clone();
        async move {
            while since_epoch() < number * every {
                sleep_until(at(number * every)).await;
            }
            let mut event = format!("id: {number}\ndata: {} ", since_epoch());
            let room = pad.len().saturating_sub(event.len() + "\n\n".len());
            event.extend([&pad[..room], "\n\n"]);
            Bytes::from(event)
        }
    })
}

/// The instant at which the wall clock reaches this time.
fn at(nanoseconds: u64) -> Instant {
    Instant::now() + Duration::from_nanos(nanoseconds.saturating_sub(since_epoch()))
}

/// Little memory for each of many sockets; a longer message takes more reads.
const READ_BUFFER: usize = 16 * 1024;

/// Agrees to a WebSocket, and echoes in a task of `sockets`; or says why not.
fn accept(mut request: Request<Incoming>, sockets: &mut JoinSet<()>) -> Response<Content> {
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

/// Time between two pieces: short against what people notice, long against a timer's tick.
const STEP: Duration = Duration::from_millis(10);

/// A reader that was slower than the rate by more than this does not get the rest in one burst.
const BURST: Duration = Duration::from_millis(100);

/// So many bytes of a chunk, as fast as they are taken. After each chunk all other connections on this thread have
/// their turn: else downloads would delay small requests here, which would be taken for the doing of a tunnel.
pub(crate) fn repeated(chunk: Bytes, length: u64) -> impl Stream<Item = Bytes> + Send {
    stream::unfold(length, move |left| {
        let chunk = chunk.clone();
        async move {
            if left < length {
                yield_now().await;
            }
            let size = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            (size > 0).then(|| (chunk.slice(..size), left - size as u64))
        }
    })
}

/// Pieces of the chunk at a rate in bytes a second, without end or of this length in all.
pub(crate) fn paced(
    chunk: Bytes,
    rate: f64,
    length: Option<u64>,
) -> impl Stream<Item = Bytes> + Send {
    let now = Instant::now();
    let pace = PacedContent {
        chunk,
        rate: rate.max(1.0),
        left: length,
        paid: now,
        next: now,
    };
    stream::unfold(pace, async |mut pace: PacedContent| {
        let piece = pace.piece().await?;
        Some((piece, pace))
    })
}

struct PacedContent {
    chunk: Bytes,
    rate: f64,
    left: Option<u64>,
    /// Until when all bytes were given that were due.
    paid: Instant,
    next: Instant,
}

impl PacedContent {
    async fn piece(&mut self) -> Option<Bytes> {
        if self.left == Some(0) {
            return None;
        }
        loop {
            sleep_until(self.next).await;
            let now = Instant::now();
            let length = self.take_due(now);
            if length < self.chunk.len() {
                self.next = now + STEP;
            }
            if length > 0 {
                return Some(self.chunk.slice(..length));
            }
        }
    }

    /// How many bytes are due now; takes them as sent.
    fn take_due(&mut self, now: Instant) -> usize {
        self.paid = self.paid.max(now.checked_sub(BURST).unwrap_or(now));
        let due = (now - self.paid).as_secs_f64() * self.rate;
        let most = self.left.map_or(self.chunk.len() as u64, |left| {
            left.min(self.chunk.len() as u64)
        });
        let length = (due as u64).min(most);
        self.paid += Duration::from_secs_f64(length as f64 / self.rate);
        self.left = self.left.map(|left| left - length);
        usize::try_from(length).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt as _, poll};

    use super::*;

    #[tokio::test]
    async fn events_have_their_time_of_sending() {
        let before = since_epoch();
        let content: Vec<_> = events(200.0, Some(3), 100).collect().await;
        let content = String::from_utf8(content.concat()).unwrap();
        let events: Vec<_> = content.split_terminator("\n\n").collect();
        assert_eq!(events.len(), 3);
        let (mut last, mut number) = (before, None);
        for event in events {
            assert_eq!(event.len() + 2, 100);
            let (id, sent) = event.split_once("\ndata: ").unwrap();
            let id: u64 = id.strip_prefix("id: ").unwrap().parse().unwrap();
            assert!(number.is_none_or(|number| id == number + 1), "{event}");
            number = Some(id);
            let sent: u64 = sent.split(' ').next().unwrap().parse().unwrap();
            assert!(sent >= last && sent <= since_epoch(), "{event}");
            last = sent;
        }
    }

    #[tokio::test]
    async fn others_have_their_turn_between_chunks() {
        let content = repeated(Bytes::from_static(b"xxxx"), 10);
        let mut content = std::pin::pin!(content);
        for (first, expected) in [(true, 4), (false, 4), (false, 2)] {
            if !first {
                assert!(poll!(content.next()).is_pending());
            }
            assert_eq!(content.next().await.unwrap().len(), expected);
        }
        assert!(content.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_its_rate_and_its_length() {
        let chunk = Bytes::from(vec![b'x'; 1024]);
        let begun = Instant::now();
        let content = paced(chunk, 100_000.0, Some(50_000));
        let content: Vec<_> = content.collect().await;
        assert_eq!(content.concat().len(), 50_000);
        let took = begun.elapsed();
        let expected = Duration::from_millis(500);
        assert!(took >= expected && took < expected * 2, "{took:?}");
    }
}
