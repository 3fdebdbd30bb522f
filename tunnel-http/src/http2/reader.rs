//! Reads the frames of a connection on their way to `h2`.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;

use super::frames::{FrameParser, PeerNotes};

/// Small DATA frames after which reading pauses until the driver has read their streams ahead.
const SMALL_AT_ONCE: usize = 1024;

/// Room below which bytes are read into a buffer of the reader's own: a head that is held back has to fit.
const LEAST_ROOM: usize = 64;
/// Size of that buffer.
const OWN_BYTES: usize = 4 * 1024;

/// A socket whose frames are parsed as `h2` reads them.
pub struct FrameReader<IO> {
    io: IO,
    parser: FrameParser,
    /// Parsed bytes that had no room.
    parsed: BytesMut,
    frames: Arc<Mutex<SmallFrames>>,
    notes: watch::Sender<PeerNotes>,
}

/// What was read of a connection, for its driver.
#[derive(Debug, Clone)]
pub struct ReadFrames {
    frames: Arc<Mutex<SmallFrames>>,
    /// The settings and the GOAWAY of the peer.
    pub notes: watch::Receiver<PeerNotes>,
}

#[derive(Debug, Default)]
struct SmallFrames {
    streams: Vec<u32>,
    /// Number of reads that brought something.
    reads: u64,
    is_paused: bool,
}

impl ReadFrames {
    /// The streams of the small DATA frames that `h2` has got since the last call, one entry for each frame, and whether
    /// reading was paused for this call. The connection has to be polled again then.
    pub fn take_small(&self) -> (Vec<u32>, bool) {
        let mut frames = self.frames.lock();
        let was_paused = std::mem::take(&mut frames.is_paused);
        (std::mem::take(&mut frames.streams), was_paused)
    }

    /// A number that grows with each read.
    pub fn reads(&self) -> u64 {
        self.frames.lock().reads
    }
}

impl<IO> FrameReader<IO> {
    /// A reader of a socket, and what it reads.
    pub fn new(io: IO, parser: FrameParser) -> (Self, ReadFrames) {
        let frames = Arc::default();
        let (notes, noted) = watch::channel(PeerNotes::default());
        let read = ReadFrames {
            frames: Arc::clone(&frames),
            notes: noted,
        };
        let reader = Self {
            io,
            parser,
            parsed: BytesMut::new(),
            frames,
            notes,
        };
        (reader, read)
    }

    /// Parses what was read into `bytes`, behind what was held back. Returns the length of what is for `h2`.
    fn parse(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let kept = self
            .parser
            .parse(bytes, Instant::now)
            .map_err(|flood| io::Error::new(io::ErrorKind::InvalidData, flood))?;
        if let Some(notes) = self.parser.take_news() {
            self.notes.send_replace(notes);
        }
        let small = self.parser.take_small();
        let mut frames = self.frames.lock();
        frames.reads += 1;
        frames.streams.extend(small);
        Ok(kept)
    }

    /// Whether reading pauses until the driver has taken the small frames.
    fn is_paused(&self) -> bool {
        let mut frames = self.frames.lock();
        frames.is_paused = frames.streams.len() >= SMALL_AT_ONCE;
        frames.is_paused
    }
}

impl<IO: AsyncRead + Unpin> FrameReader<IO> {
    /// Reads into `buffer`, which has room. Ready with whether anything came: nothing, if it was all left out.
    fn poll_read_into(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<bool>> {
        let start = buffer.filled().len();
        buffer.put_slice(self.parser.held_back());
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        if !matches!(read, Poll::Ready(Ok(()))) {
            buffer.set_filled(start);
        }
        ready!(read)?;
        if buffer.filled().len() == before {
            // The end, behind the start of a head if there is one.
            self.parser.on_end();
            return Poll::Ready(Ok(true));
        }
        let kept = self.parse(&mut buffer.filled_mut()[start..])?;
        buffer.set_filled(start + kept);
        Poll::Ready(Ok(kept > 0))
    }

    /// Reads into the own buffer.
    fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut space = [const { MaybeUninit::uninit() }; OWN_BYTES];
        let mut buffer = ReadBuf::uninit(&mut space);
        let read = self.poll_read_into(cx, &mut buffer);
        self.parsed.extend_from_slice(buffer.filled());
        read
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for FrameReader<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.parsed.is_empty() {
                let length = this.parsed.len().min(buffer.remaining());
                buffer.put_slice(&this.parsed[..length]);
                this.parsed.advance(length);
                return Poll::Ready(Ok(()));
            }
            if this.is_paused() {
                return Poll::Pending;
            }
            if buffer.remaining() >= LEAST_ROOM {
                if ready!(this.poll_read_into(cx, buffer))? {
                    return Poll::Ready(Ok(()));
                }
            } else if ready!(this.poll_read_ahead(cx))? && this.parsed.is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

tunnel_ops::write_through!(FrameReader);

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// A PING, an empty DATA frame, and the start of a head.
    const BYTES: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingpong\0\0\0\0\0\0\0\0\x01\0\0\x01";
    const PASSED: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingpong\0\0\x01";

    #[tokio::test]
    async fn all_but_empty_frames_arrives_in_buffers_of_any_size() {
        for room in [1, 3, 8, 9, 63, 64, 1000] {
            let (ours, mut theirs) = duplex(64);
            let (mut reader, _read) = FrameReader::new(ours, FrameParser::of_server());
            let sending = async {
                for byte in BYTES {
                    theirs.write_all(&[*byte]).await.unwrap();
                }
                drop(theirs);
            };
            let reading = async {
                let mut all: Vec<u8> = Vec::new();
                let mut piece = vec![0; room];
                while let length @ 1.. = reader.read(&mut piece).await.unwrap() {
                    all.extend(&piece[..length]);
                }
                all
            };
            let ((), all) = tokio::join!(sending, reading);
            assert_eq!(all, PASSED, "{room}");
        }
    }

    #[tokio::test]
    async fn small_frames_pause_the_reading_until_they_are_taken() {
        let small = b"\0\0\x01\0\0\0\0\0\x05x";
        let (ours, mut theirs) = duplex(64 * 1024);
        let (mut reader, read) = FrameReader::new(ours, FrameParser::of_server());
        theirs
            .write_all(&small.repeat(2 * SMALL_AT_ONCE))
            .await
            .unwrap();
        let mut space = vec![0; SMALL_AT_ONCE * small.len()];
        reader.read_exact(&mut space).await.unwrap();
        let mut poll = async || {
            poll_fn(|cx| {
                let mut buffer = ReadBuf::new(&mut space);
                Poll::Ready(Pin::new(&mut reader).poll_read(cx, &mut buffer).is_ready())
            })
            .await
        };
        assert!(!poll().await);
        assert_eq!(read.take_small(), (vec![5; SMALL_AT_ONCE], true));
        assert!(poll().await);
        let (streams, was_paused) = read.take_small();
        assert!(!streams.is_empty() && !was_paused);
    }
}
