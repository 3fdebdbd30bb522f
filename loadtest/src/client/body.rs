//! What is sent as content: nothing, some bytes, many bytes of one chunk, or what a task makes.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// The size of the chunks of a repeated content: large enough that its cost per byte is the
/// kernel's.
pub const CHUNK: usize = 256 * 1024;

/// A request's content.
#[derive(Debug, Default)]
pub enum Outgoing {
    /// None.
    #[default]
    Empty,
    /// These bytes.
    Full(Bytes),
    /// So many bytes, cut from one chunk again and again.
    Repeated {
        /// What is repeated.
        chunk: Bytes,
        /// How many bytes are still to come.
        left: u64,
    },
    /// What comes through the channel, until it is closed. Its length is not announced.
    Channel(mpsc::Receiver<Bytes>),
}

impl Outgoing {
    /// These bytes.
    pub fn full(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            Self::Empty
        } else {
            Self::Full(bytes)
        }
    }

    /// So many bytes, none of them zero, so that nothing on the way compresses them for free.
    pub fn repeated(length: u64) -> Self {
        Self::Repeated {
            chunk: Bytes::from(vec![b'x'; CHUNK]),
            left: length,
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let next = match this {
            Self::Empty => None,
            Self::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *this = Self::Empty;
                Some(bytes)
            }
            Self::Repeated { left: 0, .. } => None,
            Self::Repeated { chunk, left } => {
                let length = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(chunk.len());
                *left -= length as u64;
                Some(chunk.slice(..length))
            }
            Self::Channel(channel) => match channel.poll_recv(context) {
                Poll::Ready(next) => next,
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Empty | Self::Repeated { left: 0, .. })
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Repeated { left, .. } => SizeHint::with_exact(*left),
            Self::Channel(_) => SizeHint::default(),
        }
    }
}
