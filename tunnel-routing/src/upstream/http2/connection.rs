//! One HTTP/2 connection: its driver, and the leases of its exchanges.

use std::future::{Future, pending};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use h2::client::{self, SendRequest};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep, timeout};
use tunnel_http::http2::{
    ContentRegistry, DATA_FRAME_BUDGET, FrameParser, FrameReader, GoAway, PeerNotes, PeerSettings,
    ReadFrames, drive,
};
use tunnel_ops::task::Owned;
use tunnel_proto::limits;

use super::piece::Piece;
use super::places::{Places, RESETS};
use crate::upstream::socket::Socket;

/// Receive window of a stream, in bytes: what waits when the tunnel takes nothing more. Upstreams are near: over a
/// round trip of a millisecond this is half a gigabit per second for each stream.
pub(super) const STREAM_WINDOW: u32 = 64 * 1024;
/// Most exchanges on one connection, whatever the upstream allows. Further ones get another connection.
pub(super) const STREAMS: usize = limits::EXCHANGES;
/// Receive window of a connection, in bytes: that of all its streams together, so that unread streams never hold up
/// others.
pub(super) const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS as u32;
/// Bytes of a stream that may wait to be sent.
const SEND_BUFFER: usize = 256 * 1024;
/// Reset streams that `h2` remembers, and for how long, to ignore their frames: twice as many as wear a connection out.
const REMEMBERED_RESETS: usize = 2 * RESETS as usize;
const REMEMBERED_FOR: Duration = Duration::from_secs(120);
/// How long the settings of a new connection are waited for: they are the first frame.
const SETTINGS_WAIT: Duration = Duration::from_secs(1);
/// How long a connection may be silent that the upstream has left because of an error.
const LEFT_SILENCE: Duration = Duration::from_secs(60);

/// Who may use a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum Sharing {
    /// Many exchanges at once.
    Shared,
    /// One exchange at a time.
    Exclusive,
}

/// One connection.
pub(in crate::upstream) struct Http2Connection {
    /// The address of the upstream's name; `None` without a name.
    peer: Option<IpAddr>,
    requests: SendRequest<Piece>,
    notes: watch::Receiver<PeerNotes>,
    contents: Arc<ContentRegistry>,
    places: Mutex<Places>,
    has_ended: Arc<AtomicBool>,
    started: Instant,
    _driver: Owned<()>,
}

/// The right to one exchange on a connection. Dropped before [`Lease::on_whole`], its stream counts as reset.
pub(in crate::upstream) struct Lease {
    connection: Arc<Http2Connection>,
    /// Whether its stream was opened, and both messages were whole.
    has_begun: bool,
    is_whole: bool,
    /// Of an exclusive connection; given back with the lease.
    permit: Option<OwnedSemaphorePermit>,
}

impl Http2Connection {
    /// Starts HTTP/2 on a socket.
    pub(super) async fn start(
        socket: Socket,
        peer: Option<IpAddr>,
        name: String,
    ) -> Result<Self, h2::Error> {
        // No PING frames: gRPC servers count those without data, and end the connection with `too_many_pings` if their
        // interval is below five minutes. The kernel detects a vanished host, by unacknowledged data and by keepalive
        // probes.
        socket.limit_unacknowledged(true);
        let (reader, frames) = FrameReader::new(socket, FrameParser::of_server());
        let (requests, connection) = client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(limits::HEAD_BYTES as u32)
            .data_frame_budget(DATA_FRAME_BUDGET)
            // What an upstream still sends of cancelled streams is no error: a connection has no more of them than this.
            .max_concurrent_reset_streams(REMEMBERED_RESETS)
            .reset_stream_duration(REMEMBERED_FOR)
            .max_local_error_reset_streams(None)
            .enable_push(false)
            .handshake(reader)
            .await?;
        let contents = Arc::new(ContentRegistry::default());
        let has_ended = Arc::new(AtomicBool::new(false));
        let notes = frames.notes.clone();
        let driving = run(connection, frames, Arc::clone(&contents), name);
        let ended = Arc::clone(&has_ended);
        let driver = Owned::spawn("upstream connection", async move {
            driving.await;
            ended.store(true, Ordering::Relaxed);
        });
        Ok(Self {
            peer,
            requests,
            notes,
            contents,
            places: Mutex::default(),
            has_ended,
            started: Instant::now(),
            _driver: driver,
        })
    }

