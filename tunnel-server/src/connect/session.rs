//! One session at the server, from the 101 to its end.
//!
//! ```text
//!   101 ─▶ probe: an echo through the whole path ─▶ claim, join ─▶ welcome ─▶ attend ─▶ end
//!             │ none in time                            │ another instance holds the runtime
//!             └────────────▶ closed                     └────▶ refused with the reason, closed
//! ```

mod check;
mod credential;
mod leave;

use std::{pin::pin, time::Duration, time::SystemTime};

use bytes::Bytes;
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tunnel_directory::{ClaimRefusal, OnConflict, RuntimeLabel};
use tunnel_ops::task::Owned;
use tunnel_proto::{
    close::CloseReason,
    control::Control,
    handshake::Greeting,
    session::{Session, SessionEnd, SessionEvent, SessionEvents, SessionSettings, Side},
};

use self::credential::Credential;
use super::{TunnelListener, checks::CheckPermit, request::Admitted};
use crate::{
    allowance::Allowance,
    client_address::ClientAddress,
    config::Config,
    events::{Event, EventKind},
    history::{EndedSession, RefusedDial},
    registry::{JoinRefusal, JoinRequest, Membership},
    timestamp::Timestamp,
    tunnel::Peer,
};

/// Time for the first echo through a new session. As long as one step of a dial may take, at both ends.
const READY: Duration = Duration::from_secs(10);

/// Log lines about the silence of one session: the first 20 at once, then one per minute, since a client can report
/// silence as often as it likes.
const SILENCE_LINES: u32 = 20;
const SILENCE_LINE_EACH: Duration = Duration::from_secs(60);

/// A session that has begun. However it ends, its entry in the registry is removed with it.
pub(super) struct LiveSession {
    session: Session,
    events: SessionEvents,
    /// Moves the bytes, in a task of its own, so that nothing done here delays it.
    driver: Owned<SessionEnd>,
    credential: Credential,
    greeting: Greeting,
    allow_from: Option<Vec<IpNet>>,
    peer: ClientAddress,
    /// The permit of a session that only checks the path.
    check: Option<CheckPermit>,
}

impl TunnelListener {
    /// What happens when another instance holds the runtime of a session: one that stands by takes it from nobody.
    pub(super) fn on_conflict(&self, greeting: &Greeting) -> OnConflict {
        match greeting.stands_by {
            true => OnConflict::Reject,
            false => self.config.load().settings.on_conflict,
        }
    }
}

