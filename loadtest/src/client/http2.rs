//! HTTP/2 over one connection whose streams are shared by the workers of a thread.

use std::rc::Rc;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

use crate::{
    client::{Dialer, body::Outgoing},
    measure::errors::{Failure, Kind},
};

/// Room for what is on its way to us, as browsers give it: downloads must not wait for windows.
const WINDOW: u32 = 4 * 1024 * 1024;

/// A connection for many requests at once. Cheap to clone; ends with its last clone.
#[derive(Clone, Debug)]
pub struct Http2 {
    sender: SendRequest<Outgoing>,
    _driver: Rc<JoinSet<()>>,
}

/// Runs what hyper wants to run on the side, on this thread.
#[derive(Clone, Debug)]
struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        // Ends with the connection that it belongs to.
        drop(tokio::task::spawn_local(future));
    }
}

impl Dialer {
    /// Makes a connection for HTTP/2, with prior knowledge when it is plain.
    ///
    /// # Errors
    /// As [`Dialer::dial`], or the peer speaks no HTTP/2.
    pub async fn http2(&self) -> Result<Http2, Failure> {
        let stream = self.dial().await?;
        let made = http2::Builder::new(Local)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) = made.map_err(|error| failure(&error))?;
        let mut driver = JoinSet::new();
        driver.spawn_local(async move {
            // Whoever waits for an answer is told the error.
            drop(connection.await);
        });
        Ok(Http2 {
            sender,
            _driver: Rc::new(driver),
        })
    }
}

impl Http2 {
    /// Sends a request, when a stream is free, and gives the head of its answer.
    ///
    /// # Errors
    /// The connection or the stream broke.
    pub async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, Failure> {
        self.sender.ready().await.map_err(|error| failure(&error))?;
        let answer = self.sender.send_request(request).await;
        answer.map_err(|error| self.kept(&error))
    }

    /// The next piece of an answer's content; none at its clean end. Trailers are skipped.
    ///
    /// # Errors
    /// It ended too early.
    pub async fn frame(&mut self, content: &mut Incoming) -> Result<Option<Bytes>, Failure> {
        while let Some(frame) = content.frame().await {
            let frame = frame.map_err(|error| self.kept(&error))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Whether it may carry the next request.
    pub fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// A failure that leaves the connection alone when it was only the stream's.
    fn kept(&self, error: &hyper::Error) -> Failure {
        let failure = failure(error);
        Failure {
            connection_good: failure.kind == Kind::StreamReset && self.is_open(),
            ..failure
        }
    }
}

fn failure(error: &hyper::Error) -> Failure {
    Failure::fatal(Kind::of_hyper(error))
}
