//! The families of the directory that several server nodes share. In a server that stands alone they stay at zero.

use std::time::Duration;

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use tunnel_directory::{EtcdState, shared::ClaimResult};
use tunnel_ops::metrics::Families;

/// What the node sees of the shared directory. Clones count together.
#[derive(Debug, Clone)]
pub struct DirectoryMetrics {
    claims: IntCounterVec,
    is_away: IntGauge,
    revision: IntGauge,
    lease_left: IntGauge,
    listings: IntCounter,
    state: IntGaugeVec,
    is_isolated: IntGauge,
}

impl DirectoryMetrics {
    pub(crate) fn new(new: &mut Families) -> prometheus::Result<Self> {
        Ok(Self {
            claims: new.counters_of(
                "directory_claims_total",
                "Claims in the shared directory: won, lost to another one, failed without an answer of etcd, or provisional",
                "result",
                ClaimResult::ALL.map(ClaimResult::name),
            )?,
            is_away: new.gauge(
                "directory_away",
                "1 while etcd does not answer this node's writes",
            )?,
            revision: new.gauge(
                "directory_revision",
                "The revision of etcd up to which this node knows all changes",
            )?,
            lease_left: new.gauge(
                "directory_lease_left_seconds",
                "How long the node's lease lives without another renewal",
            )?,
            listings: new.counter(
                "directory_relistings_total",
                "How often the directory had to be listed again, as after a compaction",
            )?,
            state: new.gauges_of(
                "directory_state",
                "1 for how this node stands to etcd: ok, outage for all nodes, cut_off while others are answered, or alone",
                "state",
                EtcdState::ALL.map(EtcdState::name),
            )?,
            is_isolated: new.gauge(
                "node_isolated",
                "1 while this node has no link to any other node, and others have: it is not ready then",
            )?,
        })
    }

    pub(crate) fn on_claim(&self, result: ClaimResult) {
        self.claims.with_label_values(&[result.name()]).inc();
    }

    pub(crate) fn set_away(&self, is_away: bool) {
        self.is_away.set(i64::from(is_away));
    }

    pub(crate) fn set_revision(&self, revision: i64) {
        self.revision.set(revision);
    }

    pub(crate) fn set_lease_left(&self, left: Duration) {
        let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        self.lease_left.set(seconds);
    }

    pub(crate) fn set_state(&self, state: EtcdState) {
        for each in EtcdState::ALL {
            let gauge = self.state.with_label_values(&[each.name()]);
            gauge.set(i64::from(each == state));
        }
    }

    pub(crate) fn set_isolated(&self, is_isolated: bool) {
        self.is_isolated.set(i64::from(is_isolated));
    }

    pub(crate) fn on_relisted(&self) {
        self.listings.inc();
    }
}
