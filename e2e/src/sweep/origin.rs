//! The upstream of a sweep: honest to neighbours, and whatever a shape says to others.
//!
//! A neighbour is told by its content, a `POST` of one byte: `n` for a small answer, `d` for a download that goes on until
//! the cell is over. Over HTTP/1.1 the last letter of the path says the same.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use testkit::http2::{Frame, PREFACE};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::Handle,
    sync::{oneshot, watch},
    task::JoinSet,
    time::sleep,
};

use super::{Deed, Protocol, encode::head_frames, hold, line::Line, peer::Peer};

/// A piece of a neighbour's download, and the time between two.
const PIECE: [u8; 512] = [b'd'; 512];
const BETWEEN_PIECES: Duration = Duration::from_millis(20);

/// The receive buffer of the upstream's connections: what is not read waits in the programs and not in the kernel.
const BUFFER: u32 = 8 * 1024;

/// The longest head that is read.
const HEAD: usize = 512 * 1024;

/// A hostile request at the upstream.
pub struct Exchange {
    /// Its connection.
    pub peer: Arc<Peer>,
    /// Its stream, 0 where the protocol has none.
    pub stream: u32,
}

/// A running upstream.
pub struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
    over: watch::Sender<bool>,
    _accepting: JoinSet<()>,
}

struct Shared {
    answer: Mutex<Deed<Exchange>>,
    hostile: Handle,
    line: Arc<Line>,
    received: AtomicU64,
    over: watch::Receiver<bool>,
}

