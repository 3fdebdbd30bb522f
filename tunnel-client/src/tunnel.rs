//! Keeps the tunnel up: a session with the server, and after it the next.
//!
//! ```text
//!            ┌──────────────── wait (redial.rs, path.rs) ◀──────────────┐
//!            ▼                                                          │
//!   dial ─▶ session ─▶ welcomed ── drain ─▶ dial the next, then leave   │
//!                          └────── ended ───────────────────────────────┤
//!                                                                       └▶ given up
//! ```
//!
//! One session at a time is kept, two while one replaces the other: the new one is welcomed before
//! the old one leaves. To keep more, run the same loop once for each.

mod path;
mod redial;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tunnel_ops::signals::Shutdown;
use tunnel_proto::close::CloseReason;
use tunnel_proto::handshake::{Greeting, InstanceId};

pub(crate) use self::redial::RedialSettings;
use self::redial::{Next, Redial, fraction};
use crate::dial::{DialError, Dialler};
use crate::metrics::Metrics;
use crate::session::{Ended, Event, NotWelcome, Session, SessionParts};

/// Longest time over which a server can have its clients spread their redials.
const SPREAD_MAX: Duration = Duration::from_secs(60);

/// What a tunnel is made of.
pub(crate) struct TunnelParts {
    /// Reaches the server.
    pub(crate) dialler: Dialler,
    /// Of this client, drawn once.
    pub(crate) instance: InstanceId,
    /// What all sessions have.
    pub(crate) sessions: SessionParts,
    /// When to dial again.
    pub(crate) redial: RedialSettings,
    /// For open exchanges when a session leaves.
    pub(crate) grace_period: Duration,
}

/// The sessions of this instance.
pub(crate) struct Tunnel {
    parts: TunnelParts,
    redial: Redial,
    metrics: Arc<Metrics>,
    /// Number of the last session that was dialled.
    number: u32,
    /// Where the server was last reached.
    peer: Option<SocketAddr>,
    current: Option<Session>,
    /// Sessions that were replaced, and end their exchanges.
    leaving: JoinSet<()>,
}

/// Why a client does not dial again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GivenUp(String);

/// Why there is no session after a dial.
enum Failure {
    Dial(DialError),
    NotWelcome(NotWelcome),
}

impl Tunnel {
    /// A tunnel that is not dialled yet.
    pub(crate) fn new(parts: TunnelParts) -> Self {
        Self {
            redial: Redial::new(parts.redial.clone()),
            metrics: Arc::clone(&parts.sessions.metrics),
            parts,
            number: 0,
            peer: None,
            current: None,
            leaving: JoinSet::new(),
        }
    }

    /// Keeps the tunnel up until asked to stop, and then leaves without loss.
    ///
    /// # Errors
    /// When the server refuses for good, or the runtime is lost to another instance.
    pub(crate) async fn run(mut self, shutdown: &Shutdown) -> Result<(), GivenUp> {
        tracing::info!(
            server = %self.parts.dialler.server(),
            instance = %self.parts.instance,
            "dialling"
        );
        let result = tokio::select! {
            given_up = self.keep() => Err(given_up),
            () = shutdown.asked() => Ok(()),
        };
        tokio::select! {
            () = self.leave() => {}
            () = shutdown.forced() => {}
        }
        result
    }

    /// Keeps a session, whatever happens. All state is in `self`, so that this can be dropped.
    async fn keep(&mut self) -> GivenUp {
        loop {
            let session = match self.dial_until_welcome().await {
                Ok(session) => session,
                Err(given_up) => return given_up,
            };
            self.replace(Some(session));
            if let Some(ended) = self.serve().await
                && let Err(given_up) = self.after_end(&ended).await
            {
                return given_up;
            }
        }
    }

