//! How a long stream ends when its tunnel, or this server, leaves.
//!
//! A stream that is cut is an error to whoever reads it, and must never look like an end. But some
//! contents have an end of their own that says "come again": a close frame, the status of a call, the
//! gap between two events. Where a stream is of such a [`Form`], and stands between two of its units,
//! and whoever carried it has left on purpose, it gets that end instead of a cut.
//!
//! In: the bytes of a body, which pass untouched. Other contents are not looked at.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep};
use tunnel_ops::{
    ends::{Farewell, Form},
    signals::Shutdown,
};
use tunnel_proto::{close::CloseReason, exchange::BodyError, session::Session};

use super::pace::Source;

/// How long a stream may go on to where it can end in order.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// A body that is followed, so that it can end in order.
pub(super) struct LongStream<B: Body> {
    body: B,
    form: Form,
    /// The session that carries it; `None` of a body that comes from the platform client.
    session: Option<Session>,
    /// Reached when the server is about to end.
    stage: Shutdown,
    /// Resolves then. Made when first waited for.
    ending: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Since the server is about to end: how long the stream may go on.
    patience: Option<Pin<Box<Sleep>>>,
    /// What was held back when whoever carries it left was let go.
    is_let_go: bool,
    state: State,
}

/// Why a body that is followed ends early.
pub(super) trait Early {
    /// The end of one that has used up its patience.
    fn cut() -> Self;

    /// Whether it ends because whoever carried it has left on purpose, and not because it broke.
    fn is_on_purpose(&self) -> bool;
}

impl Early for BodyError {
    fn cut() -> Self {
        Self::Cut(None)
    }

    fn is_on_purpose(&self) -> bool {
        self.close_reason().is_some_and(is_on_purpose)
    }
}

/// Of a body that comes from the platform client, which nobody but itself carries.
impl Early for io::Error {
    fn cut() -> Self {
        io::ErrorKind::TimedOut.into()
    }

    fn is_on_purpose(&self) -> bool {
        false
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The body has ended by itself, or failed.
    Over,
    /// It was ended in order before that.
    Moved,
}

impl<B: Body<Data = Bytes, Error: Early> + Unpin> LongStream<B> {
    /// Follows a body.
    pub(super) fn new(body: B, form: Form, session: Option<Session>, stage: &Shutdown) -> Self {
        Self {
            body,
            form,
            session,
            stage: stage.clone(),
            ending: None,
            patience: None,
            is_let_go: false,
            state: State::Open,
        }
    }

    /// Whether the stream was ended in order before its content was whole.
    pub(super) fn has_moved(&self) -> bool {
        self.state == State::Moved
    }

    /// The body itself.
    pub(super) fn body(&mut self) -> &mut B {
        &mut self.body
    }

    fn end(&mut self) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.state = State::Moved;
        let farewell = self.form.farewell().map(|farewell| match farewell {
            Farewell::Content(content) => Frame::data(content),
            Farewell::Trailers(trailers) => Frame::trailers(trailers),
        });
        Poll::Ready(farewell.map(Ok))
    }

    /// Whether whoever carries the stream leaves on purpose, or has left.
    fn is_left(&self) -> bool {
        let reason = self.session.as_ref().and_then(Session::close_reason);
        reason.is_some_and(is_on_purpose)
    }

    /// Ready when the server is about to end: from then on every poll.
    fn poll_ending(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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

    /// Takes note of a frame. One in which a stream that is to end can end does so there.
    fn pass(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                // Trailers: it ends by itself.
                self.state = State::Over;
                return frame;
            }
        };
        let units = self.form.units();
        if self.patience.is_none() {
            units.advance(&data);
        } else if let Some(length) = units.advance_to_end(&data) {
            data.truncate(length);
        }
        Frame::data(data)
    }
}

impl<B: Body<Data = Bytes, Error: Early> + Unpin> Body for LongStream<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        if this.state != State::Open {
            return Poll::Ready(None);
        }
        loop {
            let was_ending = this.patience.is_some() || this.stage.is_asked();
            if was_ending {
                let _ = this.poll_ending(cx);
                if this.form.units().is_between() {
                    return this.end();
                }
                let patience = this.patience.as_mut();
                if patience.is_some_and(|patience| patience.as_mut().poll(cx).is_ready()) {
                    this.state = State::Over;
                    return Poll::Ready(Some(Err(B::Error::cut())));
                }
            }
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => return Poll::Ready(Some(Ok(this.pass(frame)))),
                Poll::Ready(Some(Err(error)))
                    if error.is_on_purpose() && this.form.units().is_between() =>
                {
                    return this.end();
                }
                Poll::Ready(last) => {
                    this.state = State::Over;
                    return Poll::Ready(last);
                }
                Poll::Pending if was_ending || this.poll_ending(cx).is_pending() => {
                    return Poll::Pending;
                }
                Poll::Pending => {}
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.state != State::Open || self.body.is_end_stream()
    }
}

