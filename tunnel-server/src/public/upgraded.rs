//! Upgraded connections: what a platform client sends and what the runtime sends, byte by byte.
//!
//! In: a connection that was taken from hyper, and the exchange that granted its upgrade. Each
//! direction ends by itself and the other goes on; nothing limits how long both are silent, but when
//! one has ended, the other does not stay for ever without a byte.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, split},
    sync::oneshot,
    time::sleep,
};
use tunnel_proto::exchange::{RecvBody, copy_body, read_body};

use super::{body::UpgradeSender, observe::Observation};

/// An upgrade that was granted: what joins the platform client's bytes to the exchange's.
pub(super) struct Granted {
    /// Takes what the platform client sends.
    pub(super) upload: UpgradeSender,
    /// What the runtime sends.
    pub(super) download: RecvBody,
    /// Ends with the upgraded connection.
    pub(super) observation: Observation,
}

/// The upgrade that a connection has granted, until it is taken over.
pub(super) type GrantedSlot = Mutex<Option<Granted>>;

/// Moves the bytes until both directions have ended. After the end of one, `linger` without a byte
/// in the other ends that too.
pub(super) async fn join<IO>(io: IO, granted: Granted, linger: Duration)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Granted {
        upload,
        mut download,
        mut observation,
    } = granted;
    let (reader, writer) = split(io);
    let moved = Moved::default();
    let (ended, upload_ended) = oneshot::channel();
    let upload_body = Counted::new(read_body(reader), &moved, Some(ended));
    if upload.send(Box::pin(upload_body)).is_err() {
        return;
    }
    let downloaded = tokio::select! {
        downloaded = copy_body(Counted::new(&mut download, &moved, None), writer) => downloaded,
        () = async {
            let _ = upload_ended.await;
            moved.silence(linger).await;
        } => Err(io::ErrorKind::TimedOut.into()),
    };
    if let Err(error) = downloaded {
        tracing::debug!(%error, "an upgraded connection was cut");
        return;
    }
    observation.on_end();
    // The exchange itself sends the other direction, for as long as `download` lives.
    tokio::select! {
        () = download.sent() => {}
        () = moved.silence(linger) => {}
    }
}

/// How many pieces have moved, in either direction.
#[derive(Clone, Default)]
struct Moved(Arc<AtomicUsize>);

impl Moved {
    /// Resolves after a time of this length in which nothing has moved.
    async fn silence(&self, time: Duration) {
        loop {
            let before = self.0.load(Ordering::Relaxed);
            sleep(time).await;
            if self.0.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

/// One direction.
struct Counted<B> {
    body: Pin<Box<B>>,
    moved: Moved,
    /// Dropped with the body, which tells that it has ended.
    _ended: Option<oneshot::Sender<()>>,
}

impl<B> Counted<B> {
    fn new(body: B, moved: &Moved, ended: Option<oneshot::Sender<()>>) -> Self {
        Self {
            body: Box::pin(body),
            moved: moved.clone(),
            _ended: ended,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for Counted<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = self.body.as_mut().poll_frame(cx);
        if frame.is_ready() {
            self.moved.0.fetch_add(1, Ordering::Relaxed);
        }
        frame
    }
}
