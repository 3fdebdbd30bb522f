//! When the server is told of the routes: once after the welcome, and again when they have changed.
//!
//! Pure: it is shown the routes and the time, and says whether to tell. What changes often is told ever
//! less often, and not without end: a server that does not know this kind of message bears only so many
//! of them in one session.

use std::time::Duration;

use tokio::time::Instant;
use tunnel_proto::control::RoutesSummary;

/// Time between two looks at the routes.
pub(super) const LOOK: Duration = Duration::from_secs(5);
/// Longest time between two messages; the shortest is that between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
/// Messages in one session: fewer than the unknown ones that end it.
const MESSAGES: u32 = 200;

/// What one session has told.
pub(super) struct Telling {
    told: Option<RoutesSummary>,
    /// When the next one may be.
    next_at: Instant,
    pause: Duration,
    left: u32,
}

impl Telling {
    /// Nothing is told yet.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            told: None,
            next_at: now,
            pause: LOOK,
            left: MESSAGES,
        }
    }

    /// Whether there may be something to tell, so that the routes are to be looked at.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.left > 0 && now >= self.next_at
    }

    /// These are the routes now. What to tell.
    pub(super) fn look(&mut self, routes: RoutesSummary, now: Instant) -> Option<RoutesSummary> {
        if self.told.as_ref() == Some(&routes) {
            if now >= self.next_at + LONGEST_PAUSE {
                self.pause = LOOK;
            }
            return None;
        }
        self.left -= 1;
        self.next_at = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.told = Some(routes.clone());
        Some(routes)
    }
}

#[cfg(test)]
mod tests {
    use tunnel_proto::control::{RouteState, RouteSummary};

    use super::*;

    fn routes(state: RouteState) -> RoutesSummary {
        RoutesSummary::new(vec![RouteSummary {
            name: "a".to_owned(),
            matches: String::new(),
            to: String::new(),
            state,
        }])
    }

    #[test]
    fn what_changes_at_every_look_is_told_ever_less_often_and_not_for_ever() {
        let start = Instant::now();
        let mut telling = Telling::new(start);
        let mut told = Vec::new();
        for look in 0..100_000_u32 {
            let now = start + LOOK * look;
            // Another state than the one that was told last.
            let state = [RouteState::Up, RouteState::Down][told.len() % 2];
            if telling.is_due(now) && telling.look(routes(state), now).is_some() {
                told.push(look);
            }
        }
        assert_eq!(told[..4], [0, 1, 3, 7]);
        assert_eq!(told.len(), MESSAGES as usize);
        assert!(told[100] - told[99] >= 60, "five minutes");
    }

    #[test]
    fn what_does_not_change_is_told_once_and_a_late_change_at_once() {
        let start = Instant::now();
        let mut telling = Telling::new(start);
        assert!(telling.look(routes(RouteState::Up), start).is_some());
        for look in 1..200 {
            let now = start + LOOK * look;
            assert!(telling.is_due(now));
            assert_eq!(telling.look(routes(RouteState::Up), now), None);
        }
        let late = start + LOOK * 200;
        assert!(telling.look(routes(RouteState::Down), late).is_some());
        assert!(telling.is_due(late + LOOK), "the pause has begun anew");
    }
}
