//! The heads of the answer on a stream of HTTP/2: informational ones, sent from wherever they become known, and the final
//! one.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use h2::SendStream;
use h2::server::SendResponse;
use http::{HeaderMap, Response, StatusCode, header};
use parking_lot::Mutex;

use super::unsent::{Piece, Unsent, fields_cost};
use super::{StreamContent, UpgradedStream};

/// The sender of the heads of one stream's answer, up to the final one. It has no effect after that, or after the end of
/// the exchange, and keeps no stream open.
#[derive(Clone)]
pub struct Reply {
    response: Arc<Mutex<Option<SendResponse<Piece>>>>,
    connection: Arc<Unsent>,
}

impl Reply {
    pub(crate) fn new(response: SendResponse<Piece>, connection: &Arc<Unsent>) -> Self {
        Self {
            response: Arc::new(Mutex::new(Some(response))),
            connection: Arc::clone(connection),
        }
    }

    /// Sends an informational head with these end-to-end fields, unless the answer has begun, or the connection has no room for heads that its socket has
    /// not taken.
    pub(crate) fn send_informational(&self, status: StatusCode, headers: HeaderMap) {
        let mut head = Response::new(());
        *head.status_mut() = status;
        *head.headers_mut() = headers;
        head.headers_mut().remove(header::CONTENT_LENGTH);
        // h2 would send it behind the final head, too.
        let mut response = self.response.lock();
        if let Some(response) = &mut *response
            && self.connection.count_head(fields_cost(head.headers()))
        {
            let _ = response.send_informational(head);
        }
    }

    /// What waits in h2 of the answers of its connection.
    pub(crate) fn connection(&self) -> &Arc<Unsent> {
        &self.connection
    }

    /// The stream as an upgraded connection, behind the head of its answer.
    pub(crate) fn upgraded(
        &self,
        content: StreamContent,
        stream: SendStream<Piece>,
    ) -> UpgradedStream {
        UpgradedStream::new(content, stream, &self.connection)
    }

    /// Ready when the peer has reset the stream, or the connection is over.
    pub(crate) fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self.response.lock() {
            Some(response) => response.poll_reset(cx).map(drop),
            None => Poll::Ready(()),
        }
    }

    /// Sends the head of the answer; `None` if the stream is over.
    pub(crate) fn send(&self, head: Response<()>, is_whole: bool) -> Option<SendStream<Piece>> {
        let mut response = self.end()?;
        let sent = response.send_response(head, is_whole);
        sent.inspect_err(|error| tracing::debug!(%error, "an answer was not sent"))
            .ok()
    }

    /// Ends it: no head is sent from now on.
    pub(crate) fn end(&self) -> Option<SendResponse<Piece>> {
        self.response.lock().take()
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

/// Ready with `true` when the window of a stream has room for one byte, and with `false` when the stream is over.
pub(crate) fn poll_window(stream: &mut SendStream<Piece>, cx: &mut Context<'_>) -> Poll<bool> {
    stream.reserve_capacity(1);
    while stream.capacity() == 0 {
        if !matches!(ready!(stream.poll_capacity(cx)), Some(Ok(_))) {
            return Poll::Ready(false);
        }
    }
    Poll::Ready(true)
}
