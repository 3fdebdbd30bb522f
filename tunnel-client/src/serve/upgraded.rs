//! Upgraded connections: what a platform client sends and what the upstream sends, byte by byte.
//!
//! Each direction ends by itself and the other goes on; nothing limits how long both are silent, but
//! when one has ended, the other does not stay for ever without a byte, and a platform client that takes
//! nothing of what there is for it is given up. When the client stops, both ends are told by a close frame.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tunnel_http::connection::drain;
use tunnel_http::ends::{Early, Form, LongStream, PATIENCE};
use tunnel_http::listener_body::UpgradeSender;
use tunnel_http::permits::Permit;
use tunnel_http::upgraded::{Lent, Moved, Taken, is_not_taken};
use tunnel_ops::signals::Shutdown;
use tunnel_proto::exchange::read_body;

use super::answer::{self, Received};

/// An upgrade that was granted: what joins the platform client's bytes to the upstream's.
pub(super) struct Granted {
    /// Takes what the platform client sends.
    pub(super) upload: UpgradeSender,
    /// What the upstream sends.
    pub(super) download: Received,
    /// The permit of the exchange.
    pub(super) permit: Permit,
}

/// When an upgraded connection ends, other than by itself.
#[derive(Clone)]
pub(super) struct UpgradedBounds {
    /// When it is to end in order.
    pub(super) stage: Shutdown,
    /// How long one direction may be silent when the other has ended.
    pub(super) linger: Duration,
    /// How long a platform client may take nothing of what there is for it, where the kernel does not see
    /// to that: on a stream of HTTP/2.
    pub(super) taken_in: Option<Duration>,
}

/// Moves the bytes until both directions have ended.
pub(super) async fn join<IO>(io: IO, granted: Granted, bounds: &UpgradedBounds)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Granted {
        upload,
        download,
        permit: _permit,
    } = granted;
    let (reader, writer) = split(io);
    let mut writer = Taken::new(writer, bounds.taken_in);
    let (lent, mut given_back) = Lent::new(reader);
    let (_cut, is_cut) = oneshot::channel();
    let moved = Moved::default();
    let early = Early::cut(|| io::ErrorKind::TimedOut.into());
    // Nobody takes it when the exchange has ended meanwhile, of which the other direction tells.
    let _ = upload.send(Box::new(Upload {
        body: Box::pin(LongStream::new(
            read_body(lent),
            Form::upload(),
            &bounds.stage,
            early,
        )),
        moved: moved.clone(),
        is_cut,
    }));
    let mut download = answer::followed(download, Form::download(), &bounds.stage);
    let mut reader = None;
    let sent = tokio::select! {
        sent = send(&mut download, &mut writer, &moved) => sent,
        () = async {
            reader = (&mut given_back).await.ok();
            moved.silence(bounds.linger).await;
        } => Err(io::ErrorKind::TimedOut.into()),
    };
    if let Err(error) = sent {
        if is_not_taken(&error) {
            download.body().get_mut().on_not_taken();
        }
        tracing::debug!(%error, "an upgraded connection was cut");
        return;
    }
    let has_left = download.has_left();
    if reader.is_none() {
        // The other direction has the time that it needs.
        reader = if has_left {
            timeout(PATIENCE, given_back)
                .await
                .ok()
                .and_then(Result::ok)
        } else {
            tokio::select! {
                reader = given_back => reader.ok(),
                () = moved.silence(bounds.linger) => None,
            }
        };
    }
    if let Some(reader) = reader.filter(|_| has_left) {
        // The close frame is not to be lost to a reset because of bytes that nobody has read.
        drain(reader).await;
    }
}

/// Writes what comes, and closes this direction at its end.
///
/// # Errors
/// When it is cut or the connection fails; the connection is then not closed in order.
async fn send(
    download: &mut LongStream<Received>,
    writer: &mut Taken<impl AsyncWrite + Unpin>,
    moved: &Moved,
) -> io::Result<()> {
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *download).poll_frame(cx)).await {
        if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
            moved.count();
            writer.send(&data).await?;
        }
    }
    writer.end().await
}

/// What the platform client sends, until the connection is given up.
struct Upload<B> {
    body: Pin<Box<B>>,
    moved: Moved,
    /// Resolves when it is.
    is_cut: oneshot::Receiver<()>,
}

impl<B: Body<Data = Bytes, Error = io::Error>> Body for Upload<B> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        let frame = this.body.as_mut().poll_frame(cx);
        if frame.is_ready() {
            this.moved.count();
            return frame;
        }
        let cut = Pin::new(&mut this.is_cut).poll(cx);
        cut.map(|_| Some(Err(io::ErrorKind::ConnectionAborted.into())))
    }
}
