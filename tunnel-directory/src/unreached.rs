//! What becomes of a request for a runtime of which this node reaches no session now: whether it waits, or fails at once.
//!
//! ```text
//!   a session here, or a link to a node that holds the runtime ─▶ sent at once
//!   sessions here that are silent or leave                     ─▶ waits: its client is about to have others
//!   another node holds it, and no link leads there             ─▶ waits: the link, or the client, is about to come back
//!   online within the last minute                              ─▶ waits: the client is about to come back
//!   else                                                       ─▶ fails at once
//! ```

use std::time::{Duration, Instant};

/// How long after its last session a runtime is expected to come back, so that requests wait for it.
pub const RETURN_WINDOW: Duration = Duration::from_secs(60);

/// What a node knows of a runtime of which it reaches no session now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreachedRuntime {
    /// This node has sessions of it, which are silent or leave.
    pub has_tunnel: bool,
    /// The directory says that another node holds it.
    pub is_held_elsewhere: bool,
    /// When it was last online, as far as this node has noticed; initially when it became known here.
    pub last_online: Instant,
}

impl UnreachedRuntime {
    /// Whether requests wait for it.
    #[must_use]
    pub fn is_awaited(&self, now: Instant) -> bool {
        self.has_tunnel || self.is_held_elsewhere || self.last_online + RETURN_WINDOW >= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::start;

    #[test]
    fn requests_wait_for_what_is_held_or_was_online_lately() {
        let last_online = start();
        let long_after = last_online + 2 * RETURN_WINDOW;
        let gone = UnreachedRuntime {
            has_tunnel: false,
            is_held_elsewhere: false,
            last_online,
        };
        assert!(gone.is_awaited(last_online + RETURN_WINDOW));
        assert!(!gone.is_awaited(long_after));
        let leaving = UnreachedRuntime {
            has_tunnel: true,
            ..gone
        };
        let held = UnreachedRuntime {
            is_held_elsewhere: true,
            ..gone
        };
        assert!(leaving.is_awaited(long_after) && held.is_awaited(long_after));
    }
}
