//! Serves a platform client's socket, and holds the permit of its connection. The rest is [`tunnel_http::gateway`].

use std::{
    convert::Infallible,
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures_util::future::Either;
use http::{Request, Response};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tunnel_http::{
    connection::{Bounds, Transport},
    gateway::{self, Gateway, NoRequest},
    http1::InFlight,
    outgoing::ForwardedClient,
    received::ReceivedBody,
};
use tunnel_ops::signals::Shutdown;
use tunnel_proto::problem::{Hop, Problem};

use super::{
    Connection, Place, PublicListener, STREAM_WINDOW_BYTES,
    answer::ResponseBody,
    dial,
    serve::serve,
    upgraded::{GrantedUpgrade, join},
};
use crate::{arrival::Arrival, budget::usage::Usage};

/// Serves a platform client until its connection ends.
pub(super) async fn run(
    listener: Arc<PublicListener>,
    arrival: Arrival,
    tls: Option<TlsAcceptor>,
    place: Place,
) {
    let address = arrival.client;
    let client = ForwardedClient::new(address.ip(), arrival.is_trusted, tls.is_some());
    let peer = PublicPeer {
        usage: place.permit.state(),
        is_private: arrival.is_private(),
        address,
        place: Mutex::new(Some(place)),
    };
    let served = gateway::serve(&listener, client, peer, arrival.into_io(), tls);
    if let Err(cause) = served.await {
        listener.on_refused(match &cause {
            NoRequest::Tls(_) => "tls",
            NoRequest::FirstByte(_) => "first_byte",
            _ => "stopping",
        });
        tracing::debug!(peer = %address, %cause, "a public connection ended before a request");
    }
}

/// What is kept of the peer of a connection.
pub(crate) struct PublicPeer {
    /// The usage of its address; `None` for a trusted proxy, which forwards for many clients.
    pub(super) usage: Option<Arc<Usage>>,
    /// The address of the client, as the connection says.
    pub(super) address: SocketAddr,
    /// Whether what is sent on it in plain HTTP is read by nobody else.
    pub(super) is_private: bool,
    /// Given back early if the connection becomes a session.
    pub(super) place: Mutex<Option<Place>>,
}

impl Gateway for PublicListener {
    type Peer = PublicPeer;
    type Upgrade = GrantedUpgrade;
    type Body = ResponseBody;

    const HOP: Hop = Hop::Server;

    fn bounds(&self, client: &ForwardedClient) -> Bounds {
        let config = self.config();
        Bounds {
            max_head_bytes: config.settings.max_head_size,
            stream_window_bytes: STREAM_WINDOW_BYTES,
            tls_handshake_timeout: config.settings.tls_handshake_timeout,
            first_byte_timeout: config.settings.first_byte_timeout,
            request_head_timeout: config.settings.request_head_timeout,
            keep_alive_timeout: match client.is_trusted {
                true => config.settings.trusted_keep_alive_timeout,
                false => config.settings.keep_alive_timeout,
            },
            body_idle_timeout: config.settings.body_idle_timeout,
        }
    }

    fn stopping(&self) -> &Shutdown {
        self.lifecycle.stopping()
    }

    fn ending(&self) -> &Shutdown {
        self.lifecycle.ending()
    }

    fn idle_grace(&self, client: &ForwardedClient) -> Duration {
        // Nobody waits for the end of a process that is replaced.
        let is_replaced = self.lifecycle.is_replaced();
        gateway::idle_grace(client.is_trusted || is_replaced)
    }

    async fn silence_ended(&self) {
        self.lifecycle.silent_grace_over().await;
    }

    fn answer(
        connection: &Arc<Connection>,
        request: Request<ReceivedBody>,
        in_flight: Option<InFlight>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + use<> {
        // A request without it is of HTTP/2.
        let Some(in_flight) = in_flight else {
            return Either::Left(serve(connection, request, None));
        };
        match connection.gateway.dialled(&request) {
            Some(tunnel) => {
                let served = dial::serve(connection.clone(), tunnel, request, in_flight);
                Either::Right(Box::pin(served))
            }
            None => Either::Left(serve(connection, request, Some(in_flight))),
        }
    }

    async fn join<IO>(
        self: &Arc<Self>,
        io: IO,
        upgrade: GrantedUpgrade,
        write_timeout: Option<Duration>,
    ) where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // A session is granted to a whole connection only.
        if let GrantedUpgrade::Exchange(upgrade) = upgrade {
            join(io, upgrade, self, write_timeout).await;
        }
    }

    async fn join_connection<IO>(self: &Arc<Self>, io: IO, upgrade: GrantedUpgrade)
    where
        IO: AsyncRead + AsyncWrite + Transport + Unpin + Send + 'static,
    {
        match upgrade {
            GrantedUpgrade::Exchange(upgrade) => join(io, upgrade, self, None).await,
            GrantedUpgrade::Session(session) => Box::pin(session.run(io)).await,
        }
    }

    fn on_unread(&self, peer: IpAddr, problem: &Problem) {
        self.metrics.count_problem(problem);
        self.log_refusal(peer, None, problem);
    }
}
