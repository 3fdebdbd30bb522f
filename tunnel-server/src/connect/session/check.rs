//! A session that only checks the path: authenticated as any other, and no part of any tunnel.
//!
//! ```text
//!   101 ─▶ probe: an echo through the whole path ─▶ checked ─▶ silence, for as long as the client likes ─▶ end
//! ```
//!
//! It claims nothing, joins nothing and carries no exchange, so that it does not affect the runtime's tunnel client.
//! Nothing is sent after the result, not even pings: the client may be measuring for how long the path keeps a silent
//! connection.

use std::{
    future::pending,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep_until, timeout};
use tunnel_directory::ClaimRefusal;
use tunnel_proto::{
    close::CloseReason,
    control::{Control, millis},
    handshake::Refusal,
    session::{SessionEnd, SessionEvent},
};

use super::{LiveSession, READY};
use crate::connect::TunnelListener;

/// How long a check may last: longer than any idle limit that is worth measuring.
pub(super) const MAX_LIFE: Duration = Duration::from_secs(60 * 60);

impl LiveSession {
    /// Runs a check until it ends.
    pub(super) async fn check(mut self: Box<Self>, shared: &TunnelListener) {
        let end = match self.send_result(shared).await {
            Ok(()) => self.idle(shared).await,
            Err(reason) => {
                self.session.close(reason);
                self.end().await
            }
        };
        let reason = end.reason().name();
        let (instance, runtime, peer) = (
            &self.greeting.instance.id().to_string(),
            self.label(),
            self.peer,
        );
        tracing::info!(%runtime, instance, %peer, reason, %end, "a check has ended");
    }

    /// Waits for the echo and sends the result of the check.
    async fn send_result(&mut self, shared: &TunnelListener) -> Result<(), CloseReason> {
        let probed = tokio::select! {
            probed = timeout(READY, self.session.probe()) => probed,
            () = shared.lifecycle.draining() => return Err(CloseReason::Drained),
        };
        if !matches!(probed, Ok(Ok(()))) {
            return Err(CloseReason::Wedged);
        }
        if let Some(reason) =
            self.credential
                .check(&shared.authenticator, &shared.events, &self.session)
        {
            return Err(reason);
        }
        let grant = self.credential.grant();
        let (runtime, label) = (&grant.runtime, &grant.runtime.label);
        let (instance, on_conflict) = (
            self.greeting.instance.id(),
            shared.on_conflict(&self.greeting),
        );
        let precheck = shared
            .registry
            .precheck(runtime, instance, on_conflict)
            .await;
        let expires_in = grant.expires.map(|end| {
            let left = end.duration_since(SystemTime::now());
            left.unwrap_or_default()
        });
        let checked = Control::Checked {
            account: grant.runtime.account.to_string(),
            runtime: label.to_string(),
            session: self.id(),
            version: env!("CARGO_PKG_VERSION").into(),
            node: shared.registry.directory().node_name(),
            holder: shared
                .registry
                .holder(label)
                .map(|holder| holder.to_string()),
            conflict: precheck.err().map(|refusal| conflict(&refusal)),
            expires_in_ms: expires_in.map(millis),
        };
        let (runtime, peer) = (self.label(), self.peer);
        tracing::info!(%runtime, %instance, %peer, "a check has begun");
        // If the session has ended, `idle` finds that.
        let _ = self.session.send(checked);
        Ok(())
    }

    /// Sends nothing until the client leaves, its time is over, its credential becomes invalid, the server drains, or
    /// another account's check takes the permit.
    async fn idle(&mut self, shared: &TunnelListener) -> SessionEnd {
        let deadline = Instant::now() + MAX_LIFE;
        let reason = loop {
            let Self {
                session,
                events,
                driver,
                credential,
                check,
                ..
            } = self;
            let evicted = async {
                match check {
                    Some(permit) => permit.evicted().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                end = &mut *driver => {
                    return end.unwrap_or(SessionEnd::Closed(CloseReason::Internal));
                }
                event = events.next(session) => match event {
                    // No message of a client has a meaning on a check.
                    Some(SessionEvent::Control(_) | SessionEvent::Stream(_)) => {}
                    None => return self.end().await,
                },
                due = credential.due() => {
                    if let Some(reason) = credential.on_due(due, shared, session) {
                        break reason;
                    }
                }
                () = shared.lifecycle.draining() => break CloseReason::Drained,
                () = sleep_until(deadline) => break CloseReason::Disconnected,
                () = evicted => break CloseReason::Disconnected,
            }
        };
        self.session.cut(reason);
        self.end().await
    }
}

/// The refusal that an ordinary session would get.
fn conflict(refusal: &ClaimRefusal) -> Refusal {
    Refusal::new(refusal.reason(), refusal.to_string())
}
