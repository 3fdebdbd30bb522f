//! A connection that hyper speaks HTTP/1.1 or HTTP/2 over, whose bytes a task on this thread moves.

use std::{
    cell::RefCell,
    collections::HashMap,
    error::Error,
    fmt,
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body, Incoming},
    client::conn::{http1, http2},
};
use hyper_util::rt::TokioIo;
use tokio::{sync::Mutex, task::JoinSet};

use crate::{
    client::{Dialer, Stream, body::Outgoing},
    measure::errors::{Failure, FailureKind},
};

/// Flow-control window of HTTP/2, as large as those of browsers: downloads must not wait for it.
const WINDOW: u32 = 4 * 1024 * 1024;

/// The largest piece that is read at once over HTTP/1.1: fewer and larger reads cost less for bulk, and small
/// answers do not fill it.
const READ_BUFFER: usize = 512 * 1024;

/// A connection to a target. Dropping it ends it.
#[derive(Debug)]
pub enum Connection {
    /// HTTP/1.1.
    One(Http1),
    /// HTTP/2.
    Two(Http2),
}

/// An HTTP/1.1 connection, which carries one request at a time, with content of the type `B`.
pub struct Http1<B = Outgoing> {
    sender: http1::SendRequest<B>,
    _driver: JoinSet<()>,
}

impl<B> fmt::Debug for Http1<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sender.fmt(formatter)
    }
}

/// A handle of an HTTP/2 connection. The connection ends with its last handle.
#[derive(Clone, Debug)]
pub struct Http2 {
    sender: http2::SendRequest<Outgoing>,
    _driver: Rc<JoinSet<()>>,
}

/// Runs the tasks of hyper on this thread. They end with the connection that they belong to.
#[derive(Clone, Debug)]
pub(crate) struct LocalExecutor;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        drop(tokio::task::spawn_local(future));
    }
}

impl Dialer {
    /// Makes a connection.
    ///
    /// # Errors
    /// As [`Dialer::dial`] and [`Dialer::http2`].
    pub async fn connect(&self, http2: bool) -> Result<Connection, Failure> {
        if http2 {
            return Ok(Connection::Two(self.http2().await?));
        }
        let stream = self.dial().await?;
        Ok(Connection::One(Http1::new(stream).await?))
    }

    /// Makes a connection for HTTP/2, with prior knowledge when it is plain.
    ///
    /// # Errors
    /// As [`Dialer::dial`], or the peer does not speak HTTP/2.
    pub async fn http2(&self) -> Result<Http2, Failure> {
        let made = http2::Builder::new(LocalExecutor)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(self.dial().await?))
            .await;
        let (sender, connection) = made?;
        Ok(Http2 {
            sender,
            _driver: Rc::new(driver(connection)),
        })
    }
}

/// Moves a connection's bytes for as long as it lives.
fn driver(connection: impl Future<Output = Result<(), hyper::Error>> + 'static) -> JoinSet<()> {
    let mut driver = JoinSet::new();
    driver.spawn_local(async move {
        // The future of the answer gets the error.
        drop(connection.await);
    });
    driver
}

impl Connection {
    /// Sends a request and returns the head of its answer; the content comes by [`Self::frame`].
    ///
    /// # Errors
    /// The connection or the stream broke, or the answer is not HTTP.
    pub async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, Failure> {
        match self {
            Self::One(connection) => connection.send(request).await,
            Self::Two(connection) => connection.send(request).await,
        }
    }