impl Origin {
    /// Starts one on the runtime `honest`. What hostile requests get is made on the runtime of the caller.
    ///
    /// # Panics
    /// When nothing can be bound.
    pub async fn start(line: Arc<Line>, honest: &Handle) -> Self {
        let (over, is_over) = watch::channel(false);
        let shared = Arc::new(Shared {
            answer: Mutex::new(super::deed(hold)),
            hostile: Handle::current(),
            line,
            received: AtomicU64::default(),
            over: is_over,
        });
        let (bound, address) = oneshot::channel();
        let mut accepting = JoinSet::new();
        accepting.spawn_on(accept(Arc::clone(&shared), bound), honest);
        Self {
            address: address.await.unwrap(),
            shared,
            over,
            _accepting: accepting,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes of hostile requests that have come.
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Does this with hostile requests from now on.
    pub fn set(&self, answer: Deed<Exchange>) {
        *self.shared.answer.lock() = answer;
    }

    /// Ends the neighbours' downloads in order.
    pub fn finish(&self) {
        self.over.send_replace(true);
    }
}

async fn accept(shared: Arc<Shared>, bound: oneshot::Sender<SocketAddr>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(BUFFER).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener: TcpListener = socket.listen(4_096).unwrap();
    let _ = bound.send(listener.local_addr().unwrap());
    let mut connections = JoinSet::new();
    loop {
        // Out of descriptors: some come back.
        let Ok((socket, _)) = listener.accept().await else {
            sleep(BETWEEN_PIECES).await;
            continue;
        };
        let _ = socket.set_nodelay(true);
        connections.spawn(serve(socket, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut socket: TcpStream, shared: Arc<Shared>) {
    let mut read = Vec::new();
    loop {
        let end = loop {
            let end = read.windows(4).position(|end| end == b"\r\n\r\n");
            if let Some(end) = end {
                break end + 4;
            }
            let mut buffer = [0; 16 * 1024];
            match socket.read(&mut buffer).await {
                Ok(length @ 1..) if read.len() < HEAD => read.extend_from_slice(&buffer[..length]),
                _ => return,
            }
        };
        if read.starts_with(&PREFACE.as_bytes()[..end.min(PREFACE.len())]) {
            while read.len() < PREFACE.len() {
                let Ok(byte) = socket.read_u8().await else {
                    return;
                };
                read.push(byte);
            }
            let rest = read.split_off(PREFACE.len());
            return serve_http2(socket, rest, &shared).await;
        }
        let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
        let target = head.split(' ').nth(1).unwrap_or_default();
        let (kind, protocol) = match target.chars().next_back() {
            Some(kind @ ('n' | 'd')) => (kind, Protocol::Http1),
            _ if head.contains("\r\nupgrade: websocket") => ('x', Protocol::WebSocket),
            _ => ('x', Protocol::Http1),
        };
        if kind == 'x' {
            shared
                .received
                .fetch_add(read.len() as u64, Ordering::Relaxed);
            let peer = Peer::http1_server(socket, protocol, Arc::clone(&shared.line));
            let answer = Arc::clone(&shared.answer.lock());
            let mut task = JoinSet::new();
            task.spawn_on(answer(Exchange { peer, stream: 0 }), &shared.hostile);
            task.join_next().await;
            return;
        }
        // The content of one byte.
        if read.len() == end {
            let Ok(byte) = socket.read_u8().await else {
                return;
            };
            read.push(byte);
        }
        read.drain(..=end);
        let next = neighbour_http1(socket, kind, shared.over.clone()).await;
        let Some(same) = next else { return };
        socket = same;
    }
}

async fn neighbour_http1(
    mut socket: TcpStream,
    kind: char,
    mut over: watch::Receiver<bool>,
) -> Option<TcpStream> {
    use tokio::io::AsyncWriteExt;
    if kind == 'n' {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        return socket.write_all(answer).await.ok().map(|()| socket);
    }
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    socket.write_all(head).await.ok()?;
    let piece = [b"200\r\n", &PIECE[..], b"\r\n"].concat();
    while !*over.borrow() {
        socket.write_all(&piece).await.ok()?;
        tokio::select! {
            () = sleep(BETWEEN_PIECES) => {}
            _ = over.changed() => {}
        }
    }
    socket.write_all(b"0\r\n\r\n").await.ok()?;
    Some(socket)
}

async fn serve_http2(socket: TcpStream, rest: Vec<u8>, shared: &Arc<Shared>) {
    let line = Arc::clone(&shared.line);
    let (peer, mut events) = Peer::http2_server(socket, rest, line).await;
    let mut tasks = JoinSet::new();
    let mut heads = HashMap::new();
    while let Some(event) = events.recv().await {
        while tasks.try_join_next().is_some() {}
        let stream = event.stream;
        let peer = Arc::clone(&peer);
        let head = heads.get(&stream).copied();
        match (head, event.first) {
            (None, None) if !event.is_last => {
                heads.insert(stream, event.length);
            }
            (Some(_), Some(kind @ (b'n' | b'd'))) => {
                heads.remove(&stream);
                tasks.spawn(neighbour_http2(peer, stream, kind, shared.over.clone()));
            }
            // Hostile requests with content are answered by their head alone, or by their first content.
            (head, _) => {
                let length = (event.length + head.unwrap_or(0)) as u64;
                shared.received.fetch_add(length, Ordering::Relaxed);
                if head != Some(0) {
                    heads.insert(stream, 0);
                    let answer = Arc::clone(&shared.answer.lock());
                    tasks.spawn_on(answer(Exchange { peer, stream }), &shared.hostile);
                }
            }
        }
    }
}

async fn neighbour_http2(peer: Arc<Peer>, stream: u32, kind: u8, mut over: watch::Receiver<bool>) {
    // `:status: 200` of the static table (RFC 7541 appendix A).
    peer.write(&head_frames(stream, &[0x88], false)).await;
    if kind == b'n' {
        peer.write_piece(stream, b"ok").await;
    }
    while kind == b'd' && !*over.borrow() {
        if !peer.write_piece(stream, &PIECE).await {
            return;
        }
        tokio::select! {
            () = sleep(BETWEEN_PIECES) => {}
            _ = over.changed() => {}
        }
    }
    let last = Frame::new(Frame::DATA, Frame::END_STREAM, stream, b"");
    peer.write(&last.bytes()).await;
}
