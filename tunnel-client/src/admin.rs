//! What the admin listener says of this client: its metrics, and whether it can do its work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tunnel_ops::admin::{AdminRoutes, Readiness};

use crate::metrics::Metrics;

/// Counts the sessions that answer. Clones count the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Live {
    sessions: Arc<AtomicUsize>,
}

/// One session that answers, until it is dropped.
#[derive(Debug)]
pub(crate) struct LiveSession {
    live: Live,
    metrics: Arc<Metrics>,
}

impl Live {
    /// A session was welcomed by the server.
    pub(crate) fn enter(&self, metrics: &Arc<Metrics>) -> LiveSession {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        metrics.sessions.inc();
        LiveSession {
            live: self.clone(),
            metrics: Arc::clone(metrics),
        }
    }

    fn readiness(&self) -> Readiness {
        match self.sessions.load(Ordering::Relaxed) {
            0 => Readiness::NotReady("no session with the server".to_owned()),
            _ => Readiness::Ready,
        }
    }
}

impl Drop for LiveSession {
    fn drop(&mut self) {
        self.live.sessions.fetch_sub(1, Ordering::Relaxed);
        self.metrics.sessions.dec();
    }
}

/// The answers of the admin listener: ready only while a session answers.
pub(crate) fn routes(metrics: &Metrics, live: Live) -> AdminRoutes {
    AdminRoutes::new(metrics.registry(), move || live.readiness())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_ready_while_any_session_answers() {
        let (live, metrics) = (Live::default(), Arc::new(Metrics::new().unwrap()));
        assert_ne!(live.readiness(), Readiness::Ready);
        let one = live.enter(&metrics);
        let two = live.enter(&metrics);
        drop(one);
        assert_eq!(live.readiness(), Readiness::Ready);
        assert_eq!(metrics.sessions.get(), 1);
        drop(two);
        assert_ne!(live.readiness(), Readiness::Ready);
    }
}
