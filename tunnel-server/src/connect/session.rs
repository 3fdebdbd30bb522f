//! One session at the server, from the 101 to its end.

use std::{net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::server::TlsStream;
use tunnel_ops::task::Owned;
use tunnel_proto::{
    close::CloseReason,
    control::Control,
    handshake::Greeting,
    session::{Session, SessionEnd, SessionEvent, SessionEvents, SessionSettings, Side},
};

use super::Admitted;
use crate::{auth::authenticate, node::Node, registry::Membership, runtimes::RuntimeEntry};

/// What is kept of the grace period, at most, for telling the other end why its session ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// A session that has begun. Whatever the cause of its end, its place in the registry goes with it.
pub(super) struct LiveSession {
    session: Session,
    events: SessionEvents,
    /// Moves the bytes, in a task of its own, so that nothing that is done here holds it up.
    driver: Owned<SessionEnd>,
    membership: Membership,
    runtime: Arc<RuntimeEntry>,
    greeting: Greeting,
    peer: SocketAddr,
}

impl LiveSession {
    /// Takes over a connection that was let in, and says welcome.
    pub(super) fn begin(
        node: &Arc<Node>,
        admitted: Admitted,
        io: TlsStream<TcpStream>,
        leftover: Bytes,
        peer: SocketAddr,
    ) -> Self {
        let Admitted {
            runtime, greeting, ..
        } = admitted;
        let exchanges = runtime
            .limits
            .exchanges
            .unwrap_or(node.config.max_exchanges);
        let settings = SessionSettings {
            ping_interval: node.config.ping_interval,
            exchanges: exchanges.min(node.config.max_exchanges) as usize,
        };
        let (session, events, driver) = Session::new(io, leftover, Side::Server, settings);
        let slot = node.registry.slot(&runtime.label);
        let membership = node
            .registry
            .join(&slot, &greeting.instance, session.clone());
        let label = runtime.label.as_str();
        let (instance, number) = (greeting.instance.as_str(), greeting.session_number);
        tracing::info!(runtime = label, instance, number, %peer, "a session has begun");
        let _ = session.send(Control::Welcome {
            runtime: label.into(),
            session: format!("{instance}/{number}"),
            version: env!("CARGO_PKG_VERSION").into(),
        });
        Self {
            session,
            events,
            driver: Owned::spawn("session", driver),
            membership,
            runtime,
            greeting,
            peer,
        }
    }

    /// Carries the session until it ends.
    pub(super) async fn run(mut self, node: &Arc<Node>) {
        let end = self.attend(node).await;
        let reason = end.reason().name();
        node.metrics
            .sessions_ended
            .with_label_values(&[reason])
            .inc();
        let (instance, number) = (
            self.greeting.instance.as_str(),
            self.greeting.session_number,
        );
        let (runtime, peer) = (self.runtime.label.as_str(), self.peer);
        tracing::info!(runtime, instance, number, %peer, reason, %end, "a session has ended");
    }

    /// Does what the session asks for while its driver moves the bytes.
    async fn attend(&mut self, node: &Arc<Node>) -> SessionEnd {
        let Self {
            session,
            events,
            driver,
            membership,
            runtime,
            ..
        } = self;
        let mut leaving = pin!(leave(node, session, membership));
        let mut round_trip = tokio::time::interval(node.config.ping_interval);
        loop {
            tokio::select! {
                end = &mut *driver => {
                    return end.unwrap_or(SessionEnd::Closed(CloseReason::Internal));
                }
                event = events.next(session) => match event {
                    Some(SessionEvent::Control(control)) => {
                        on_control(node, runtime, session, control);
                    }
                    // The driver ends a session whose client opens streams.
                    Some(SessionEvent::Exchanges(_)) => {}
                    None => break,
                },
                _ = round_trip.tick() => {
                    if let Some(time) = session.round_trip() {
                        node.metrics.observe_round_trip(time);
                    }
                }
                reason = &mut leaving => {
                    session.close(reason);
                    break;
                }
            }
        }
        let end = driver.await;
        end.unwrap_or(SessionEnd::Closed(CloseReason::Internal))
    }
}

fn on_control(node: &Node, runtime: &RuntimeEntry, session: &Session, control: Control) {
    match control {
        Control::Hello { version } => {
            tracing::debug!(
                runtime = runtime.label.as_str(),
                version,
                "the client said hello"
            );
        }
        // The client leaves by itself when its exchanges are done.
        Control::Drain { .. } => session.start_drain(),
        Control::RefreshToken { token } => {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_str(&format!("Bearer {token}")) {
                headers.insert(header::AUTHORIZATION, value);
            }
            let refreshed = authenticate(&node.config.runtimes, &headers);
            if !refreshed.is_ok_and(|entry| entry.label == runtime.label) {
                let detail = "the refreshed token does not let this runtime in".into();
                let _ = session.send(Control::Revoked { detail });
                session.close(CloseReason::Revoked);
            }
        }
        // What only a server says has no meaning from a client.
        Control::Welcome { .. }
        | Control::Superseded { .. }
        | Control::Revoked { .. }
        | Control::Unknown => {}
    }
}

/// Waits for a cause to leave, tells the client, lets its exchanges finish; then the close reason.
async fn leave(node: &Node, session: &Session, membership: &Membership) -> CloseReason {
    let reason = tokio::select! {
        by = membership.tunnel().superseded() => {
            let _ = session.send(Control::Superseded { instance: by.to_string() });
            CloseReason::Superseded
        }
        () = node.stopping() => {
            let _ = session.send(Control::Drain { spread_ms: None });
            CloseReason::Drained
        }
    };
    session.start_drain();
    let grace = node.config.grace_period;
    let _ = timeout(grace - FAREWELL.min(grace / 10), session.at_rest()).await;
    reason
}
