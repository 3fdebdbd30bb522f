//! Upgraded connections: what a platform client sends and what the runtime sends, byte by byte.
//!
//! In: a connection that was taken from hyper, and the exchange that granted its upgrade. Each
//! direction ends by itself and the other goes on; nothing limits how long both are silent, but when
//! one has ended, the other does not stay for ever without a byte, and a platform client that takes nothing
//! of what there is for it is given up. When the tunnel leaves, or this server, the platform client is told
//! by a close frame, and so is the upstream as far as it can be.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::{
    io::{AsyncRead, AsyncWrite, WriteHalf, split},
    time::timeout,
};
use tunnel_http::{
    connection::drain,
    ends::{Early, Form, LongStream, PATIENCE},
    upgraded::{Lent, Moved, Taken, is_not_taken},
};
use tunnel_proto::{
    exchange::{BodyError, RecvBody, read_body},
    session::Session,
};

use super::{
    PublicListener,
    body::UpgradeSender,
    ends::SessionStream,
    observe::Observation,
    pace::{Pace, Source},
};

/// An upgrade that was granted: what joins the platform client's bytes to the exchange's.
pub struct Granted {
    /// Takes what the platform client sends.
    pub(super) upload: UpgradeSender,
    /// What the runtime sends.
    pub(super) download: RecvBody,
    /// What carries the exchange.
    pub(super) session: Session,
    /// Ends with the upgraded connection.
    pub(super) observation: Observation,
}

/// Moves the bytes until both directions have ended. After the end of one, the time in which a body
/// may be silent, without a byte in the other, ends that too.
///
/// `taken_in` is how long the platform client may take nothing of what there is for it, where the kernel does
/// not see to that: on a stream of HTTP/2.
pub(super) async fn join<IO>(
    io: IO,
    granted: Granted,
    node: &Arc<PublicListener>,
    taken_in: Option<Duration>,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Granted {
        upload,
        download,
        session,
        observation,
    } = granted;
    let linger = node.config().settings.body_idle_timeout;
    let (reader, writer) = split(io);
    let moved = Moved::default();
    let (reader, mut upload_ended) = Lent::new(reader);
    let stage = node.lifecycle.ending();
    let early = Early::cut(|| io::ErrorKind::TimedOut.into());
    let body = LongStream::new(read_body(reader), Form::upload(), stage, early);
    // Nobody takes it when the exchange has ended meanwhile, of which the other direction tells.
    let _ = upload.send(Box::new(Counted::new(body, &moved)));
    let body = SessionStream::new(download, Form::download(), session, stage);
    let mut download = Download {
        body: Box::new(Counted::new(body, &moved)),
        pace: Pace::default(),
        writer: Taken::new(writer, taken_in),
        observation,
    };
    let mut reader = None;
    let downloaded = tokio::select! {
        downloaded = download.run() => downloaded,
        () = async {
            reader = (&mut upload_ended).await.ok();
            moved.silence(linger).await;
        } => Err(io::ErrorKind::TimedOut.into()),
    };
    if let Err(error) = downloaded {
        tracing::debug!(%error, "an upgraded connection was cut");
        return;
    }
    download.finish(&moved, linger).await;
    let has_left = download.body.source.has_left();
    // Ends the exchange, and with it the upload, if it goes on still.
    drop(download);
    if has_left {
        // The close frame is not to be lost to a reset because of bytes that nobody has read.
        let given_back = async {
            match reader.take() {
                Some(reader) => Some(reader),
                None => upload_ended.await.ok(),
            }
        };
        if let Ok(Some(reader)) = timeout(PATIENCE, given_back).await {
            drain(reader).await;
        }
    }
}

/// What the runtime sends, on its way to the platform client.
struct Download<IO> {
    body: Box<Counted<SessionStream>>,
    pace: Pace,
    writer: Taken<WriteHalf<IO>>,
    observation: Observation,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Download<IO> {
    /// Writes what comes, and closes this direction at its end.
    ///
    /// # Errors
    /// When it is cut or the connection fails; the connection is then not closed in order.
    async fn run(&mut self) -> io::Result<()> {
        while let Some(frame) = poll_fn(|cx| self.poll_frame(cx)).await {
            let frame = frame.map_err(|error| {
                self.observation.on_error(&error);
                io::Error::other(error)
            })?;
            if let Ok(data) = frame.into_data() {
                self.body.moved.count();
                let sent = self.writer.send(&data).await;
                self.note_not_taken(sent)?;
                self.observation.on_received(data.len());
            }
        }
        if self.body.source.has_left() {
            self.observation.on_moved();
        } else {
            self.observation.on_end();
        }
        let ended = self.writer.end().await;
        self.note_not_taken(ended)
    }

    /// Has it recorded if the platform client was given up.
    fn note_not_taken(&mut self, written: io::Result<()>) -> io::Result<()> {
        written.inspect_err(|error| {
            if is_not_taken(error) {
                self.observation.on_not_taken();
            }
        })
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let shaper = self.observation.download();
        self.pace.poll(cx, shaper, &mut *self.body)
    }

    /// Leaves the other direction the time that it has. The exchange itself sends that, for as long
    /// as the body lives.
    async fn finish(&mut self, moved: &Moved, linger: Duration) {
        let has_left = self.body.source.has_left();
        let body = self.body.source.body();
        if has_left {
            // The upstream was told too, and may answer, and end.
            let answered = async {
                while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {}
                body.sent().await;
            };
            let _ = timeout(PATIENCE, answered).await;
            return;
        }
        tokio::select! {
            () = body.sent() => {}
            () = moved.silence(linger) => {}
        }
    }
}

/// What one of the two sends, counted.
struct Counted<S> {
    source: S,
    moved: Moved,
}

impl<S> Counted<S> {
    fn new(source: S, moved: &Moved) -> Self {
        Self {
            source,
            moved: moved.clone(),
        }
    }
}

impl<S: Source> Source for Counted<S> {
    type Error = S::Error;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, S::Error>>> {
        let frame = self.source.poll_next(cx);
        if frame.is_ready() {
            self.moved.count();
        }
        frame
    }

    /// Whoever waits for his turn is not silent.
    fn poll_haste(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.moved.count();
        self.source.poll_haste(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::budget::shaper::Shaper;

    struct Once(Option<Bytes>);

    impl Source for Once {
        type Error = Infallible;

        fn poll_next(
            &mut self,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.take().map(|content| Ok(Frame::data(content))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_rate_is_not_silent() {
        let shaper = Arc::new(Shaper::default());
        shaper.set(Some(1_000));
        let moved = Moved::default();
        let content = Bytes::from_static(&[7; 100_000]);
        let mut source = Counted::new(Once(Some(content)), &moved);
        let mut pace = Pace::default();
        let mut pass = async || {
            while poll_fn(|cx| pace.poll(cx, Some(&shaper), &mut source))
                .await
                .is_some()
            {}
        };
        tokio::select! {
            // A piece of 16 KiB takes 16 s.
            () = moved.silence(Duration::from_secs(5)) => panic!("it was held"),
            () = pass() => {}
        }
        moved.silence(Duration::from_secs(5)).await;
    }
}
