//! Where the sessions of this client are, so that the next one is somewhere else.
//!
//! In: sessions that are welcomed, are to be left, and end. Out: what the next dial keeps away from: nodes by their names,
//! as their welcome tells them, and addresses. A session that is replaced by choice does not count for its successor,
//! which may take over its location.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tunnel_proto::handshake::{Placement, Refusal};
use tunnel_proto::refusal::RefusalReason;

use crate::dial::DialError;

/// Longest name of a node, as of a DNS name.
const NODE_BYTES: usize = 253;

/// The locations of all sessions of this client that are not left yet.
#[derive(Debug, Default)]
pub(super) struct SessionLocations(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: u64,
    sessions: Vec<LocatedSession>,
}

#[derive(Debug)]
struct LocatedSession {
    id: LocationId,
    location: SessionLocation,
    is_left: bool,
}

/// Names the location of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocationId(u64);

/// Where a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionLocation {
    /// The number of the configured server.
    pub(super) server: usize,
    /// The address that was dialled.
    pub(super) peer: SocketAddr,
    /// The server node, if it is one of several.
    pub(super) node: Option<String>,
}

/// Keeps the location of a session until it is dropped.
#[derive(Debug)]
pub(super) struct LocationGuard {
    locations: Arc<SessionLocations>,
    id: LocationId,
    server: usize,
}

/// The dials of one session that were refused with `elsewhere` in a row.
#[derive(Debug, Default)]
pub(super) struct Search {
    refusals: u32,
    /// The servers that have refused.
    pub(super) servers: Vec<usize>,
    addresses: Vec<SocketAddr>,
}

impl SessionLocations {
    /// Keeps the location of a session that was welcomed.
    pub(super) fn add(self: &Arc<Self>, location: SessionLocation) -> LocationGuard {
        let mut state = self.0.lock();
        state.last += 1;
        let (id, server) = (LocationId(state.last), location.server);
        // Another name would make the next request for a session malformed.
        let node = location.node.filter(|node| is_name(node));
        let location = SessionLocation { node, ..location };
        state.sessions.push(LocatedSession {
            id,
            location,
            is_left: false,
        });
        drop(state);
        LocationGuard {
            locations: Arc::clone(self),
            id,
            server,
        }
    }

    /// The load of a server for the successor of `own`: its sessions, of which one that is to be left counts twice, since
    /// its server may be about to stop.
    pub(super) fn load(&self, server: usize, own: Option<LocationId>) -> usize {
        let state = self.0.lock();
        let there = counted(&state, own).filter(|located| located.location.server == server);
        there.map(|located| 1 + usize::from(located.is_left)).sum()
    }

    /// What the request for the successor of `own` says.
    pub(super) fn placement(&self, own: Option<LocationId>, search: &Search) -> Placement {
        let state = self.0.lock();
        let nodes = counted(&state, own).filter_map(|located| located.location.node.clone());
        let mut avoid: Vec<String> = nodes.collect();
        avoid.sort_unstable();
        avoid.dedup();
        Placement {
            avoid,
            attempt: search.refusals + 1,
        }
    }

    /// The addresses that the successor of `own` is dialled at last.
    pub(super) fn addresses(&self, own: Option<LocationId>, search: &Search) -> Vec<SocketAddr> {
        let state = self.0.lock();
        let used = counted(&state, own).map(|located| located.location.peer);
        used.chain(search.addresses.iter().copied()).collect()
    }
}

/// The sessions that count for the successor of `own`.
fn counted(state: &State, own: Option<LocationId>) -> impl Iterator<Item = &LocatedSession> {
    let counts = move |located: &&LocatedSession| located.is_left || Some(located.id) != own;
    state.sessions.iter().filter(counts)
}

fn is_name(node: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b',';
    !node.is_empty() && node.len() <= NODE_BYTES && node.bytes().all(is_plain)
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
        let mut state = self.locations.0.lock();
        let own = state
            .sessions
            .iter_mut()
            .find(|located| located.id == self.id);
        if let Some(own) = own {
            own.is_left = is_left;
        }
    }
}

impl Drop for LocationGuard {
    fn drop(&mut self) {
        let mut state = self.locations.0.lock();
        state.sessions.retain(|located| located.id != self.id);
    }
}

impl Search {
    /// Notes a dial that failed. Returns whether the next one follows at once: the server has refused because another node
    /// is to have the session, and may do so again.
    pub(super) fn goes_on_after(&mut self, server: usize, error: &DialError) -> bool {
        let DialError::Refused { response, peer, .. } = error else {
            return false;
        };
        let reason = response.refusal.as_ref().and_then(Refusal::known);
        let placement = Placement {
            avoid: Vec::new(),
            attempt: self.refusals + 1,
        };
        if reason != Some(RefusalReason::Elsewhere) || !placement.may_go_elsewhere() {
            return false;
        }
        self.refusals += 1;
        self.servers.push(server);
        self.addresses.push(*peer);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(server: usize, node: &str) -> SessionLocation {
        SessionLocation {
            server,
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            node: Some(node.to_owned()),
        }
    }

    #[test]
    fn a_successor_may_take_the_place_that_is_left_by_choice_alone() {
        let locations = Arc::<SessionLocations>::default();
        let search = Search::default();
        let avoided = |own: &LocationGuard| locations.placement(Some(own.id()), &search).avoid;
        let one = locations.add(location(0, "n1"));
        let two = locations.add(location(1, "n2"));
        assert_eq!(locations.placement(None, &search).avoid, ["n1", "n2"]);
        assert_eq!(avoided(&one), ["n2"]);
        assert_eq!(locations.load(0, Some(one.id())), 0);
        one.set_left(true);
        assert_eq!(avoided(&one), ["n1", "n2"]);
        assert_eq!(locations.load(0, Some(one.id())), 2);
        assert_eq!(locations.load(0, Some(two.id())), 2);
        one.set_left(false);
        assert_eq!(avoided(&one), ["n2"]);
        drop(two);
        assert_eq!(avoided(&one), [""; 0]);
    }

    #[test]
    fn a_name_that_no_node_can_have_is_not_sent() {
        let locations = Arc::<SessionLocations>::default();
        let long = "n".repeat(254);
        let _kept = ["a,b", "a\r\nb", "", &long].map(|node| locations.add(location(0, node)));
        assert_eq!(locations.placement(None, &Search::default()).avoid, [""; 0]);
    }
}
