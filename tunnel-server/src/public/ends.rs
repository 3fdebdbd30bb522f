//! How a long stream ends when its tunnel, or this server, leaves.
//!
//! A stream that is cut is an error to whoever reads it, and must never look like an end. But where it
//! is of a [`Form`] that has an end of its own which says "come again", and stands between two of its
//! units, and whoever carried it has left on purpose, it gets that end instead of a cut.
//!
//! In: the bytes of a body, which pass untouched. Other contents are not looked at.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tunnel_http::ends::{Early, Form, LongStream};
use tunnel_ops::signals::Shutdown;
use tunnel_proto::{
    close::CloseReason,
    exchange::{BodyError, RecvBody},
    session::Session,
};

use super::pace::Source;

/// What a session carries and is followed, so that it can end in order.
pub(super) struct SessionStream<B: Body = RecvBody> {
    stream: LongStream<B>,
    session: Session,
    /// What was held back when whoever carried it left was let go.
    is_let_go: bool,
}

impl<B: Body<Data = Bytes, Error = BodyError> + Unpin> SessionStream<B> {
    /// Follows a body that comes through this session.
    pub(super) fn new(body: B, form: Form, session: Session, stage: &Shutdown) -> Self {
        let early = Early {
            cut: || BodyError::Cut(None),
            is_on_purpose: |error: &BodyError| error.close_reason().is_some_and(is_on_purpose),
        };
        Self {
            stream: LongStream::new(body, form, stage, early),
            session,
            is_let_go: false,
        }
    }

    /// Whether the stream was ended in order before its content was whole.
    pub(super) fn has_left(&self) -> bool {
        self.stream.has_left()
    }

    /// The body itself.
    pub(super) fn body(&mut self) -> &mut B {
        self.stream.body()
    }

    /// Whether nothing more comes.
    pub(super) fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    /// Whether whoever carries the stream leaves on purpose, or has left.
    fn is_left(&self) -> bool {
        self.session.close_reason().is_some_and(is_on_purpose)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Source for LongStream<B> {
    type Error = B::Error;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(self).poll_frame(cx)
    }

    /// Its end would come too late: when the server ends, all may pass up to where the stream can end.
    fn poll_haste(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_left() {
            return Poll::Ready(());
        }
        self.poll_ending(cx)
    }
}

impl<B: Body<Data = Bytes, Error = BodyError> + Unpin> Source for SessionStream<B> {
    type Error = BodyError;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.stream.poll_next(cx)
    }

    /// When the session ends, which leaves a stream more time than the server's end does, only what is
    /// held at that moment may pass.
    fn poll_haste(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.stream.poll_haste(cx).is_ready() {
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
    use std::{future::poll_fn, sync::Arc, time::Duration};

    use tokio::time::{Instant, sleep};
    use tunnel_http::ends::Events;
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
        session: Session,
        stage: &Shutdown,
    ) -> SessionStream<Scripted> {
        let frames = frames.into_iter();
        let form = Form::Events(Events::default());
        SessionStream::new(Scripted { frames, end }, form, session, stage)
    }

    fn open() -> Session {
        let (io, _) = tokio::io::duplex(64);
        let settings = SessionSettings::default();
        let (session, _, driver) = Session::new(io, Bytes::new(), Side::Server, settings);
        std::mem::forget(driver);
        session
    }

    /// A session that was asked to leave, and has not ended.
    fn leaving() -> Session {
        let session = open();
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
            let mut stream = events(frames, Some(end), leaving(), &stage);
            let mut next = async || poll_fn(|cx| stream.poll_next(cx)).await;
            assert!(next().await.unwrap().is_ok());
            assert_eq!(next().await.is_none(), is_in_order, "{name}");
            assert_eq!(stream.has_left(), is_in_order, "{name}");
        }
    }

    /// All that comes through a rate by which a piece takes hours, and how long it took.
    async fn shaped(mut stream: SessionStream<Scripted>) -> (String, Duration) {
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
        assert!(stream.has_left());
        (all, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_its_rate_ends_in_order_too() {
        const SOON: Duration = Duration::from_millis(2_300);
        let (trigger, stage) = Shutdown::manual();
        let stream = events(vec!["data: a\n", "\ndata: b\n\n"], None, open(), &stage);
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
        let stream = events(vec!["data: a\n\n"], Some(end), leaving(), &stage);
        let (all, took) = shaped(stream).await;
        assert_eq!(all, "data: a\n\n");
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}
