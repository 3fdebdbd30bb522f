//! Keeps where the sessions of this client are, for the rules of [`tunnel_proto::redial`].

use std::sync::Arc;

use parking_lot::Mutex;
use tunnel_proto::handshake::Refusal;
use tunnel_proto::redial::{LocationId, Locations, Search, SessionLocation};

use crate::dial::DialError;

/// The locations of all sessions of this client that are not left yet.
#[derive(Debug, Default)]
pub(super) struct SessionLocations(Mutex<Locations>);

/// Keeps the location of a session until it is dropped.
#[derive(Debug)]
pub(super) struct LocationGuard {
    locations: Arc<SessionLocations>,
    id: LocationId,
    server: usize,
}

impl SessionLocations {
    /// Keeps the location of a session that was welcomed.
    pub(super) fn add(self: &Arc<Self>, location: SessionLocation) -> LocationGuard {
        let server = location.server;
        LocationGuard {
            id: self.0.lock().add(location),
            locations: Arc::clone(self),
            server,
        }
    }

    /// Reads the locations.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Locations) -> T) -> T {
        read(&self.0.lock())
    }
}

impl LocationGuard {
    pub(super) fn id(&self) -> LocationId {
        self.id
    }

    /// The number of the configured server.
    pub(super) fn server(&self) -> usize {
        self.server
    }

    /// The session is to be left, or is not any more: its successor should be at another location.
    pub(super) fn set_left(&self, is_left: bool) {
        self.locations.0.lock().set_left(self.id, is_left);
    }
}

impl Drop for LocationGuard {
    fn drop(&mut self) {
        self.locations.0.lock().remove(self.id);
    }
}

/// Notes a dial that failed. Returns whether the next one follows at once.
pub(super) fn goes_on_after(search: &mut Search, server: usize, error: &DialError) -> bool {
    let DialError::Refused { response, peer, .. } = error else {
        return false;
    };
    let reason = response.refusal.as_ref().and_then(Refusal::known);
    search.goes_on_after(server, *peer, reason)
}
