//! HTTP/2 connections to one upstream, shared by its exchanges.
//!
//! There is one until the upstream allows no more streams on it; then another is made, and closed when it is unused.
//! The tasks of a connection end with it.

use std::future::Future;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tunnel_proto::limits;
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::outgoing::Http2Content;
use super::socket::Socket;

/// Receive window of a stream, in bytes: what waits when the tunnel takes nothing more. Upstreams are near: over a
/// round trip of a millisecond this is half a gigabit per second for each stream.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Most exchanges on one connection, whatever the upstream allows. Further ones get another connection.
const STREAMS: usize = limits::EXCHANGES;
/// Receive window of a connection, in bytes: that of all its streams together, so that unread streams never hold up
/// others.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS as u32;
/// Bytes of a stream that may wait to be sent.
const SEND_BUFFER: usize = 256 * 1024;
/// How long a connection is new: its settings are the first frame, and have to come in this time.
const SETTINGS_WAIT: Duration = Duration::from_secs(1);
/// Time between two polls of the settings of a new connection, and of any other.
const SETTINGS_POLL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// The connections of one upstream.
#[derive(Default)]
pub(super) struct Http2 {
    connections: Mutex<Vec<SharedConnection>>,
    /// Set by [`Http2::close`].
    is_closed: AtomicBool,
}

/// One connection.
struct SharedConnection {
    /// The address of the upstream's name; `None` without a name.
    peer: Option<IpAddr>,
    sender: SendRequest<Http2Content>,
    settings: watch::Receiver<Settings>,
    /// The tasks of the connection; they end with their last holder: the connection itself, and its exchanges.
    tasks: Arc<Mutex<JoinSet<()>>>,
}

/// The settings of the upstream for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Settings {
    /// Whether it accepts extended CONNECT (RFC 8441).
    extended_connect: bool,
    /// Streams that it allows at once.
    streams: usize,
}

/// The right to one exchange on a connection.
pub(super) struct Lease {
    pub(super) sender: SendRequest<Http2Content>,
    settings: watch::Receiver<Settings>,
    /// Keeps the tasks alive for an open exchange, and counts it.
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl Http2 {
    /// A connection with room for one more exchange.
    pub(super) fn take(&self) -> Option<Lease> {
        let mut connections = self.connections.lock();
        connections.retain(|connection| !connection.sender.is_closed());
        connections.iter().find_map(SharedConnection::lease)
    }

    /// Starts HTTP/2 on a socket and shares the connection. `peer` is the address of the upstream's name if it has
    /// one.
    pub(super) async fn add(&self, socket: Socket, peer: Option<IpAddr>) -> Result<Lease, Problem> {
        let connection = SharedConnection::new(socket, peer).await.map_err(|error| {
            let detail = format!("the upstream does not speak HTTP/2: {error}");
            Problem::new(Hop::Client, Reason::ResponseInvalid, detail)
        })?;
        let lease = connection.leased();
        let mut connections = self.connections.lock();
        if !self.is_closed.load(Ordering::Relaxed) {
            connections.push(connection);
        }
        Ok(lease)
    }

    /// No longer shares a connection that was lost.
    pub(super) fn remove(&self, lost: &Lease) {
        let is_other = |connection: &SharedConnection| !Arc::ptr_eq(&connection.tasks, &lost.tasks);
        self.connections.lock().retain(is_other);
    }

    /// Whether there is no connection.
    pub(super) fn is_empty(&self) -> bool {
        self.connections.lock().is_empty()
    }

    /// No longer shares connections to other addresses than these. Open exchanges go on.
    pub(super) fn retain_addresses(&self, addresses: &[IpAddr]) {
        let is_current = |connection: &mut SharedConnection| {
            (connection.peer).is_none_or(|peer| addresses.contains(&peer))
        };
        self.connections.lock().retain_mut(is_current);
    }

    /// No longer shares any connection. Unused ones are closed, the others end with their last exchange.
    pub(super) fn close(&self) {
        let mut connections = self.connections.lock();
        self.is_closed.store(true, Ordering::Relaxed);
        let all = std::mem::take(&mut *connections);
        drop(connections);
        drop(all);
    }

    /// Closes unused connections, all but one.
    pub(super) fn sweep(&self) {
        let mut connections = self.connections.lock();
        let mut has_spare = false;
        connections.retain(|connection| {
            !connection.sender.is_closed()
                && (connection.users() > 0 || !std::mem::replace(&mut has_spare, true))
        });
    }
}

impl SharedConnection {
    async fn new(socket: Socket, peer: Option<IpAddr>) -> hyper::Result<Self> {
        let tasks = Arc::new(Mutex::new(JoinSet::new()));
        let executor = ConnectionTasks(Arc::downgrade(&tasks));
        // No PING frames: gRPC servers count those without data, and end the connection with `too_many_pings` if their
        // interval is below five minutes. The kernel detects a vanished host, by unacknowledged data and by keepalive
        // probes.
        socket.limit_unacknowledged(true);
        let (sender, driver) = http2::Builder::new(executor)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(limits::HEAD_BYTES as u32)
            .handshake(TokioIo::new(socket))
            .await?;
        let (published, settings) = watch::channel(settings(&driver));
        tasks.lock().spawn(drive(driver, published));
        Ok(Self {
            peer,
            sender,
            settings,
            tasks,
        })
    }

