//! One node: its replica, and its watch.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use tunnel_directory::{
    managed::{DocumentChange, Next, Replica},
    shared::{Call, EtcdAnswer},
};
use tunnel_etcd::{Event, RangeRequest, TxnRequest, WatchReport};

use super::text::merge;
use crate::etcd::{Etcd, Outcome, PREFIX, WatchId};

/// How the keys begin, without the first `/` behind the kind.
pub(super) const RANGE: &str = "/tunnel/v1/runtime";

/// How long a removal is kept: longer than any run.
const KEPT_MS: u64 = 1_000_000_000;

pub(super) struct Node {
    pub(super) number: usize,
    pub(super) replica: Replica,
    watch: Option<WatchId>,
    pub(super) is_paused: bool,
    /// How often etcd had lost something when this node listed last.
    pub(super) losses: u64,
    /// The tokens that it knew last.
    pub(super) known: BTreeSet<String>,
}

impl Node {
    pub(super) fn new(number: usize, seed: u64) -> Self {
        let seed = seed ^ ((number as u64) << 32);
        Self {
            number,
            replica: Replica::new(PREFIX, true, seed, merge),
            watch: None,
            is_paused: false,
            losses: u64::MAX,
            known: BTreeSet::new(),
        }
    }

    pub(super) fn is_watching(&self) -> bool {
        self.watch.is_some()
    }

    pub(super) fn end_watch(&mut self, etcd: &mut Etcd) {
        if let Some(watch) = self.watch.take() {
            etcd.end_watch(watch);
        }
    }

    /// Lists all if there is no watch, else takes what it reports.
    pub(super) fn learn(
        &mut self,
        etcd: &mut Etcd,
        now: Instant,
        now_ms: u64,
    ) -> Result<(), String> {
        let Some(watch) = self.watch else {
            return self.list(etcd, now, now_ms);
        };
        match etcd.report(watch) {
            Ok(Some(WatchReport::Events { events, up_to })) => {
                let is_own = |event: &Event| {
                    let key = event.kv.as_ref().map(|kv| &kv.key[..]);
                    key.is_some_and(|key| key.starts_with(RANGE.as_bytes()))
                };
                let own: Vec<Event> = events.into_iter().filter(is_own).collect();
                // A watch of the range reports nothing of other keys.
                if !own.is_empty() {
                    self.replica.on_changed(&own, up_to, now_ms);
                }
            }
            Ok(_) => {}
            Err(_) => self.watch = None,
        }
        Ok(())
    }

    fn list(&mut self, etcd: &mut Etcd, now: Instant, now_ms: u64) -> Result<(), String> {
        let (key, range_end) = self.replica.range();
        let read = RangeRequest {
            key,
            range_end,
            ..RangeRequest::default()
        };
        let Outcome::Answered(Ok(EtcdAnswer::Range(page))) = etcd.call(0, &Call::Range(read), now)
        else {
            return Err("etcd does not list".to_owned());
        };
        let revision = etcd.revision();
        self.replica.on_listed(&page.kvs, revision, now_ms);
        self.watch = etcd
            .watch(0, revision + 1)
            .map_err(|error| error.to_string())?;
        Ok(())
    }

    pub(super) fn change(
        &self,
        label: &str,
        next: Option<&str>,
        now_ms: u64,
        nonce: u64,
    ) -> TxnRequest {
        let until_ms = now_ms + KEPT_MS;
        self.replica.change(&[DocumentChange {
            label,
            next: next.map_or(Next::Removed { until_ms }, Next::Text),
            revoked: None,
            now_ms,
            nonce,
        }])
    }

    pub(super) fn texts(&self) -> BTreeMap<&str, &str> {
        let labels = self.replica.labels();
        let known = labels.filter_map(|label| Some((label, self.replica.document(label)?)));
        known.collect()
    }

    pub(super) fn check_settled(&self) -> Result<(), String> {
        match self.replica.is_written() {
            true => Ok(()),
            false => Err(format!("n{} has something left to write", self.number)),
        }
    }
}
