//! One tunnel: the live sessions of the instance that holds a runtime.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tunnel_proto::{handshake::InstanceId, session::Session};

use crate::{directory::Claim, metrics::RuntimeMetrics};

/// The sessions of one instance, and which of them takes the next exchange.
pub struct Tunnel {
    claim: Claim,
    sessions: Mutex<Vec<Session>>,
    /// The instance that took the runtime over, once one has.
    superseded_by: Mutex<Option<InstanceId>>,
    superseded: Notify,
    /// The runtime's series.
    pub metrics: Arc<RuntimeMetrics>,
}

impl Tunnel {
    pub(crate) fn new(claim: Claim, metrics: Arc<RuntimeMetrics>) -> Self {
        Self {
            claim,
            sessions: Mutex::default(),
            superseded_by: Mutex::default(),
            superseded: Notify::new(),
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
        *self.superseded_by.lock() = Some(by.clone());
        self.superseded.notify_waiters();
    }

    /// Resolves with the newer holder, once there is one.
    pub async fn superseded(&self) -> InstanceId {
        loop {
            let notified = self.superseded.notified();
            if let Some(by) = &*self.superseded_by.lock() {
                return by.clone();
            }
            notified.await;
        }
    }
}
