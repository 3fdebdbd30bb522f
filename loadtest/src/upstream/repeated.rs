//! Content of a known length, as fast as it is taken, but not at the cost of other connections.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::client::body::Outgoing;

/// So many bytes of one chunk. After each chunk all others on this thread have their turn: else
/// downloads would delay small requests here, which would be taken for the doing of a tunnel.
#[derive(Debug)]
pub(super) struct Repeated {
    content: Outgoing,
    has_worked: bool,
}

impl Repeated {
    pub(super) fn new(chunk: Bytes, left: u64) -> Self {
        Self {
            content: Outgoing::Repeated { chunk, left },
            has_worked: false,
        }
    }
}

impl Body for Repeated {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        this.has_worked = !this.has_worked;
        if this.has_worked {
            Pin::new(&mut this.content).poll_frame(context)
        } else {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn others_have_their_turn_between_chunks() {
        let mut content = Repeated::new(Bytes::from_static(b"xxxx"), 10);
        assert_eq!(content.size_hint().exact(), Some(10));
        for expected in [4, 4, 2] {
            let frame = content.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap().len(), expected);
            assert!(futures_util::poll!(content.frame()).is_pending());
        }
        assert!(content.is_end_stream());
    }
}
