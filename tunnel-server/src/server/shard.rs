//! A shard: one thread with its own tokio runtime, which serves the connections that it accepts.
//!
//! A session stays on the shard that accepted it; an exchange of a connection on another shard crosses threads once. There
//! is no work stealing between shards: it cost more than it gained.

use std::{io, sync::Arc, thread::JoinHandle, time::Duration};

use tokio::{net::TcpListener, runtime, sync::oneshot};
use tunnel_ops::signals::Shutdown;

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
    /// `None` if tunnel clients connect to the public listener alone.
    pub(super) tunnel: Option<std::net::TcpListener>,
    pub(super) public: std::net::TcpListener,
    /// `None` if no other node connects.
    pub(super) peer: Option<std::net::TcpListener>,
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
    let registered = TcpListener::from_std(sockets.public).and_then(|public| {
        let socket = sockets.tunnel.map(TcpListener::from_std).transpose()?;
        let peer_socket = sockets.peer.map(TcpListener::from_std).transpose()?;
        Ok((socket, public, peer.zip(peer_socket)))
    });
    let (tunnel_socket, public_socket, peer) = match registered {
        Ok(sockets) => sockets,
        Err(error) => {
            return tracing::error!(%error, "a shard cannot use its listeners");
        }
    };
    let clients = async {
        let tunnels = async {
            if let Some(socket) = tunnel_socket {
                connect::serve_all(tunnel, socket).await;
            }
        };
        tokio::join!(tunnels, public::serve_all(public, public_socket));
    };
    // Other nodes are served, and forwarded to, as long as there are clients. Then their links are drained: requests that
    // they forward in this moment go to other nodes.
    let (clients_end, have_ended) = Shutdown::manual();
    let served = async {
        let clients = async {
            clients.await;
            clients_end.request();
        };
        tokio::join!(clients, serve_nodes(peer, have_ended));
    };
    tokio::select! {
        () = served => {}
        () = link_nodes(links) => {}
    }
}

/// Serves other nodes until the clients have ended.
async fn serve_nodes(peer: Option<(Arc<PeerListener>, TcpListener)>, clients_end: Shutdown) {
    if let Some((shared, listener)) = peer {
        peers::accept::serve_all(shared, listener, clients_end).await;
    }
}

/// Keeps links to other nodes; never ends.
async fn link_nodes(links: Option<Arc<Peers>>) {
    match links {
        Some(links) => links.run().await,
        None => std::future::pending().await,
    }
}
