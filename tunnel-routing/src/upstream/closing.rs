//! How a connection is closed whose exchange is not complete.
//!
//! In: what is open of the exchange when the socket is dropped. Out: a FIN, or a RST. Whoever closes by FIN first keeps the
//! port for a minute (TIME_WAIT, RFC 9293 section 3.6.1), and a machine has some 28,000 of them towards one upstream, so
//! that a stranger who asks and leaves would exhaust them. A RST keeps none, but discards what the upstream has not
//! acknowledged, so a request that was sent whole is given time to arrive first.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::socket::Socket;

/// Cancelled exchanges of one upstream that end by FIN within [`WINDOW`]. Upstreams know it best; more ports are not spent.
const FINS: u32 = 50;
const WINDOW: Duration = Duration::from_secs(60);

/// Time that sent bytes have to arrive before a RST: one retransmission, of which the first comes after 200 ms.
const ARRIVAL_WAIT: Duration = Duration::from_millis(500);
/// Most sockets of one upstream that wait for that. Further ones end by FIN.
const WAITING: usize = 4096;

/// What is open of the exchange on a connection.
#[derive(Debug, Default)]
pub(super) struct ExchangeState(AtomicU8);

/// The request is not sent whole.
const REQUEST: u8 = 1;
/// The response is not whole.
const RESPONSE: u8 = 2;
/// The head of the response has come.
const HEAD: u8 = 4;
/// The request has content, of which the response does not prove the arrival.
const CONTENT: u8 = 8;

impl ExchangeState {
    pub(super) fn on_request(&self, has_content: bool) {
        let content = if has_content { CONTENT } else { 0 };
        self.0
            .store(REQUEST | RESPONSE | content, Ordering::Relaxed);
    }

    pub(super) fn on_request_sent(&self) {
        self.0.fetch_and(!REQUEST, Ordering::Relaxed);
    }

    pub(super) fn on_response_head(&self) {
        self.0.fetch_or(HEAD, Ordering::Relaxed);
    }

    pub(super) fn on_response_end(&self) {
        self.0.fetch_and(!RESPONSE, Ordering::Relaxed);
    }

    /// How the connection is closed in this state. `may_fin` is called where a FIN costs one of those that cancelled
    /// exchanges may cost.
    fn close_mode(&self, may_fin: impl FnOnce() -> bool) -> CloseMode {
        let state = self.0.load(Ordering::Relaxed);
        let has = |flag| state & flag != 0;
        if !has(REQUEST | RESPONSE) {
            return CloseMode::Fin;
        }
        let is_cut_response = has(HEAD) && has(RESPONSE);
        if !is_cut_response && may_fin() {
            return CloseMode::Fin;
        }
        // Of a request without content the response proves the arrival.
        let may_be_on_the_way = !has(REQUEST) && (has(CONTENT) || !has(HEAD));
        if may_be_on_the_way {
            CloseMode::ResetLater
        } else {
            CloseMode::Reset
        }
    }
}

/// How a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CloseMode {
    Fin,
    Reset,
    /// After [`ARRIVAL_WAIT`].
    ResetLater,
}

/// Closes the connections of one upstream.
#[derive(Default)]
pub(super) struct Closing {
    fins: Mutex<FinCount>,
    waiting: Mutex<JoinSet<()>>,
}

/// The FINs of cancelled exchanges in the current window.
#[derive(Debug, Default)]
struct FinCount {
    since: Option<Instant>,
    count: u32,
}

impl FinCount {
    /// Counts a FIN if another is allowed.
    fn try_add(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now >= since + WINDOW) {
            *self = Self {
                since: Some(now),
                count: 0,
            };
        }
        let is_allowed = self.count < FINS;
        self.count += u32::from(is_allowed);
        is_allowed
    }
}

impl Closing {
    fn close(&self, socket: Socket, state: &ExchangeState) {
        if socket.tcp().is_none() {
            return;
        }
        match state.close_mode(|| self.fins.lock().try_add(Instant::now())) {
            CloseMode::Fin => {}
            CloseMode::Reset => reset(socket),
            CloseMode::ResetLater => self.reset_later(socket),
        }
    }

    fn reset_later(&self, socket: Socket) {
        // Without a runtime the program ends.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut waiting = self.waiting.lock();
        while waiting.try_join_next().is_some() {}
        if waiting.len() < WAITING {
            let task = async move {
                sleep(ARRIVAL_WAIT).await;
                reset(socket);
            };
            waiting.spawn_on(task, &runtime);
        }
    }
}

/// Closes a connection by RST.
fn reset(socket: Socket) {
    if let Some(tcp) = socket.tcp() {
        // If the kernel refuses, it is a FIN.
        let _ = tcp.set_zero_linger();
    }
}

