//! Requests to replace the running process by a new one, and how the last one went.
//!
//! In: a request of the operator, by the admin API or a signal. `server/handover.rs` carries it out; this file only connects
//! them. One upgrade is carried out at a time.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tunnel_ops::timestamp::Timestamp;

/// The requests for an upgrade.
#[derive(Debug, Default)]
pub(crate) struct Upgrades {
    requested: Notify,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    /// Nothing can replace this server: it is part of another program.
    #[default]
    Unavailable,
    /// One may be requested, unless the last one is under way. None if there was none.
    Available(Option<UpgradeView>),
    /// The server stops, or a new process has taken over.
    Leaving,
}

/// How an upgrade goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeView {
    /// Whether it is under way, or has failed.
    pub state: UpgradeState,
    /// Since when; now, from a server that does not say so.
    #[serde(default = "Timestamp::now")]
    pub since: Timestamp,
    /// Why it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The state of an upgrade that has not succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpgradeState {
    /// It is under way: the new process is being started, or will be once this one has what its own predecessor hands over.
    Starting,
    /// It has failed; this process continues.
    Failed,
}

/// Why an upgrade is not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpgradeRefusal {
    /// The server is part of another program.
    #[error(
        "this server is part of another program, and no process of its own: restart that program"
    )]
    Unavailable,
    /// Another one is under way.
    #[error("an upgrade is under way already, since {0}")]
    UnderWay(Timestamp),
    /// The server stops.
    #[error("this process is stopping")]
    Leaving,
}

impl Upgrades {
    /// Upgrades may be requested from now on.
    pub(crate) fn enable(&self) {
        *self.state.lock() = State::Available(None);
    }

    /// Requests an upgrade.
    ///
    /// # Errors
    /// When it cannot begin.
    pub(crate) fn request(&self) -> Result<(), UpgradeRefusal> {
        let mut state = self.state.lock();
        match &*state {
            State::Unavailable => return Err(UpgradeRefusal::Unavailable),
            State::Leaving => return Err(UpgradeRefusal::Leaving),
            State::Available(Some(last)) if last.state == UpgradeState::Starting => {
                return Err(UpgradeRefusal::UnderWay(last.since));
            }
            State::Available(_) => {
                *state = State::Available(Some(UpgradeView::new(UpgradeState::Starting, None)));
            }
        }
        self.requested.notify_one();
        Ok(())
    }

    /// Resolves when an upgrade is requested.
    pub(crate) async fn requested(&self) {
        self.requested.notified().await;
    }

    /// None may be requested any more.
    pub(crate) fn leave(&self) {
        *self.state.lock() = State::Leaving;
    }

    /// The upgrade has failed.
    pub(crate) fn on_failed(&self, reason: String) {
        let view = UpgradeView::new(UpgradeState::Failed, Some(reason));
        *self.state.lock() = State::Available(Some(view));
    }

    /// The upgrade that is under way or has failed, if there is one.
    pub(crate) fn view(&self) -> Option<UpgradeView> {
        match &*self.state.lock() {
            State::Available(last) => last.clone(),
            State::Unavailable | State::Leaving => None,
        }
    }
}

impl UpgradeView {
    fn new(state: UpgradeState, reason: Option<String>) -> Self {
        let since = Timestamp::now();
        Self {
            state,
            since,
            reason,
        }
    }
}
