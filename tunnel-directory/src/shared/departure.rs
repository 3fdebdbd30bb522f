//! The end of a node: it removes what it has written, so that others need not wait for the end of its lease.
//!
//! ```text
//!   removing the records in batches ── all, or for too long ──▶ removing what is left ─▶ revoking the lease ─▶ done
//! ```
//!
//! The lease ends last: no write that is under way brings the key back. What is left when etcd does not answer is void
//! once the key is gone.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use tunnel_etcd::{EtcdError, RequestOp, TxnRequest};

use super::{
    Call, CallId, Caller, EtcdAnswer, LogLine, Now, Output, SharedDirectory, presence::writes,
};
use crate::table::Table;

/// Time in which records are removed one by one.
const DEPARTURE: Duration = Duration::from_secs(3);

/// Records that are removed in one transaction, so few that no other write waits for long; etcd allows 128 operations.
const BATCH: usize = 100;

#[derive(Debug, Default)]
pub(super) enum Departure {
    #[default]
    Staying,
    /// Searches the table from this part on, and then goes on until this time.
    Searching(usize, Vec<String>, Instant, Instant),
    /// Removes these keys, and then goes on with the search from this part on.
    Removing(CallId, usize, Vec<String>, Instant),
    RemovingRest(CallId),
    Revoking(CallId),
    Departed,
}

impl Departure {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Searching(_, _, _, at) => Some(*at),
            Self::Removing(_, _, _, until) => Some(*until),
            _ => None,
        }
    }
}

impl SharedDirectory {
    /// Removes what this node has written. The last step of a server that stops; gives up soon if etcd does not answer.
    pub fn depart(&mut self, now: Now) {
        if !matches!(self.departure, Departure::Staying) {
            return;
        }
        self.end_presence();
        self.end_writer();
        self.end_feed();
        let until = now.instant + DEPARTURE;
        self.departure = Departure::Searching(0, Vec::new(), until, now.instant);
        self.departure_on_time(now);
    }

    pub(super) fn departure_on_time(&mut self, now: Now) {
        match std::mem::take(&mut self.departure) {
            Departure::Searching(_, _, until, _) | Departure::Removing(_, _, _, until)
                if now.instant >= until =>
            {
                self.remove_rest();
            }
            Departure::Searching(part, keys, until, _) => self.search(part, keys, until, now),
            departure => self.departure = departure,
        }
    }

    fn search(&mut self, part: usize, mut keys: Vec<String>, until: Instant, now: Now) {
        let own = BTreeSet::from([self.run.clone()]);
        let found = self.table.records_of(part, &own);
        keys.extend(found.map(|(label, run)| self.keys.held(run, label)));
        let end = part + 1;
        let is_complete = end == Table::PARTS;
        if keys.len() < BATCH && !is_complete {
            self.departure = Departure::Searching(end, keys, until, now.instant);
        } else if keys.is_empty() {
            self.remove_rest();
        } else {
            self.remove(end, keys, until);
        }
    }

    fn remove(&mut self, part: usize, mut keys: Vec<String>, until: Instant) {
        let rest = keys.split_off(keys.len().min(BATCH));
        let removals = keys.into_iter().map(RequestOp::delete);
        let txn = TxnRequest {
            success: removals.collect(),
            ..TxnRequest::default()
        };
        let id = self.call(Caller::Departure, Call::Txn(txn));
        self.departure = Departure::Removing(id, part, rest, until);
    }

    fn remove_rest(&mut self) {
        let removal = RequestOp::delete_range(self.keys.held_by(&self.run));
        let id = self.call(Caller::Departure, Call::Txn(writes(removal)));
        self.departure = Departure::RemovingRest(id);
    }

    pub(super) fn on_departure_answer(
        &mut self,
        id: CallId,
        answer: Result<EtcdAnswer, EtcdError>,
        now: Now,
    ) {
        let is_done = answer.is_ok();
        if let Err(error) = answer {
            self.log(LogLine::DepartureFailed(error));
        }
        match std::mem::take(&mut self.departure) {
            Departure::Removing(sent, ..) if sent == id && !is_done => self.remove_rest(),
            Departure::Removing(sent, part, keys, until) if sent == id => {
                match keys.is_empty() && part < Table::PARTS {
                    true => self.search(part, keys, until, now),
                    false if keys.is_empty() => self.remove_rest(),
                    false => self.remove(part, keys, until),
                }
            }
            Departure::RemovingRest(sent) if sent == id => {
                let id = self.call(Caller::Departure, Call::Revoke(self.presence.lease()));
                self.departure = Departure::Revoking(id);
            }
            Departure::Revoking(sent) if sent == id => {
                self.departure = Departure::Departed;
                self.output(Output::Departed);
            }
            departure => self.departure = departure,
        }
    }
}
