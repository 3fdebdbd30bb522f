//! The content of a message that `h2` receives, read ahead by the driver of its connection where the exchange takes nothing.
//!
//! In: a stream's [`RecvStream`]. Out: its data and trailers, in order; only `END_STREAM` is an end. The driver reads
//! ([`ContentRegistry::read_ahead`]) a stream on which small frames wait; their data is joined in one buffer, of at most the
//! stream's window, since the window is given back only for data that was taken.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use http_body::{Body, Frame};
use parking_lot::Mutex;

/// Small frames of a stream that waits from which on it is read ahead: fewer are usual, and not worth being copied.
const SMALL_WAITING: u32 = 4;

/// The streams of a connection whose content is being received.
#[derive(Debug, Default)]
pub struct ContentRegistry {
    streams: Mutex<HashMap<u32, Arc<Mutex<ContentState>>>>,
}

impl ContentRegistry {
    /// The content of a stream, which the driver may read ahead from now on.
    pub fn content(self: &Arc<Self>, stream: RecvStream) -> StreamContent {
        let id = stream.stream_id().as_u32();
        let state = ContentState::new(stream);
        let end = ContentEnd::new(state.has_ended());
        let state = Arc::new(Mutex::new(state));
        if !end.has_come() {
            self.streams.lock().insert(id, Arc::clone(&state));
        }
        StreamContent {
            id,
            state,
            registry: Arc::clone(self),
            end,
        }
    }

    /// Notes small frames, one entry for its stream each, and reads the streams ahead on which many wait. To be called by
    /// the driver of the connection, whose waker is woken when more comes on these streams.
    pub fn read_ahead(&self, small: &[u32], cx: &mut Context<'_>) {
        if small.is_empty() {
            return;
        }
        let streams = self.streams.lock();
        for frames in small.chunk_by(|one, next| one == next) {
            let Some(state) = frames.first().and_then(|id| streams.get(id)) else {
                continue;
            };
            let mut state = state.lock();
            state.small += u32::try_from(frames.len()).unwrap_or(u32::MAX);
            if state.small >= SMALL_WAITING {
                state.read_ahead(cx);
            }
        }
    }
}

#[derive(Debug)]
struct ContentState {
    stream: RecvStream,
    /// Data that was read ahead.
    joined: BytesMut,
    /// Why nothing follows what was read ahead, apart from trailers.
    end: Option<Result<(), h2::Error>>,
    /// Data that was taken, and whose window is not given back yet.
    taken: usize,
    /// Small frames that have come since the exchange has last read.
    small: u32,
    /// The exchange that waits for content.
    reader: Option<Waker>,
}

impl ContentState {
    fn new(stream: RecvStream) -> Self {
        Self {
            end: stream.is_end_stream().then_some(Ok(())),
            stream,
            joined: BytesMut::new(),
            taken: 0,
            small: 0,
            reader: None,
        }
    }

    /// Joins all that waits. The exchange is woken, since `h2` wakes the driver from now on.
    fn read_ahead(&mut self, cx: &mut Context<'_>) {
        self.small = 0;
        while self.end.is_none() {
            match self.stream.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => self.joined.extend_from_slice(&data),
                Poll::Ready(Some(Err(error))) => self.end = Some(Err(error)),
                Poll::Ready(None) => self.end = Some(Ok(())),
                Poll::Pending => break,
            }
        }
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// The next data; `None` at its end.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        self.small = 0;
        self.give_back();
        if !self.joined.is_empty() {
            return Poll::Ready(Some(Ok(self.take(self.joined.len()))));
        }
        match self.end.take() {
            Some(Ok(())) => {
                self.end = Some(Ok(()));
                return Poll::Ready(None);
            }
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => {}
        }
        loop {
            let Poll::Ready(next) = self.stream.poll_data(cx) else {
                if !(self.reader.as_ref()).is_some_and(|reader| reader.will_wake(cx.waker())) {
                    self.reader = Some(cx.waker().clone());
                }
                return Poll::Pending;
            };
            match next {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    self.taken = data.len();
                    return Poll::Ready(Some(Ok(data)));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.end = Some(Ok(()));
                    return Poll::Ready(None);
                }
            }
        }
    }

    fn take(&mut self, length: usize) -> Bytes {
        self.taken = length;
        self.joined.split_to(length).freeze()
    }

    /// Gives the window of what was taken back to the peer.
    fn give_back(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        if taken > 0 {
            // Only more than was received would be an error.
            let _ = self.stream.flow_control().release_capacity(taken);
        }
    }

    /// Whether everything, trailers included, was taken.
    fn has_ended(&self) -> bool {
        self.joined.is_empty() && self.stream.is_end_stream()
    }
}

impl Drop for ContentState {
    /// Data that nobody takes no longer counts for the connection. That of `h2` it gives back itself.
    fn drop(&mut self) {
        self.taken += self.joined.len();
        self.give_back();
    }
}

/// Whether the content of a message was received to its end when it was dropped, or had none.
#[derive(Debug, Clone)]
pub struct ContentEnd(Arc<AtomicBool>);

impl ContentEnd {
    /// The end of content that is whole already, or is not.
    pub(crate) fn new(has_come: bool) -> Self {
        Self(Arc::new(has_come.into()))
    }

    /// Whether it has come.
    pub(crate) fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The content of one message.
#[derive(Debug)]
pub struct StreamContent {
    id: u32,
    state: Arc<Mutex<ContentState>>,
    registry: Arc<ContentRegistry>,
    end: ContentEnd,
}

impl StreamContent {
    /// Its end, which outlives it.
    pub(crate) fn end(&self) -> ContentEnd {
        self.end.clone()
    }
}

impl Drop for StreamContent {
    fn drop(&mut self) {
        self.end.0.store(self.is_end_stream(), Ordering::Relaxed);
        self.registry.streams.lock().remove(&self.id);
    }
}

impl Body for StreamContent {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let mut state = self.state.lock();
        if let Some(data) = ready!(state.poll_data(cx)) {
            return Poll::Ready(Some(data.map(Frame::data)));
        }
        match ready!(state.stream.poll_trailers(cx)) {
            Ok(trailers) => Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers)))),
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.state.lock().has_ended()
    }
}

#[cfg(test)]
mod tests;
