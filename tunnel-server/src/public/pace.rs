//! Delays a body as far as its runtime's rate asks for.
//!
//! In: the frames of a body as they come. Out: the same bytes, in pieces that each wait for their
//! turn. While a piece waits nothing more is taken from the body, so that whoever sends it is slowed
//! down, and never the session. What is to end in order soon is not held any more. Without a rate there is no timer and nothing is kept.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;
use tunnel_ops::alarm::Alarm;
use tunnel_proto::exchange::{BodyError, RecvBody};

use crate::budget::shaper::{PIECE_BYTES, Shaper, Ticket};

/// Where the frames come from.
pub(super) trait Source {
    /// Why there are no more.
    type Error;

    /// The next frame.
    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>>;

    /// Ready when what is held is not to wait any more. Asked while it waits, once in a while at
    /// least.
    fn poll_haste(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Source for RecvBody {
    type Error = BodyError;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(self).poll_frame(cx)
    }
}

/// What one body waits for.
#[derive(Default)]
pub(super) struct Pace {
    /// `None` until there was something to wait for.
    held: Option<Box<Held>>,
}

/// Content that was taken from the body and may not go on yet.
struct Held {
    content: Bytes,
    shaper: Arc<Shaper>,
    /// For the first piece of the content.
    ticket: Option<Ticket>,
    alarm: Alarm,
}

impl Pace {
    /// The next frame of the source, when it may go on.
    pub(super) fn poll<S: Source>(
        &mut self,
        cx: &mut Context<'_>,
        shaper: Option<&Arc<Shaper>>,
        source: &mut S,
    ) -> Poll<Option<Result<Frame<Bytes>, S::Error>>> {
        if self.length() == 0 {
            let frame = ready!(source.poll_next(cx));
            if let Some(passed) = self.hold(frame, shaper) {
                return Poll::Ready(passed);
            }
        }
        match &mut self.held {
            Some(held) => held
                .poll(cx, source)
                .map(|piece| Some(Ok(Frame::data(piece)))),
            None => Poll::Ready(None),
        }
    }

    /// Bytes that were taken from the body and are not on their way yet.
    pub(super) fn length(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.content.len())
    }

    /// What is still to come of a body of which so much is still to be asked for.
    pub(super) fn size_hint(&self, rest: SizeHint) -> SizeHint {
        let held = self.length() as u64;
        match rest.exact() {
            Some(rest) => SizeHint::with_exact(rest + held),
            None => SizeHint::default(),
        }
    }

    /// Holds a frame back, or gives it again when it may pass.
    fn hold<E>(
        &mut self,
        frame: Option<Result<Frame<Bytes>, E>>,
        shaper: Option<&Arc<Shaper>>,
    ) -> Option<Option<Result<Frame<Bytes>, E>>> {
        let Some(shaper) = shaper.filter(|shaper| shaper.is_set()) else {
            return Some(frame);
        };
        let Some(Ok(frame)) = frame else {
            return Some(frame);
        };
        match frame.into_data() {
            Ok(content) if !content.is_empty() => {
                let held = self.held.get_or_insert_with(|| Held::new(shaper));
                held.content = content;
                None
            }
            Ok(empty) => Some(Some(Ok(Frame::data(empty)))),
            Err(frame) => Some(Some(Ok(frame))),
        }
    }
}

impl Held {
    fn new(shaper: &Arc<Shaper>) -> Box<Self> {
        Box::new(Self {
            content: Bytes::new(),
            shaper: shaper.clone(),
            ticket: None,
            alarm: Alarm::default(),
        })
    }

    /// The first piece, once it is its turn; all there is, if it is to wait no more.
    fn poll(&mut self, cx: &mut Context<'_>, source: &mut impl Source) -> Poll<Bytes> {
        let length = self.content.len().min(PIECE_BYTES);
        let shaper = &self.shaper;
        let ticket = self.ticket.get_or_insert_with(|| shaper.reserve(length));
        while let Some(wait) = ticket.wait() {
            if source.poll_haste(cx).is_ready() {
                return Poll::Ready(self.let_go());
            }
            ready!(self.alarm.poll(cx, Instant::now() + wait));
        }
        if let Some(ticket) = self.ticket.take() {
            ticket.use_up();
        }
        Poll::Ready(self.content.split_to(length))
    }

