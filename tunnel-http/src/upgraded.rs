//! Upgraded connections: the bytes of a platform client joined with those of the exchange that granted its upgrade.
//!
//! Each direction ends independently of the other. Both may be silent without limit. After the end of one direction, the
//! other is cut when it is silent for too long, and a platform client that does not read the bytes for it is cut as well.
//! When the program or the tunnel leaves, both ends get a close frame.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf, split};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tunnel_ops::signals::Shutdown;
use tunnel_proto::exchange::{ReadBody, read_body};

use crate::access_log::Observer;
use crate::connection::drain;
use crate::long_streams::{Carrier, Direct, GRACE, Hold, LongStream, StreamFormat};

/// The bytes that a platform client sends over an upgraded connection.
pub type UpgradedBytes = Box<dyn Body<Data = Bytes, Error = io::Error> + Send + Unpin>;

/// Sends those bytes to the body of the request for the upgrade.
pub type UpgradeSender = oneshot::Sender<UpgradedBytes>;

/// A granted upgrade. `B` is the content for the platform client, `C` its carrier, and `O` observes the exchange.
pub struct Upgrade<B, C, O> {
    /// Takes the bytes from the platform client.
    pub upload: UpgradeSender,
    /// The bytes for the platform client.
    pub download: B,
    /// The carrier of `download`.
    pub carrier: C,
    /// Ends with the upgraded connection.
    pub observer: O,
}

/// The bytes for a platform client over an upgraded connection.
pub trait Download: Hold {
    /// Resolves when the exchange has forwarded the platform client's bytes to their end, or can no longer do so.
    /// Awaited when the download has ended, and cancelled by dropping it.
    fn upload_sent(&mut self) -> impl Future<Output = ()> + Send;
}

/// The limits of an upgraded connection.
#[derive(Debug, Clone, Copy)]
pub struct UpgradeBounds<'a> {
    /// Reached when both directions have to end early in order.
    pub stage: &'a Shutdown,
    /// How long one direction may be silent when the other has ended.
    pub linger: Duration,
    /// How long a platform client may read nothing of the bytes for it, where the kernel does not limit that: on a
    /// stream of HTTP/2.
    pub write_timeout: Option<Duration>,
}

impl<B, C, O> fmt::Debug for Upgrade<B, C, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgrade").finish_non_exhaustive()
    }
}