impl LiveSession {
    /// Begins a session on an accepted connection.
    pub(super) fn begin<IO>(config: &Config, admitted: Admitted, io: IO, leftover: Bytes) -> Self
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let settings = SessionSettings {
            ping_interval: match admitted.check {
                Some(_) => check::MAX_LIFE,
                None => config.settings.ping_interval,
            },
            exchanges: config.settings.max_exchanges as usize,
            ..SessionSettings::default()
        };
        let (session, events, driver) = Session::new(io, leftover, Side::Server, settings);
        Self {
            session,
            events,
            driver: Owned::spawn("session", driver),
            credential: Credential::new(admitted.grant, admitted.changed),
            greeting: admitted.greeting,
            allow_from: admitted.allow_from,
            peer: admitted.client,
            check: admitted.check,
        }
    }

    /// The session's id, as in the logs of both ends.
    fn id(&self) -> String {
        let Greeting {
            instance,
            session_number,
            ..
        } = &self.greeting;
        format!("{}/{session_number}", instance.id())
    }

    fn label(&self) -> RuntimeLabel {
        self.credential.grant().runtime.label.clone()
    }

    /// Runs the session until it ends.
    pub(super) async fn run(mut self: Box<Self>, shared: &TunnelListener) {
        if self.check.is_some() {
            return Box::pin(self.check(shared)).await;
        }
        // Boxed, so that the space for joining is freed before the session, which may live for days.
        let joined = Box::pin(self.join(shared)).await;
        let end = match &joined {
            Ok(membership) => self.attend(shared, membership).await,
            Err(reason) => {
                self.session.close(*reason);
                self.end().await
            }
        };
        self.report(shared, &end, joined.as_ref().ok());
    }

    /// Reports the end of the session to the operator.
    fn report(&self, shared: &TunnelListener, end: &SessionEnd, membership: Option<&Membership>) {
        let reason = end.reason().name();
        shared
            .metrics
            .sessions_ended
            .with_label_values(&[reason])
            .inc();
        let (instance, number) = (
            &self.greeting.instance.id().to_string(),
            self.greeting.session_number,
        );
        let (runtime, peer) = (self.label(), self.peer);
        tracing::info!(%runtime, instance, number, %peer, reason, %end, "a session has ended");
        let ended = Event::of(EventKind::SessionEnded, &runtime).session(self.id());
        shared
            .events
            .report(ended.reason(reason).detail(end.to_string()));
        let (at, peer) = (Timestamp::now(), peer.to_string());
        let (reason_name, detail) = (reason.to_owned(), end.to_string());
        let client_version = self.greeting.version.clone();
        match membership {
            Some(membership) => membership.slot().history().on_session_end(EndedSession {
                at,
                session: self.id(),
                reason: reason_name,
                detail,
                peer,
                client_version,
            }),
            // It was never one of the runtime's sessions.
            None => shared.on_refused(
                &runtime,
                reason,
                RefusedDial {
                    at,
                    reason: reason_name,
                    detail,
                    peer,
                    credential: Some((&self.credential.grant().credential).into()),
                    instance: Some(instance.clone()),
                    client_version: Some(client_version),
                },
                true,
            ),
        }
    }

    /// Waits for the first echo, adds the session to its runtime's tunnel, and sends the welcome.
    async fn join(&mut self, shared: &TunnelListener) -> Result<Membership, CloseReason> {
        let (instance, number) = (self.greeting.instance.id(), self.greeting.session_number);
        let (runtime, peer) = (self.label(), self.peer);
        let probed = tokio::select! {
            probed = timeout(READY, self.session.probe()) => probed,
            () = shared.lifecycle.stopping().requested() => return Err(CloseReason::Drained),
        };
        if !matches!(probed, Ok(Ok(()))) {
            tracing::warn!(%runtime, %instance, number, %peer, "a session gave no echo");
            return Err(CloseReason::Wedged);
        }
        // The credential may have become invalid meanwhile: such a session must not supersede another.
        if let Some(reason) =
            self.credential
                .check(&shared.authenticator, &shared.events, &self.session)
        {
            return Err(reason);
        }
        let request = JoinRequest {
            runtime: &self.credential.grant().runtime,
            instance,
            session: &self.session,
            peer: Peer {
                address: peer,
                version: self.greeting.version.clone(),
                number,
                since: SystemTime::now(),
                credential: Mutex::new(self.credential.grant().into()),
                routes: Mutex::default(),
            },
            allow_from: self.allow_from.clone(),
            on_conflict: shared.on_conflict(&self.greeting),
        };
        let membership = match shared.registry.join(request).await {
            Ok(membership) => membership,
            Err(refusal) => {
                tracing::warn!(%runtime, %instance, number, %peer, %refusal, "a session did not join");
                return Err(self.not_joined(&refusal));
            }
        };
        tracing::info!(%runtime, %instance, number, %peer, "a session has begun");
        let began = Event::of(EventKind::SessionBegan, &runtime);
        shared.events.report(began.session(self.id()));
        let _ = self.session.send(Control::Welcome {
            runtime: runtime.to_string(),
            session: self.id(),
            version: env!("CARGO_PKG_VERSION").into(),
            node: shared.registry.directory().node_name(),
            url: shared
                .config
                .load()
                .public_url(&runtime, shared.public_port),
        });
        Ok(membership)
    }

    fn not_joined(&self, refusal: &JoinRefusal) -> CloseReason {
        match refusal {
            JoinRefusal::Claim(ClaimRefusal::Superseded { by }) => {
                let instance = by.to_string();
                let _ = self.session.send(Control::Superseded { instance });
                CloseReason::Superseded
            }
            JoinRefusal::Claim(ClaimRefusal::LabelTaken(_)) => {
                let detail = refusal.to_string();
                let _ = self.session.send(Control::Revoked { detail });
                CloseReason::Revoked
            }
            JoinRefusal::Claim(ClaimRefusal::Unavailable) | JoinRefusal::TooMany => {
                CloseReason::Overloaded
            }
            JoinRefusal::Claim(_) => CloseReason::Conflict,
        }
    }

    /// Handles the session's events until it ends.
    async fn attend(&mut self, shared: &TunnelListener, membership: &Membership) -> SessionEnd {
        // Dropped when the client has a session at another server.
        let mut unmoved = Some(shared.lifecycle.unmoved_sessions.token());
        if let Some(end) = self.attend_until(shared, membership, &mut unmoved).await {
            return end;
        }
        self.end().await
    }

    /// Handles events until only the driver is left; returns how the driver ended if it ended first.
    async fn attend_until(
        &mut self,
        shared: &TunnelListener,
        membership: &Membership,
        unmoved: &mut Option<TaskTrackerToken>,
    ) -> Option<SessionEnd> {
        let Self {
            session,
            events,
            driver,
            credential,
            greeting,
            peer,
            ..
        } = self;
        let mut leaving = pin!(leave::leave(
            &shared.lifecycle,
            &shared.config,
            session,
            membership
        ));
        let mut round_trip = tokio::time::interval(shared.config.load().settings.ping_interval);
        let mut is_silent = false;
        let lines = Allowance::new(SILENCE_LINES, SILENCE_LINE_EACH);
        loop {
            tokio::select! {
                end = &mut *driver => {
                    return Some(end.unwrap_or(SessionEnd::Closed(CloseReason::Internal)));
                }
                event = events.next(session) => match event {
                    Some(SessionEvent::Control(control)) => {
                        match control {
                            Control::RefreshToken { token } => {
                                let client = (&*greeting, *peer);
                                credential.refresh(&shared.authenticator, &shared.metrics, session, token, client);
                            }
                            control => on_control(membership, control, unmoved),
                        }
                    }
                    // The driver ends a session whose client opens streams.
                    Some(SessionEvent::Stream(_)) => {}
                    None => return None,
                },
                _ = round_trip.tick() => {
                    if let Some(time) = session.round_trip() {
                        shared.metrics.observe_round_trip(time);
                    }
                }
                now = session.silence_changed(is_silent) => {
                    is_silent = now;
                    if !is_silent {
                        membership.on_recovery();
                    }
                    if let Some(left_out) = lines.take() {
                        log_silence(is_silent, left_out, (&*greeting, *peer));
                    }
                }
                due = credential.due() => {
                    if let Some(reason) = credential.on_due(due, shared, session) {
                        session.cut(reason);
                        return None;
                    }
                    membership.on_credential(credential.grant());
                }
                reason = &mut leaving => {
                    match reason {
                        CloseReason::Disconnected => session.cut(reason),
                        _ => session.close(reason),
                    }
                    return None;
                }
            }
        }
    }

    async fn end(&mut self) -> SessionEnd {
        let end = (&mut self.driver).await;
        end.unwrap_or(SessionEnd::Closed(CloseReason::Internal))
    }
}