    /// All that is held. Those that come later wait for it all the same, so that the rate holds.
    fn let_go(&mut self) -> Bytes {
        let mut rest = self.content.len();
        while rest > 0 {
            let length = rest.min(PIECE_BYTES);
            let ticket = self.ticket.take();
            ticket
                .unwrap_or_else(|| self.shaper.reserve(length))
                .use_up();
            rest -= length;
        }
        std::mem::take(&mut self.content)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::poll_fn,
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

    use super::*;

    /// One frame.
    #[derive(Default)]
    struct Once {
        content: Option<Bytes>,
        is_hasty: Arc<AtomicBool>,
    }

    impl Source for Once {
        type Error = Infallible;

        fn poll_next(
            &mut self,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.content.take().map(|content| Ok(Frame::data(content))))
        }

        fn poll_haste(&mut self, _: &mut Context<'_>) -> Poll<()> {
            match self.is_hasty.load(Ordering::Relaxed) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }
    }

    fn shaper(rate: Option<u64>) -> Arc<Shaper> {
        let shaper = Arc::new(Shaper::default());
        shaper.set(rate);
        shaper
    }

    /// Takes `content` through as one frame; its pieces, and when each came.
    async fn through(pace: &mut Pace, shaper: &Arc<Shaper>, content: &'static [u8]) -> Vec<Bytes> {
        let source = Once {
            content: Some(Bytes::from_static(content)),
            ..Once::default()
        };
        all_of(pace, shaper, source).await
    }

    async fn all_of(pace: &mut Pace, shaper: &Arc<Shaper>, mut source: Once) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        loop {
            let frame = poll_fn(|cx| pace.poll(cx, Some(shaper), &mut source));
            match frame.await {
                Some(Ok(frame)) => pieces.push(frame.into_data().unwrap()),
                Some(Err(never)) => match never {},
                None => return pieces,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_frames_pass_as_they_are() {
        let (mut pace, shaper) = (Pace::default(), shaper(None));
        let pieces = through(&mut pace, &shaper, &[7; 100_000]).await;
        assert_eq!(pieces.len(), 1);
        assert!(pace.held.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn with_a_rate_they_come_in_pieces_whole_and_in_time() {
        let (mut pace, shaper) = (Pace::default(), shaper(Some(100_000)));
        let start = Instant::now();
        for _ in 0..4 {
            let pieces = through(&mut pace, &shaper, &[7; 100_000]).await;
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
        let (mut pace, shaper) = (Pace::default(), shaper(Some(1)));
        let start = Instant::now();
        let (pieces, ()) = tokio::join!(through(&mut pace, &shaper, &[7; 100_000]), async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            shaper.set(None);
        });
        assert_eq!(pieces.len(), 7);
        assert!(start.elapsed() <= Duration::from_secs(12));
        assert_eq!(pace.length(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_passes_at_once_in_haste_and_the_rate_still_holds() {
        let (mut pace, shaper) = (Pace::default(), shaper(Some(1_000)));
        let source = Once {
            content: Some(Bytes::from_static(&[7; 100_000])),
            ..Once::default()
        };
        let is_hasty = source.is_hasty.clone();
        let start = Instant::now();
        let (pieces, ()) = tokio::join!(all_of(&mut pace, &shaper, source), async {
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            is_hasty.store(true, Ordering::Relaxed);
        });
        // The burst, and then the rest as one.
        assert_eq!(
            pieces.iter().map(Bytes::len).max(),
            Some(100_000 - 4 * PIECE_BYTES)
        );
        assert!(
            start.elapsed() <= Duration::from_secs(4),
            "{:?}",
            start.elapsed()
        );
        through(&mut pace, &shaper, &[7; 1_000]).await;
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(35), "{took:?}");
    }
}
