//! The part of a hand-over from which the predecessor can go back: the successor has the listeners and the tunnel clients,
//! and has to show that it serves.

use tokio::time::{Instant, timeout_at};
use tunnel_proto::control::millis;

use super::successor::{Successor, UpgradeError};
use crate::{
    server::{
        parts::Parts,
        spread::{MOVING, session_spread},
    },
    tunnel::Directive,
};

/// Has the successor serve everything.
///
/// # Errors
/// When it ends or stands still before. Then it is killed, and this process serves as before.
pub(super) async fn run(parts: &Parts, successor: &mut Successor) -> Result<(), UpgradeError> {
    if let Some(managed) = &parts.managed {
        managed.stop_changes().await;
    }
    let served = serve(parts, successor).await;
    if served.is_err() {
        // Before this process accepts: two of them would take clients from each other.
        successor.kill();
        parts.registry.take_back();
        parts.lifecycle.take_back();
        if let Some(managed) = &parts.managed {
            managed.resume_changes();
        }
    }
    served
}

async fn serve(parts: &Parts, successor: &mut Successor) -> Result<(), UpgradeError> {
    let lifecycle = &parts.lifecycle;
    // Where tunnel clients come by the public listener, it is the successor's at once, and requests wait there for their
    // runtimes.
    let takes_tunnels = !parts.config.load().settings.tunnel_host.is_empty();
    lifecycle.accepting_tunnels.pause();
    if takes_tunnels {
        lifecycle.accepting_public.pause();
    }
    successor.serve_tunnels(parts.registry.hand_over()).await;
    successor.tunnels().await?;
    if takes_tunnels {
        successor.serve_public().await;
        successor.serving().await?;
        move_clients(parts, successor).await?;
        // All that has come meanwhile.
        successor.ask().await;
    } else {
        move_clients(parts, successor).await?;
        // What comes to this process until the report is served by the sessions that were open here.
        successor.serve_public().await;
    }
    successor.serving().await
}

/// Has the tunnel clients move, and waits until all have a session at the successor, but no longer than they need. The requests
/// of runtimes that need longer wait at the successor.
async fn move_clients(parts: &Parts, successor: &mut Successor) -> Result<(), UpgradeError> {
    let lifecycle = &parts.lifecycle;
    let spread = session_spread(parts);
    tracing::info!(
        spread_ms = millis(spread),
        "sending drain messages to tunnel clients, which dial the new process"
    );
    lifecycle.hand_over(spread);
    parts.registry.direct_all(&Directive::HandOver);
    let moved = timeout_at(
        Instant::now() + spread + MOVING,
        lifecycle.unmoved_sessions.wait(),
    );
    tokio::select! {
        _ = moved => Ok(()),
        error = successor.ended() => Err(error),
    }
}
