//! What a registry hands to the process that takes its server's listeners over: who holds which runtime.

use std::sync::{Arc, atomic::Ordering};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tunnel_directory::{AccountName, HANDOVER_GRACE, HandedClaim, RuntimeLabel, RuntimeName};

use super::{Registry, Slot};
use crate::{
    events::{Event, EventKind},
    runtimes::{RuntimeEntry, RuntimeLimits},
    tunnel::{Directive, Tunnel},
};

/// What one process hands to the next.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct HandedRuntimes {
    /// Those that instances hold.
    runtimes: Vec<HandedRuntime>,
    /// Those that nobody holds, and whose labels no other runtime is to get. An earlier version hands none over.
    #[serde(default)]
    offline: Vec<HandedName>,
}

/// A runtime that an instance holds.
#[derive(Debug, Serialize, Deserialize)]
struct HandedRuntime {
    #[serde(flatten)]
    name: HandedName,
    claim: HandedClaim,
}

/// Whose a label is.
#[derive(Debug, Serialize, Deserialize)]
struct HandedName {
    account: String,
    runtime: String,
}

impl HandedName {
    fn parse(&self) -> Option<(AccountName, RuntimeName, RuntimeLabel)> {
        let (account, name) = (self.account.parse().ok()?, self.runtime.parse().ok()?);
        let label = RuntimeLabel::new(&account, &name).ok()?;
        Some((account, name, label))
    }
}

impl Registry {
    /// Hands over the runtimes that are held. From now on the other process says which runtimes are online and offline:
    /// sessions end here because they move there.
    pub(crate) fn hand_over(&self) -> HandedRuntimes {
        let mut handed = HandedRuntimes::default();
        for (account, name, claim) in self.directory.handed() {
            let name = HandedName {
                account: account.to_string(),
                runtime: name.to_string(),
            };
            match claim {
                Some(claim) => handed.runtimes.push(HandedRuntime { name, claim }),
                None => handed.offline.push(name),
            }
        }
        // After it: one that went offline in between is reported here, and again there if its client does not come back. One
        // that came online in between is reported here, and not expected there.
        self.is_handed.store(true, Ordering::Relaxed);
        handed
    }

    /// Takes the runtimes back that were handed over, since the other process does not serve.
    pub(crate) fn take_back(&self) {
        self.is_handed.store(false, Ordering::Relaxed);
    }

    /// Gives a directive to all sessions. Returns their number.
    pub(crate) fn direct_all(&self, directive: &Directive) -> usize {
        let slots = self.slots();
        let tunnels = slots.iter().filter_map(|slot| slot.tunnel());
        tunnels.map(|tunnel| tunnel.direct(directive.clone())).sum()
    }

    /// Takes over runtimes that are held at another process, whose clients are about to come, and the owners of labels. Also a
    /// runtime that only a credential has named is known from now on, so that its requests wait for its client.
    pub(crate) fn expect(&self, handed: HandedRuntimes) {
        for HandedRuntime { name, claim } in handed.runtimes {
            let Some((account, name, label)) = name.parse() else {
                continue;
            };
            let entry = Arc::new(RuntimeEntry {
                account,
                name,
                label: label.clone(),
                hosts: Vec::new(),
                limits: RuntimeLimits::default(),
                allow_from: None,
            });
            let slot = self.slot_of(&mut self.slots.write(), &entry);
            slot.state.lock().expected_until = Some(Instant::now() + HANDOVER_GRACE);
            self.directory.take_over(label, &entry.account, Some(claim));
        }
        let offline = handed.offline.iter().filter_map(HandedName::parse);
        for (account, _, label) in offline {
            self.directory.take_over(label, &account, None);
        }
    }

    /// The number of runtimes that are expected and have not come yet.
    pub(crate) fn expected(&self) -> usize {
        let now = Instant::now();
        let is_expected = |slot: &&Arc<Slot>| {
            let until = slot.state.lock().expected_until;
            until.is_some_and(|until| now < until)
        };
        self.slots.read().values().filter(is_expected).count()
    }

    /// Reports that a runtime has a new tunnel. One that comes while all move to another process is reported there, if it moves
    /// too. One that was taken from another instance is logged: two clients of one runtime are mostly a mistake.
    pub(super) fn report_tunnel(&self, label: &RuntimeLabel, older: Option<&Tunnel>) {
        if let Some(older) = older {
            let from = &older.claim().instance;
            tracing::warn!(
                runtime = %label,
                %from,
                "another instance has taken the runtime over: a runtime has one tunnel client, stop one of them unless it \
                 was replaced on purpose"
            );
            let superseded = Event::of(EventKind::Superseded, label);
            self.events
                .report(superseded.detail(format!("instance {from}")));
        } else if !self.is_handed.load(Ordering::Relaxed) {
            self.events.report(Event::of(EventKind::Online, label));
        }
    }

