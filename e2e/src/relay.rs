//! A network between a tunnel client and a tunnel server that a test can break.
//!
//! The relay carries TCP connections to its target, unread. It can hold bytes without a sign, as a lost path does (in both
//! directions or one, of all connections or one), delay them, reset connections, refuse new ones, and change its target.

use std::{
    collections::{BTreeMap, VecDeque},
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
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until},
};

use crate::{
    deadline::{SOON, eventually},
    record::Record,
};

/// What happens to new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    /// They are carried.
    Open,
    /// They are reset at once; open connections continue.
    Refusing,
}

/// The directions in which bytes are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// From the tunnel client to the tunnel server.
    pub there: bool,
    /// From the tunnel server to the tunnel client.
    pub back: bool,
}

impl Held {
    /// Nothing passes.
    pub const BOTH: Self = Self {
        there: true,
        back: true,
    };
    /// The server hears nothing.
    pub const THERE: Self = Self {
        there: true,
        back: false,
    };
    /// The client hears nothing.
    pub const BACK: Self = Self {
        there: false,
        back: true,
    };
    /// Everything passes.
    pub const NONE: Self = Self {
        there: false,
        back: false,
    };
}

/// The number of a connection through the relay, in the order of arrival, from 0.
pub type Number = usize;

/// A running relay.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    /// New connections go to these in turn.
    targets: Mutex<Vec<SocketAddr>>,
    /// How long bytes are under way, each way.
    delay: watch::Sender<Duration>,
    door: Mutex<Door>,
    /// The directions that are held on all connections, new ones too.
    held: watch::Sender<Held>,
    tasks: Mutex<JoinSet<()>>,
    carried: Mutex<BTreeMap<Number, Carried>>,
    /// Each connection that came, for tests that count dials.
    dials: Record<SocketAddr>,
}

/// A connection that is being carried.
#[derive(Debug)]
struct Carried {
    task: AbortHandle,
    /// The directions that are held on this one alone.
    held: watch::Sender<Held>,
}

impl Relay {
    /// Starts a relay on a free port that leads to `target`.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            targets: Mutex::new(vec![target]),
            delay: watch::Sender::default(),
            door: Mutex::new(Door::Open),
            held: watch::Sender::default(),
            tasks: Mutex::default(),
            carried: Mutex::default(),
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

    /// Holds all bytes from now on, without a sign to either side.
    pub fn stall(&self) {
        self.hold(Held::BOTH);
    }

    /// Holds these directions of all connections from now on, new ones too, without a sign to either side.
    pub fn hold(&self, held: Held) {
        self.shared.held.send_replace(held);
    }

    /// Holds these directions of the connections that are open now; new ones pass.
    pub fn hold_present(&self, held: Held) {
        for number in self.connections() {
            self.hold_one(number, held);
        }
    }

    /// Holds these directions of one connection.
    pub fn hold_one(&self, number: Number, held: Held) {
        if let Some(carried) = self.shared.carried.lock().get(&number) {
            carried.held.send_replace(held);
        }
    }

    /// Resets new connections from now on.
    pub fn refuse(&self) {
        *self.shared.door.lock() = Door::Refusing;
    }

    /// Passes everything again, first the held bytes.
    pub fn resume(&self) {
        *self.shared.door.lock() = Door::Open;
        self.hold(Held::NONE);
        self.hold_present(Held::NONE);
    }

    /// The open connections, oldest first.
    pub fn connections(&self) -> Vec<Number> {
        self.shared.carried.lock().keys().copied().collect()
    }

    /// Waits until exactly this many connections are carried.
    pub async fn wait_connections(&self, count: usize) -> Vec<Number> {
        let what = format!("{count} connections through the relay");
        eventually(SOON, &what, async || {
            let connections = self.connections();
            (connections.len() == count).then_some(connections)
        })
        .await
    }

    /// Resets all open connections.
    pub fn cut(&self) {
        self.shared.tasks.lock().abort_all();
    }

    /// Resets one connection.
    pub fn cut_one(&self, number: Number) {
        if let Some(carried) = self.shared.carried.lock().get(&number) {
            carried.task.abort();
        }
    }

    /// Lets bytes be under way for so long, each way, from now on.
    pub fn delay(&self, delay: Duration) {
        self.shared.delay.send_replace(delay);
    }

    /// Carries new connections to another target.
    pub fn lead_to(&self, target: SocketAddr) {
        self.lead_to_each(&[target]);
    }

    /// Carries new connections to these targets in turn, as a load balancer does, each to the first that accepts it.
    pub fn lead_to_each(&self, targets: &[SocketAddr]) {
        *self.shared.targets.lock() = targets.to_vec();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut number = 0;
    while let Ok((socket, peer)) = listener.accept().await {
        shared.dials.push(peer);
        if *shared.door.lock() == Door::Refusing {
            drop((CutOnDrop::new(&socket), socket));
            continue;
        }
        let held = watch::Sender::default();
        let carrying = carry(socket, number, held.subscribe(), shared.clone());
        // Both under one lock: a connection that ends at once finds its entry to take away.
        let mut carried = shared.carried.lock();
        let task = shared.tasks.lock().spawn(carrying);
        carried.insert(number, Carried { task, held });
        drop(carried);
        number += 1;
    }
}

/// Removes a connection's entry when its task ends, for whatever reason.
struct Entered(Number, Arc<Shared>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.1.carried.lock().remove(&self.0);
    }
}

