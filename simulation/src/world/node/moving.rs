//! Sessions that a node gives to other nodes.

use std::collections::BTreeMap;

use tunnel_directory::{Incarnation, MoveOrder, NodeRecord, REBALANCE_INTERVAL, RuntimeLabel};

use super::{
    super::{
        Event, World,
        names::{SessionEnd, SessionId},
    },
    Process,
};

impl World {
    /// A node decides what it gives away.
    pub(crate) fn on_move_tick(&mut self, number: usize) {
        self.after(REBALANCE_INTERVAL, Event::MoveTick(number));
        let (now, node) = (self.now, &mut self.nodes[number]);
        let process = node.process.as_mut().filter(|_| node.held.is_none());
        let Some(process) = process.filter(|process| !process.is_leaving) else {
            return;
        };
        let nodes = process.directory.nodes();
        let nodes = nodes.iter().map(|(_, node, record)| (*node, record));
        let moving: Vec<SessionId> = match process.order(nodes, now) {
            MoveOrder::Everything(_) => {
                let sessions = process.sessions.iter();
                let staying = sessions.filter(|(_, session)| !session.is_moving);
                staying.map(|(id, _)| *id).collect()
            }
            MoveOrder::Share { spreads: true, .. } => process.spread(now),
            MoveOrder::Share { .. } | MoveOrder::Nothing => Vec::new(),
        };
        let mut dials = Vec::new();
        for id in moving {
            if let Some(session) = process.sessions.get_mut(&id) {
                session.is_moving = true;
                dials.push(session.dial);
            }
        }
        for dial in dials {
            let delay = self.within(50);
            self.after(delay, Event::SessionEnded(dial, SessionEnd::Drained));
        }
    }
}

impl Process {
    fn order<'a>(
        &mut self,
        nodes: impl IntoIterator<Item = (Incarnation, &'a NodeRecord)>,
        now: std::time::Instant,
    ) -> MoveOrder {
        let own = self.directory.run().incarnation;
        let (held, _) = self.directory.len();
        let standing = self.directory.standing();
        self.rebalance
            .order(standing, (own, held as u64), nodes, now)
    }

    /// One session of each runtime whose sessions are all here, if that is due.
    fn spread(&mut self, now: std::time::Instant) -> Vec<SessionId> {
        let mut open: BTreeMap<&RuntimeLabel, Vec<SessionId>> = BTreeMap::new();
        for (id, session) in &self.sessions {
            let moving = self.sessions.values();
            let mut moving = moving.filter(|other| other.label == session.label && other.is_moving);
            if !session.is_draining && moving.next().is_none() {
                open.entry(&session.label).or_default().push(*id);
            }
        }
        let mut moved = Vec::new();
        for (label, sessions) in open {
            let is_held_elsewhere = self.directory.holders(label.as_str()).is_some();
            let spread = self.spreads.entry(label.clone()).or_default();
            if spread.is_due(sessions.len(), is_held_elsewhere, now) {
                moved.extend(sessions.last());
            }
        }
        moved
    }
}
