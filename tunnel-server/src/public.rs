//! The public listener: where platform clients connect.
//!
//! It accepts connections, enforces the limits on their number in all and per address, and serves each in its own task
//! (`protocol`). No platform client delays another, and no error of `accept` ends the listener.

pub mod answer;
mod attempt;
mod body;
pub mod check;
mod client_hello;
mod cookies;
mod dial;
mod exchange;
mod forward;
mod observe;
mod protocol;
mod serve;
mod session_carrier;
mod shared;
mod upgraded;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use arc_swap::{ArcSwap, Guard};
use http::request::Parts;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tunnel_http::{
    access_log::AccessLog,
    listener::set_options,
    outgoing::ViaName,
    permits::{Permit, Permits},
};
use tunnel_ops::{telemetry::tracer::Tracer, tls_files::LiveServerConfig};
use tunnel_proto::problem::Problem;

use self::answer::Cors;
use crate::{
    arrival::{Arrival, NotArrived, arrive, exhausted_cause},
    budget::usage::Usage,
    config::{Config, live::LiveConfig},
    connect::TunnelListener,
    lifecycle::Lifecycle,
    metrics::{Metrics, OpenConnection},
    peers::Peers,
    router::Router,
};

/// The receive window of one HTTP/2 stream of a platform client: that of a session's streams.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// A connection of the public listener.
type Connection = tunnel_http::gateway::Connection<PublicListener>;

/// The parts of the server that the connections of the public listener use.
pub(crate) struct PublicListener {
    pub(crate) config: Arc<LiveConfig>,
    pub(crate) router: Arc<Router>,
    /// The links of this shard to other nodes; `None` if there are none.
    pub(crate) peers: Option<Arc<Peers>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) access_log: AccessLog,
    pub(crate) tracer: Tracer,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) permits: Arc<Permits<Usage>>,
    /// What takes the tunnel clients that come to this listener, too; `None` without `--tunnel-host`.
    pub(crate) tunnel: Option<Arc<TunnelListener>>,
    /// The connections of which it is not known yet whether they are tunnel clients'; used with `tunnel` only.
    pub(crate) unknown: Arc<Permits>,
    /// `None` if the listener is plain HTTP.
    pub(crate) tls: Option<Arc<LiveServerConfig>>,
    /// The origins whose pages may read the server's own responses.
    pub(crate) cors: Arc<ArcSwap<Cors>>,
    /// This server's name in `Tunnel-Via` and `Via`.
    pub(crate) via: ViaName,
}

impl PublicListener {
    /// The current configuration.
    fn config(&self) -> Guard<Arc<Config>> {
        self.config.load()
    }

    /// A place for a connection, counted by `address` if there is one; the refusal is counted.
    fn place(&self, address: Option<IpAddr>) -> Option<Place> {
        match self.permits.acquire(address) {
            Ok(permit) => Some(Place {
                permit,
                _open: self.metrics.connection("public"),
                _token: self.lifecycle.public_connections.token(),
            }),
            Err(exhausted) => {
                self.on_refused(exhausted_cause(exhausted));
                None
            }
        }
    }

    /// Counts a connection that ended before a request.
    fn on_refused(&self, cause: &str) {
        let refused = &self.metrics.connections_refused;
        refused.with_label_values(&["public", cause]).inc();
    }

    /// Reads the PROXY header of a connection, if it has to have one; `None` if it is refused.
    async fn arrive(&self, socket: TcpStream, peer: SocketAddr) -> Option<Arrival> {
        let settings = &self.config().settings;
        if let Err(error) = set_options(&socket, settings.body_idle_timeout) {
            tracing::debug!(%peer, %error, "cannot set the options of a public connection");
        }
        let expects_header = settings.proxy_protocol;
        let arrived = arrive(&self.config, &self.lifecycle, socket, peer, expects_header);
        match arrived.await {
            Ok(arrival) => Some(arrival),
            Err(cause) => {
                self.on_refused(match cause {
                    NotArrived::Proxy => "proxy_protocol",
                    NotArrived::Stopping => "stopping",
                });
                tracing::debug!(%peer, %cause, "a public connection ended before a request");
                None
            }
        }
    }

    /// Writes the access-log line of a request that was refused before it was known where it goes. `head` is what
    /// could be read of it.
    fn log_refusal(&self, peer: IpAddr, head: Option<&Parts>, problem: &Problem) {
        let runtime = |host: &str| self.router.label_of(host);
        self.access_log.refused(head, peer, problem, runtime);
    }
}

/// The place of a platform client: a permit, and what counts and awaits its connection.
pub(crate) struct Place {
    permit: Permit<Usage>,
    _open: OpenConnection,
    _token: TaskTrackerToken,
}

/// Accepts platform clients from when the server serves them until it closes, then waits for the open connections.
pub(crate) async fn serve_all(listener: Arc<PublicListener>, tcp_listener: TcpListener) {
    let mut connections = JoinSet::new();
    tokio::select! {
        () = listener.lifecycle.serving_public() => {}
        () = listener.lifecycle.closing() => {}
    }
    loop {
        let (socket, peer) = tokio::select! {
            accepted = listener.lifecycle.accepting_public.accept(&tcp_listener) => accepted,
            () = listener.lifecycle.closing() => break,
        };
        while connections.try_join_next().is_some() {}
        let address = peer.ip().to_canonical();
        // A trusted proxy connects for many clients: its connections count only in all, until a PROXY header names one.
        let counted = (!listener.config.is_trusted(address)).then_some(address);
        if let Some(tunnel) = &listener.tunnel {
            match listener.unknown.acquire(counted) {
                Ok(permit) => {
                    let (listener, tunnel) = (listener.clone(), tunnel.clone());
                    connections.spawn(shared::one(listener, tunnel, socket, peer, permit));
                }
                Err(exhausted) => listener.on_refused(exhausted_cause(exhausted)),
            }
        } else if let Some(place) = listener.place(counted) {
            connections.spawn(one(listener.clone(), socket, peer, place));
        }
    }
    // New connections are refused at once, instead of waiting to be accepted, unless another process has the socket too.
    drop(tcp_listener);
    while connections.join_next().await.is_some() {}
}

async fn one(listener: Arc<PublicListener>, socket: TcpStream, peer: SocketAddr, mut place: Place) {
    let Some(arrival) = listener.arrive(socket, peer).await else {
        return;
    };
    if !arrival.is_trusted
        && let Err(exhausted) = place.permit.count_for(arrival.client.ip())
    {
        return listener.on_refused(exhausted_cause(exhausted));
    }
    let tls = listener.tls.as_deref().map(LiveServerConfig::acceptor);
    protocol::run(listener, arrival, tls, place).await;
}
