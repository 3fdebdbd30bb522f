//! Upgraded connections: of platform clients through sessions, and of tunnel clients, which become sessions.

use std::{sync::Arc, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite};
use tunnel_http::{
    connection::Transport,
    upgraded::{self, Download, Upgrade, UpgradeBounds},
};
use tunnel_proto::exchange::RecvBody;

use super::{PublicListener, observe::Observation, session_carrier::SessionCarrier};
use crate::{
    budget::pace::Paced,
    connect::{SessionPlace, TunnelListener, request::Admitted, run_session},
};

/// An upgraded exchange.
pub(crate) type ExchangeUpgrade = Upgrade<Paced<RecvBody>, SessionCarrier, Observation>;

/// An upgrade that was granted.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are exchanges; a box would cost an allocation each time"
)]
pub(crate) enum GrantedUpgrade {
    /// To a platform client, through a session.
    Exchange(ExchangeUpgrade),
    /// To a tunnel client. Boxed, since it is rare.
    Session(Box<GrantedSession>),
}

/// A session that was granted, and its place.
pub(crate) struct GrantedSession {
    tunnel: Arc<TunnelListener>,
    admitted: Box<Admitted>,
    _place: SessionPlace,
}

impl GrantedSession {
    pub(super) fn new(
        tunnel: Arc<TunnelListener>,
        admitted: Box<Admitted>,
        place: SessionPlace,
    ) -> Self {
        Self {
            tunnel,
            admitted,
            _place: place,
        }
    }

    /// Runs the session on its connection.
    pub(super) async fn run<IO>(self, io: IO)
    where
        IO: AsyncRead + AsyncWrite + Transport + Unpin + Send + 'static,
    {
        run_session(&self.tunnel, *self.admitted, io).await;
    }
}

impl Download for Paced<RecvBody> {
    async fn upload_sent(&mut self) {
        self.body_mut().sent().await;
    }
}

/// Moves the bytes until both directions have ended. The platform client's bytes are delayed by the runtime's rate.
pub(super) async fn join<IO>(
    io: IO,
    upgrade: ExchangeUpgrade,
    listener: &Arc<PublicListener>,
    write_timeout: Option<Duration>,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let bounds = UpgradeBounds {
        stage: listener.lifecycle.ending(),
        linger: listener.config().settings.body_idle_timeout,
        write_timeout,
    };
    let shaper = upgrade.observer.upload_shaper();
    let paced = |bytes| Paced::new(bytes, shaper);
    upgraded::join(io, upgrade, bounds, paced).await;
}
