//! What systemd is told, if it has started the program with `Type=notify`.

use sd_notify::NotifyState;

/// The server serves.
pub(super) fn ready() {
    notify(NotifyState::Ready);
}

/// The server stops.
pub(super) fn stopping() {
    notify(NotifyState::Stopping);
}

/// From now on the process with this id is the service's main one.
pub(super) fn replaced_by(process: u32) {
    notify(NotifyState::MainPid(process));
}

/// Without systemd this does nothing.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