/// Moves the bytes until both directions have ended. `hold` wraps the bytes that the platform client sends, to delay
/// them by a rate for example.
pub async fn join<IO, U, B, C, O>(
    io: IO,
    upgrade: Upgrade<B, C, O>,
    bounds: UpgradeBounds<'_>,
    hold: impl FnOnce(ReadBody<LentReader<IO>>) -> U,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    U: Hold<Data = Bytes, Error = io::Error> + Unpin + Send + 'static,
    B: Download<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Unpin,
    C: Carrier<B::Error> + Unpin,
    O: Observer<B::Error>,
{
    let Upgrade {
        upload,
        download,
        carrier,
        observer,
    } = upgrade;
    let (reader, writer) = split(io);
    let activity = Activity::default();
    let (reader, returned) = LentReader::new(reader);
    let cut = Direct(|| io::ErrorKind::TimedOut.into());
    let body = LongStream::new(
        hold(read_body(reader)),
        StreamFormat::upload(),
        cut,
        bounds.stage,
    );
    // Fails if the exchange has ended meanwhile, which the other direction reports.
    let _ = upload.send(Box::new(Counted::new(body, &activity)));
    let mut returned = ReturnedReader::Awaited(returned);
    let body = LongStream::new(download, StreamFormat::download(), carrier, bounds.stage);
    let mut sending = Sending {
        body: Counted::new(body, &activity),
        writer: TimedWriter::new(writer, bounds.write_timeout),
        observer,
    };
    let sent = tokio::select! {
        sent = sending.run() => sent,
        () = async {
            returned.wait().await;
            activity.silence(bounds.linger).await;
        } => Err(io::ErrorKind::TimedOut.into()),
    };
    if let Err(error) = sent {
        tracing::debug!(%error, "an upgraded connection was cut");
        return;
    }
    let has_ended_early = sending.body.body.has_ended_early();
    sending.finish(&mut returned, bounds.linger).await;
    // Ends the exchange, and with it an open upload.
    drop(sending);
    if has_ended_early {
        // Unread bytes would reset the connection, and the close frame would be lost.
        let _ = timeout(GRACE, returned.wait()).await;
        if let ReturnedReader::Reader(reader) = returned {
            drain(reader).await;
        }
    }
}

/// Sends the bytes for the platform client.
struct Sending<IO, B: Body, C, O> {
    body: Counted<LongStream<B, C>>,
    writer: TimedWriter<WriteHalf<IO>>,
    observer: O,
}

impl<IO, B, C, O> Sending<IO, B, C, O>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Download<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Unpin,
    C: Carrier<B::Error> + Unpin,
    O: Observer<B::Error>,
{
    /// Writes all bytes, and closes this direction after them.
    ///
    /// # Errors
    /// When the content is cut or the connection fails; the connection is then not closed in order.
    async fn run(&mut self) -> io::Result<()> {
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await {
            let frame = frame.map_err(|error| {
                self.observer.on_error(&error);
                io::Error::other(error)
            })?;
            if let Ok(data) = frame.into_data() {
                let sent = self.writer.send(&data).await;
                self.report_not_taken(sent)?;
                self.observer.on_bytes(data.len());
            }
        }
        if self.body.body.has_ended_early() {
            self.observer.record().on_moved();
        } else {
            self.observer.record().on_whole();
        }
        let ended = self.writer.end().await;
        self.report_not_taken(ended)
    }

    /// Records the end `not_taken` if the write timed out.
    fn report_not_taken(&mut self, written: io::Result<()>) -> io::Result<()> {
        written.inspect_err(|error| {
            if is_not_taken(error) {
                self.observer.record().on_not_taken(O::HOP);
            }
        })
    }

    /// Waits for the end of the other direction, within its time-out.
    async fn finish<R>(&mut self, returned: &mut ReturnedReader<R>, linger: Duration) {
        let Self { body, .. } = self;
        let has_ended_early = body.body.has_ended_early();
        let activity = body.activity.clone();
        let download = body.body.body();
        if has_ended_early {
            // The upstream got a close frame as well, and may answer it and end.
            let answered = async {
                while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut *download).poll_frame(cx)).await
                {
                }
                returned.wait().await;
                download.upload_sent().await;
            };
            let _ = timeout(GRACE, answered).await;
            return;
        }
        tokio::select! {
            () = async {
                returned.wait().await;
                download.upload_sent().await;
            } => {}
            () = activity.silence(linger) => {}
        }
    }
}

/// The bytes of one direction. Counts as activity each frame, and each poll at which the body holds bytes back: a
/// direction that waits for its rate is not silent.
struct Counted<B> {
    body: B,
    activity: Activity,
}

impl<B> Counted<B> {
    fn new(body: B, activity: &Activity) -> Self {
        Self {
            body,
            activity: activity.clone(),
        }
    }
}

impl<B: Hold + Unpin> Body for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() || self.body.is_holding() {
            self.activity.count();
        }
        frame
    }
}

/// The reading half of an upgraded connection, which comes back when the upload has ended.
enum ReturnedReader<R> {
    Awaited(oneshot::Receiver<R>),
    Reader(R),
    /// The upload has ended without it.
    Lost,
}

impl<R> ReturnedReader<R> {
    /// Resolves when the upload has ended.
    async fn wait(&mut self) {
        if let Self::Awaited(receiver) = self {
            *self = receiver.await.map_or(Self::Lost, Self::Reader);
        }
    }
}

/// The reading half of a connection, lent to the upload. Dropping it sends the half back, which also reports that
/// the direction has ended. Reading fails once [`join`] has ended.
pub struct LentReader<IO> {
    reader: Option<ReadHalf<IO>>,
    give_back: Option<oneshot::Sender<ReadHalf<IO>>>,
}

impl<IO> LentReader<IO> {
    fn new(reader: ReadHalf<IO>) -> (Self, oneshot::Receiver<ReadHalf<IO>>) {
        let (give_back, returned) = oneshot::channel();
        let reader = Self {
            reader: Some(reader),
            give_back: Some(give_back),
        };
        (reader, returned)
    }
}

impl<IO> fmt::Debug for LentReader<IO> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentReader").finish_non_exhaustive()
    }
}

impl<IO: AsyncRead> AsyncRead for LentReader<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { reader, give_back } = &mut *self;
        let (Some(reader), Some(give_back)) = (reader, give_back) else {
            return Poll::Ready(Ok(()));
        };
        if give_back.poll_closed(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(reader).poll_read(cx, buffer)
    }
}

