//! One tunnel: the live sessions of the instance that holds a runtime.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tunnel_proto::{handshake::InstanceId, session::Session};

use crate::{directory::Claim, metrics::RuntimeMetrics};

/// The sessions of one instance, and which of them takes the next exchange.
pub struct Tunnel {
    claim: Claim,
    sessions: Mutex<Vec<Session>>,
    /// The instance that took the runtime over, once one has.
    superseded: watch::Sender<Option<InstanceId>>,
    /// The runtime's series.
    pub metrics: Arc<RuntimeMetrics>,
}

impl Tunnel {
    pub(crate) fn new(claim: Claim, metrics: Arc<RuntimeMetrics>) -> Self {
        Self {
            claim,
            sessions: Mutex::default(),
            superseded: watch::Sender::new(None),
            metrics,
        }
    }

    /// The claim by which the instance holds the runtime.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// The session for the next exchange: of those that take any, the one with the fewest open.
    #[must_use]
    pub fn session(&self) -> Option<Session> {
        let sessions = self.sessions.lock();
        sessions
            .iter()
            .filter(|session| session.is_open())
            .min_by_key(|session| session.outstanding())
            .cloned()
    }

    /// Sessions now, those that only finish their exchanges among them.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.lock().len()
    }

    pub(crate) fn add(&self, session: Session) {
        self.sessions.lock().push(session);
    }

    /// Takes a session out; whether none is left.
    pub(crate) fn remove(&self, session: &Session) -> bool {
        let mut sessions = self.sessions.lock();
        sessions.retain(|held| !held.is_same(session));
        sessions.is_empty()
    }

    /// Tells every session that a newer instance holds the runtime.
    pub(crate) fn supersede(&self, by: &InstanceId) {
        for session in &*self.sessions.lock() {
            session.start_drain();
        }
        self.superseded.send_replace(Some(by.clone()));
    }

    /// Resolves with the newer holder, once there is one.
    pub async fn superseded(&self) -> InstanceId {
        let mut superseded = self.superseded.subscribe();
        match superseded
            .wait_for(Option::is_some)
            .await
            .map(|by| by.clone())
        {
            Ok(Some(by)) => by,
            // The sender lives as long as `self`.
            _ => std::future::pending().await,
        }
    }
}