    /// Serves by the current session until another is to be dialled. How it ended, if it did: one
    /// that only drains serves on until the next one is welcome.
    async fn serve(&mut self) -> Option<Ended> {
        let current = self.current.as_mut()?;
        let mut event = current.next().await;
        if let Event::Drain { spread } = event {
            tracing::info!("the server drains this session, another one is dialled");
            event = tokio::select! {
                () = sleep(fraction(spread.min(SPREAD_MAX), random())) => return None,
                event = current.next() => event,
            };
        }
        match event {
            Event::Drain { .. } => None,
            Event::Superseded => {
                self.replace(None);
                Some(superseded())
            }
            Event::Ended(ended) => {
                self.current = None;
                Some(ended)
            }
        }
    }

    /// Serves by another session from here on; the one before leaves when it is at rest.
    fn replace(&mut self, session: Option<Session>) {
        while self.leaving.try_join_next().is_some() {}
        if let Some(old) = std::mem::replace(&mut self.current, session) {
            self.leaving.spawn(old.leave(self.parts.grace_period));
        }
    }

    async fn dial_until_welcome(&mut self) -> Result<Session, GivenUp> {
        loop {
            match self.dial().await {
                Ok(session) => {
                    self.metrics.on_dial("accepted");
                    let welcome = session.welcome();
                    tracing::info!(
                        server = %self.parts.dialler.server(),
                        runtime = welcome.runtime,
                        session = welcome.session,
                        server_version = welcome.version,
                        "the tunnel is up"
                    );
                    return Ok(session);
                }
                Err(Failure::Dial(error)) => self.after_failure(&error).await?,
                Err(Failure::NotWelcome(NotWelcome::Ended(ended))) => {
                    self.metrics.on_dial("unwelcome");
                    self.after_end(&ended).await?;
                }
                Err(Failure::NotWelcome(error @ NotWelcome::Late(_))) => {
                    self.metrics.on_dial("unwelcome");
                    let next = self.redial.after_failure(false, None, random());
                    self.wait(next, &error.to_string()).await?;
                }
            }
        }
    }

    async fn dial(&mut self) -> Result<Session, Failure> {
        self.number = self.number.saturating_add(1);
        let greeting = Greeting {
            instance: self.parts.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            session_number: self.number,
        };
        let connected = self
            .parts
            .dialler
            .dial(&greeting)
            .await
            .map_err(Failure::Dial)?;
        self.peer = Some(connected.peer);
        let (io, unread) = (connected.io, connected.unread);
        Session::start(io, unread, &self.parts.sessions)
            .await
            .map_err(Failure::NotWelcome)
    }

    async fn after_failure(&mut self, error: &DialError) -> Result<(), GivenUp> {
        self.metrics.on_dial(error.name());
        let next = self
            .redial
            .after_failure(error.is_fatal(), error.retry_after(), random());
        self.wait(next, &error.to_string()).await
    }

    async fn after_end(&mut self, ended: &Ended) -> Result<(), GivenUp> {
        let next = self
            .redial
            .after_session(ended.reason, ended.lived, random());
        let why = match ended.reason {
            CloseReason::Superseded => {
                "another instance of this runtime has taken over: a runtime has one tunnel client"
            }
            CloseReason::Revoked => "the token is no longer good: make a new one",
            _ => ended.detail.as_str(),
        };
        self.wait(next, why).await
    }

    /// Lets the time pass that is to pass before the next dial.
    async fn wait(&self, next: Next, why: &str) -> Result<(), GivenUp> {
        match next {
            Next::Dial(wait) => {
                tracing::warn!(why, ?wait, "no session, dialling again");
                path::wait(wait, || path::look(self.peer)).await;
            }
            Next::DialNotBefore(wait) => {
                tracing::warn!(why, ?wait, "no session, dialling again later");
                sleep(wait).await;
            }
            Next::Stop => return Err(GivenUp(why.to_owned())),
        }
        Ok(())
    }

    /// Has all sessions leave, each within the grace period.
    async fn leave(&mut self) {
        self.replace(None);
        while self.leaving.join_next().await.is_some() {}
    }
}

fn superseded() -> Ended {
    Ended {
        reason: CloseReason::Superseded,
        detail: String::new(),
        lived: Duration::ZERO,
    }
}

/// Any number; one that is not random only makes a wait less spread.
fn random() -> u64 {
    getrandom::u64().unwrap_or(u64::MAX / 2)
}