impl<IO> Drop for LentReader<IO> {
    fn drop(&mut self) {
        if let (Some(reader), Some(give_back)) = (self.reader.take(), self.give_back.take()) {
            let _ = give_back.send(reader);
        }
    }
}

/// The writing half of a connection with a time-out for each piece. Without bytes to write there is no time-out.
pub(crate) struct TimedWriter<W> {
    writer: W,
    /// The time-out of a piece; `None` if the kernel limits it.
    limit: Option<Duration>,
}

/// The length of a piece: an HTTP/2 stream does not report that its peer has read a part of one.
const PIECE_BYTES: usize = 16 * 1024;

/// The peer read nothing within the time-out.
#[derive(Debug, thiserror::Error)]
#[error("the peer took nothing for too long")]
struct NotTaken;

/// Whether an error of [`TimedWriter`] is that of a peer that read nothing.
fn is_not_taken(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<NotTaken>())
}

impl<W: AsyncWrite + Unpin> TimedWriter<W> {
    /// Writes fail when the peer reads less than 16 KiB in `limit`. Without a limit the kernel counts, which observes each
    /// byte: a socket is not writable before a large part of its buffer is free, which takes minutes with a slow reader.
    pub(crate) fn new(writer: W, limit: Option<Duration>) -> Self {
        Self { writer, limit }
    }

    /// Writes all of `data`.
    ///
    /// # Errors
    /// When the connection fails, or a piece times out (see [`is_not_taken`]).
    pub(crate) async fn send(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let length = match self.limit {
                Some(_) => data.len().min(PIECE_BYTES),
                None => data.len(),
            };
            let written = in_time(self.limit, self.writer.write(&data[..length])).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            data = &data[written..];
        }
        in_time(self.limit, self.writer.flush()).await
    }

    /// Ends this direction in order.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub(crate) async fn end(&mut self) -> io::Result<()> {
        in_time(self.limit, self.writer.shutdown()).await
    }
}

async fn in_time<T>(
    limit: Option<Duration>,
    step: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let Some(limit) = limit else {
        return step.await;
    };
    match timeout(limit, step).await {
        Ok(done) => done,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, NotTaken)),
    }
}

/// Counts the events of both directions. Clones share the count.
#[derive(Debug, Clone, Default)]
struct Activity(Arc<AtomicUsize>);

impl Activity {
    /// Counts an event.
    fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Resolves after a time of this length without an event.
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

#[cfg(test)]
mod tests {
    use std::future::pending;

    use parking_lot::Mutex;
    use tokio::io::{AsyncReadExt, DuplexStream, split};
    use tokio::time::{Instant, Interval, interval};
    use tunnel_ops::signals::Trigger;
    use tunnel_proto::problem::{Hop, Problem};

    use super::*;
    use crate::access_log::{End, ExchangeRecord};

    const LINGER: Duration = Duration::from_secs(5);

    /// A download without bytes, which ends or does not.
    struct NoBytes {
        is_ended: bool,
    }

    impl Body for NoBytes {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
            match self.is_ended {
                true => Poll::Ready(None),
                false => Poll::Pending,
            }
        }
    }

    impl Hold for NoBytes {}

    impl Download for NoBytes {
        async fn upload_sent(&mut self) {
            pending().await
        }
    }

    /// Keeps the end of the record when it is dropped.
    struct Recording {
        record: ExchangeRecord,
        end: Arc<Mutex<Option<End>>>,
    }

    impl Observer<io::Error> for Recording {
        const HOP: Hop = Hop::Server;

        fn record(&mut self) -> &mut ExchangeRecord {
            &mut self.record
        }

        fn count_bytes(&mut self, _: u64) {}

        fn problem(_: &io::Error) -> Option<Problem> {
            None
        }
    }

    impl Drop for Recording {
        fn drop(&mut self) {
            *self.end.lock() = Some(self.record.end().clone());
        }
    }

