//! A shard: one thread with its own tokio runtime, which serves the connections that it accepts.
//!
//! A session stays on the shard that accepted it; an exchange of a connection on another shard crosses threads once. There
//! is no work stealing between shards: it cost more than it gained.

use std::{io, sync::Arc, thread::JoinHandle, time::Duration};

use futures_util::future::join_all;
use tokio::{net::TcpListener, runtime, sync::oneshot};

use crate::{
    connect::{self, TunnelListener},
    gauges::Threads,
    peers::{self, PeerListener, Peers},
    public::{self, PublicListener},
};

/// Most tasks that run between two polls of the sockets. Each may move a batch of a large body, so that many would delay a
/// request that has just arrived.
const TASKS_BETWEEN_EVENTS: u32 = 16;

/// Time-out for work that cannot be cancelled, such as a name lookup, at the end of a shard.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(100);

/// The listeners' sockets of a shard.
pub(super) struct Sockets {
    pub(super) tunnel: Vec<std::net::TcpListener>,
    pub(super) public: Vec<std::net::TcpListener>,
    /// None if no other node connects.
    pub(super) peer: Vec<std::net::TcpListener>,
}

/// What a shard serves its connections with.
pub(super) struct Listeners {
    pub(super) tunnel: Arc<TunnelListener>,
    pub(super) public: Arc<PublicListener>,
    pub(super) peer: Option<Arc<PeerListener>>,
}

/// A running shard. Dropping it ends all its tasks and joins its thread.
pub(super) struct Shard {
    /// Dropped to end the shard at once.
    end: Option<oneshot::Sender<()>>,
    /// `None` once it has ended.
    ended: Option<oneshot::Receiver<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Shard {
    pub(super) fn start(
        number: usize,
        threads: &Threads,
        listeners: Listeners,
        sockets: Sockets,
    ) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread()
            .event_interval(TASKS_BETWEEN_EVENTS)
            .enable_all()
            .build()?;
        threads.add(runtime.handle().clone());
        let (end, forced) = oneshot::channel();
        let (finished, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(format!("shard-{number}"))
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = serve(listeners, sockets) => {}
                        _ = forced => {}
                    }
                });
                // Ends the tasks before the shard is reported as ended; a name lookup in
                // progress, which cannot be cancelled, is not awaited.
                runtime.shutdown_timeout(LOOKUP_TIMEOUT);
                let _ = finished.send(());
            })?;
        Ok(Self {
            end: Some(end),
            ended: Some(ended),
            thread: Some(thread),
        })
    }

    /// Resolves when the shard has ended, by itself or by a panic.
    pub(super) async fn ended(&mut self) {
        if let Some(ended) = &mut self.ended {
            // Sent or dropped: in both cases the thread ends.
            let _ = ended.await;
            self.ended = None;
        }
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listeners: Listeners, sockets: Sockets) {
    let Listeners {
        tunnel,
        public,
        peer,
    } = listeners;
    let links = public.peers.clone();
    let registered = register(sockets.tunnel).and_then(|tunnel| {
        let public = register(sockets.public)?;
        Ok((tunnel, public, register(sockets.peer)?))
    });
    let (tunnel_sockets, public_sockets, peer_sockets) = match registered {
        Ok(sockets) => sockets,
        Err(error) => {
            return tracing::error!(%error, "a shard cannot use its listeners");
        }
    };
    let lifecycle = public.lifecycle.clone();
    let clients = lifecycle.serving_clients.track_future(async {
        let tunnels = tunnel_sockets.into_iter();
        let tunnels = tunnels.map(|socket| connect::serve_all(tunnel.clone(), socket));
        let publics = public_sockets.into_iter();
        let publics = publics.map(|socket| public::serve_all(public.clone(), socket));
        tokio::join!(join_all(tunnels), join_all(publics));
    });
    // Other nodes are served, and forwarded to, as long as there are clients. Then their links are drained: requests that
    // they forward in this moment go to other nodes.
    let served = async {
        let nodes = peer_sockets.into_iter().zip(peer.into_iter().cycle());
        let nodes = nodes.map(|(socket, listener)| peers::accept::serve_all(listener, socket));
        tokio::join!(clients, join_all(nodes));
    };
    tokio::select! {
        () = served => {}
        () = link_nodes(links) => {}
    }
}

fn register(sockets: Vec<std::net::TcpListener>) -> io::Result<Vec<TcpListener>> {
    sockets.into_iter().map(TcpListener::from_std).collect()
}

/// Keeps links to other nodes; never ends.
async fn link_nodes(links: Option<Arc<Peers>>) {
    match links {
        Some(links) => links.run().await,
        None => std::future::pending().await,
    }
}
