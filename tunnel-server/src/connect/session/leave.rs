//! How the server ends a session: for each cause, what is sent to the client, which exchanges still finish, and when
//! the session is closed.

use std::{future::pending, time::Duration};

use tokio::time::timeout;
use tunnel_proto::{
    close::CloseReason,
    control::{Control, millis},
    session::Session,
};

use crate::{
    config::live::LiveConfig, lifecycle::Lifecycle, registry::Membership, tunnel::Directive,
};

/// The part of the grace period that is reserved for the close handshake, at most.
const CLOSE_HANDSHAKE: Duration = Duration::from_secs(1);

/// Why a session ends, the weakest cause first.
#[derive(Debug, Clone)]
enum Cause {
    /// Nothing yet.
    None,
    /// The server drains.
    Draining,
    /// All sessions of the tunnel got this directive.
    Directed(Directive),
}

/// Waits for a cause to end the session, follows it, and returns the close reason. A stronger cause replaces a weaker
/// one at any time.
pub(super) async fn leave(
    lifecycle: &Lifecycle,
    config: &LiveConfig,
    session: &Session,
    membership: &Membership,
) -> CloseReason {
    let cause = stronger(lifecycle, membership, &Cause::None).await;
    // Boxed, so that its space is not reserved until then, which may be months.
    Box::pin(leave_for(lifecycle, config, session, membership, cause)).await
}

async fn leave_for(
    lifecycle: &Lifecycle,
    config: &LiveConfig,
    session: &Session,
    membership: &Membership,
    mut cause: Cause,
) -> CloseReason {
    loop {
        cause = tokio::select! {
            stronger = stronger(lifecycle, membership, &cause) => stronger,
            reason = follow(lifecycle, config, session, membership, &cause) => return reason,
        };
    }
}

async fn stronger(lifecycle: &Lifecycle, membership: &Membership, than: &Cause) -> Cause {
    let level = match than {
        Cause::None | Cause::Draining => 0,
        Cause::Directed(directive) => directive.level() + 1,
    };
    tokio::select! {
        directive = membership.directive(level) => Cause::Directed(directive),
        () = lifecycle.draining(), if matches!(than, Cause::None) => Cause::Draining,
    }
}

async fn follow(
    lifecycle: &Lifecycle,
    config: &LiveConfig,
    session: &Session,
    membership: &Membership,
    cause: &Cause,
) -> CloseReason {
    let grace = config.load().settings.grace_period;
    match cause {
        Cause::None => pending().await,
        Cause::Draining => {
            send_drain(lifecycle, session);
            drained(lifecycle, session).await
        }
        Cause::Directed(Directive::Superseded { by }) => {
            let instance = by.to_string();
            let _ = session.send(Control::Superseded { instance });
            finish(lifecycle, session, grace).await;
            CloseReason::Superseded
        }
        Cause::Directed(Directive::Drain) => {
            let _ = session.send(Control::Drain { spread_ms: None });
            // The session takes exchanges until there is another one, so that none has to wait.
            tokio::select! {
                _ = timeout(grace, membership.replaced()) => finish(lifecycle, session, grace).await,
                // The other one is at another node.
                () = membership.moved() => finish(lifecycle, session, grace).await,
                () = lifecycle.draining() => return drained(lifecycle, session).await,
            }
            CloseReason::Drained
        }
        Cause::Directed(Directive::Move) => {
            let _ = session.send(Control::Drain { spread_ms: None });
            // Its client stays if there is nothing else.
            tokio::select! {
                () = membership.moved() => finish(lifecycle, session, grace).await,
                () = lifecycle.draining() => return drained(lifecycle, session).await,
            }
            CloseReason::Drained
        }
        Cause::Directed(Directive::HandOver) => {
            send_drain(lifecycle, session);
            tokio::select! {
                () = lifecycle.draining() => return drained(lifecycle, session).await,
                () = lifecycle.taken_back() => {}
            }
            // Its client dials in any case. One that has a session at the new process loses that one.
            tokio::select! {
                _ = timeout(grace, membership.replaced()) => finish(lifecycle, session, grace).await,
                () = lifecycle.draining() => return drained(lifecycle, session).await,
            }
            CloseReason::Drained
        }
        Cause::Directed(Directive::Disconnect) => CloseReason::Disconnected,
    }
}

/// Has the client dial within the spread.
fn send_drain(lifecycle: &Lifecycle, session: &Session) {
    let spread_ms = Some(millis(lifecycle.spread())).filter(|time| *time > 0);
    let _ = session.send(Control::Drain { spread_ms });
}

/// Drains the session because the server drains. It takes exchanges as long as there are public connections, or exchanges
/// that other nodes have forwarded, since their requests need it.
async fn drained(lifecycle: &Lifecycle, session: &Session) -> CloseReason {
    let finished = async {
        lifecycle.public_connections.wait().await;
        session.start_drain();
        // Another node may have forwarded a request in this moment.
        session.at_rest().await;
    };
    tokio::select! {
        () = finished => {}
        () = lifecycle.ended() => session.start_drain(),
    }
    CloseReason::Drained
}

/// Stops taking exchanges, and waits for the open ones.
async fn finish(lifecycle: &Lifecycle, session: &Session, grace: Duration) {
    session.start_drain();
    tokio::select! {
        _ = timeout(grace - CLOSE_HANDSHAKE.min(grace / 10), session.at_rest()) => {}
        () = lifecycle.ended() => {}
    }
}
