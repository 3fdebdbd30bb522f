//! Calls of etcd and the watch, as the client of etcd makes them: each at one member, with a time-out.

use std::time::Duration;

use tunnel_directory::shared::{Call, CallId, EtcdAnswer, WatchId};
use tunnel_etcd::{EtcdError, WatchReport};

use super::{
    super::{Event, World, names::Address},
    Process,
};
use crate::etcd;

/// Time for one call of etcd: that of the server's settings. A read of a range has more.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
const RANGE_TIMEOUT: Duration = Duration::from_secs(10);

impl World {
    pub(super) fn way_to_etcd(&mut self) -> Duration {
        self.within(2) + self.etcd_delay / 2
    }

    fn is_cut_from_etcd(&self, node: usize) -> bool {
        self.cut_from_etcd.contains(&node)
    }

    pub(super) fn process(&mut self, at: Address) -> Option<&mut Process> {
        let node = &mut self.nodes[at.node];
        node.process.as_mut().filter(|_| node.run == at.run)
    }

    pub(super) fn call(&mut self, at: Address, id: CallId, call: Call) {
        let Some(process) = self.process(at) else {
            return;
        };
        let member = process.preferred;
        process.calls.insert(id, member);
        let timeout = match call {
            Call::Range(_) => RANGE_TIMEOUT,
            Call::Txn(_) | Call::Grant(_) | Call::KeepAlive(_) | Call::Revoke(_) => CALL_TIMEOUT,
        };
        self.after(timeout, Event::CallTimesOut(at, id));
        if !self.is_cut_from_etcd(at.node) {
            let delay = self.way_to_etcd();
            self.after(delay, Event::CallArrives(at, id, member, call));
        }
    }

    /// A call has reached its member. It does so also when the process that has sent it has ended meanwhile.
    pub(crate) fn on_call(&mut self, at: Address, id: CallId, member: usize, call: Call) {
        let outcome = self.etcd.call(member, &call, self.now);
        let answer = match outcome {
            etcd::Outcome::Answered(answer) => answer,
            etcd::Outcome::Silent => return,
            etcd::Outcome::Frozen => {
                self.frozen.push(Event::CallArrives(at, id, member, call));
                return;
            }
        };
        self.poll_watches();
        if self.is_cut_from_etcd(at.node) {
            return;
        }
        let delay = self.way_to_etcd();
        self.after(delay, Event::CallAnswered(at, id, answer));
    }

    pub(crate) fn on_call_answer(
        &mut self,
        at: Address,
        id: CallId,
        answer: Result<EtcdAnswer, EtcdError>,
    ) {
        let members = self.etcd.members();
        let Some(process) = self.process(at) else {
            return;
        };
        let Some(member) = process.calls.remove(&id) else {
            return;
        };
        // As the client of etcd does: after a failure of the member the next call goes to the next one.
        if answer.as_ref().is_err_and(EtcdError::is_of_member) && process.preferred == member {
            process.preferred = (member + 1) % members;
        }
        self.input(at, |directory, now| directory.on_answer(id, answer, now));
    }

    pub(crate) fn on_call_timeout(&mut self, at: Address, id: CallId) {
        let member = "http://etcd".to_owned();
        self.on_call_answer(at, id, Err(EtcdError::TimedOut { member }));
    }

    pub(super) fn watch(&mut self, at: Address, id: WatchId, member: usize, start: i64) {
        let members = self.etcd.members();
        let Some(process) = self.process(at) else {
            return;
        };
        let member = (process.preferred + member) % members;
        let earlier = process.watch.replace((id, None));
        if let Some((_, Some(earlier))) = earlier {
            self.etcd.end_watch(earlier);
        }
        match self.is_cut_from_etcd(at.node) {
            true => {
                let error = EtcdError::TimedOut {
                    member: "http://etcd".to_owned(),
                };
                self.after(CALL_TIMEOUT, Event::WatchEnded(at, id, error));
            }
            false => {
                let delay = self.way_to_etcd();
                self.after(delay, Event::WatchBegins(at, id, member, start));
            }
        }
    }

    pub(crate) fn on_watch_begin(&mut self, at: Address, id: WatchId, member: usize, start: i64) {
        let begun = self.etcd.watch(member, start);
        let Some(process) = self.process(at) else {
            return;
        };
        let Some((_, watch)) = process.watch.as_mut().filter(|(current, _)| *current == id) else {
            return;
        };
        match begun {
            Ok(Some(begun)) => {
                *watch = Some(begun);
                let delay = self.way_to_etcd();
                self.after(delay, Event::WatchPolled(at, id));
            }
            Ok(None) => {
                let error = EtcdError::TimedOut {
                    member: "http://etcd".to_owned(),
                };
                self.after(CALL_TIMEOUT, Event::WatchEnded(at, id, error));
            }
            Err(error) => {
                let delay = self.way_to_etcd();
                self.after(delay, Event::WatchEnded(at, id, error));
            }
        }
    }

    /// etcd may have changed: all watches are polled after the way of their reports.
    pub(crate) fn poll_watches(&mut self) {
        for node in 0..self.nodes.len() {
            let at = self.address(node);
            let process = self.process(at);
            if let Some((id, Some(_))) = process.and_then(|process| process.watch) {
                let delay = self.way_to_etcd();
                self.after(delay, Event::WatchPolled(at, id));
            }
        }
    }

    fn watched(&mut self, at: Address, id: WatchId) -> Option<etcd::WatchId> {
        let (current, watch) = self.process(at)?.watch?;
        watch.filter(|_| current == id)
    }

    pub(crate) fn on_watch_poll(&mut self, at: Address, id: WatchId) {
        let Some(watch) = self.watched(at, id) else {
            return;
        };
        if self.is_cut_from_etcd(at.node) {
            // The connection carries it when the way is there again, if it lives until then.
            let delay = self.within(200);
            self.after(delay, Event::WatchPolled(at, id));
            return;
        }
        match self.etcd.report(watch) {
            Ok(Some(report)) => {
                self.input(at, |directory, now| {
                    directory.on_watch_report(id, report, now)
                });
            }
            Ok(None) => {}
            Err(error) => self.on_watch_end(at, id, error),
        }
    }

    pub(crate) fn on_watch_end(&mut self, at: Address, id: WatchId, error: EtcdError) {
        self.end_watch(at, id);
        self.input(at, |directory, now| {
            directory.on_watch_ended(id, error, now)
        });
    }

    pub(super) fn end_watch(&mut self, at: Address, id: WatchId) {
        if let Some(watch) = self.watched(at, id) {
            self.etcd.end_watch(watch);
        }
        if let Some(process) = self.process(at) {
            process.watch.take_if(|(current, _)| *current == id);
        }
    }

    pub(crate) fn on_progress_asked(&mut self, at: Address, id: WatchId) {
        let Some(watch) = self.watched(at, id) else {
            return;
        };
        if self.is_cut_from_etcd(at.node) {
            return;
        }
        if let Some(report @ WatchReport::Alive { .. }) = self.etcd.progress(watch) {
            let delay = self.way_to_etcd();
            self.after(delay, Event::ProgressAnswered(at, id, report));
        }
    }
}
