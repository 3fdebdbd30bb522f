//! A long content that ends in order when its program stops, or when whoever carried it has left.
//!
//! In: the bytes of a content, which pass untouched until then. From that moment on the stream ends at
//! the next place between two of its units, and is cut when there is none for a moment. One that breaks
//! off on purpose ends there in order, if that is such a place.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep};

use super::{Farewell, Form};
use tunnel_ops::signals::Shutdown;

/// How long a stream may go on to where it can end in order, and its other end may take to answer that.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// A content that is followed, so that it can end in order.
pub struct LongStream<B: Body> {
    body: B,
    form: Form,
    /// Reached when the program is about to end.
    stage: Shutdown,
    /// Resolves then. Made when first waited for.
    ending: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Since the program is about to end: how long the stream may go on.
    patience: Option<Pin<Box<Sleep>>>,
    early: Early<B::Error>,
    state: State,
}

/// What the errors of a content say of its early end.
pub struct Early<E> {
    /// The error of a stream that has used up its patience.
    pub cut: fn() -> E,
    /// Whether it breaks off because whoever carried it has left on purpose.
    pub is_on_purpose: fn(&E) -> bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The content has ended by itself, or failed.
    Over,
    /// It was ended in order before that.
    Left,
}

type NextFrame<E> = Option<Result<Frame<Bytes>, E>>;

impl<E> Early<E> {
    /// Of a content that nobody carries who could leave.
    #[must_use]
    pub fn cut(cut: fn() -> E) -> Self {
        Self {
            cut,
            is_on_purpose: |_| false,
        }
    }
}

impl<E> fmt::Debug for Early<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Early").finish_non_exhaustive()
    }
}

impl<B: Body> fmt::Debug for LongStream<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LongStream")
            .field("form", &self.form)
            .finish_non_exhaustive()
    }
}

impl<B: Body<Data = Bytes> + Unpin> LongStream<B> {
    /// Follows a content of this form until `stage` is asked for.
    pub fn new(body: B, form: Form, stage: &Shutdown, early: Early<B::Error>) -> Self {
        Self {
            body,
            form,
            stage: stage.clone(),
            ending: None,
            patience: None,
            early,
            state: State::Open,
        }
    }

    /// Whether it was ended in order before its content was whole.
    pub fn has_left(&self) -> bool {
        self.state == State::Left
    }

    /// The content itself.
    pub fn body(&mut self) -> &mut B {
        &mut self.body
    }

    /// Ready when the program is about to end: from then on at every poll.
    pub fn poll_ending(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.stage.is_asked() {
            let stage = &self.stage;
            let ending = self.ending.get_or_insert_with(|| {
                let stage = stage.clone();
                Box::pin(async move { stage.asked().await })
            });
            if ending.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        self.patience
            .get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        Poll::Ready(())
    }

    /// Ends it where it stands, which is between two units.
    fn leave(&mut self) -> NextFrame<B::Error> {
        self.state = State::Left;
        let farewell = self.form.farewell()?;
        Some(Ok(match farewell {
            Farewell::Content(content) => Frame::data(content),
            Farewell::Trailers(trailers) => Frame::trailers(trailers),
        }))
    }

    /// What a stream that is to end comes to before anything more is read of it.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<NextFrame<B::Error>> {
        if self.form.units().is_between() {
            return Poll::Ready(self.leave());
        }
        let patience = self.patience.as_mut();
        if patience.is_some_and(|patience| patience.as_mut().poll(cx).is_ready()) {
            self.state = State::Over;
            return Poll::Ready(Some(Err((self.early.cut)())));
        }
        Poll::Pending
    }