    /// Reports that a runtime has lost its last session, unless it moves to another process.
    pub(super) fn report_offline(&self, label: &RuntimeLabel) {
        if !self.is_handed.load(Ordering::Relaxed) {
            self.events.report(Event::of(EventKind::Offline, label));
        }
    }

    /// Reports runtimes as offline that were expected and have not come in time, unless they are expected at another process
    /// by now.
    pub(super) fn report_missing(&self, now: Instant) {
        if self.is_handed.load(Ordering::Relaxed) {
            return;
        }
        for slot in self.slots.read().values() {
            let missing = slot
                .state
                .lock()
                .expected_until
                .take_if(|until| *until < now);
            if missing.is_some() {
                let offline = Event::of(EventKind::Offline, &slot.label);
                self.events
                    .report(offline.detail("its client has not moved to the server's new process"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::time::advance;
    use tunnel_directory::ClaimRefusal;

    use super::*;
    use crate::{
        events::Reader,
        registry::{
            JoinRefusal,
            tests::{join, join_as, registry, unlisted_registry},
        },
    };

    fn kinds(reader: &mut Reader) -> Vec<EventKind> {
        let events = reader.next().now_or_never();
        let events = events.map_or_else(Vec::new, Result::unwrap);
        events.iter().map(|event| event.kind).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_moves_to_another_process_is_offline_at_neither() {
        let (older, _slot) = registry();
        let membership = join(&older, 1).await;
        let (newer, _slot) = registry();
        let (mut at_older, mut at_newer) = (older.events.read(), newer.events.read());
        newer.expect(older.hand_over());
        assert_eq!(newer.expected(), 1);
        let _moved = join(&newer, 1).await;
        assert_eq!(newer.expected(), 0);
        drop(membership);
        // A dial that was under way ends at the older process.
        drop(join(&older, 2).await);
        advance(HANDOVER_GRACE * 2).await;
        newer.sweep();
        assert_eq!(kinds(&mut at_older), []);
        assert_eq!(kinds(&mut at_newer), [EventKind::Online]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_is_handed_on_before_it_has_come_is_not_offline_in_between() {
        let (first, _slot) = registry();
        let _membership = join(&first, 1).await;
        let (second, _slot) = registry();
        let (third, _slot) = registry();
        let (mut at_second, mut at_third) = (second.events.read(), third.events.read());
        second.expect(first.hand_over());
        third.expect(second.hand_over());
        let _moved = join(&third, 1).await;
        advance(HANDOVER_GRACE * 2).await;
        second.sweep();
        third.sweep();
        assert_eq!(kinds(&mut at_second), []);
        assert_eq!(kinds(&mut at_third), [EventKind::Online]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_label_belongs_to_its_runtime_at_the_next_process_too() {
        let (older, newer) = (unlisted_registry(), unlisted_registry());
        let (owner, other) = (
            RuntimeEntry::unlisted("a-b", "c"),
            RuntimeEntry::unlisted("a", "b-c"),
        );
        let _membership = join_as(&older, &owner, 1).await.unwrap();
        newer.expect(older.hand_over());
        let refused = async || join_as(&newer, &other, 2).await.err();
        assert!(matches!(
            refused().await,
            Some(JoinRefusal::Claim(ClaimRefusal::LabelTaken(_)))
        ));
        advance(2 * HANDOVER_GRACE).await;
        newer.sweep();
        assert!(refused().await.is_some(), "its client comes late");
        let third = unlisted_registry();
        third.expect(newer.hand_over());
        assert!(
            join_as(&third, &other, 2).await.is_err(),
            "it is offline at the upgrade"
        );
        assert!(join_as(&newer, &owner, 1).await.is_ok());
        newer.list(&other);
        assert!(join_as(&newer, &owner, 1).await.is_err());
        assert!(join_as(&newer, &other, 2).await.is_ok(), "it is listed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_does_not_come_in_time_is_offline() {
        let (older, _slot) = registry();
        let _membership = join(&older, 1).await;
        let (newer, _slot) = registry();
        let mut events = newer.events.read();
        newer.expect(older.hand_over());
        advance(HANDOVER_GRACE).await;
        newer.sweep();
        assert_eq!(kinds(&mut events), []);
        advance(HANDOVER_GRACE).await;
        newer.sweep();
        newer.sweep();
        assert_eq!(kinds(&mut events), [EventKind::Offline]);
    }
}
