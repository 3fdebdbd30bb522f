//! Acts on changes of a shared directory that concern runtimes of this node.

use std::{cmp::Ordering, sync::Arc};

use tokio::time::Instant;
use tunnel_directory::{Claim, RuntimeLabel};

use super::Registry;
use crate::{
    directory::Observer,
    tunnel::{Directive, Tunnel},
};

/// What other nodes do to the runtimes of this one.
impl Observer for Registry {
    fn on_claim(&self, label: &RuntimeLabel, claim: &Claim) {
        let Some(slot) = self.slot(label.as_str()) else {
            return;
        };
        let mut state = slot.state.lock();
        // Of one epoch are the claim and what was given provisionally, which gives way.
        let is_other = |tunnel: &Arc<Tunnel>| tunnel.claim().instance != claim.instance;
        let is_news = match state.newest.cmp(&Some(claim.epoch)) {
            Ordering::Less => true,
            Ordering::Equal => state.tunnel.as_ref().is_some_and(is_other),
            Ordering::Greater => false,
        };
        if !is_news {
            return;
        }
        state.newest = Some(claim.epoch);
        let Some(tunnel) = &state.tunnel else {
            return;
        };
        if tunnel.is_superseded() {
            return;
        }
        if tunnel.claim().instance == claim.instance {
            tunnel.adopt(claim.epoch);
            return;
        }
        // It stays in the slot until its last session has ended, and takes nothing new.
        tunnel.direct(Directive::Superseded {
            by: claim.instance.clone(),
        });
        self.metrics.takeovers.inc();
        let older = tunnel.clone();
        drop(state);
        self.report_tunnel(&slot.label, Some(&older));
    }

    fn on_change(&self, label: &RuntimeLabel) {
        if let Some(slot) = self.slot(label.as_str()) {
            // Requests wait for it as for a runtime whose last session was here.
            slot.state.lock().last_online = Instant::now();
            slot.joined.notify_waiters();
            self.share_limits(&slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::registry::tests::{instance, join, registry};

    /// What was given without a record, while etcd did not answer this node, has the epoch of the claim that it gives way to.
    #[tokio::test]
    async fn an_instance_gives_way_to_another_one_of_its_epoch() {
        let (registry, slot) = registry();
        let given = join(&registry, 2).await;
        let epoch = given.tunnel().claim().epoch;
        let own = Claim {
            instance: instance(2),
            epoch,
        };
        registry.on_claim(&slot.label, &own);
        assert!(given.directive(0).now_or_never().is_none());
        let returned = Claim {
            instance: instance(1),
            epoch,
        };
        registry.on_claim(&slot.label, &returned);
        let directive = given.directive(0).now_or_never();
        assert!(matches!(directive, Some(Directive::Superseded { by }) if by == instance(1)));
    }
}
