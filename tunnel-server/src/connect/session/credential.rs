//! What lets a session go on: its credential, looked at again after each change and before it ends.
//!
//! In: the grant that let it in, and newer tokens from the client. Out: warnings to the client in good
//! time, and the reason to close the session when it has no right to its runtime any more.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use secrecy::{ExposeSecret, SecretString};
use tokio::{sync::watch, time::sleep};
use tunnel_ops::task::Owned;
use tunnel_proto::{
    close::CloseReason,
    control::{Control, millis},
    handshake::Greeting,
    refusal::RefusalReason,
    session::Session,
};

use crate::{
    allowance::Allowance,
    auth::{AuthRefusal, Authenticator, Grant, Presented},
    connect::TunnelListener,
    events::{Event, EventKind, Events},
    metrics::Metrics,
};

/// How long before its end a client is warned that its credential runs out.
const WARNING: Duration = Duration::from_secs(60);

/// Longest time between two checks of the clock, which may be set while a session lives.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Time until a platform that was away is asked again.
const AWAY: Duration = Duration::from_secs(5);

/// Newer tokens that a client may show one after the other, and how often another: each is work, for
/// the platform too.
const REFRESHES: u32 = 5;
const REFRESH_EACH: Duration = Duration::from_secs(10);

/// Lines about refused newer tokens of one session: as many as may be shown at once, then one a minute.
const REFUSAL_LINES: u32 = REFRESHES;
const REFUSAL_LINE_EACH: Duration = Duration::from_secs(60);

/// A session's credential.
pub(super) struct Credential {
    grant: Grant,
    changed: watch::Receiver<u64>,
    /// When the platform is asked again.
    renew_at: Option<SystemTime>,
    /// An answer that is waited for, while the session goes on.
    pending: Option<Owned<AuthOutcome>>,
    /// Of newer tokens that the client shows.
    refreshes: Allowance,
    /// Of lines about newer tokens that are refused.
    refusal_lines: Allowance,
    warned: WarningSent,
}

/// What came of asking.
enum AuthOutcome {
    /// Whether the credential goes on.
    Renewed(Result<Grant, AuthRefusal>),
    /// Whether a newer one is good.
    Refreshed(Result<Grant, AuthRefusal>),
}

/// What there is to do about a credential.
pub(super) enum CredentialDue {
    /// To look whether the session may go on.
    Check,
    /// To take what was answered.
    Outcome(Finished),
}

/// What was answered, or that it was not.
pub(super) struct Finished(Option<AuthOutcome>);

/// Which warnings of its credential's end the client has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WarningSent {
    Nothing,
    Ahead,
    AtTheEnd,
}

impl Credential {
    /// `changed` was taken before the grant was made, so that no change in between is missed.
    pub(super) fn new(grant: Grant, changed: watch::Receiver<u64>) -> Self {
        Self {
            changed,
            renew_at: grant.renew_at,
            grant,
            pending: None,
            refreshes: Allowance::new(REFRESHES, REFRESH_EACH),
            refusal_lines: Allowance::new(REFUSAL_LINES, REFUSAL_LINE_EACH),
            warned: WarningSent::Nothing,
        }
    }

    /// What it gives now.
    pub(super) fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Resolves when there is something to do. Cancel-safe.
    pub(super) async fn due(&mut self) -> CredentialDue {
        let wait = self.next_check(SystemTime::now());
        let Self {
            changed, pending, ..
        } = self;
        tokio::select! {
            changed = changed.changed() => {
                if changed.is_err() {
                    // The server ends, and the session with it.
                    std::future::pending::<()>().await;
                }
                CredentialDue::Check
            }
            answer = finished(pending) => CredentialDue::Outcome(Finished(answer)),
            () = async {
                match wait {
                    Some(wait) => sleep(wait.min(CHECK_INTERVAL)).await,
                    None => std::future::pending().await,
                }
            } => CredentialDue::Check,
        }
    }

