//! The admin listener's answers: metrics, readiness and status of this client, and the page that shows them.

mod api;
mod page;

use std::sync::Arc;

use tokio::sync::watch;
use tunnel_ops::admin::{AdminRoutes, AdminSettings, Readiness};

pub(crate) use self::api::Api;
use crate::metrics::Metrics;

/// Counts the live sessions.
#[derive(Debug)]
pub(crate) struct LiveSessions {
    metrics: Arc<Metrics>,
    count: watch::Sender<usize>,
    welcomed: watch::Sender<Option<Welcomed>>,
}

/// What a server has said when it welcomed a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcomed {
    /// The runtime's label.
    pub runtime: String,
    /// Where platform clients reach the runtime, if the server has said so.
    pub url: Option<String>,
}

impl Welcomed {
    /// The runtime as it is shown to a person: its URL, or its label if the server is too old to send one.
    pub(crate) fn shown(&self) -> String {
        self.url
            .clone()
            .unwrap_or_else(|| format!("the runtime {}", self.runtime))
    }
}

/// A guard that counts one live session until it is dropped.
#[derive(Debug)]
pub(crate) struct LiveSession(Arc<LiveSessions>);

impl LiveSessions {
    /// Without sessions.
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            count: watch::Sender::new(0),
            welcomed: watch::Sender::new(None),
        }
    }

    /// A server has welcomed a session.
    pub(crate) fn on_welcome(&self, welcomed: Welcomed) {
        self.welcomed.send_replace(Some(welcomed));
    }

    /// The last welcome.
    pub(crate) fn welcomed(&self) -> watch::Receiver<Option<Welcomed>> {
        self.welcomed.subscribe()
    }

    /// Whether there is a live session.
    pub(crate) fn any(&self) -> bool {
        *self.count.borrow() > 0
    }

    /// Waits until there is no live session.
    pub(crate) async fn none_left(&self) {
        // Cannot fail: `self` owns the sender.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    fn change(&self, by: isize) -> usize {
        let mut sessions = 0;
        self.count.send_modify(|count| {
            *count = count.saturating_add_signed(by);
            sessions = *count;
        });
        sessions
    }
}

impl LiveSession {
    /// Counts a session that the server has welcomed.
    pub(crate) fn begin(sessions: &Arc<LiveSessions>) -> Self {
        sessions.metrics.sessions.inc();
        let count = sessions.change(1);
        tracing::info!(sessions = count, "a session is ready");
        Self(Arc::clone(sessions))
    }
}

impl Drop for LiveSession {
    fn drop(&mut self) {
        self.0.metrics.sessions.dec();
        let sessions = self.0.change(-1);
        tracing::info!(sessions, "a session has ended, or leaves");
    }
}

/// The routes of the admin listener. Ready while there is a live session.
pub(crate) fn routes(api: Api, settings: AdminSettings) -> AdminRoutes {
    let metrics = Arc::clone(&api.metrics);
    routes_with(api, settings, move || readiness(&metrics))
}

/// The routes of the admin listener, with this readiness.
pub(crate) fn routes_with(
    api: Api,
    settings: AdminSettings,
    ready: impl Fn() -> Readiness + Clone + Send + Sync + 'static,
) -> AdminRoutes {
    AdminRoutes::new(api.metrics.registry(), ready, settings)
        .with_page(page::FILES)
        .with_path(api::STATUS, api::status(Arc::new(api)))
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
        let sessions = Arc::new(LiveSessions::new(Arc::clone(&metrics)));
        let one = LiveSession::begin(&sessions);
        let two = LiveSession::begin(&sessions);
        drop(one);
        assert_eq!(readiness(&metrics), Readiness::Ready);
        drop(two);
        assert_ne!(readiness(&metrics), Readiness::Ready);
    }
}