/// Logs that a session has become silent or is heard again.
fn log_silence(is_silent: bool, left_out: u64, (greeting, peer): (&Greeting, ClientAddress)) {
    let (instance, number) = (greeting.instance.id(), greeting.session_number);
    if is_silent {
        tracing::warn!(%instance, number, %peer, left_out, "a session is silent: new requests go to other sessions");
    } else {
        tracing::info!(%instance, number, %peer, left_out, "a session that was silent is heard again");
    }
}

fn on_control(membership: &Membership, control: Control, unmoved: &mut Option<TaskTrackerToken>) {
    match control {
        // The client leaves by itself when its exchanges are done.
        Control::Drain { .. } => {
            membership.on_drain();
            *unmoved = None;
        }
        Control::Moved => {
            membership.on_moved();
            *unmoved = None;
        }
        Control::Routes(summary) => membership.on_routes(summary),
        // The version is known from the greeting, a newer token is handled by the caller, and the session handles
        // `Unheard` itself. The rest is sent by servers only and has no meaning from a client.
        Control::Hello { .. }
        | Control::RefreshToken { .. }
        | Control::Welcome { .. }
        | Control::Checked { .. }
        | Control::Superseded { .. }
        | Control::Revoked { .. }
        | Control::Expiring { .. }
        | Control::Refreshed { .. }
        | Control::RefreshRefused { .. }
        | Control::Unheard { .. }
        | Control::Node { .. }
        | Control::Unknown => {}
    }
}