    /// Takes note of a frame. One in which a stream that is to end can end does so there.
    fn pass(&mut self, frame: Frame<Bytes>, is_ending: bool) -> Frame<Bytes> {
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(trailers) => {
                self.state = State::Over;
                return trailers;
            }
        };
        let units = self.form.units();
        if !is_ending {
            units.advance(&data);
        } else if let Some(length) = units.advance_to_end(&data) {
            data.truncate(length);
        }
        Frame::data(data)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for LongStream<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame<B::Error>> {
        let this = &mut *self;
        loop {
            if this.state != State::Open {
                return Poll::Ready(None);
            }
            let is_ending = this.stage.is_asked() && this.poll_ending(cx).is_ready();
            if is_ending && let Poll::Ready(end) = this.poll_end(cx) {
                return Poll::Ready(end);
            }
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    return Poll::Ready(Some(Ok(this.pass(frame, is_ending))));
                }
                Poll::Ready(Some(Err(error)))
                    if (this.early.is_on_purpose)(&error) && this.form.units().is_between() =>
                {
                    return Poll::Ready(this.leave());
                }
                Poll::Ready(last) => {
                    this.state = State::Over;
                    return Poll::Ready(last);
                }
                Poll::Pending if is_ending || this.poll_ending(cx).is_pending() => {
                    return Poll::Pending;
                }
                // It is to end since a moment ago.
                Poll::Pending => {}
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.state != State::Open || self.body.is_end_stream()
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

    fn followed(form: Form, stage: &Shutdown) -> (mpsc::Sender<Sent>, LongStream<Fed>) {
        let (sender, receiver) = mpsc::channel(8);
        let early = Early {
            cut: || "cut",
            is_on_purpose: |error| *error == "left",
        };
        let stream = LongStream::new(Fed(receiver), form, stage, early);
        (sender, stream)
    }

    async fn next<B: Body<Data = Bytes> + Unpin>(
        stream: &mut LongStream<B>,
    ) -> Option<Result<String, B::Error>> {
        let frame = poll_fn(|cx| Pin::new(&mut *stream).poll_frame(cx)).await?;
        Some(frame.map(|frame| {
            let data = frame.into_data().unwrap_or_default();
            String::from_utf8_lossy(&data).into_owned()
        }))
    }

    fn data(text: &'static str) -> Sent {
        Ok(Frame::data(text.into()))
    }

    fn events() -> Form {
        Form::Events(Events::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_at_the_next_place_where_it_may() {
        let (trigger, stage) = Shutdown::manual();
        let (sender, mut stream) = followed(events(), &stage);
        sender.send(data("data: a\n\ndata: ")).await.unwrap();
        let begun = next(&mut stream).await.unwrap();
        assert_eq!(begun.unwrap(), "data: a\n\ndata: ");
        trigger.ask();
        sender.send(data("b\n\ndata: c\n\n")).await.unwrap();
        assert_eq!(next(&mut stream).await.unwrap().unwrap(), "b\n\n");
        assert!(next(&mut stream).await.is_none() && stream.has_left());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_between_two_units_ends_at_once() {
        let (trigger, stage) = Shutdown::manual();
        let (_sender, mut stream) = followed(Form::download(), &stage);
        let waiting = async {
            tokio::task::yield_now().await;
            trigger.ask();
        };
        let (close, ()) = tokio::join!(poll_fn(|cx| Pin::new(&mut stream).poll_frame(cx)), waiting);
        let close = close.unwrap().unwrap().into_data().unwrap();
        assert_eq!(close[..], [0x88, 2, 0x03, 0xe9]);
        assert!(next(&mut stream).await.is_none() && stream.has_left());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stands_within_a_unit_is_cut_and_not_ended() {
        let (trigger, stage) = Shutdown::manual();
        let (sender, mut stream) = followed(events(), &stage);
        sender.send(data("data: half")).await.unwrap();
        next(&mut stream).await.unwrap().unwrap();
        trigger.ask();
        assert_eq!(next(&mut stream).await.unwrap().unwrap_err(), "cut");
        assert!(next(&mut stream).await.is_none() && !stream.has_left());
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
            assert_eq!(stream.has_left(), is_in_order, "{text}{why}");
        }
    }
}
