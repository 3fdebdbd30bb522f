//! Upgraded connections of platform clients, through sessions.

use std::{sync::Arc, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite};
use tunnel_http::upgraded::{self, Download, Upgrade, UpgradeBounds};
use tunnel_proto::exchange::RecvBody;

use super::{PublicListener, observe::Observation, session_carrier::SessionCarrier};
use crate::budget::pace::Paced;

/// An upgrade that was granted.
pub(crate) type GrantedUpgrade = Upgrade<Paced<RecvBody>, SessionCarrier, Observation>;

impl Download for Paced<RecvBody> {
    async fn upload_sent(&mut self) {
        self.body_mut().sent().await;
    }
}

/// Moves the bytes until both directions have ended. The platform client's bytes are delayed by the runtime's rate.
pub(super) async fn join<IO>(
    io: IO,
    upgrade: GrantedUpgrade,
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
