//! Sessions: they claim their runtime, are superseded, move when their node leaves, and end.

use std::time::Duration;

use tunnel_directory::{
    Claim, ClaimRefusal, RuntimeLabel,
    shared::{ClaimId, ClaimProgress, GrantedClaim},
};
use tunnel_proto::handshake::InstanceId;

use super::{
    super::{
        Event, World,
        names::{Address, DialId, DialResult, Heal, SessionEnd, SessionId},
    },
    Session,
};

impl World {
    /// A session that has passed the checks before it wants the runtime.
    pub(crate) fn claim(&mut self, at: Address, dial: DialId) {
        let id = ClaimId(self.next_id());
        let Some(client) = self.client_of(dial) else {
            return;
        };
        let (runtime, instance) = (client.runtime.clone(), client.instance.clone());
        let on_conflict = client.on_conflict();
        let progress = self.input(at, |directory, now| {
            directory.claim(id, runtime.claimant(&instance, on_conflict), now)
        });
        match progress {
            Some(ClaimProgress::Answered(answer)) => self.on_answer(at, dial, &instance, answer),
            Some(ClaimProgress::Pending) => {
                if let Some(process) = self.process(at) {
                    process.pending.insert(id, (dial, instance));
                }
            }
            None => {}
        }
    }

    pub(super) fn on_claim_answer(
        &mut self,
        at: Address,
        id: ClaimId,
        answer: Result<GrantedClaim, ClaimRefusal>,
    ) {
        let pending = self
            .process(at)
            .and_then(|process| process.pending.remove(&id));
        if let Some((dial, instance)) = pending {
            self.on_answer(at, dial, &instance, answer);
        }
    }

    fn on_answer(
        &mut self,
        at: Address,
        dial: DialId,
        instance: &InstanceId,
        answer: Result<GrantedClaim, ClaimRefusal>,
    ) {
        let granted = match answer {
            Ok(granted) => granted,
            Err(refusal) => {
                self.history.on_refused(instance, self.now);
                let delay = self.within(10);
                let result = match refusal {
                    ClaimRefusal::Superseded { .. } => DialResult::Superseded,
                    refusal => DialResult::Refused(refusal),
                };
                self.after(delay, Event::DialEnds(dial, result));
                return;
            }
        };
        self.history.on_granted(instance, self.now);
        let runtime = self.clients[dial.client].runtime.clone();
        let Some(process) = self.process(at) else {
            return;
        };
        let newer = process
            .directory
            .newer(&granted.label, &runtime.account, &granted.claim);
        let here = process
            .sessions
            .values()
            .filter(|session| session.label == granted.label);
        let is_older = here
            .clone()
            .any(|session| session.instance != *instance && session.epoch > granted.claim.epoch);
        if newer.is_some() || is_older {
            self.input(at, |directory, now| {
                directory.on_release(&granted.label, granted.serial, now);
            });
            let delay = self.within(10);
            self.after(delay, Event::DialEnds(dial, DialResult::Superseded));
            return;
        }
        let id = SessionId(self.next_id());
        let session = Session {
            dial,
            instance: instance.clone(),
            label: granted.label.clone(),
            account: runtime.account,
            epoch: granted.claim.epoch,
            serial: granted.serial,
            since: self.now,
            is_draining: false,
            is_moving: false,
        };
        if let Some(process) = self.process(at) {
            process.sessions.insert(id, session);
        }
        self.supersede(at, &granted.label, &granted.claim);
        let delay = self.within(10);
        self.after(delay, Event::DialEnds(dial, DialResult::Welcome(at, id)));
    }

    pub(super) fn on_newer_claim(&mut self, at: Address, label: &RuntimeLabel, claim: &Claim) {
        self.history_on_newer(at, label, claim);
        self.supersede(at, label, claim);
    }

    /// Sessions of other instances take nothing new, and end; those of the claim's go on by it.
    fn supersede(&mut self, at: Address, label: &RuntimeLabel, claim: &Claim) {
        let Some(process) = self.process(at) else {
            return;
        };
        let mut over = Vec::new();
        for (id, session) in &mut process.sessions {
            if session.label != *label {
                continue;
            }
            if session.instance == claim.instance {
                session.epoch = session.epoch.max(claim.epoch);
            } else if !session.is_draining && session.epoch <= claim.epoch {
                session.is_draining = true;
                over.push((*id, session.dial));
            }
        }
        for (id, dial) in over {
            let delay = self.within(50);
            self.after(delay, Event::SessionEnded(dial, SessionEnd::Superseded));
            let delay = self.within(1_000);
            self.after(delay, Event::SessionEnds(at, id));
        }
    }

    /// A runtime was online until now, as far as a process notices.
    pub(super) fn note_online(&mut self, at: Address, label: &RuntimeLabel) {
        let now = self.now;
        if let Some(process) = self.process(at) {
            process.last_online.insert(label.clone(), now);
        }
    }

    /// Whether a session is there and takes exchanges.
    pub(crate) fn is_open(&mut self, at: Address, id: SessionId) -> bool {
        let session = self
            .process(at)
            .and_then(|process| process.sessions.get(&id));
        session.is_some_and(|session| !session.is_draining)
    }

    /// The session's connection is over.
    pub(crate) fn end_session(&mut self, at: Address, id: SessionId) {
        let ended = self
            .process(at)
            .and_then(|process| process.sessions.remove(&id));
        if let Some(session) = ended {
            self.note_online(at, &session.label);
            let delay = self.within(20);
            self.after(delay, Event::SessionEnded(session.dial, SessionEnd::Lost));
            self.input(at, |directory, now| {
                directory.on_release(&session.label, session.serial, now);
            });
        }
    }

    /// The node leaves: its sessions are moved, then it removes what it has written.
    pub(crate) fn drain_node(&mut self, number: usize) {
        let at = self.address(number);
        let Some(process) = self.process(at) else {
            return;
        };
        process.is_leaving = true;
        let sessions: Vec<_> = process
            .sessions
            .iter_mut()
            .map(|(id, session)| {
                session.is_draining = true;
                (*id, session.clone())
            })
            .collect();
        self.input(at, |directory, now| directory.leave(now));
        for (id, session) in sessions {
            let delay = self.within(1_000);
            self.after(
                delay,
                Event::SessionEnded(session.dial, SessionEnd::Drained),
            );
            let more = self.within(1_000);
            self.after(delay + more, Event::SessionEnds(at, id));
            self.input(at, |directory, now| {
                directory.on_leave(&session.label, session.serial, now);
            });
        }
        self.after(Duration::from_millis(2_500), Event::Heal(Heal::Depart(at)));
    }
}
