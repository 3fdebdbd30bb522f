//! Decides which of the configured servers is dialled next, and when.
//!
//! Pure: each server has waits of its own, so that one that fails is left for the next. Of those that may
//! be dialled, the one with the fewest sessions of this client comes first, so that its sessions are at different servers.

use tokio::time::Instant;

use super::{NextDial, Redial, RedialSettings};

/// The waits of all servers, in the order of the configuration.
#[derive(Debug)]
pub struct Servers {
    redials: Vec<Redial>,
    /// The first of equals: the server after the last one that was dialled.
    first: usize,
}

impl Servers {
    /// `count` servers without failures. `random` decides which is dialled first.
    #[must_use]
    pub fn new(count: usize, settings: &RedialSettings, random: u64) -> Self {
        let count = count.max(1);
        Self {
            redials: (0..count).map(|_| Redial::new(settings.clone())).collect(),
            first: usize::try_from(random % count as u64).unwrap_or(0),
        }
    }

    /// The next server, and when it is dialled. `load` is a server's number of sessions. Those that are in `elsewhere` have
    /// just refused for it, and are dialled last.
    #[must_use]
    pub fn next(
        &self,
        now: Instant,
        load: impl Fn(usize) -> usize,
        elsewhere: &[usize],
    ) -> (usize, NextDial) {
        let count = self.redials.len();
        let order = (0..count).map(|turn| (self.first + turn) % count);
        // A short wait after a session that was lost is no reason to have two sessions at one server; a failed dial is.
        let fails_until = |server: usize| match self.redials[server].next_dial(now) {
            NextDial::At(at) | NextDial::NotBefore(at) if self.redials[server].is_failing() => {
                Some(at)
            }
            _ => None,
        };
        let rank = |server: &usize| {
            let has_refused = elsewhere.contains(server);
            (fails_until(*server), has_refused, load(*server))
        };
        let server = order.min_by_key(rank).unwrap_or_default();
        (server, self.redials[server].next_dial(now))
    }

    /// A server is dialled.
    pub fn on_dial(&mut self, server: usize) {
        self.first = server + 1;
    }

    /// The waits of one server.
    pub fn of(&mut self, server: usize) -> &mut Redial {
        let last = self.redials.len() - 1;
        &mut self.redials[server.min(last)]
    }

    /// The waits of all servers.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Redial> {
        self.redials.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{close::CloseReason, redial::NoSession};

    const SECOND: Duration = Duration::from_secs(1);
    const LARGEST: u64 = u64::MAX;

    fn servers(count: usize) -> (Servers, Instant) {
        let settings = RedialSettings {
            base: SECOND,
            cap: 30 * SECOND,
            stable: 60 * SECOND,
        };
        (Servers::new(count, &settings, 0), Instant::now())
    }

    #[test]
    fn each_server_has_its_turn_and_the_one_with_fewest_sessions_comes_first() {
        let (mut servers, now) = servers(3);
        for server in [0, 1, 2, 0] {
            assert_eq!(servers.next(now, |_| 0, &[]), (server, NextDial::Now));
            servers.on_dial(server);
        }
        let sessions = [1, 1, 0];
        assert_eq!(servers.next(now, |server| sessions[server], &[]).0, 2);
        assert_eq!(servers.next(now, |server| sessions[server], &[2]).0, 1);
    }

    #[test]
    fn a_failing_server_is_left_for_the_next_until_all_fail() {
        let (mut servers, now) = servers(2);
        servers
            .of(0)
            .after_failure(NoSession::Refused(None), now, LARGEST);
        // Although there is a session already.
        assert_eq!(servers.next(now, |server| server, &[]), (1, NextDial::Now));
        servers
            .of(1)
            .after_failure(NoSession::Refused(None), now, LARGEST);
        servers
            .of(1)
            .after_failure(NoSession::Refused(None), now, LARGEST);
        assert_eq!(
            servers.next(now, |_| 0, &[]),
            (0, NextDial::At(now + SECOND))
        );
    }

    #[test]
    fn a_lost_session_is_dialled_where_it_was_if_the_other_server_has_one() {
        let (mut servers, now) = servers(2);
        let lived = 100 * SECOND;
        let reason = CloseReason::Drained;
        servers.of(0).after_session(reason, lived, now, LARGEST);
        assert_eq!(
            servers.next(now, |server| server, &[]),
            (0, NextDial::At(now + SECOND / 4))
        );
    }
}
