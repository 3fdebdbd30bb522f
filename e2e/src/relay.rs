//! A network between a tunnel client and a tunnel server that a test can break.
//!
//! The relay carries TCP connections to its target. It can stall (bytes stop, nobody is told, as
//! when a path is lost), cut (both sides see an end or a reset), refuse newcomers, and lead to
//! another target. It never looks at the bytes.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::record::Record;

/// How the relay treats its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Bytes pass.
    Open,
    /// Connections stand, newcomers are taken in, and nothing passes.
    Stalled,
    /// Newcomers are reset at once; old connections go on.
    Refusing,
}

/// A running relay.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<SocketAddr>,
    mode: watch::Sender<Mode>,
    connections: Mutex<JoinSet<()>>,
    /// Each connection that came, for tests that count dials.
    dials: Record<SocketAddr>,
}

impl Relay {
    /// Starts a relay on a free port that leads to `target`.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            mode: watch::Sender::new(Mode::Open),
            connections: Mutex::default(),
            dials: Record::default(),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, shared.clone()));
        Self {
            address,
            shared,
            _accepting: accepting,
        }
    }

    /// Where to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every connection that came, refused ones included.
    pub fn dials(&self) -> &Record<SocketAddr> {
        &self.shared.dials
    }

    /// Lets nothing pass from now on, and tells nobody.
    pub fn stall(&self) {
        self.shared.mode.send_replace(Mode::Stalled);
    }

    /// Resets newcomers from now on.
    pub fn refuse(&self) {
        self.shared.mode.send_replace(Mode::Refusing);
    }

    /// Lets everything pass again; what waited goes on.
    pub fn resume(&self) {
        self.shared.mode.send_replace(Mode::Open);
    }

    /// Resets all connections of now.
    pub fn cut(&self) {
        self.shared.connections.lock().abort_all();
    }

    /// Leads newcomers to another target.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.shared.target.lock() = target;
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((socket, peer)) = listener.accept().await {
        shared.dials.push(peer);
        if *shared.mode.borrow() == Mode::Refusing {
            drop((CutOnDrop::new(&socket), socket));
        } else {
            shared
                .connections
                .lock()
                .spawn(carry(socket, shared.clone()));
        }
    }
}

async fn carry(client: TcpStream, shared: Arc<Shared>) {
    let mut cut = CutOnDrop::new(&client);
    let mut mode = shared.mode.subscribe();
    // A stalled newcomer is held before its connection goes on, as a lost path would hold it.
    if mode.wait_for(|mode| *mode != Mode::Stalled).await.is_err() {
        return;
    }
    let target = *shared.target.lock();
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    cut.add(&server);
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = split(client);
    let (from_server, to_server) = split(server);
    let there = pump(from_client, to_server, mode.clone());
    let back = pump(from_server, to_client, mode.clone());
    if tokio::try_join!(there, back).is_ok() {
        cut.disarm();
    }
}

/// Moves bytes one way until their end, which is passed on as a half-close.
async fn pump(
    mut from: ReadHalf<TcpStream>,
    mut to: WriteHalf<TcpStream>,
    mut mode: watch::Receiver<Mode>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = from.read(&mut buffer).await?;
        if mode.wait_for(|mode| *mode != Mode::Stalled).await.is_err() || length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..length]).await?;
    }
}

/// The sockets of one connection through the relay: closed with a reset unless both directions
/// came to an orderly end.
struct CutOnDrop(Vec<OwnedFd>);

impl CutOnDrop {
    fn new(socket: &TcpStream) -> Self {
        let mut cut = Self(Vec::new());
        cut.add(socket);
        cut
    }

    fn add(&mut self, socket: &TcpStream) {
        self.0.push(socket.as_fd().try_clone_to_owned().unwrap());
    }

    fn disarm(&mut self) {
        self.0.clear();
    }
}

impl Drop for CutOnDrop {
    fn drop(&mut self) {
        for socket in &self.0 {
            drop(SockRef::from(socket).set_linger(Some(Duration::ZERO)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::{
        deadline::SOON, entry::Entry, message::End, platform::PlatformClient, raw::RawClient,
        upstream::Upstream,
    };

    #[tokio::test]
    async fn carries_stalls_and_cuts() {
        let upstream = Upstream::start().await;
        let relay = Relay::start(upstream.address()).await;
        let entry = Entry::direct(relay.address());
        let mut client = PlatformClient::http1(&entry).await;
        assert_eq!(client.get("/status/200").await.status, 200);

        relay.stall();
        let mut stalled = RawClient::connect(&entry).await;
        stalled.request("GET", "/status/200", "", b"").await;
        {
            let mut answer = pin!(stalled.read_response("GET"));
            let early = tokio::time::timeout(Duration::from_millis(100), &mut answer).await;
            assert!(early.is_err(), "a stalled relay let an answer through");
            relay.resume();
            assert_eq!(answer.await.head.status(), 200);
        }

        relay.cut();
        assert_eq!(stalled.wait_end(SOON).await, End::Reset);
        assert_eq!(relay.dials().len(), 2);
    }

    #[tokio::test]
    async fn refuses_and_leads_elsewhere() {
        let (first, second) = (Upstream::start().await, Upstream::start().await);
        let relay = Relay::start(first.address()).await;
        let entry = Entry::direct(relay.address());
        relay.refuse();
        assert_eq!(
            RawClient::connect(&entry).await.wait_end(SOON).await,
            End::Reset
        );
        relay.resume();
        relay.lead_to(second.address());
        PlatformClient::http1(&entry).await.get("/here").await;
        second.wait_request("/here").await;
        assert!(first.record().is_empty());
    }
}
