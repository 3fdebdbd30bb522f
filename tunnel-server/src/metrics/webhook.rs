//! Metrics of the events that are sent to the platform.

use prometheus::IntCounterVec;
use tunnel_ops::metrics::Families;

/// Counts what becomes of events.
pub(crate) struct WebhookMetrics {
    attempts: IntCounterVec,
    lost: IntCounterVec,
}

/// Why the platform does not get an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LostEvent {
    /// It did not take it, again and again.
    GivenUp,
    /// Too many events waited.
    LeftOut,
}

impl LostEvent {
    fn name(self) -> &'static str {
        match self {
            Self::GivenUp => "given_up",
            Self::LeftOut => "left_out",
        }
    }
}

impl WebhookMetrics {
    pub(super) fn new(new: &mut Families) -> prometheus::Result<Self> {
        Ok(Self {
            attempts: new.counters_of(
                "webhook_attempts_total",
                "Attempts to send an event to the platform: delivered, rejected for good, or failed and repeated",
                "result",
                ["delivered", "rejected", "failed"],
            )?,
            lost: new.counters_of(
                "webhook_lost_events_total",
                "Events that the platform did not get: given up after repeated attempts, or left out because too many waited",
                "reason",
                [LostEvent::GivenUp, LostEvent::LeftOut].map(LostEvent::name),
            )?,
        })
    }

    /// An attempt to send an event had this result.
    pub(crate) fn on_attempt(&self, result: &str) {
        self.attempts.with_label_values(&[result]).inc();
    }

    /// So many events will not be sent.
    pub(crate) fn on_loss(&self, lost: LostEvent, count: usize) {
        let counter = self.lost.with_label_values(&[lost.name()]);
        counter.inc_by(count as u64);
    }
}
