//! A session's credential, which is checked again after each change and before it expires.
//!
//! In: the grant that the session began with, and newer tokens from the client. Out: warnings to the client before the
//! expiry, and the reason to close the session when the credential is no longer valid.

use std::{
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
    client_address::ClientAddress,
    connect::TunnelListener,
    events::{Event, EventKind, Events},
    metrics::Metrics,
};

/// How long before the expiry of its credential a client is warned.
const WARNING: Duration = Duration::from_secs(60);

/// Longest time between two checks of the clock, which may be set while a session is open.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Time to the next query after one that the platform did not answer.
const RENEW_RETRY: Duration = Duration::from_secs(5);

/// How many newer tokens a client may send at once, and the time for one more: each is work, also for the platform.
const REFRESHES: u32 = 5;
const REFRESH_EACH: Duration = Duration::from_secs(10);

/// Log lines about refused newer tokens of one session: as many as may be sent at once, then one per minute.
const REFUSAL_LINES: u32 = REFRESHES;
const REFUSAL_LINE_EACH: Duration = Duration::from_secs(60);

/// A session's credential.
pub(super) struct Credential {
    grant: Grant,
    changed: watch::Receiver<u64>,
    /// When to ask the platform again.
    renew_at: Option<SystemTime>,
    /// The renewal or refresh in progress.
    pending: Option<Owned<AuthOutcome>>,
    /// Limits the newer tokens that the client may send.
    refreshes: Allowance,
    /// Limits log lines about refused newer tokens.
    refusal_lines: Allowance,
    warned: WarningSent,
}

/// The result of a renewal or refresh.
enum AuthOutcome {
    /// The current credential, checked again.
    Renewed(Result<Grant, AuthRefusal>),
    /// A newer token.
    Refreshed(Result<Grant, AuthRefusal>),
}

/// What is due for a credential.
pub(super) enum CredentialDue {
    /// A check whether the session may go on.
    Check,
    /// A renewal or refresh has finished.
    Outcome(Finished),
}

/// The result of a renewal or refresh; `None` if its task failed.
pub(super) struct Finished(Option<AuthOutcome>);

