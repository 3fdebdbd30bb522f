//! The public listener: where platform clients connect.
//!
//! It accepts connections, enforces the limits on their number in all and per address, and serves each in its own task
//! (`protocol`). No platform client delays another, and no error of `accept` ends the listener.

pub mod answer;
mod attempt;
mod body;
pub mod check;
mod cookies;
mod exchange;
mod forward;
mod observe;
mod protocol;
mod serve;
mod session_carrier;
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
use tokio_rustls::TlsAcceptor;
use tunnel_http::{
    access_log::AccessLog,
    listener::{accept, set_options},
    outgoing::ViaName,
    permits::{Exhausted, Permit, Permits},
};
use tunnel_ops::tls_files::LiveServerConfig;
use tunnel_proto::problem::Problem;

use self::answer::Cors;
use crate::{
    budget::usage::Usage,
    config::{Config, live::LiveConfig},
    lifecycle::Lifecycle,
    metrics::Metrics,
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
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) permits: Arc<Permits<Usage>>,
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

    /// Writes the access-log line of a request that was refused before it was known where it goes. `head` is what
    /// could be read of it.
    fn log_refusal(&self, peer: IpAddr, head: Option<&Parts>, problem: &Problem) {
        self.access_log.refused(head, peer, problem);
    }
}

/// The cause in the metric of refused connections: the name of the setting.
pub(crate) fn exhausted_cause(exhausted: Exhausted) -> &'static str {
    match exhausted {
        Exhausted::Total => "max_connections",
        Exhausted::Address => "max_connections_per_address",
    }
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
            accepted = accept(&tcp_listener) => accepted,
            () = listener.lifecycle.closing() => break,
        };
        while connections.try_join_next().is_some() {}
        let address = peer.ip().to_canonical();
        // A trusted proxy connects for many clients: its connections count only in all, until a PROXY header names one.
        let counted = (!listener.config.is_trusted(address)).then_some(address);
        match listener.permits.acquire(counted) {
            Ok(permit) => {
                let tls = listener.tls.as_deref().map(LiveServerConfig::acceptor);
                connections.spawn(one(listener.clone(), socket, peer, tls, permit));
            }
            Err(exhausted) => {
                let labels = ["public", exhausted_cause(exhausted)];
                listener
                    .metrics
                    .connections_refused
                    .with_label_values(&labels)
                    .inc();
            }
        }
    }
    // New connections are refused at once, instead of waiting to be accepted, unless another process has the socket too.
    drop(tcp_listener);
    while connections.join_next().await.is_some() {}
}

async fn one(
    listener: Arc<PublicListener>,
    socket: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    permit: Permit<Usage>,
) {
    let _open = listener.metrics.connection("public");
    let _public = listener.lifecycle.public_connections.token();
    if let Err(error) = set_options(&socket, listener.config().settings.body_idle_timeout) {
        tracing::debug!(%peer, %error, "cannot set the options of a public connection");
    }
    protocol::run(listener, socket, peer, tls, permit).await;
}