    /// An upgraded connection whose platform client is silent and whose upload is not read. `stage` is reached if
    /// `is_stopping`. Returns the recorded end, the upload, and the platform client's end of the connection.
    async fn joined(is_ended: bool, is_stopping: bool) -> (End, UpgradedBytes, DuplexStream) {
        let (trigger, stage): (Trigger, Shutdown) = Shutdown::manual();
        if is_stopping {
            trigger.request();
        }
        let (io, peer) = tokio::io::duplex(64);
        let (upload, bytes) = oneshot::channel();
        let end = Arc::default();
        let record = ExchangeRecord::begin();
        let upgrade = Upgrade {
            upload,
            download: NoBytes { is_ended },
            carrier: Direct(|| io::ErrorKind::TimedOut.into()),
            observer: Recording {
                record,
                end: Arc::clone(&end),
            },
        };
        let bounds = UpgradeBounds {
            stage: &stage,
            linger: LINGER,
            write_timeout: None,
        };
        join(io, upgrade, bounds, |bytes| bytes).await;
        let end = end.lock().take().unwrap();
        (end, bytes.await.unwrap(), peer)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_ends_because_the_program_stops_is_recorded_as_moved() {
        let (end, _upload, mut peer) = joined(false, true).await;
        assert_eq!(end, End::Moved);
        let mut close = [0; 4];
        peer.read_exact(&mut close).await.unwrap();
        assert_eq!(close, [0x88, 2, 0x03, 0xe9], "close frame 1001");
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_outlives_the_connection_fails() {
        let start = Instant::now();
        let (end, mut upload, mut peer) = joined(true, false).await;
        assert_eq!((end, start.elapsed()), (End::Whole, LINGER));
        peer.write_all(b"late").await.unwrap();
        let frame = poll_fn(|cx| Pin::new(&mut upload).poll_frame(cx)).await;
        let error = frame.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }

    /// A body without bytes that is polled each second, as by a timer of what it holds back.
    struct Waiting {
        is_holding: bool,
        polls: Interval,
        left: u32,
    }

    impl Body for Waiting {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
            while self.left > 0 {
                std::task::ready!(self.polls.poll_tick(cx));
                self.left -= 1;
            }
            Poll::Ready(None)
        }
    }

    impl Hold for Waiting {
        fn is_holding(&self) -> bool {
            self.is_holding
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_direction_that_waits_for_its_rate_is_not_silent() {
        for is_holding in [true, false] {
            let activity = Activity::default();
            let body = Waiting {
                is_holding,
                polls: interval(Duration::from_secs(1)),
                left: 60,
            };
            let mut body = Counted::new(body, &activity);
            let is_silent = tokio::select! {
                () = activity.silence(LINGER) => true,
                _ = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)) => false,
            };
            assert_eq!(is_silent, !is_holding);
        }
    }

    #[tokio::test]
    async fn a_reader_is_given_back_with_what_was_not_read() {
        let (mut peer, io) = tokio::io::duplex(64);
        let (reader, _writer) = split(io);
        let (mut reader, returned) = LentReader::new(reader);
        peer.write_all(b"onetwo").await.unwrap();
        let mut bytes = [0; 3];
        reader.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"one");
        drop(reader);
        let mut reader = returned.await.unwrap();
        reader.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"two");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_times_out_and_one_that_reads_a_little_does_not() {
        const LIMIT: Duration = Duration::from_secs(60);
        let (mut peer, io) = tokio::io::duplex(16);
        let mut writer = TimedWriter::new(io, Some(LIMIT));
        let reading = async {
            let mut byte = [0];
            for _ in 0..84 {
                sleep(LIMIT / 2).await;
                peer.read_exact(&mut byte).await.unwrap();
            }
        };
        let (sent, ()) = tokio::join!(writer.send(&[7; 100]), reading);
        sent.unwrap();
        // 16 bytes are buffered, and not read.
        sleep(LIMIT * 5).await;
        let begun = Instant::now();
        let error = writer.send(b"more").await.unwrap_err();
        assert!(is_not_taken(&error), "{error}");
        assert_eq!(begun.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_a_writer_that_is_full_for_long_is_waited_for() {
        let (mut peer, io) = tokio::io::duplex(16);
        let mut writer = TimedWriter::new(io, None);
        let reading = async {
            sleep(Duration::from_secs(3600)).await;
            peer.read_exact(&mut [0; 100]).await.unwrap();
        };
        let (sent, _) = tokio::join!(writer.send(&[7; 100]), reading);
        sent.unwrap();
        // What fails otherwise is not the peer's slowness.
        drop(peer);
        let error = writer.send(b"more").await.unwrap_err();
        assert!(!is_not_taken(&error), "{error}");
    }
}