    /// The number of exchanges on this connection.
    fn users(&self) -> usize {
        Arc::strong_count(&self.tasks) - 1
    }

    fn lease(&self) -> Option<Lease> {
        let most = self.settings.borrow().streams.min(STREAMS);
        (self.users() < most).then(|| self.leased())
    }

    fn leased(&self) -> Lease {
        Lease {
            sender: self.sender.clone(),
            settings: self.settings.clone(),
            tasks: Arc::clone(&self.tasks),
        }
    }
}

impl Lease {
    /// Whether the upstream is known to accept upgrades over HTTP/2.
    pub(super) fn is_extended_connect_known(&self) -> bool {
        self.settings.borrow().extended_connect
    }

    /// Whether the upstream accepts upgrades over HTTP/2; waits for the settings of a new connection.
    pub(super) async fn has_extended_connect(&mut self) -> bool {
        let published = self.settings.wait_for(|settings| settings.extended_connect);
        matches!(timeout(SETTINGS_WAIT, published).await, Ok(Ok(_)))
    }
}

type Driver = http2::Connection<TokioIo<Socket>, Http2Content, ConnectionTasks>;

/// Polls a connection and publishes its settings.
///
/// hyper does not signal a change, so they are polled: often while the connection is new, rarely later.
async fn drive(mut driver: Driver, published: watch::Sender<Settings>) {
    let new_until = Instant::now() + SETTINGS_WAIT;
    loop {
        let is_new = Instant::now() < new_until;
        let (often, seldom) = SETTINGS_POLL;
        tokio::select! {
            // Each exchange gets the error of the connection.
            _ = &mut driver => return,
            () = sleep(if is_new { often } else { seldom }) => {}
        }
        let now = settings(&driver);
        published.send_if_modified(|known| std::mem::replace(known, now) != now);
    }
}

fn settings(driver: &Driver) -> Settings {
    Settings {
        extended_connect: driver.is_extended_connect_protocol_enabled(),
        streams: driver.current_max_send_streams(),
    }
}

/// Starts tasks of a connection while it exists.
#[derive(Clone)]
struct ConnectionTasks(Weak<Mutex<JoinSet<()>>>);

impl<F> Executor<F> for ConnectionTasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        if let Some(tasks) = self.0.upgrade() {
            let mut tasks = tasks.lock();
            while tasks.try_join_next().is_some() {}
            tasks.spawn(task);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UnixStream};
    use tunnel_ops::task::Owned;

    use super::super::outgoing_body::OutgoingBody;
    use super::super::progress::Progress;
    use super::*;

    /// What a gRPC server's defaults allow: two PING frames in less than five minutes without data, not
    /// three.
    const STRIKES: usize = 2;

    /// Reads one frame: its type, its flags and its content.
    async fn frame(peer: &mut UnixStream) -> Option<(u8, u8, Vec<u8>)> {
        let mut head = [0; 9];
        peer.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut content = vec![0; length as usize];
        peer.read_exact(&mut content).await.ok()?;
        Some((head[3], head[4], content))
    }