    /// The next piece of an answer's content; none at its clean end. Trailers are skipped.
    ///
    /// # Errors
    /// It ended before its announced end.
    pub async fn frame(&mut self, content: &mut Incoming) -> Result<Option<Bytes>, Failure> {
        while let Some(frame) = content.frame().await {
            let frame = frame.map_err(|error| match self {
                Self::One(_) => short(&error),
                Self::Two(connection) => connection.failure(&error),
            })?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Takes the whole of an answer's content, and returns its length.
    ///
    /// # Errors
    /// As [`Self::frame`].
    pub async fn drain(&mut self, mut content: Incoming) -> Result<u64, Failure> {
        let mut length = 0;
        while !content.is_end_stream() {
            match self.frame(&mut content).await? {
                Some(data) => length += data.len() as u64,
                None => break,
            }
        }
        Ok(length)
    }

    /// Takes an answer's content and returns its first `most` bytes.
    ///
    /// # Errors
    /// As [`Self::frame`].
    pub async fn collect(&mut self, mut content: Incoming, most: usize) -> Result<Bytes, Failure> {
        let mut bytes = BytesMut::new();
        while let Some(data) = self.frame(&mut content).await? {
            bytes.extend_from_slice(&data[..data.len().min(most - bytes.len())]);
        }
        Ok(bytes.freeze())
    }

    /// Whether it may carry the next request: the peer has not closed it while it rested.
    pub fn is_open(&self) -> bool {
        match self {
            Self::One(connection) => connection.is_open(),
            Self::Two(connection) => connection.is_open(),
        }
    }
}

impl<B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + 'static> Http1<B> {
    /// Speaks HTTP/1.1 over a connection that is there.
    ///
    /// # Errors
    /// Those of hyper's handshake, which sends nothing.
    pub async fn new(stream: Stream) -> Result<Self, Failure> {
        let made = http1::Builder::new()
            .max_buf_size(READ_BUFFER)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) = made?;
        Ok(Self {
            sender,
            _driver: driver(connection.with_upgrades()),
        })
    }

    /// Sends a request and returns the head of its answer.
    ///
    /// # Errors
    /// The connection broke, or the answer is not HTTP.
    pub async fn send(&mut self, request: Request<B>) -> Result<Response<Incoming>, Failure> {
        self.sender.ready().await?;
        Ok(self.sender.send_request(request).await?)
    }

    /// Whether it may carry the next request.
    pub fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }
}

/// The stream of a connection that `answer` has upgraded, and what was read beyond its head.
///
/// # Errors
/// The connection broke.
pub async fn upgraded(answer: Response<Incoming>) -> Result<(Stream, Bytes), Failure> {
    let upgraded = hyper::upgrade::on(answer).await?;
    let parts = upgraded.downcast::<TokioIo<Stream>>();
    let parts = parts.map_err(|_| FailureKind::Protocol)?;
    Ok((parts.io.into_inner(), parts.read_buf))
}

/// A failure after the head of HTTP/1.1: the content is incomplete, however the connection ended.
fn short(error: &hyper::Error) -> Failure {
    Failure::fatal(match FailureKind::of_hyper(error) {
        FailureKind::ClosedEarly => FailureKind::BodyShort,
        other => other,
    })
}

impl Http2 {
    /// Sends a request, when a stream is free, and returns the head of its answer.
    ///
    /// # Errors
    /// The connection or the stream broke.
    pub async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, Failure> {
        let ready = self.sender.ready().await;
        ready.map_err(|error| self.failure(&error))?;
        let answer = self.sender.send_request(request).await;
        answer.map_err(|error| self.failure(&error))
    }

    /// Whether it may carry the next request.
    pub fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// A failure that leaves the connection usable when it was only the stream's.
    pub(crate) fn failure(&self, error: &hyper::Error) -> Failure {
        let kind = FailureKind::of_hyper(error);
        Failure {
            kind,
            connection_good: kind == FailureKind::StreamReset && self.is_open(),
        }
    }
}

/// The connection of some workers. One that finds it closed makes it anew while the others wait.
type Slot = Rc<Mutex<Option<Http2>>>;

thread_local! {
    /// By group of workers, and by the number of the connection on this thread.
    static SLOTS: RefCell<HashMap<(u64, usize), Slot>> = RefCell::default();
}

/// Workers of one group that share connections. Streams do not cross threads, so each thread has
/// connections of its own.
#[derive(Debug)]
pub struct Shared {
    group: u64,
    streams: usize,
}

impl Shared {
    /// For `streams` workers to a connection.
    pub fn new(streams: usize) -> Self {
        static GROUPS: AtomicU64 = AtomicU64::new(0);
        Self {
            group: GROUPS.fetch_add(1, Ordering::Relaxed),
            streams: streams.max(1),
        }
    }

    /// The HTTP/2 connection of the worker with this number, made if need be.
    ///
    /// # Errors
    /// As [`Dialer::http2`].
    pub async fn connect(&self, dialer: &Dialer, worker: usize) -> Result<Http2, Failure> {
        let key = (self.group, worker / self.streams);
        let slot = SLOTS.with_borrow_mut(|slots| slots.entry(key).or_default().clone());
        let mut slot = slot.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| connection.is_open()) {
            return Ok(connection.clone());
        }
        let made = dialer.http2().await?;
        *slot = Some(made.clone());
        Ok(made)
    }
}