    /// How long until the clock alone calls for a look.
    fn next_check(&self, now: SystemTime) -> Option<Duration> {
        let expires = self.grant.expires;
        let at = match self.warned {
            WarningSent::Nothing if self.is_put_off() => expires,
            WarningSent::Nothing => expires.and_then(|end| end.checked_sub(WARNING)),
            WarningSent::Ahead => expires,
            // Nothing but the end of the grace, which is near.
            WarningSent::AtTheEnd => Some(now + Duration::from_secs(1)),
        };
        let renew_at = self.renew_at.filter(|_| self.pending.is_none());
        let next = at.into_iter().chain(renew_at).min()?;
        // Not all the time, however far in the past it lies.
        let wait = next.duration_since(now).unwrap_or_default();
        Some(wait.max(Duration::from_millis(50)))
    }

    /// Whether the platform is to be asked before the end, which puts that off: there is nothing for the client
    /// to do then, unless there was no answer.
    fn is_put_off(&self) -> bool {
        self.grant.renew_at == self.renew_at && self.grant.is_renewable()
    }

    /// Checks whether the session may go on; if not, informs the client and returns why to close.
    pub(super) fn check(
        &mut self,
        authenticator: &Arc<Authenticator>,
        events: &Events,
        session: &Session,
    ) -> Option<CloseReason> {
        let now = SystemTime::now();
        match authenticator.recheck(&self.grant, now) {
            Ok(grant) => self.hold(grant),
            Err(refusal) => return Some(self.lost(events, session, &refusal)),
        }
        if self.pending.is_none() && self.renew_at.is_some_and(|at| at <= now) {
            let (authenticator, grant) = (authenticator.clone(), self.grant.clone());
            self.pending = Some(Owned::spawn("renew", async move {
                AuthOutcome::Renewed(authenticator.renew(&grant).await)
            }));
        }
        self.warn(session, now);
        None
    }

    /// Does what is due. Returns why to close, if the session may not go on.
    pub(super) fn on_due(
        &mut self,
        due: CredentialDue,
        shared: &TunnelListener,
        session: &Session,
    ) -> Option<CloseReason> {
        match due {
            CredentialDue::Check => self.check(&shared.authenticator, &shared.events, session),
            CredentialDue::Outcome(answer) => self.take_outcome(shared, session, answer),
        }
    }

    fn take_outcome(
        &mut self,
        shared: &TunnelListener,
        session: &Session,
        Finished(answer): Finished,
    ) -> Option<CloseReason> {
        self.pending = None;
        match answer {
            Some(AuthOutcome::Renewed(Ok(grant))) => self.take(grant),
            Some(AuthOutcome::Renewed(Err(refusal))) if refusal.is_denial() => {
                return Some(self.lost(&shared.events, session, &refusal));
            }
            // Until the answer before has run out it goes on by that.
            Some(AuthOutcome::Renewed(Err(_))) | None => {
                self.renew_at = self.renew_at.map(|_| SystemTime::now() + AWAY);
            }
            Some(AuthOutcome::Refreshed(result)) => {
                self.refreshed(&shared.metrics, session, result)
            }
        }
        // What was found may be out of date by now.
        self.check(&shared.authenticator, &shared.events, session)
    }

    /// Takes the credential as it is now.
    fn hold(&mut self, grant: Grant) {
        if grant.expires > self.grant.expires || grant.expires.is_none() {
            // The end was put off.
            self.warned = WarningSent::Nothing;
        }
        self.grant = grant;
    }

    fn take(&mut self, grant: Grant) {
        self.renew_at = grant.renew_at;
        self.grant = grant;
        self.warned = WarningSent::Nothing;
    }

    fn warn(&mut self, session: &Session, now: SystemTime) {
        let Some(expires) = self.grant.expires else {
            return;
        };
        let left = expires.duration_since(now).unwrap_or_default();
        let due = match left {
            Duration::ZERO => WarningSent::AtTheEnd,
            left if left <= WARNING && !self.is_put_off() => WarningSent::Ahead,
            _ => WarningSent::Nothing,
        };
        if due > self.warned {
            self.warned = due;
            let in_ms = millis(left);
            let _ = session.send(Control::Expiring { in_ms });
            let runtime = self.grant.runtime.label.as_str();
            tracing::info!(runtime, credential = %self.grant.credential, ?left, "a credential runs out");
        }
    }