/// The last warning about the credential's expiry that the client got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WarningSent {
    None,
    BeforeExpiry,
    AtExpiry,
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
            warned: WarningSent::None,
        }
    }

    /// The grant as it is now.
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
                    // The authenticator is gone: the server stops, and the session with it.
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

    /// Time to the next check without any change; `None` if none is needed.
    fn next_check(&self, now: SystemTime) -> Option<Duration> {
        let expires = self.grant.expires;
        let at = match self.warned {
            WarningSent::None if self.renews_before_expiry() => expires,
            WarningSent::None => expires.and_then(|end| end.checked_sub(WARNING)),
            WarningSent::BeforeExpiry => expires,
            // The end of the grace is near: check every second.
            WarningSent::AtExpiry => Some(now + Duration::from_secs(1)),
        };
        let renew_at = self.renew_at.filter(|_| self.pending.is_none());
        let next = at.into_iter().chain(renew_at).min()?;
        // A moment in the past must not cause a busy loop.
        let wait = next.duration_since(now).unwrap_or_default();
        Some(wait.max(Duration::from_millis(50)))
    }

    /// Whether a renewal is planned that can postpone the expiry, so that the client need not be warned. False after a
    /// renewal without an answer.
    fn renews_before_expiry(&self) -> bool {
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
            Ok(grant) => self.update(grant),
            Err(refusal) => return Some(self.invalidated(events, session, &refusal)),
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

    /// Does what is due. Returns why to close the session if it may not go on.
    pub(super) fn on_due(
        &mut self,
        due: CredentialDue,
        shared: &TunnelListener,
        session: &Session,
    ) -> Option<CloseReason> {
        match due {
            CredentialDue::Check => self.check(&shared.authenticator, &shared.events, session),
            CredentialDue::Outcome(answer) => self.on_outcome(shared, session, answer),
        }
    }

    fn on_outcome(
        &mut self,
        shared: &TunnelListener,
        session: &Session,
        Finished(answer): Finished,
    ) -> Option<CloseReason> {
        self.pending = None;
        match answer {
            Some(AuthOutcome::Renewed(Ok(grant))) => self.replace(grant),
            Some(AuthOutcome::Renewed(Err(refusal))) if refusal.is_denial() => {
                return Some(self.invalidated(&shared.events, session, &refusal));
            }
            // The last answer stays in force until it expires.
            Some(AuthOutcome::Renewed(Err(_))) | None => {
                self.renew_at = self.renew_at.map(|_| SystemTime::now() + RENEW_RETRY);
            }
            Some(AuthOutcome::Refreshed(result)) => {
                self.refreshed(&shared.metrics, session, result)
            }
        }
        // The result may be out of date by now.
        self.check(&shared.authenticator, &shared.events, session)
    }

    /// Stores the grant after a recheck.
    fn update(&mut self, grant: Grant) {
        if grant.expires > self.grant.expires || grant.expires.is_none() {
            // The expiry was postponed.
            self.warned = WarningSent::None;
        }
        self.grant = grant;
    }

    /// Stores the grant of a renewed or newer credential.
    fn replace(&mut self, grant: Grant) {
        self.renew_at = grant.renew_at;
        self.grant = grant;
        self.warned = WarningSent::None;
    }

    fn warn(&mut self, session: &Session, now: SystemTime) {
        let Some(expires) = self.grant.expires else {
            return;
        };
        let left = expires.duration_since(now).unwrap_or_default();
        let due = match left {
            Duration::ZERO => WarningSent::AtExpiry,
            left if left <= WARNING && !self.renews_before_expiry() => WarningSent::BeforeExpiry,
            _ => WarningSent::None,
        };
        if due > self.warned {
            self.warned = due;
            let in_ms = millis(left);
            let _ = session.send(Control::Expiring { in_ms });
            let runtime = self.grant.runtime.label.as_str();
            tracing::info!(runtime, credential = %self.grant.credential, in_ms, "a credential expires");
        }
    }

    /// Reports that the credential is no longer valid; returns why to close the session.
    fn invalidated(
        &self,
        events: &Events,
        session: &Session,
        refusal: &AuthRefusal,
    ) -> CloseReason {
        let (runtime, credential) = (self.grant.runtime.label.as_str(), &self.grant.credential);
        tracing::warn!(runtime, %credential, reason = refusal.name(), %refusal, "a session's credential is no longer valid");
        let report = |kind| {
            let event = Event::of(kind, &self.grant.runtime.label).reason(refusal.name());
            events.report(event.detail(credential.to_string()));
        };
        if refusal.is_expiry() {
            report(EventKind::Expired);
            return CloseReason::Expired;
        }
        report(EventKind::Revoked);
        if !refusal.is_revoked() {
            // No longer listed, which may be a mistake in the file: the client dials again and is refused then if the
            // token is still missing.
            return CloseReason::Disconnected;
        }
        let detail = refusal.to_string();
        let _ = session.send(Control::Revoked { detail });
        CloseReason::Revoked
    }

    /// Starts to verify a newer token. Only one at a time: a further token replaces the one that is being verified.
    pub(super) fn refresh(
        &mut self,
        authenticator: &Arc<Authenticator>,
        metrics: &Metrics,
        session: &Session,
        token: String,
        (greeting, peer): (&Greeting, ClientAddress),
    ) {
        if self.refreshes.take().is_none() {
            let detail = "too many newer tokens: wait, then send the last one again".to_owned();
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
            Ok(grant) if grant.runtime.is_same_runtime(&self.grant.runtime) => {
                let left = |end: SystemTime| end.duration_since(SystemTime::now()).ok();
                let left = grant.expires.and_then(left);
                let (runtime, credential) = (grant.runtime.label.as_str(), &grant.credential);
                tracing::info!(runtime, %credential, "a session has a newer credential");
                self.replace(grant);
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

/// The result of the pending task; never resolves without one. `None` if the task failed.
async fn finished(pending: &mut Option<Owned<AuthOutcome>>) -> Option<AuthOutcome> {
    match pending {
        Some(pending) => pending.await.ok(),
        None => std::future::pending().await,
    }
}
