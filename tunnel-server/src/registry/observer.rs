//! Acts on changes of a shared directory that concern runtimes of this node.

use tokio::time::Instant;
use tunnel_directory::{Claim, RuntimeLabel};

use super::Registry;
use crate::{directory::Observer, tunnel::Directive};

/// What other nodes do to the runtimes of this one.
impl Observer for Registry {
    fn on_claim(&self, label: &RuntimeLabel, claim: &Claim) {
        let Some(slot) = self.slot(label.as_str()) else {
            return;
        };
        let mut state = slot.state.lock();
        if state.newest >= Some(claim.epoch) {
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
