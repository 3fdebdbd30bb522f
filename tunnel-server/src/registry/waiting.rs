//! The session for the next exchange of a runtime, and waiting for one.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};
use tunnel_directory::UnreachedRuntime;
use tunnel_proto::{problem::Problem, session::Session};

use super::Slot;
use crate::{budget::usage::Usage, directory::EtcdDirectory, tunnel::Tunnel};

impl Slot {
    /// The tunnel and the session that takes the next exchange, if the runtime has one that is not silent.
    #[must_use]
    pub fn online(&self) -> Option<(Arc<Tunnel>, Session)> {
        let tunnel = self.tunnel()?;
        let session = tunnel.session()?;
        Some((tunnel, session))
    }

    /// The tunnel and a session that takes exchanges, silent or not.
    pub(crate) fn last_resort(&self) -> Option<(Arc<Tunnel>, Session)> {
        let tunnel = self.tunnel()?;
        let session = tunnel.last_resort()?;
        Some((tunnel, session))
    }

    /// Waits up to `wait` for what `find` looks for, in a runtime that is awaited ([`UnreachedRuntime`]): it is called whenever a session joins or recovers, another node has come to hold the runtime, or a link to
    /// another node has opened. After that time `last_resort` finds a silent session, if there is one, since that may
    /// recover. `weight` is the caller's memory in bytes while it waits, computed only then; it counts for the address of
    /// `usage`.
    ///
    /// # Errors
    /// When too many requests wait already, or hold too much memory, and there is no last resort.
    pub(crate) async fn found_within<T>(
        &self,
        wait: Duration,
        usage: Option<&Arc<Usage>>,
        weight: impl FnOnce() -> usize,
        find: impl Fn() -> Option<T>,
        last_resort: impl Fn() -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        if wait.is_zero() || !self.unreached().is_awaited(Instant::now().into_std()) {
            return Ok(last_resort());
        }
        let _waiting = match self.budget.wait(weight(), usage) {
            Ok(waiting) => waiting,
            Err(full) => return last_resort().map(Some).ok_or(full),
        };
        let found = self.joined_within(wait, find).await;
        Ok(found.or_else(last_resort))
    }

    /// What this node knows of the runtime, of which it reaches no session.
    fn unreached(&self) -> UnreachedRuntime {
        let holders = |directory: &Arc<EtcdDirectory>| directory.holders(self.label.as_str());
        let is_held_elsewhere = self.shared.as_ref().and_then(holders).is_some();
        let state = self.state.lock();
        UnreachedRuntime {
            has_tunnel: state.tunnel.is_some(),
            is_held_elsewhere,
            last_online: state.last_online.into_std(),
        }
    }

    /// Waits up to `wait` for what `find` looks for: it is called whenever a session joins or recovers, another node has come
    /// to hold the runtime, or a link to another node has opened.
    pub(crate) async fn joined_within<T>(
        &self,
        wait: Duration,
        find: impl Fn() -> Option<T>,
    ) -> Option<T> {
        timeout(wait, self.found(find)).await.ok()
    }

    /// Waits for what `find` looks for, as [`Self::joined_within`] does.
    async fn found<T>(&self, find: impl Fn() -> Option<T>) -> T {
        loop {
            let (joined, linked) = (self.joined.notified(), self.linked.notified());
            if let Some(found) = find() {
                return found;
            }
            tokio::select! {
                () = joined => {}
                () = linked => {}
            }
        }
    }

    /// Resolves when this session of the tunnel is silent, and another one is not: one of the tunnel, or one of another
    /// node, as `is_elsewhere` finds.
    pub(crate) async fn better_than(
        &self,
        tunnel: &Tunnel,
        session: &Session,
        is_elsewhere: impl Fn() -> bool,
    ) {
        session.silence_changed(false).await;
        tokio::select! {
            () = tunnel.better_than(session) => {}
            () = self.found(|| is_elsewhere().then_some(())) => {}
        }
    }

    /// Waits up to `wait` for a session of this node.
    #[cfg(test)]
    pub(crate) async fn online_within(
        &self,
        wait: Duration,
        usage: Option<&Arc<Usage>>,
        weight: impl FnOnce() -> usize,
    ) -> Result<Option<(Arc<Tunnel>, Session)>, Problem> {
        let (find, last_resort) = (|| self.online(), || self.last_resort());
        self.found_within(wait, usage, weight, find, last_resort)
            .await
    }
}
