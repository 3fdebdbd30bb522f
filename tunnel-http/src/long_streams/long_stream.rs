//! A long stream, which ends early in order when the program stops.
//!
//! In: the bytes of content, in parts of any size. Out: those bytes, up to the position of an early end, and the end of
//! its protocol; or an error, if there is no such position in time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::io::AsyncRead;
use tokio::time::{Sleep, sleep};
use tunnel_ops::signals::Shutdown;
use tunnel_proto::exchange::ReadBody;

use super::{EarlyEnd, StreamFormat};

/// How long a stream may continue until it can end in order, and how long its peer may take to answer that.
pub const GRACE: Duration = Duration::from_secs(1);

/// Content whose bytes may be held back, by a rate for example.
pub trait Hold: Body {
    /// Releases all held bytes: the next poll returns them. Returns whether there are any.
    fn release(&mut self) -> bool {
        false
    }

    /// Whether bytes are held back.
    fn is_holding(&self) -> bool {
        false
    }
}

impl<R: AsyncRead + Unpin> Hold for ReadBody<R> {}

/// The connection that carries content to this program, such as a session.
pub trait Carrier<E> {
    /// The error of content that is cut because it could not end in order within [`GRACE`].
    fn cut(&self) -> E;

    /// Whether this error is that of a carrier that has left on purpose.
    fn has_left(&self, _: &E) -> bool {
        false
    }

    /// Whether the carrier is leaving on purpose, or has left.
    fn is_leaving(&self) -> bool {
        false
    }
}

/// The carrier of content that cannot leave. Holds the constructor of the error of a cut.
#[derive(Debug, Clone, Copy)]
pub struct Direct<E>(pub fn() -> E);

impl<E> Carrier<E> for Direct<E> {
    fn cut(&self) -> E {
        (self.0)()
    }
}

/// Content that ends early in order when the program stops.
pub struct LongStream<B: Body, C> {
    body: B,
    format: StreamFormat,
    carrier: C,
    /// Reached when the program is about to stop.
    stage: Shutdown,
    /// Resolves when `stage` is reached. Made when it is first awaited.
    ending: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Set when `stage` is reached: how long the stream may continue.
    grace: Option<Pin<Box<Sleep>>>,
    /// Whether the bytes held back when `stage` was reached have been released, which pass as a whole.
    has_backlog: bool,
    /// Whether the bytes held back when the carrier began to leave have been released.
    is_let_go: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The content has ended by itself, or failed.
    Over,
    /// It was ended in order before that.
    EndedEarly,
}

type NextFrame<E> = Option<Result<Frame<Bytes>, E>>;

impl<B: Body, C> fmt::Debug for LongStream<B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LongStream")
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl<B: Body, C> LongStream<B, C> {
    /// Content of this format, which ends early when `stage` is reached or its carrier has left.
    pub fn new(body: B, format: StreamFormat, carrier: C, stage: &Shutdown) -> Self {
        Self {
            body,
            format,
            carrier,
            stage: stage.clone(),
            ending: None,
            grace: None,
            has_backlog: false,
            is_let_go: false,
            state: State::Open,
        }
    }

    /// Whether it has ended early in order.
    pub fn has_ended_early(&self) -> bool {
        self.state == State::EndedEarly
    }

    /// The content itself.
    pub fn body(&mut self) -> &mut B {
        &mut self.body
    }
}

impl<B: Hold<Data = Bytes> + Unpin, C: Carrier<B::Error>> LongStream<B, C> {
    /// Ready at every poll after `stage` is reached.
    fn poll_ending(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.stage.is_requested() {
            let stage = &self.stage;
            let ending = self.ending.get_or_insert_with(|| {
                let stage = stage.clone();
                Box::pin(async move { stage.requested().await })
            });
            if ending.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        if self.grace.is_none() {
            self.grace = Some(Box::pin(sleep(GRACE)));
            self.has_backlog = self.body.release();
        }
        Poll::Ready(())
    }

    /// Ends the content at its current position, which is between two units.
    fn end_early(&mut self) -> NextFrame<B::Error> {
        self.state = State::EndedEarly;
        let end = self.format.early_end()?;
        Some(Ok(match end {
            EarlyEnd::Content(content) => Frame::data(content),
            EarlyEnd::Trailers(trailers) => Frame::trailers(trailers),
        }))
    }

    /// Ends a stream: in order if its position is between two units, by a cut when [`GRACE`] is over.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<NextFrame<B::Error>> {
        if self.format.units().is_between() {
            return Poll::Ready(self.end_early());
        }
        let grace = self.grace.as_mut();
        if grace.is_some_and(|grace| grace.as_mut().poll(cx).is_ready()) {
            self.state = State::Over;
            return Poll::Ready(Some(Err(self.carrier.cut())));
        }
        Poll::Pending
    }

    /// Parses a frame. If the stream `is_ending` and can end in the frame, the frame is truncated there.
    fn pass(&mut self, frame: Frame<Bytes>, is_ending: bool) -> Frame<Bytes> {
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(trailers) => {
                self.state = State::Over;
                return trailers;
            }
        };
        let units = self.format.units();
        if !is_ending {
            units.advance(&data);
        } else if let Some(length) = units.advance_to_end(&data) {
            data.truncate(length);
        }
        Frame::data(data)
    }

    /// Releases held bytes that would be too late otherwise: at every poll of a stream that is ending, and once when its
    /// carrier leaves, which gives the stream more time.
    fn release_late(&mut self, is_ending: bool) -> bool {
        let is_late =
            self.body.is_holding() && (is_ending || (!self.is_let_go && self.carrier.is_leaving()));
        self.is_let_go |= is_late && !is_ending;
        is_late && self.body.release()
    }
}