impl<B: Body<Data = Bytes, Error: Early> + Unpin> Source for LongStream<B> {
    type Error = B::Error;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(self).poll_frame(cx)
    }

    /// Its end would come too late. When the server ends, all may pass up to where the stream can end;
    /// when the session does, which leaves it more time, only what is held at that moment.
    fn poll_haste(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.state == State::Moved || self.poll_ending(cx).is_ready() {
            return Poll::Ready(());
        }
        if !self.is_let_go && self.is_left() {
            self.is_let_go = true;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

/// Whether a session that has ended like this was ended by somebody, and did not break.
fn is_on_purpose(reason: CloseReason) -> bool {
    match reason {
        CloseReason::Left
        | CloseReason::Drained
        | CloseReason::Superseded
        | CloseReason::Revoked
        | CloseReason::Expired
        | CloseReason::Disconnected => true,
        CloseReason::ProtocolError
        | CloseReason::Dead
        | CloseReason::Overloaded
        | CloseReason::Internal
        | CloseReason::Conflict
        | CloseReason::Wedged
        | CloseReason::Other(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::Arc};

    use tokio::time::Instant;
    use tunnel_ops::ends::Events;
    use tunnel_proto::{
        problem::{Hop, Problem, Reason},
        session::{SessionSettings, Side},
    };

    use super::*;
    use crate::{budget::shaper::Shaper, public::pace::Pace};

    /// What comes, and how it ends. Without an end nothing more comes.
    struct Scripted {
        frames: std::vec::IntoIter<&'static str>,
        end: Option<BodyError>,
    }

    impl Body for Scripted {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            match (self.frames.next(), self.end.take()) {
                (Some(content), end) => {
                    self.end = end;
                    Poll::Ready(Some(Ok(Frame::data(content.into()))))
                }
                (None, Some(error)) => Poll::Ready(Some(Err(error))),
                (None, None) => Poll::Pending,
            }
        }
    }

    fn events(
        frames: Vec<&'static str>,
        end: Option<BodyError>,
        session: Option<Session>,
        stage: &Shutdown,
    ) -> LongStream<Scripted> {
        let frames = frames.into_iter();
        let form = Form::Events(Events::default());
        LongStream::new(Scripted { frames, end }, form, session, stage)
    }

    /// A session that was asked to leave, and has not ended.
    fn leaving() -> Session {
        let (io, _) = tokio::io::duplex(64);
        let settings = SessionSettings::default();
        let (session, _, driver) = Session::new(io, Bytes::new(), Side::Server, settings);
        std::mem::forget(driver);
        session.close(CloseReason::Drained);
        session
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_end_of_the_session_is_made_an_end_in_order() {
        let (_trigger, stage) = Shutdown::manual();
        let aborted = Problem::new(Hop::Client, Reason::ResponseIncomplete, "broken");
        for (end, is_in_order) in [
            (BodyError::Cut(Some(CloseReason::Drained)), true),
            (BodyError::Cut(Some(CloseReason::Dead)), false),
            (BodyError::Cut(None), false),
            (BodyError::Aborted(aborted), false),
            (BodyError::Length, false),
        ] {
            let name = end.to_string();
            let frames = vec!["data: a\n\n"];
            let mut stream = events(frames, Some(end), Some(leaving()), &stage);
            let mut next = async || poll_fn(|cx| Pin::new(&mut stream).poll_frame(cx)).await;
            assert!(next().await.unwrap().is_ok());
            assert_eq!(next().await.is_none(), is_in_order, "{name}");
            assert_eq!(stream.has_moved(), is_in_order, "{name}");
        }
    }

    /// All that comes through a rate by which a piece takes hours, and how long it took.
    async fn shaped(mut stream: LongStream<Scripted>) -> (String, Duration) {
        let shaper = Arc::new(Shaper::default());
        shaper.set(Some(1));
        for _ in 0..5 {
            shaper.reserve(16 * 1024).use_up();
        }
        let (mut pace, mut all, start) = (Pace::default(), String::new(), Instant::now());
        while let Some(frame) = poll_fn(|cx| pace.poll(cx, Some(&shaper), &mut stream)).await {
            let data = frame.unwrap().into_data().unwrap();
            all.push_str(std::str::from_utf8(&data).unwrap());
        }
        assert!(stream.has_moved());
        (all, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_its_rate_ends_in_order_too() {
        const SOON: Duration = Duration::from_millis(2_300);
        let (trigger, stage) = Shutdown::manual();
        let stream = events(vec!["data: a\n", "\ndata: b\n\n"], None, None, &stage);
        let asked = async {
            sleep(SOON).await;
            trigger.ask();
        };
        let ((all, took), ()) = tokio::join!(shaped(stream), asked);
        assert_eq!(all, "data: a\n\n");
        assert!(took - SOON < Duration::from_millis(10), "{took:?}");

        // What is held when a session leaves is let go, and all else waits.
        let (_trigger, stage) = Shutdown::manual();
        let end = BodyError::Cut(Some(CloseReason::Drained));
        let stream = events(vec!["data: a\n\n"], Some(end), Some(leaving()), &stage);
        let (all, took) = shaped(stream).await;
        assert_eq!(all, "data: a\n\n");
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}
