//! A node that was paused, as a virtual machine is while it is moved, may have lost runtimes meanwhile: before it
//! serves by its own sessions again, it learns what has happened.

use std::time::{Duration, Instant};

use tunnel_etcd::{EtcdError, RequestOp};

use super::{
    Call, CallId, Caller, EtcdAnswer, LogLine, Now, Output, SharedDirectory, presence::writes,
};

/// Time without a tick after which the node counts as paused: several ticks.
const WITHOUT_TICK: Duration = Duration::from_millis(1_500);

/// How long requests wait for what has happened meanwhile. Without an answer of etcd, what is known is served.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Time between two tries.
const RETRY: Duration = Duration::from_millis(20);

/// Whether a node whose last tick was at this time has been paused since.
#[must_use]
pub fn was_paused(last_tick: Instant, now: Instant) -> bool {
    now.saturating_duration_since(last_tick) >= WITHOUT_TICK
}

#[derive(Debug)]
pub(super) struct Pause {
    last_tick: Instant,
    /// What the node does to catch up, and until when.
    catching_up: Option<(Step, Instant)>,
}

#[derive(Debug)]
enum Step {
    /// Reads the newest revision.
    Reading(CallId),
    /// Reads it again then: connections may have been lost meanwhile.
    Retrying(Instant),
    /// Waits until the watch has reported all changes up to this revision.
    Awaiting(i64),
}

impl Pause {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last_tick: now,
            catching_up: None,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let (step, until) = self.catching_up.as_ref()?;
        Some(match step {
            Step::Retrying(at) => *until.min(at),
            Step::Reading(_) | Step::Awaiting(_) => *until,
        })
    }
}

impl SharedDirectory {
    /// When the node has run last, and known what has happened before.
    #[must_use]
    pub fn last_tick(&self) -> Instant {
        self.pause.last_tick
    }

    /// Notes that the node runs, or has it learn what has happened if it was paused.
    pub fn notice_pause(&mut self, now: Now) {
        match was_paused(self.pause.last_tick, now.instant) {
            false => self.pause.last_tick = now.instant,
            true if self.pause.catching_up.is_none() => {
                let step = self.read_newest();
                self.pause.catching_up = Some((step, now.instant + CATCH_UP));
                self.on_paused(now);
            }
            true => {}
        }
    }

    fn read_newest(&mut self) -> Step {
        let read = writes(RequestOp::get(self.keys.cluster()));
        Step::Reading(self.call(Caller::Pause, Call::Txn(read)))
    }

    pub(super) fn on_pause_answer(
        &mut self,
        id: CallId,
        answer: &Result<EtcdAnswer, EtcdError>,
        now: Now,
    ) {
        let Some((step @ Step::Reading(_), _)) = &mut self.pause.catching_up else {
            return;
        };
        if !matches!(step, Step::Reading(sent) if *sent == id) {
            return;
        }
        match answer {
            Ok(answer) => {
                *step = Step::Awaiting(answer.revision());
                self.on_known_again();
                self.request_progress();
                self.pause_on_reached(now);
            }
            Err(_) => *step = Step::Retrying(now.instant + RETRY),
        }
    }

    /// The watch may have reported all that is awaited.
    pub(super) fn pause_on_reached(&mut self, now: Now) {
        if let Some((Step::Awaiting(newest), _)) = &self.pause.catching_up
            && self.reached() >= *newest
        {
            self.end_pause(now);
        }
    }

    pub(super) fn pause_on_time(&mut self, now: Now) {
        let Some((step, until)) = &self.pause.catching_up else {
            return;
        };
        if now.instant >= *until {
            self.log(LogLine::NotCaughtUp);
            self.end_pause(now);
        } else if matches!(step, Step::Retrying(at) if now.instant >= *at) {
            let until = *until;
            let step = self.read_newest();
            self.pause.catching_up = Some((step, until));
        }
    }

    fn end_pause(&mut self, now: Now) {
        self.pause.catching_up = None;
        self.pause.last_tick = now.instant;
        self.output(Output::CaughtUp);
    }
}
