//! Where the sessions of a client are, so that the next one is somewhere else.
//!
//! In: sessions that are welcomed, are to be left, and end. Out: what the next dial keeps away from: nodes by their names,
//! as their welcome names them, and addresses. A session that is replaced by choice does not count for its successor,
//! which may take over its location. Pure.

use std::net::SocketAddr;

use crate::{handshake::Placement, refusal::RefusalReason};

/// Longest name of a node, as of a DNS name.
const NODE_BYTES: usize = 253;

/// The locations of all sessions of a client that have not ended.
#[derive(Debug, Default)]
pub struct Locations {
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
pub struct LocationId(u64);

/// Where a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionLocation {
    /// The number of the configured server.
    pub server: usize,
    /// The address that was dialled.
    pub peer: SocketAddr,
    /// The server node, if it is one of several.
    pub node: Option<String>,
}

/// The dials of one session that were refused with `elsewhere` in a row.
#[derive(Debug, Default)]
pub struct Search {
    refusals: u32,
    /// The servers that have refused.
    servers: Vec<usize>,
    addresses: Vec<SocketAddr>,
}

impl Locations {
    /// Keeps the location of a session that was welcomed, until [`Self::remove`].
    pub fn add(&mut self, location: SessionLocation) -> LocationId {
        self.last += 1;
        let id = LocationId(self.last);
        // Another name would make the next request for a session malformed.
        let node = location.node.filter(|node| is_name(node));
        let location = SessionLocation { node, ..location };
        self.sessions.push(LocatedSession {
            id,
            location,
            is_left: false,
        });
        id
    }

    /// The session is to be left, or is not any more: its successor should be at another location.
    pub fn set_left(&mut self, id: LocationId, is_left: bool) {
        let mut sessions = self.sessions.iter_mut();
        if let Some(own) = sessions.find(|located| located.id == id) {
            own.is_left = is_left;
        }
    }

    /// The session has ended.
    pub fn remove(&mut self, id: LocationId) {
        self.sessions.retain(|located| located.id != id);
    }

    /// The load of a server for the successor of `own`: its sessions, of which one that is to be left counts twice, since
    /// its server may be about to stop.
    #[must_use]
    pub fn load(&self, server: usize, own: Option<LocationId>) -> usize {
        let sessions = self.counted(own);
        let there = sessions.filter(|located| located.location.server == server);
        there.map(|located| 1 + usize::from(located.is_left)).sum()
    }

    /// What the request for the successor of `own` says.
    #[must_use]
    pub fn placement(&self, own: Option<LocationId>, search: &Search) -> Placement {
        let sessions = self.counted(own);
        let nodes = sessions.filter_map(|located| located.location.node.clone());
        let mut avoid: Vec<String> = nodes.collect();
        avoid.sort_unstable();
        avoid.dedup();
        Placement {
            avoid,
            attempt: search.refusals + 1,
        }
    }

    /// The addresses that the successor of `own` is dialled at last.
    #[must_use]
    pub fn addresses(&self, own: Option<LocationId>, search: &Search) -> Vec<SocketAddr> {
        let used = self.counted(own).map(|located| located.location.peer);
        used.chain(search.addresses.iter().copied()).collect()
    }

    /// The sessions that count for the successor of `own`.
    fn counted(&self, own: Option<LocationId>) -> impl Iterator<Item = &LocatedSession> {
        let counts = move |located: &&LocatedSession| located.is_left || Some(located.id) != own;
        self.sessions.iter().filter(counts)
    }
}

fn is_name(node: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b',';
    !node.is_empty() && node.len() <= NODE_BYTES && node.bytes().all(is_plain)
}

impl Search {
    /// The servers that have refused.
    #[must_use]
    pub fn servers(&self) -> &[usize] {
        &self.servers
    }

    /// Notes a refusal. Returns whether the next dial follows at once: the server has refused because another node is to
    /// have the session, and may do so again.
    pub fn goes_on_after(
        &mut self,
        server: usize,
        peer: SocketAddr,
        reason: Option<RefusalReason>,
    ) -> bool {
        let placement = Placement {
            avoid: Vec::new(),
            attempt: self.refusals + 1,
        };
        if reason != Some(RefusalReason::Elsewhere) || !placement.may_go_elsewhere() {
            return false;
        }
        self.refusals += 1;
        self.servers.push(server);
        self.addresses.push(peer);
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
        let (mut locations, search) = (Locations::default(), Search::default());
        let avoided = |locations: &Locations, own| locations.placement(Some(own), &search).avoid;
        let one = locations.add(location(0, "n1"));
        let two = locations.add(location(1, "n2"));
        assert_eq!(locations.placement(None, &search).avoid, ["n1", "n2"]);
        assert_eq!(avoided(&locations, one), ["n2"]);
        assert_eq!(locations.load(0, Some(one)), 0);
        locations.set_left(one, true);
        assert_eq!(avoided(&locations, one), ["n1", "n2"]);
        assert_eq!(locations.load(0, Some(one)), 2);
        assert_eq!(locations.load(0, Some(two)), 2);
        locations.set_left(one, false);
        assert_eq!(avoided(&locations, one), ["n2"]);
        locations.remove(two);
        assert_eq!(avoided(&locations, one), [""; 0]);
    }

    #[test]
    fn a_name_that_no_node_can_have_is_not_sent() {
        let mut locations = Locations::default();
        let long = "n".repeat(254);
        for node in ["a,b", "a\r\nb", "", &long] {
            locations.add(location(0, node));
        }
        assert_eq!(locations.placement(None, &Search::default()).avoid, [""; 0]);
    }
}
