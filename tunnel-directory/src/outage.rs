//! What it means that etcd does not answer this node, by the reports of the other nodes.
//!
//! ```text
//!   etcd has answered within the life of the lease ────────────────────▶ ok
//!   a peer is answered, and sees this node's key no more ──────────────▶ cut off
//!   peers are there, and are not answered, or see the key ─────────────▶ outage
//!   there are other nodes, and none of them reports ───────────────────▶ alone
//! ```
//!
//! Pure. In an outage nothing can be superseded anywhere, so what a node knows stays true. A node that is cut off, or
//! alone, may serve what another one has taken over: its clients are to go elsewhere. No session ends because of etcd.

use std::time::Duration;

/// Whether etcd answers this node and others, as this node sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EtcdState {
    /// It is answered.
    #[default]
    Ok,
    /// No node is answered.
    Outage,
    /// Other nodes are answered.
    CutOff,
    /// Neither etcd nor any other node is there.
    Alone,
}

impl EtcdState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Outage, Self::CutOff, Self::Alone];

    /// The name in the metric and in logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Outage => "outage",
            Self::CutOff => "cut_off",
            Self::Alone => "alone",
        }
    }

    /// Whether this node may serve what has been taken over, so that its clients are to go to other nodes.
    #[must_use]
    pub fn is_behind(self) -> bool {
        matches!(self, Self::CutOff | Self::Alone)
    }
}

/// A recent report of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerReport {
    /// Time since etcd has answered it.
    pub(crate) answered: Duration,
    /// It knows the key of this node.
    pub(crate) sees_own: bool,
}

impl EtcdState {
    /// The state of a node that etcd has answered last `answered` ago, and whose lease lives for `ttl`. `has_others` is whether
    /// it is linked to other nodes in general; `reports` are those that it has received lately.
    pub(crate) fn of(
        answered: Duration,
        ttl: Duration,
        has_others: bool,
        reports: impl IntoIterator<Item = PeerReport>,
    ) -> Self {
        if answered <= ttl {
            return Self::Ok;
        }
        let mut has_reports = false;
        for report in reports {
            has_reports = true;
            if report.answered <= ttl && !report.sees_own {
                return Self::CutOff;
            }
        }
        match has_reports || !has_others {
            true => Self::Outage,
            false => Self::Alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(20);

    fn report(seconds: u64, sees_own: bool) -> PeerReport {
        PeerReport {
            answered: Duration::from_secs(seconds),
            sees_own,
        }
    }

    #[test]
    fn the_reports_of_peers_decide_what_silence_of_etcd_means() {
        let now =
            |reports: &[PeerReport]| EtcdState::of(2 * TTL, TTL, true, reports.iter().copied());
        assert_eq!(now(&[]), EtcdState::Alone);
        assert_eq!(
            now(&[report(40, false), report(30, true)]),
            EtcdState::Outage
        );
        assert_eq!(
            now(&[report(40, true), report(1, false)]),
            EtcdState::CutOff
        );
        assert_eq!(
            now(&[report(1, true)]),
            EtcdState::Outage,
            "the lease lives"
        );
        assert_eq!(EtcdState::of(TTL, TTL, true, []), EtcdState::Ok);
        assert_eq!(
            EtcdState::of(2 * TTL, TTL, false, []),
            EtcdState::Outage,
            "there are no others, or they are not linked"
        );
    }
}