    fn lost(&self, events: &Events, session: &Session, refusal: &AuthRefusal) -> CloseReason {
        let (runtime, credential) = (self.grant.runtime.label.as_str(), &self.grant.credential);
        tracing::warn!(runtime, %credential, reason = refusal.name(), %refusal, "a session lost its right to its runtime");
        let told = |kind| {
            let event = Event::of(kind, &self.grant.runtime.label).reason(refusal.name());
            events.report(event.detail(credential.to_string()));
        };
        if refusal.is_expiry() {
            told(EventKind::Expired);
            return CloseReason::Expired;
        }
        told(EventKind::Revoked);
        if !refusal.is_revoked() {
            // Not listed any more, which may be a slip in editing the file: the client dials again,
            // and learns then if it is refused.
            return CloseReason::Disconnected;
        }
        let detail = refusal.to_string();
        let _ = session.send(Control::Revoked { detail });
        CloseReason::Revoked
    }

    /// Has a newer token looked at. One at a time: a client that shows another meanwhile has that one
    /// looked at instead.
    pub(super) fn refresh(
        &mut self,
        authenticator: &Arc<Authenticator>,
        metrics: &Metrics,
        session: &Session,
        token: String,
        (greeting, peer): (&Greeting, SocketAddr),
    ) {
        if self.refreshes.take().is_none() {
            let detail =
                "newer tokens come too often: wait, and show the last one again".to_owned();
            self.refuse(metrics, session, RefusalReason::RefreshTooOften, detail);
            return;
        }
        let authenticator = authenticator.clone();
        let (certificates, greeting) = (self.grant.certificates().to_vec(), greeting.clone());
        let token = SecretString::from(token);
        self.pending = Some(Owned::spawn("refresh", async move {
            let presented = Presented {
                bearer: Some(token.expose_secret()),
                certificates: &certificates,
                greeting: &greeting,
                peer,
            };
            AuthOutcome::Refreshed(authenticator.authenticate(&presented).await)
        }));
    }

    fn refreshed(
        &mut self,
        metrics: &Metrics,
        session: &Session,
        result: Result<Grant, AuthRefusal>,
    ) {
        match result {
            Ok(grant) if grant.runtime.label == self.grant.runtime.label => {
                let left = |end: SystemTime| end.duration_since(SystemTime::now()).ok();
                let left = grant.expires.and_then(left);
                let (runtime, credential) = (grant.runtime.label.as_str(), &grant.credential);
                tracing::info!(runtime, %credential, "a session has a newer credential");
                self.take(grant);
                let _ = session.send(Control::Refreshed {
                    expires_in_ms: left.map(millis),
                });
            }
            Ok(_) => {
                let detail = "the newer token is for another runtime".to_owned();
                self.refuse(metrics, session, RefusalReason::RuntimeDiffers, detail);
            }
            Err(refusal) => self.refuse(metrics, session, refusal.reason(), refusal.to_string()),
        }
    }

    fn refuse(&self, metrics: &Metrics, session: &Session, reason: RefusalReason, detail: String) {
        let reason = reason.name();
        if let Some(left_out) = self.refusal_lines.take() {
            let runtime = self.grant.runtime.label.as_str();
            tracing::warn!(runtime, reason, left_out, "a newer token was refused");
        }
        let refreshes = &metrics.refreshes_refused;
        refreshes.with_label_values(&[reason]).inc();
        let reason = reason.to_owned();
        let _ = session.send(Control::RefreshRefused { reason, detail });
    }
}

/// The outcome of the pending question; never resolves without one. `None` if its task failed.
async fn finished(pending: &mut Option<Owned<AuthOutcome>>) -> Option<AuthOutcome> {
    match pending {
        Some(pending) => pending.await.ok(),
        None => std::future::pending().await,
    }
}
