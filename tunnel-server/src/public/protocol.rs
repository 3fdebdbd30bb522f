//! Serves a platform client's socket: the PROXY header, and the permit of the connection. The rest is
//! [`tunnel_http::gateway`].

use std::{
    convert::Infallible,
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::Instant,
};
use tokio_rustls::TlsAcceptor;
use tunnel_http::{
    connection::Bounds,
    gateway::{self, Gateway, NoRequest},
    http1::InFlight,
    outgoing::ForwardedClient,
    permits::{Exhausted, Permit},
    prefixed::Prefixed,
    proxy_protocol,
    received::ReceivedBody,
};
use tunnel_ops::signals::Shutdown;
use tunnel_proto::problem::{Hop, Problem};

use super::{
    Connection, PublicListener, STREAM_WINDOW_BYTES,
    answer::ResponseBody,
    exhausted_cause,
    serve::serve,
    upgraded::{GrantedUpgrade, join},
};
use crate::budget::usage::Usage;

/// Serves a platform client until its connection ends.
pub(super) async fn run(
    listener: Arc<PublicListener>,
    socket: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    mut permit: Permit<Usage>,
) {
    if let Err(cause) = begin(&listener, socket, peer.ip(), tls, &mut permit).await {
        listener
            .metrics
            .connections_refused
            .with_label_values(&["public", cause.name()])
            .inc();
        tracing::debug!(%peer, %cause, "a public connection ended before a request");
    }
}

/// Why a connection ended before its first request.
#[derive(Debug, thiserror::Error)]
enum NotServed {
    #[error("the PROXY header is missing or wrong")]
    Proxy,
    #[error("no permit for a connection: {0}")]
    Exhausted(Exhausted),
    #[error(transparent)]
    NoRequest(#[from] NoRequest),
}

impl NotServed {
    fn name(&self) -> &'static str {
        match self {
            Self::Proxy => "proxy_protocol",
            Self::Exhausted(exhausted) => exhausted_cause(*exhausted),
            Self::NoRequest(NoRequest::Tls(_)) => "tls",
            Self::NoRequest(NoRequest::FirstByte(_)) => "first_byte",
            Self::NoRequest(_) => "stopping",
        }
    }
}

async fn begin(
    listener: &Arc<PublicListener>,
    mut socket: TcpStream,
    mut peer: IpAddr,
    tls: Option<TlsAcceptor>,
    permit: &mut Permit<Usage>,
) -> Result<(), NotServed> {
    let mut is_trusted = listener.config.is_trusted(peer);
    let mut front = Bytes::new();
    if listener.config().settings.proxy_protocol && is_trusted {
        let deadline = Instant::now() + listener.config().settings.first_byte_timeout;
        let (header, rest) = tokio::select! {
            read = proxy_protocol::read(&mut socket, deadline) => read.map_err(|_| NotServed::Proxy)?,
            () = listener.lifecycle.silent_grace_over() => return Err(NoRequest::Stopping.into()),
        };
        is_trusted = match header {
            proxy_protocol::Header::Local => true,
            // The permit is for the address that the proxy names, not for one in the client's fields.
            proxy_protocol::Header::Proxied { source, .. } => {
                peer = source.ip();
                listener.config.is_trusted(peer)
            }
            proxy_protocol::Header::Unknown => false,
        };
        if !is_trusted {
            let counted = permit.count_for(peer.to_canonical());
            counted.map_err(NotServed::Exhausted)?;
        }
        front = rest;
    }
    let client = ForwardedClient::new(peer, is_trusted, tls.is_some());
    let socket = Prefixed::new(front, socket);
    gateway::serve(listener, client, permit.state(), socket, tls).await?;
    Ok(())
}

impl Gateway for PublicListener {
    /// The usage of its address; `None` for a trusted proxy, which forwards for many clients.
    type Peer = Option<Arc<Usage>>;
    type Upgrade = GrantedUpgrade;
    type Body = ResponseBody;

    const HOP: Hop = Hop::Server;

    fn bounds(&self) -> Bounds {
        let config = self.config();
        Bounds {
            max_head_bytes: config.settings.max_head_size,
            stream_window_bytes: STREAM_WINDOW_BYTES,
            tls_handshake_timeout: config.settings.tls_handshake_timeout,
            first_byte_timeout: config.settings.first_byte_timeout,
            request_head_timeout: config.settings.request_head_timeout,
            keep_alive_timeout: config.settings.keep_alive_timeout,
            body_idle_timeout: config.settings.body_idle_timeout,
        }
    }

    fn stopping(&self) -> &Shutdown {
        self.lifecycle.stopping()
    }

    async fn silence_ended(&self) {
        self.lifecycle.silent_grace_over().await;
    }

    fn answer(
        connection: &Arc<Connection>,
        request: Request<ReceivedBody>,
        in_flight: Option<InFlight>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + use<> {
        serve(connection, request, in_flight)
    }

    async fn join<IO>(
        self: &Arc<Self>,
        io: IO,
        upgrade: GrantedUpgrade,
        write_timeout: Option<Duration>,
    ) where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        join(io, upgrade, self, write_timeout).await;
    }

    fn on_unread(&self, peer: IpAddr, problem: &Problem) {
        self.metrics.count_problem(problem);
        self.log_refusal(peer, None, problem);
    }
}
