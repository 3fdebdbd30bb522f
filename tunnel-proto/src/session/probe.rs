//! An echo through the whole path: a new stream without content, which the tunnel client has to accept.
//!
//! A pong shows that the driver at the other end lives; an accepted stream shows that exchanges are
//! taken from it. The stream rests afterwards, so that the next exchange uses it.

use std::{
    future::poll_fn,
    task::{Context, Poll, ready},
};

use super::{OpenError, Session, Side, mux::MuxStream};
use crate::{close::CloseReason, exchange::ACCEPTED};

/// Why no echo came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// No stream could be opened.
    #[error(transparent)]
    NotOpened(#[from] OpenError),
    /// The session has ended for this reason, or the tunnel client has reset the stream.
    #[error("the stream was cut before it was accepted")]
    Cut(Option<CloseReason>),
    /// The tunnel client said something else on the stream.
    #[error("the tunnel client did not accept the stream, but said something else on it")]
    NotAccepted,
}

/// A stream that waits to be accepted.
pub(super) struct Probe {
    stream: MuxStream,
}

impl Probe {
    /// Tells the other end of a new stream.
    pub(super) fn new(stream: MuxStream) -> Self {
        stream.announce();
        Self { stream }
    }

    /// Ready when the stream was accepted, or cannot be.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ProbeError>> {
        Poll::Ready(match ready!(self.stream.poll_read(cx)) {
            Some(bytes) if bytes[..] == [ACCEPTED] => Ok(()),
            Some(_) => Err(ProbeError::NotAccepted),
            None => Err(ProbeError::Cut(self.stream.close_reason())),
        })
    }

    /// Puts the stream, which was accepted, at rest.
    pub(super) fn rest(self, session: &Session) {
        session.idle().lock().put(self.stream);
    }
}

impl Session {
    /// Asks the tunnel client to accept a stream, and returns when it has. It waits for as long as the
    /// session lives, and it is for the tunnel server alone, which opens all streams.
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
