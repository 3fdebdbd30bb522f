//! A connection that hyper speaks HTTP/1.1 or HTTP/2 over. A task of its own moves its bytes.

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body as _, Incoming},
    client::conn::{http1, http2},
};
use hyper_util::rt::TokioIo;
use tokio::task::{JoinSet, yield_now};

use crate::{
    client::{Dialer, Stream, body::Outgoing},
    measure::errors::{Failure, Kind},
};

/// The most that is read at once from HTTP/1.1: fewer and larger reads cost less for bulk, and small
/// answers do not fill it.
const READ_BUFFER: usize = 512 * 1024;

/// Flow-control window of HTTP/2, as large as those of browsers: downloads must not wait for it.
const WINDOW: u32 = 4 * 1024 * 1024;

/// A connection to a target. Dropping it ends it.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    _driver: Rc<JoinSet<()>>,
}

#[derive(Debug)]
enum Sender {
    One(http1::SendRequest<Outgoing>),
    Two(http2::SendRequest<Outgoing>),
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
    /// Makes a connection; for HTTP/2 with prior knowledge when it is plain.
    ///
    /// # Errors
    /// As [`Dialer::dial`], or the peer does not speak HTTP/2.
    pub async fn connect(&self, http2: bool) -> Result<Connection, Failure> {
        let stream = self.dial().await?;
        if !http2 {
            return Connection::http1(stream).await;
        }
        let made = http2::Builder::new(LocalExecutor)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, driver) = made.map_err(|error| Failure::fatal(Kind::of_hyper(&error)))?;
        Ok(Connection::driven(Sender::Two(sender), driver))
    }
}

impl Connection {
    /// Speaks HTTP/1.1 over `stream`.
    ///
    /// # Errors
    /// Those of hyper's handshake, which sends nothing.
    pub async fn http1(stream: Stream) -> Result<Self, Failure> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(READ_BUFFER);
        let made = builder.handshake(TokioIo::new(stream)).await;
        let (sender, driver) = made.map_err(|error| Failure::fatal(Kind::of_hyper(&error)))?;
        Ok(Self::driven(Sender::One(sender), driver.with_upgrades()))
    }

    fn driven(sender: Sender, driver: impl Future + 'static) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn_local(async move {
            // The future of the answer gets the error.
            drop(driver.await);
        });
        Self {
            sender,
            _driver: Rc::new(tasks),
        }
    }

    /// Another handle of an HTTP/2 connection; none of HTTP/1.1, which carries one request at a time.
    pub(crate) fn share(&self) -> Option<Self> {
        let Sender::Two(sender) = &self.sender else {
            return None;
        };
        Some(Self {
            sender: Sender::Two(sender.clone()),
            _driver: self._driver.clone(),
        })
    }

    /// Sends a request and gives the head of its answer; the content comes by [`Self::frame`].
    ///
    /// # Errors
    /// The connection or the stream broke, or the answer is not HTTP.
    pub async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, Failure> {
        let answer = match &mut self.sender {
            Sender::One(sender) => match sender.ready().await {
                Ok(()) => sender.send_request(request).await,
                Err(error) => Err(error),
            },
            Sender::Two(sender) => match sender.ready().await {
                Ok(()) => sender.send_request(request).await,
                Err(error) => Err(error),
            },
        };
        answer.map_err(|error| self.failure(&error))
    }

    /// The next piece of an answer's content; none at its clean end. Trailers are skipped.
    ///
    /// # Errors
    /// It ended before its announced end.
    pub async fn frame(&mut self, content: &mut Incoming) -> Result<Option<Bytes>, Failure> {
        while let Some(frame) = content.frame().await {
            let frame = frame.map_err(|error| self.content_failure(&error))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Takes the whole of an answer's content, and gives its length.
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

    /// Takes an answer's content and gives its first `most` bytes.
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
    pub async fn is_open(&mut self) -> bool {
        match &mut self.sender {
            Sender::One(sender) => {
                // The connection's task sees an end that has come already.
                yield_now().await;
                sender.ready().await.is_ok()
            }
            Sender::Two(sender) => !sender.is_closed(),
        }
    }

    /// A failure of an HTTP/2 stream leaves the connection usable.
    pub(crate) fn failure(&self, error: &hyper::Error) -> Failure {
        let kind = Kind::of_hyper(error);
        let is_open = matches!(&self.sender, Sender::Two(sender) if !sender.is_closed());
        Failure {
            kind,
            connection_good: kind == Kind::StreamReset && is_open,
        }
    }

    /// A failure after the head: the content is incomplete, however the connection ended.
    fn content_failure(&self, error: &hyper::Error) -> Failure {
        match self.failure(error) {
            Failure {
                kind: Kind::ClosedEarly,
                ..
            } => Failure::fatal(Kind::BodyShort),
            other => other,
        }
    }
}