/// The socket of a connection for exchanges, which is closed by the state of its exchange.
pub(super) struct UpstreamSocket {
    /// `None` once taken.
    socket: Option<Socket>,
    state: Arc<ExchangeState>,
    closing: Arc<Closing>,
}

impl UpstreamSocket {
    pub(super) fn new(socket: Socket, closing: &Arc<Closing>) -> Self {
        Self {
            socket: Some(socket),
            state: Arc::default(),
            closing: Arc::clone(closing),
        }
    }

    /// The state of the exchange on it, which the sender and the receiver keep.
    pub(super) fn state(&self) -> &Arc<ExchangeState> {
        &self.state
    }

    /// See [`Socket::limit_unacknowledged`].
    pub(super) fn limit_unacknowledged(&self, is_limited: bool) {
        if let Some(socket) = &self.socket {
            socket.limit_unacknowledged(is_limited);
        }
    }

    /// The socket itself, for an upgraded connection. `None` if it was taken before.
    pub(super) fn take(mut self) -> Option<Socket> {
        self.socket.take()
    }

    fn poll_io<T>(
        &mut self,
        poll: impl FnOnce(Pin<&mut Socket>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut self.socket {
            Some(socket) => poll(Pin::new(socket)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl Drop for UpstreamSocket {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.closing.close(socket, &self.state);
        }
    }
}

impl AsyncRead for UpstreamSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_io(|socket| socket.poll_read(cx, buffer))
    }
}

impl AsyncWrite for UpstreamSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_io(|socket| socket.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_io(|socket| socket.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket
            .as_ref()
            .is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_io(|socket| socket.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_io(|socket| socket.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::CloseMode::{Fin, Reset, ResetLater};
    use super::*;

    /// One thing that happens of an exchange.
    type Event = fn(&ExchangeState);

    /// An exchange, and what has happened of it.
    fn state(has_content: bool, steps: &[Event]) -> ExchangeState {
        let state = ExchangeState::default();
        state.on_request(has_content);
        for step in steps {
            step(&state);
        }
        state
    }

    #[test]
    fn the_state_of_the_exchange_decides_how_a_connection_is_closed() {
        let sent: Event = ExchangeState::on_request_sent;
        let head: Event = ExchangeState::on_response_head;
        let end: Event = ExchangeState::on_response_end;
        // With a FIN to spare, and without; without content, and with.
        for (steps, spare, spent, spent_with_content) in [
            (&[][..], Fin, Reset, Reset),
            (&[sent], Fin, ResetLater, ResetLater),
            (&[head], Reset, Reset, Reset),
            (&[head, end], Fin, Reset, Reset),
            (&[sent, head], Reset, Reset, ResetLater),
            (&[head, sent], Reset, Reset, ResetLater),
            (&[sent, head, end], Fin, Fin, Fin),
        ] {
            let modes = [
                state(false, steps).close_mode(|| true),
                state(false, steps).close_mode(|| false),
                state(true, steps).close_mode(|| false),
            ];
            assert_eq!(modes, [spare, spent, spent_with_content], "{steps:?}");
        }
        assert_eq!(ExchangeState::default().close_mode(|| false), Fin);
    }

    #[test]
    fn fins_are_allowed_again_in_the_next_window() {
        let start = Instant::now();
        let mut fins = FinCount::default();
        let allowed =
            |fins: &mut FinCount, now| (0..2 * FINS).filter(|_| fins.try_add(now)).count();
        assert_eq!(allowed(&mut fins, start), FINS as usize);
        assert_eq!(allowed(&mut fins, start + WINDOW / 2), 0);
        assert_eq!(allowed(&mut fins, start + WINDOW), FINS as usize);
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_requests_arrive_whole_and_keep_few_ports() {
        const ALL: usize = 3 * FINS as usize;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closing = Arc::new(Closing::default());
        let mut ends = Vec::new();
        for _ in 0..ALL {
            let stream = TcpStream::connect(listener.local_addr().unwrap());
            let (stream, (upstream, _)) = tokio::try_join!(stream, listener.accept()).unwrap();
            let mut socket = UpstreamSocket::new(Socket::Plain(stream), &closing);
            socket.state().on_request(false);
            socket.write_all(b"a whole request").await.unwrap();
            socket.state().on_request_sent();
            drop(socket);
            ends.push(upstream);
        }
        let mut resets = 0;
        for mut upstream in ends {
            let mut request = [0; 15];
            upstream.read_exact(&mut request).await.unwrap();
            assert_eq!(&request, b"a whole request");
            match upstream.read(&mut request).await {
                Ok(read) => assert_eq!(read, 0),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
                    resets += 1;
                }
            }
        }
        assert_eq!(resets, ALL - FINS as usize);
    }
}