    /// A server that answers the first request with a head, says nothing for ten minutes, and then ends
    /// the response. As gRPC servers do, it leaves the connection when too many PING frames come.
    async fn quiet_server(mut peer: UnixStream) {
        const PING: u8 = 6;
        const HEADERS: u8 = 1;
        let mut preface = [0; 24];
        peer.read_exact(&mut preface).await.unwrap();
        peer.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut pings = 0;
        let quiet = sleep(Duration::from_secs(600));
        tokio::pin!(quiet);
        loop {
            let next = tokio::select! {
                next = frame(&mut peer) => next,
                () = &mut quiet => break,
            };
            match next {
                Some((HEADERS, ..)) => {
                    let head = b"\0\0\x01\x01\x04\0\0\0\x01\x88";
                    peer.write_all(head).await.unwrap();
                }
                Some((PING, 0, content)) => {
                    pings += 1;
                    if pings > STRIKES {
                        let leave = b"\0\0\x16\x07\0\0\0\0\0\0\0\0\x01\0\0\0\x0btoo_many_pings";
                        peer.write_all(leave).await.unwrap();
                        return;
                    }
                    let ack = [b"\0\0\x08\x06\x01\0\0\0\0", &content[..]].concat();
                    peer.write_all(&ack).await.unwrap();
                }
                Some(_) => {}
                None => return,
            }
        }
        peer.write_all(b"\0\0\x03\0\x01\0\0\0\x01end")
            .await
            .unwrap();
        while frame(&mut peer).await.is_some() {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_quiet_for_ten_minutes_is_not_cut_for_too_many_pings() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let _server = Owned::spawn("server", quiet_server(theirs));
        let http2 = Http2::default();
        let mut lease = http2.add(Socket::Unix(ours), None).await.unwrap();
        let taken_back: fn(tunnel_proto::exchange::BodyError) -> h2::Error =
            |_| h2::Reason::CANCEL.into();
        let content = OutgoingBody::empty(Progress::of_test());
        let mut request = http::Request::new(http_body_util::BodyExt::map_err(content, taken_back));
        *request.uri_mut() = http::Uri::from_static("http://a.test/watch");
        let response = lease.sender.send_request(request).await.unwrap();
        let content = http_body_util::BodyExt::collect(response.into_body()).await;
        assert_eq!(content.unwrap().to_bytes(), Bytes::from_static(b"end"));
    }

    #[tokio::test]
    async fn a_sweep_keeps_what_is_used_and_one_to_spare() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let http2 = Http2::default();
        let mut leases = Vec::new();
        for _ in 0..4 {
            let stream = TcpStream::connect(address).await.unwrap();
            leases.push(http2.add(Socket::Plain(stream), None).await.unwrap());
        }
        let count = || http2.connections.lock().len();
        http2.sweep();
        assert_eq!(count(), 4);
        leases.truncate(1);
        http2.sweep();
        assert_eq!(count(), 2);
        leases.clear();
        http2.sweep();
        assert_eq!(count(), 1);
    }

    #[tokio::test]
    async fn a_connection_has_no_more_streams_than_its_window_has_room_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http2 = Http2::default();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await;
        let socket = Socket::Plain(stream.unwrap());
        let mut leases = vec![http2.add(socket, None).await.unwrap()];
        // An upstream that has not sent its settings allows as many as there may be.
        while let Some(lease) = http2.take() {
            leases.push(lease);
        }
        let windows = leases.len() * STREAM_WINDOW as usize;
        assert!(windows <= CONNECTION_WINDOW as usize, "{}", leases.len());
    }

    #[tokio::test]
    async fn a_connection_to_a_lost_address_is_shared_no_more_and_ends_with_its_last_use() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let http2 = Http2::default();
        let stream = TcpStream::connect(address).await.unwrap();
        let socket = Socket::Plain(stream);
        let lease = http2.add(socket, Some(address.ip())).await.unwrap();
        http2.retain_addresses(&[address.ip()]);
        assert!(!http2.is_empty());
        http2.retain_addresses(&[]);
        assert!(http2.is_empty() && http2.take().is_none());
        assert!(!lease.sender.is_closed(), "what is under way goes on");
        let (mut theirs, _) = listener.accept().await.unwrap();
        drop(lease);
        let mut rest = Vec::new();
        let _ = theirs.read_to_end(&mut rest).await;
    }
}
