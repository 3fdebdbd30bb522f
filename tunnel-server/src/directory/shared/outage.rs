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

/// How this node stands to etcd.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum EtcdState {
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
    pub(crate) const ALL: [Self; 4] = [Self::Ok, Self::Outage, Self::CutOff, Self::Alone];

    /// The name in the metric and in logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Outage => "outage",
            Self::CutOff => "cut_off",
            Self::Alone => "alone",
        }
    }

    /// Whether this node may serve what has been taken over, so that its clients are to go to other nodes.
    pub(crate) fn is_behind(self) -> bool {
        matches!(self, Self::CutOff | Self::Alone)
    }
}

/// A recent report of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PeerReport {
    /// Time since etcd has answered it.
    pub(super) answered: Duration,
    /// It knows the key of this node.
    pub(super) sees_own: bool,
}

/// The state of a node that was answered last so long ago. `has_others` is whether it is linked to other nodes in general;
/// `reports` are those that it has received lately.
pub(super) fn state(
    answered: Duration,
    ttl: Duration,
    has_others: bool,
    reports: impl IntoIterator<Item = PeerReport>,
) -> EtcdState {
    if answered <= ttl {
        return EtcdState::Ok;
    }
    let mut has_reports = false;
    for report in reports {
        has_reports = true;
        if report.answered <= ttl && !report.sees_own {
            return EtcdState::CutOff;
        }
    }
    match has_reports || !has_others {
        true => EtcdState::Outage,
        false => EtcdState::Alone,
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
        let now = |reports: &[PeerReport]| state(2 * TTL, TTL, true, reports.iter().copied());
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
        assert_eq!(state(TTL, TTL, true, []), EtcdState::Ok);
        assert_eq!(
            state(2 * TTL, TTL, false, []),
            EtcdState::Outage,
            "there are no others, or they are not linked"
        );
    }
}
