//! What systemd is told, if it has started the program with `Type=notify`.

use sd_notify::NotifyState;

/// The server serves.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// The server stops, or another process is the main one of its service from now on.
pub(super) fn stopping(successor: Option<u32>) {
    notify(&[successor.map_or(NotifyState::Stopping, NotifyState::MainPid)]);
}

/// Without systemd this does nothing.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
