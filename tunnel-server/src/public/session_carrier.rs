//! Sessions as carriers of long streams, which end in order when a session is closed on purpose.

use tunnel_http::long_streams::Carrier;
use tunnel_proto::{close::CloseReason, exchange::BodyError, session::Session};

/// The session that carries an exchange.
pub(crate) struct SessionCarrier(pub(super) Session);

impl Carrier<BodyError> for SessionCarrier {
    fn cut(&self) -> BodyError {
        BodyError::Cut(None)
    }

    fn has_left(&self, error: &BodyError) -> bool {
        error.close_reason().is_some_and(is_on_purpose)
    }

    fn is_leaving(&self) -> bool {
        self.0.close_reason().is_some_and(is_on_purpose)
    }
}

/// Whether one of the two sides has closed the session on purpose, rather than because of an error.
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
    use std::{
        future::poll_fn,
        pin::Pin,
        sync::Arc,
        task::{Context, Poll},
        time::Duration,
    };

    use bytes::Bytes;
    use http_body::{Body, Frame};
    use tokio::time::{Instant, sleep};
    use tunnel_http::long_streams::{Events, LongStream, StreamFormat};
    use tunnel_ops::signals::Shutdown;
    use tunnel_proto::{
        problem::{Hop, Problem, Reason},
        session::{SessionSettings, Side},
    };

    use super::*;
    use crate::budget::{pace::Paced, shaper::Shaper};

    /// The frames of a body, and its end; without one the body stays open.
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

    type Stream = LongStream<Paced<Scripted>, SessionCarrier>;

    fn events(
        frames: Vec<&'static str>,
        end: Option<BodyError>,
        session: Session,
        stage: &Shutdown,
        shaper: Option<Arc<Shaper>>,
    ) -> Stream {
        let frames = frames.into_iter();
        let format = StreamFormat::Events(Events::default());
        let body = Paced::new(Scripted { frames, end }, shaper);
        LongStream::new(body, format, SessionCarrier(session), stage)
    }

    async fn next(stream: &mut Stream) -> Option<Result<Frame<Bytes>, BodyError>> {
        poll_fn(|cx| Pin::new(&mut *stream).poll_frame(cx)).await
    }

    fn open() -> Session {
        let (io, _) = tokio::io::duplex(64);
        let settings = SessionSettings::default();
        let (session, _, driver) = Session::new(io, Bytes::new(), Side::Server, settings);
        std::mem::forget(driver);
        session
    }

    /// A session that is leaving, and has not ended.
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
            let mut stream = events(frames, Some(end), leaving(), &stage, None);
            assert!(next(&mut stream).await.unwrap().is_ok());
            assert_eq!(next(&mut stream).await.is_none(), is_in_order, "{name}");
            assert_eq!(stream.has_ended_early(), is_in_order, "{name}");
        }
    }

    /// A rate by which a piece takes hours.
    fn slow() -> Option<Arc<Shaper>> {
        let shaper = Arc::new(Shaper::default());
        shaper.set(Some(1));
        for _ in 0..5 {
            shaper.reserve(16 * 1024).use_up();
        }
        Some(shaper)
    }

    /// All that comes, and how long it took.
    async fn all_of(mut stream: Stream) -> (String, Duration) {
        let (mut all, start) = (String::new(), Instant::now());
        while let Some(frame) = next(&mut stream).await {
            let data = frame.unwrap().into_data().unwrap();
            all.push_str(std::str::from_utf8(&data).unwrap());
        }
        assert!(stream.has_ended_early());
        (all, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_its_rate_ends_in_order_too() {
        const SOON: Duration = Duration::from_millis(2_300);
        let (trigger, stage) = Shutdown::manual();
        let frames = vec!["data: a\n", "\ndata: b\n\n"];
        let stream = events(frames, None, open(), &stage, slow());
        let stopping = async {
            sleep(SOON).await;
            trigger.request();
        };
        let ((all, took), ()) = tokio::join!(all_of(stream), stopping);
        assert_eq!(all, "data: a\n\n");
        assert!(took - SOON < Duration::from_millis(10), "{took:?}");

        // What is delayed when a session leaves is released, and all else waits.
        let (_trigger, stage) = Shutdown::manual();
        let end = BodyError::Cut(Some(CloseReason::Drained));
        let stream = events(vec!["data: a\n\n"], Some(end), leaving(), &stage, slow());
        let (all, took) = all_of(stream).await;
        assert_eq!(all, "data: a\n\n");
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}