async fn carry(client: TcpStream, number: Number, own: watch::Receiver<Held>, shared: Arc<Shared>) {
    let _entered = Entered(number, shared.clone());
    let mut cut = CutOnDrop::new(&client);
    let gate = Gate {
        all: shared.held.subscribe(),
        own,
    };
    // A new connection of a held relay waits before it is carried, as on a lost path.
    gate.clone().pass(|held| held.there).await;
    let mut targets = shared.targets.lock().clone();
    let count = targets.len().max(1);
    targets.rotate_left(number % count);
    let Some(server) = connect(&targets).await else {
        return;
    };
    cut.add(&server);
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = split(client);
    let (from_server, to_server) = split(server);
    let delay = shared.delay.subscribe();
    let there = pump(
        from_client,
        to_server,
        gate.clone(),
        delay.clone(),
        |held| held.there,
    );
    let back = pump(from_server, to_client, gate, delay, |held| held.back);
    if tokio::try_join!(there, back).is_ok() {
        cut.disarm();
    }
}

/// The held directions of one connection: those of the relay, and its own.
#[derive(Clone)]
struct Gate {
    all: watch::Receiver<Held>,
    own: watch::Receiver<Held>,
}

impl Gate {
    /// Waits until neither holds this direction.
    async fn pass(&mut self, is_held: fn(&Held) -> bool) {
        while is_held(&self.all.borrow()) || is_held(&self.own.borrow()) {
            // An end of either can only come with the relay's own.
            let (all, own) = (&mut self.all, &mut self.own);
            let changed = tokio::select! {
                changed = all.changed() => changed,
                changed = own.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }
}

/// A connection to the first of these that accepts it.
async fn connect(targets: &[SocketAddr]) -> Option<TcpStream> {
    for target in targets {
        if let Ok(connection) = TcpStream::connect(target).await {
            return Some(connection);
        }
    }
    None
}

/// Pieces that are under way at once on a delayed connection.
const UNDER_WAY: usize = 64;

/// Moves bytes one way until their end, which is passed on as a half-close.
async fn pump(
    mut from: ReadHalf<TcpStream>,
    mut to: WriteHalf<TcpStream>,
    mut gate: Gate,
    delay: watch::Receiver<Duration>,
    is_held: fn(&Held) -> bool,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut under_way: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    loop {
        let delayed = *delay.borrow();
        let most = if delayed.is_zero() { 1 } else { UNDER_WAY };
        let due = under_way.front().map(|(due, _)| *due);
        let is_at_end = under_way.back().is_some_and(|(_, piece)| piece.is_empty());
        tokio::select! {
            read = from.read(&mut buffer), if under_way.len() < most && !is_at_end => {
                // A held direction does not tell of a reset either.
                gate.pass(is_held).await;
                let piece = buffer[..read?].to_vec();
                under_way.push_back((Instant::now() + delayed, piece));
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                gate.pass(is_held).await;
                let (_, piece) = under_way.pop_front().unwrap();
                if piece.is_empty() {
                    return to.shutdown().await;
                }
                to.write_all(&piece).await?;
            }
        }
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
        entry::Entry, http1::End, platform::PlatformClient, raw::RawClient, upstream::Upstream,
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
            let mut answer = pin!(stalled.response_to("GET"));
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
    async fn connections_are_picked_one_by_one_and_held_one_way() {
        let upstream = Upstream::start().await;
        let relay = Relay::start(upstream.address()).await;
        let entry = Entry::direct(relay.address());
        let mut one = RawClient::connect(&entry).await;
        let [first] = relay.wait_connections(1).await[..] else {
            unreachable!()
        };
        let mut other = RawClient::connect(&entry).await;
        relay.wait_connections(2).await;

        // The request arrives, its answer does not.
        relay.hold_one(first, Held::BACK);
        one.request("GET", "/one", "", b"").await;
        upstream.wait_request("/one").await;
        let answer = other.exchange("GET", "/other", "").await;
        assert_eq!(answer.head.status(), 200);
        let early = tokio::time::timeout(Duration::from_millis(100), one.head()).await;
        assert!(early.is_err(), "a held direction let an answer through");
        relay.hold_present(Held::NONE);
        assert_eq!(one.response_to("GET").await.head.status(), 200);

        relay.cut_one(first);
        assert_eq!(one.wait_end(SOON).await, End::Reset);
        assert_eq!(relay.wait_connections(1).await, [first + 1]);
        assert_eq!(other.exchange("GET", "/other", "").await.head.status(), 200);
    }

    #[tokio::test]
    async fn delays_each_way_and_leads_to_several_in_turn() {
        let (first, second) = (Upstream::start().await, Upstream::start().await);
        let relay = Relay::start(first.address()).await;
        relay.lead_to_each(&[first.address(), second.address()]);
        let entry = Entry::direct(relay.address());
        for _ in 0..2 {
            PlatformClient::http1(&entry).await.get("/here").await;
        }
        first.wait_request("/here").await;
        second.wait_request("/here").await;
        let delay = Duration::from_millis(50);
        relay.delay(delay);
        let mut client = PlatformClient::http1(&entry).await;
        let start = Instant::now();
        client.get("/here").await;
        assert!(start.elapsed() >= 2 * delay);
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
