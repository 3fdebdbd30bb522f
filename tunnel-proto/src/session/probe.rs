//! A probe of the whole path: a new stream without content, which the tunnel client has to accept.
//!
//! A pong shows that the driver at the other end runs; an accepted stream shows that its owner takes
//! exchanges from it. The stream is idle afterwards, and the next exchange uses it.

use std::{
    future::poll_fn,
    task::{Context, Poll, ready},
};

use super::acceptance::ACCEPTED;
use super::{OpenError, Session, Side, mux::MuxStream};
use crate::close::CloseReason;

/// Why a probe failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// No stream could be opened.
    #[error(transparent)]
    NotOpened(#[from] OpenError),
    /// The session has ended for this reason, or the tunnel client has reset the stream.
    #[error("the stream was cut before it was accepted")]
    Cut(Option<CloseReason>),
    /// The tunnel client sent other bytes than the acceptance.
    #[error("the tunnel client sent something other than the acceptance of the stream")]
    NotAccepted,
}

/// A stream that waits to be accepted.
pub(super) struct Probe {
    stream: MuxStream,
}

impl Probe {
    /// Announces the stream to the other end.
    pub(super) fn new(stream: MuxStream) -> Self {
        stream.announce();
        Self { stream }
    }

    /// Ready when the stream is accepted, or can no longer be.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ProbeError>> {
        Poll::Ready(match ready!(self.stream.poll_read(cx)) {
            Some(bytes) if bytes[..] == [ACCEPTED] => Ok(()),
            Some(_) => Err(ProbeError::NotAccepted),
            None => Err(ProbeError::Cut(self.stream.close_reason())),
        })
    }

    /// Keeps the accepted stream for the next exchange.
    pub(super) fn rest(self, session: &Session) {
        session.idle().lock().put(self.stream);
    }
}

impl Session {
    /// Opens a stream and returns once the tunnel client has accepted it. Has no time-out of its own. Only
    /// the tunnel server can call it, since it opens all streams.
    ///
    /// # Errors
    /// When no stream can be opened, or it was not accepted.
    pub async fn probe(&self) -> Result<(), ProbeError> {
        if self.shared.side == Side::Client {
            return Err(OpenError::Closed.into());
        }
        let mut probe = Probe::new(self.open_stream().await?);
        poll_fn(|cx| probe.poll(cx)).await?;
        probe.rest(self);
        Ok(())
    }
}
