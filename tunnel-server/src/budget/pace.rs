//! Delays a body to its runtime's rate.
//!
//! In: the frames of a body. Out: their bytes, in pieces that each wait for their turn. While a piece waits, the body is
//! not polled, so that its sender is slowed down and not the session. Released bytes wait no more. Without a rate there is
//! no timer and no delay.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;
use tunnel_http::long_streams::Hold;
use tunnel_ops::alarm::Alarm;

use crate::budget::shaper::{PIECE_BYTES, Shaper, Ticket};

/// A body whose bytes are delayed.
pub(crate) struct Paced<B> {
    body: B,
    /// `None` without a budget.
    shaper: Option<Arc<Shaper>>,
    /// `None` until bytes were delayed.
    delayed: Option<Box<DelayedContent>>,
}

/// Content that was read from the body and is delayed.
struct DelayedContent {
    content: Bytes,
    /// The reservation of the first piece.
    ticket: Option<Ticket>,
    alarm: Alarm,
    is_released: bool,
}

impl<B> Paced<B> {
    /// Delays this body by the shaper's rate.
    pub(crate) fn new(body: B, shaper: Option<Arc<Shaper>>) -> Self {
        Self {
            body,
            shaper,
            delayed: None,
        }
    }

    /// The body whose bytes are delayed.
    pub(crate) fn body_mut(&mut self) -> &mut B {
        &mut self.body
    }

    /// The bytes that were read from the body and are still delayed.
    fn length(&self) -> usize {
        self.delayed
            .as_ref()
            .map_or(0, |delayed| delayed.content.len())
    }

    /// Delays a frame, or returns it if there is no rate.
    fn hold<E>(
        &mut self,
        frame: Option<Result<Frame<Bytes>, E>>,
    ) -> Option<Option<Result<Frame<Bytes>, E>>> {
        if !self.shaper.as_ref().is_some_and(|shaper| shaper.is_set()) {
            return Some(frame);
        }
        let Some(Ok(frame)) = frame else {
            return Some(frame);
        };
        match frame.into_data() {
            Ok(content) if !content.is_empty() => {
                self.delayed.get_or_insert_with(DelayedContent::new).content = content;
                None
            }
            Ok(empty) => Some(Some(Ok(Frame::data(empty)))),
            Err(frame) => Some(Some(Ok(frame))),
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Paced<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        if this.length() == 0 {
            let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
            if let Some(passed) = this.hold(frame) {
                return Poll::Ready(passed);
            }
        }
        match (&mut this.delayed, &this.shaper) {
            (Some(delayed), Some(shaper)) => delayed
                .poll(cx, shaper)
                .map(|piece| Some(Ok(Frame::data(piece)))),
            _ => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.length() == 0 && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.body.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(rest + self.length() as u64),
            None => SizeHint::default(),
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Hold for Paced<B> {
    fn release(&mut self) -> bool {
        let delayed = self
            .delayed
            .as_mut()
            .filter(|delayed| !delayed.content.is_empty());
        delayed.is_some_and(|delayed| {
            delayed.is_released = true;
            true
        })
    }

    fn is_holding(&self) -> bool {
        self.length() > 0
    }
}

impl DelayedContent {
    fn new() -> Box<Self> {
        Box::new(Self {
            content: Bytes::new(),
            ticket: None,
            alarm: Alarm::default(),
            is_released: false,
        })
    }

    /// Returns the first piece when it is its turn, or all content if it was released.
    fn poll(&mut self, cx: &mut Context<'_>, shaper: &Arc<Shaper>) -> Poll<Bytes> {
        if std::mem::take(&mut self.is_released) {
            return Poll::Ready(self.release_all(shaper));
        }
        let length = self.content.len().min(PIECE_BYTES);
        let ticket = self.ticket.get_or_insert_with(|| shaper.reserve(length));
        while let Some(wait) = ticket.wait() {
            ready!(self.alarm.poll(cx, Instant::now() + wait));
        }
        if let Some(ticket) = self.ticket.take() {
            ticket.use_up();
        }
        Poll::Ready(self.content.split_to(length))
    }

    /// Returns all delayed content. It still counts for the rate, so that later content is delayed accordingly.
    fn release_all(&mut self, shaper: &Arc<Shaper>) -> Bytes {
        let mut rest = self.content.len();
        while rest > 0 {
            let length = rest.min(PIECE_BYTES);
            let ticket = self.ticket.take();
            ticket.unwrap_or_else(|| shaper.reserve(length)).use_up();
            rest -= length;
        }
        std::mem::take(&mut self.content)
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::poll_fn, time::Duration};

    use super::*;

    /// One frame.
    struct Once(Option<Bytes>);

    impl Body for Once {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.take().map(|content| Ok(Frame::data(content))))
        }
    }

    fn shaper(rate: Option<u64>) -> Arc<Shaper> {
        let shaper = Arc::new(Shaper::default());
        shaper.set(rate);
        shaper
    }

    fn paced(shaper: &Arc<Shaper>, content: &'static [u8]) -> Paced<Once> {
        let body = Once(Some(Bytes::from_static(content)));
        Paced::new(body, Some(shaper.clone()))
    }

    async fn next(body: &mut Paced<Once>) -> Option<Bytes> {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        match frame {
            Ok(frame) => Some(frame.into_data().unwrap()),
            Err(never) => match never {},
        }
    }

    /// Takes `content` through as one frame, in pieces.
    async fn through(shaper: &Arc<Shaper>, content: &'static [u8]) -> Vec<Bytes> {
        let mut body = paced(shaper, content);
        let mut pieces = Vec::new();
        while let Some(piece) = next(&mut body).await {
            pieces.push(piece);
        }
        assert_eq!(body.length(), 0);
        pieces
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_frames_pass_as_they_are() {
        let mut body = paced(&shaper(None), &[7; 100_000]);
        assert_eq!(next(&mut body).await.unwrap().len(), 100_000);
        assert!(next(&mut body).await.is_none() && body.delayed.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn with_a_rate_they_come_in_pieces_whole_and_in_time() {
        let shaper = shaper(Some(100_000));
        let start = Instant::now();
        for _ in 0..4 {
            let pieces = through(&shaper, &[7; 100_000]).await;
            assert_eq!(pieces.iter().map(Bytes::len).sum::<usize>(), 100_000);
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES));
        }
        let took = start.elapsed();
        let wanted = Duration::from_secs(4) - Duration::from_millis(655);
        assert!(
            took.abs_diff(wanted) < Duration::from_millis(20),
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_that_is_taken_away_lets_go_what_waits() {
        let shaper = shaper(Some(1));
        let start = Instant::now();
        let (pieces, ()) = tokio::join!(through(&shaper, &[7; 100_000]), async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            shaper.set(None);
        });
        assert_eq!(pieces.len(), 7);
        assert!(start.elapsed() <= Duration::from_secs(12));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_released_passes_at_once_and_the_rate_still_holds() {
        let shaper = shaper(Some(1_000));
        let mut body = paced(&shaper, &[7; 100_000]);
        let start = Instant::now();
        // The burst, and then the rest as one.
        for _ in 0..4 {
            assert_eq!(next(&mut body).await.unwrap().len(), PIECE_BYTES);
        }
        assert!(body.is_holding() && body.release());
        let rest = next(&mut body).await.unwrap();
        assert_eq!(rest.len(), 100_000 - 4 * PIECE_BYTES);
        assert!(!body.is_holding() && !body.release());
        assert_eq!(start.elapsed(), Duration::ZERO);
        through(&shaper, &[7; 1_000]).await;
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(35), "{took:?}");
    }
}