impl<B: Hold<Data = Bytes> + Unpin, C: Carrier<B::Error> + Unpin> Body for LongStream<B, C> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame<B::Error>> {
        let this = &mut *self;
        loop {
            if this.state != State::Open {
                return Poll::Ready(None);
            }
            let is_ending = this.stage.is_requested() && this.poll_ending(cx).is_ready();
            if is_ending
                && !this.has_backlog
                && let Poll::Ready(end) = this.poll_end(cx)
            {
                return Poll::Ready(end);
            }
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    let has_backlog = std::mem::take(&mut this.has_backlog);
                    return Poll::Ready(Some(Ok(this.pass(frame, is_ending && !has_backlog))));
                }
                Poll::Ready(Some(Err(error)))
                    if this.carrier.has_left(&error) && this.format.units().is_between() =>
                {
                    return Poll::Ready(this.end_early());
                }
                Poll::Ready(last) => {
                    this.state = State::Over;
                    return Poll::Ready(last);
                }
                Poll::Pending if this.release_late(is_ending) => {}
                Poll::Pending if is_ending || this.poll_ending(cx).is_pending() => {
                    return Poll::Pending;
                }
                // `stage` was reached a moment ago.
                Poll::Pending => {}
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.state != State::Open || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl<B: Hold<Data = Bytes> + Unpin, C: Carrier<B::Error> + Unpin> Hold for LongStream<B, C> {
    fn release(&mut self) -> bool {
        self.body.release()
    }

    fn is_holding(&self) -> bool {
        self.body.is_holding()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::mpsc;

    use super::super::Events;
    use super::*;

    type Sent = Result<Frame<Bytes>, &'static str>;

    /// What a test sends.
    struct Fed(mpsc::Receiver<Sent>);

    impl Body for Fed {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Sent>> {
            self.0.poll_recv(cx)
        }
    }

    impl Hold for Fed {}

    /// A carrier that is known to have left by the error "left".
    struct Left;

    impl Carrier<&'static str> for Left {
        fn cut(&self) -> &'static str {
            "cut"
        }

        fn has_left(&self, error: &&'static str) -> bool {
            *error == "left"
        }
    }

    fn followed(
        format: StreamFormat,
        stage: &Shutdown,
    ) -> (mpsc::Sender<Sent>, LongStream<Fed, Left>) {
        let (sender, receiver) = mpsc::channel(8);
        (sender, LongStream::new(Fed(receiver), format, Left, stage))
    }

    async fn next(stream: &mut LongStream<Fed, Left>) -> Option<Result<String, &'static str>> {
        let frame = poll_fn(|cx| Pin::new(&mut *stream).poll_frame(cx)).await?;
        Some(frame.map(|frame| {
            let data = frame.into_data().unwrap_or_default();
            String::from_utf8_lossy(&data).into_owned()
        }))
    }

    fn data(text: &'static str) -> Sent {
        Ok(Frame::data(text.into()))
    }

    fn events() -> StreamFormat {
        StreamFormat::Events(Events::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_at_the_next_place_where_it_may() {
        let (trigger, stage) = Shutdown::manual();
        let (sender, mut stream) = followed(events(), &stage);
        sender.send(data("data: a\n\ndata: ")).await.unwrap();
        let begun = next(&mut stream).await.unwrap();
        assert_eq!(begun.unwrap(), "data: a\n\ndata: ");
        trigger.request();
        sender.send(data("b\n\ndata: c\n\n")).await.unwrap();
        assert_eq!(next(&mut stream).await.unwrap().unwrap(), "b\n\n");
        assert!(next(&mut stream).await.is_none() && stream.has_ended_early());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_between_two_units_ends_at_once() {
        let (trigger, stage) = Shutdown::manual();
        let (_sender, mut stream) = followed(StreamFormat::download(), &stage);
        let waiting = async {
            tokio::task::yield_now().await;
            trigger.request();
        };
        let (close, ()) = tokio::join!(poll_fn(|cx| Pin::new(&mut stream).poll_frame(cx)), waiting);
        let close = close.unwrap().unwrap().into_data().unwrap();
        assert_eq!(close[..], [0x88, 2, 0x03, 0xe9]);
        assert!(next(&mut stream).await.is_none() && stream.has_ended_early());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stands_within_a_unit_is_cut_and_not_ended() {
        let (trigger, stage) = Shutdown::manual();
        let (sender, mut stream) = followed(events(), &stage);
        sender.send(data("data: half")).await.unwrap();
        next(&mut stream).await.unwrap().unwrap();
        trigger.request();
        assert_eq!(next(&mut stream).await.unwrap().unwrap_err(), "cut");
        assert!(next(&mut stream).await.is_none() && !stream.has_ended_early());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_left_on_purpose_ends_in_order_only_between_two_units() {
        for (text, why, is_in_order) in [
            ("data: a\n\n", "left", true),
            ("data: a\n\n", "broken", false),
            ("data: a\n", "left", false),
        ] {
            let (_trigger, stage) = Shutdown::manual();
            let (sender, mut stream) = followed(events(), &stage);
            sender.send(data(text)).await.unwrap();
            sender.send(Err(why)).await.unwrap();
            next(&mut stream).await.unwrap().unwrap();
            assert_eq!(
                next(&mut stream).await.is_none(),
                is_in_order,
                "{text}{why}"
            );
            assert_eq!(stream.has_ended_early(), is_in_order, "{text}{why}");
        }
    }
}
