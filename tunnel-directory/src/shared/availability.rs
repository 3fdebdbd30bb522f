//! Whether etcd answers this node.

use std::time::{Duration, Instant};

use tunnel_etcd::EtcdError;

use super::{LogLine, Now, Output, SharedDirectory};

/// What etcd may fail to do: with a full database it renews leases, and takes no write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EtcdService {
    /// To renew the lease.
    Renewals = 1,
    /// To write.
    Writes = 2,
}

/// What etcd has failed to do, and when it has answered last.
#[derive(Debug)]
pub(super) struct Availability {
    /// The bits of [`EtcdService`].
    failed: u8,
    /// The node was paused, and etcd has not answered since.
    is_unknown: bool,
    answered: Instant,
}

impl Availability {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            failed: 0,
            is_unknown: false,
            answered: now,
        }
    }
}

impl SharedDirectory {
    /// Whether etcd does not take what this node writes, or does not answer at all.
    pub(super) fn is_away(&self) -> bool {
        self.availability.failed != 0
    }

    /// Whether what this node writes may not be known to others soon: etcd is away, or has not answered since a pause.
    pub(super) fn may_be_away(&self) -> bool {
        self.is_away() || self.availability.is_unknown
    }

    /// The node was paused: whether etcd answers is not known.
    pub(super) fn on_paused(&mut self, now: Now) {
        if !std::mem::replace(&mut self.availability.is_unknown, true) {
            self.find_unrecorded(now);
        }
    }

    /// etcd has answered a read after a pause.
    pub(super) fn on_known_again(&mut self) {
        self.availability.is_unknown = false;
    }

    /// The time since etcd has answered.
    pub(super) fn since_answered(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.availability.answered)
    }

    /// etcd has answered.
    pub(super) fn on_answered(&mut self, service: EtcdService, now: Instant) {
        let before = self.availability.failed;
        self.availability.answered = now;
        self.availability.failed &= !(service as u8);
        self.availability.is_unknown = false;
        if before != 0 && !self.is_away() {
            self.log(LogLine::AnsweredAgain);
        }
        self.output(Output::Unavailable(self.is_away()));
    }

    /// etcd has not answered, or refuses.
    pub(super) fn on_unanswered(&mut self, service: EtcdService, error: EtcdError, now: Now) {
        let was_away = self.is_away();
        self.availability.failed |= service as u8;
        self.output(Output::Unavailable(true));
        if !was_away {
            self.log(LogLine::Unanswered(error));
            self.find_unrecorded(now);
        }
    }
}
