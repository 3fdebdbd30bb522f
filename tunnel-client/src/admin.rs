//! What the admin listener says of this client: its metrics, and whether it can do its work.

use std::sync::Arc;

use tunnel_ops::admin::{AdminRoutes, Readiness};

use crate::metrics::Metrics;

/// One session that answers, until it is dropped.
#[derive(Debug)]
pub(crate) struct LiveSession(Arc<Metrics>);

impl LiveSession {
    /// A session was welcomed by the server.
    pub(crate) fn begin(metrics: &Arc<Metrics>) -> Self {
        metrics.sessions.inc();
        Self(Arc::clone(metrics))
    }
}

impl Drop for LiveSession {
    fn drop(&mut self) {
        self.0.sessions.dec();
    }
}

/// The answers of the admin listener: ready only while a session answers.
pub(crate) fn routes(metrics: Arc<Metrics>) -> AdminRoutes {
    AdminRoutes::new(metrics.registry(), move || readiness(&metrics))
}

fn readiness(metrics: &Metrics) -> Readiness {
    match metrics.sessions.get() {
        0 => Readiness::NotReady("no session with the server".to_owned()),
        _ => Readiness::Ready,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_ready_while_any_session_answers() {
        let metrics = Arc::new(Metrics::new().unwrap());
        assert_ne!(readiness(&metrics), Readiness::Ready);
        let one = LiveSession::begin(&metrics);
        let two = LiveSession::begin(&metrics);
        drop(one);
        assert_eq!(readiness(&metrics), Readiness::Ready);
        drop(two);
        assert_ne!(readiness(&metrics), Readiness::Ready);
    }
}