    /// The address of the upstream's name.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// Whether it has ended, or the upstream takes no new exchange on it.
    pub(super) fn is_left(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed) || self.notes.borrow().go_away.is_some()
    }

    /// Whether it has no exchange.
    pub(super) fn is_unused(&self) -> bool {
        self.places.lock().open() == 0
    }

    /// Whether it takes no new exchange, since too many were given up.
    pub(super) fn is_worn_out(&self) -> bool {
        self.places.lock().is_worn_out()
    }

    /// When the last of its reset streams gives its place back; `None` if all have.
    pub(super) fn resets_over(&self) -> Option<Instant> {
        self.places.lock().resets_over(Instant::now())
    }

    /// Places that are taken.
    #[cfg(test)]
    pub(super) fn places_taken(&self) -> usize {
        self.places.lock().taken(Instant::now())
    }

    /// A lease, if there is room for one more exchange. Until its settings have come, a new connection has room for one.
    pub(super) fn lease(self: &Arc<Self>) -> Option<Lease> {
        let settings = self.notes.borrow().settings;
        let allowed = usize::try_from(settings.max_concurrent_streams).unwrap_or(STREAMS);
        let is_known = settings.has_arrived || self.started.elapsed() >= SETTINGS_WAIT;
        let most = if is_known { allowed.min(STREAMS) } else { 1 };
        let has_room = {
            let mut places = self.places.lock();
            !places.is_worn_out() && places.taken(Instant::now()) < most
        };
        has_room.then(|| self.leased())
    }

    pub(super) fn leased(self: &Arc<Self>) -> Lease {
        self.places.lock().on_open();
        Lease {
            connection: Arc::clone(self),
            has_begun: false,
            is_whole: false,
            permit: None,
        }
    }
}

impl Lease {
    pub(super) fn connection(&self) -> &Arc<Http2Connection> {
        &self.connection
    }

    pub(super) fn requests(&self) -> SendRequest<Piece> {
        self.connection.requests.clone()
    }

    pub(super) fn contents(&self) -> &Arc<ContentRegistry> {
        &self.connection.contents
    }

    /// Holds the permit of an exclusive connection.
    pub(in crate::upstream) fn hold(&mut self, permit: Option<OwnedSemaphorePermit>) {
        self.permit = permit;
    }

    /// Its stream was opened.
    pub(super) fn on_begin(&mut self) {
        self.has_begun = true;
    }

    /// Both messages of the exchange are whole.
    pub(in crate::upstream) fn on_whole(&mut self) {
        self.is_whole = true;
    }

    /// The upstream's settings, as far as they are known.
    pub(in crate::upstream) fn settings(&self) -> PeerSettings {
        self.connection.notes.borrow().settings
    }

    /// Whether the connection has ended, or takes no new exchange.
    pub(in crate::upstream) fn is_left(&self) -> bool {
        self.connection.is_left()
    }

    /// Why the upstream has left the connection, if it has.
    pub(in crate::upstream) fn go_away(&self) -> Option<GoAway> {
        self.connection.notes.borrow().go_away.clone()
    }

    /// Waits for the settings of a new connection, which are its first frame.
    pub(in crate::upstream) async fn wait_for_settings(&self) {
        let mut notes = self.connection.notes.clone();
        // Without them the exchange goes on by the defaults.
        let arrived = notes.wait_for(|notes| notes.settings.has_arrived);
        let _ = timeout(SETTINGS_WAIT, arrived).await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut places = self.connection.places.lock();
        places.on_close(self.has_begun && !self.is_whole, Instant::now());
    }
}

/// Drives a connection to its end, and logs why the upstream has ended it. `name` is the upstream's.
async fn run(
    mut connection: client::Connection<FrameReader<Socket>, Piece>,
    frames: ReadFrames,
    contents: Arc<ContentRegistry>,
    name: String,
) {
    let driving = drive(&frames, &contents, |cx| Pin::new(&mut connection).poll(cx));
    let ended = tokio::select! {
        ended = driving => Some(ended),
        () = left_and_silent(&frames) => None,
    };
    let left = frames.notes.borrow().go_away.clone();
    match (left, ended) {
        (Some(left), ended) if left.code != 0 => {
            let is_silent = ended.is_none();
            tracing::warn!(
                upstream = name,
                code = %h2::Reason::from(left.code),
                debug_data = left.debug,
                is_silent,
                "an upstream has ended a connection of many requests because of an error"
            );
        }
        (_, Some(Err(error))) => {
            tracing::debug!(upstream = name, %error, "an HTTP/2 connection to an upstream broke");
        }
        (_, Some(Ok(())) | None) => {}
    }
}

/// Ready when the upstream has left the connection because of an error, and then has been silent for too long.
async fn left_and_silent(frames: &ReadFrames) {
    let mut notes = frames.notes.clone();
    let is_error = |notes: &PeerNotes| notes.go_away.as_ref().is_some_and(|left| left.code != 0);
    if notes.wait_for(is_error).await.is_err() {
        // The connection has ended.
        return pending().await;
    }
    let mut reads = None;
    while reads != Some(frames.reads()) {
        reads = Some(frames.reads());
        sleep(LEFT_SILENCE).await;
    }
}
