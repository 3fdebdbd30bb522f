//! Drains the sessions that a slot no longer uses, until they have ended.
//!
//! ```text
//!   drained by the server ── moved ─▶ stands until the server ends it ──────────┐
//!   replaced by choice ───── drain ─▶ stands until its exchanges have ended ────┼─▶ ended
//!   begun by a dropped dial ─ welcome, drain ─▶ likewise ───────────────────────┤
//!                any of them, when the tunnel ends: drain, the grace period ────┘
//! ```
//!
//! A replaced session may carry a stream for hours. Nothing waits for its end, so it has no time limit. Their number in
//! the whole tunnel is limited instead, since the server limits the sessions of one instance: the oldest is cut for the
//! next. A leaving session still renews its credential, or the server would end it when the old one expires.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tunnel_proto::limits;

use super::Shared;
use super::starting::SessionStart;
use crate::session::{Event, Session};

/// Most sessions that leave at once, for each session that the tunnel keeps.
const LEAVING_MAX: usize = 4;

/// Time-out of the welcome for a session that is no longer needed. A live server sends it right after the 101.
const WELCOME: Duration = Duration::from_secs(2);

/// The leaving sessions of one slot.
pub(super) struct Leaving {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

/// Limits the leaving sessions of a tunnel.
pub(super) struct LeavingSessions {
    max: usize,
    /// One sender for each leaving session, oldest first. Dropping a sender cuts its session.
    senders: Mutex<VecDeque<oneshot::Sender<()>>>,
}

/// The side that closes a replaced session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClosedBy {
    /// The server, which has drained it.
    Server,
    /// The client, when its exchanges have ended.
    Client,
}

impl LeavingSessions {
    /// Leaves room for `sessions` that are kept and one that is dialled.
    pub(super) fn new(sessions: usize) -> Self {
        let room = limits::SESSIONS.saturating_sub(sessions + 1);
        Self {
            max: room.min(LEAVING_MAX * sessions),
            senders: Mutex::default(),
        }
    }

    fn make_room(&self) {
        let mut senders = self.senders.lock();
        senders.retain(|sender| !sender.is_closed());
        while senders.len() >= self.max && senders.pop_front().is_some() {
            tracing::warn!("too many leaving sessions, cutting the oldest");
        }
    }

    /// Adds a leaving session. The receiver ends when the session has to be cut.
    fn add(&self) -> oneshot::Receiver<()> {
        let (sender, cut) = oneshot::channel();
        self.senders.lock().push_back(sender);
        cut
    }
}

impl Leaving {
    /// Without leaving sessions.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            tasks: JoinSet::new(),
        }
    }

    /// Drains a session that was replaced.
    pub(super) fn replaced(&mut self, session: Session, by: ClosedBy) {
        self.make_room();
        self.drain(session, by);
    }

    /// Drains a session whose dial was dropped, after its welcome.
    pub(super) fn abandoned(&mut self, start: SessionStart) {
        self.make_room();
        self.drain_after_welcome(start);
    }

    /// Drains the remaining sessions of the slot when the tunnel ends, and waits until all have ended.
    pub(super) async fn end(mut self, current: Option<Session>, start: Option<SessionStart>) {
        if let Some(current) = current {
            self.drain(current, ClosedBy::Client);
        }
        if let Some(start) = start {
            self.drain_after_welcome(start);
        }
        while self.tasks.join_next().await.is_some() {}
    }

    fn make_room(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.shared.leaving.make_room();
    }

    fn drain(&mut self, session: Session, by: ClosedBy) {
        let cut = self.shared.leaving.add();
        let shared = Arc::clone(&self.shared);
        let grace = shared.grace_period;
        self.tasks.spawn(drain(session, by, shared, grace, cut));
    }

    fn drain_after_welcome(&mut self, start: SessionStart) {
        let cut = self.shared.leaving.add();
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(drain_after_welcome(start, shared, cut));
    }
}

/// Drains a session and waits for its end. The grace period begins when the tunnel ends.
async fn drain(
    mut session: Session,
    by: ClosedBy,
    shared: Arc<Shared>,
    grace: Duration,
    mut cut: oneshot::Receiver<()>,
) {
    match by {
        ClosedBy::Server => session.send_moved(),
        ClosedBy::Client => session.send_drain(),
    }
    let at_rest = session.at_rest();
    let mut at_rest = pin!(async {
        match by {
            ClosedBy::Server => pending().await,
            ClosedBy::Client => at_rest.await,
        }
    });
    let mut tunnel_ended = pin!(shared.ended());
    let mut credentials = shared.credentials.subscribe();
    loop {
        tokio::select! {
            biased;
            _ = &mut tunnel_ended => return session.leave(grace).await,
            _ = &mut cut => break,
            event = session.next() => match event {
                Event::Ended(_) => return,
                Event::Expiring { within } => {
                    shared.on_expiring(&mut session, within);
                }
                // This session leaves already; the one that replaces it is notified of a newer instance as well.
                Event::Drain { .. } | Event::Superseded | Event::Silent | Event::HeardAgain => {}
            },
            Ok(()) = credentials.changed() => {
                let latest = credentials.borrow_and_update().clone();
                if let Some(latest) = latest {
                    session.use_credential(latest);
                }
            }
            () = &mut at_rest => break,
        }
    }
    session.end(shared.grace_period).await;
}

/// Waits for the welcome, then drains the session.
async fn drain_after_welcome(start: SessionStart, shared: Arc<Shared>, cut: oneshot::Receiver<()>) {
    let began = Instant::now();
    let grace = shared.grace_period;
    if let Ok(Ok(Ok(session))) = timeout(WELCOME.min(grace / 2), start).await {
        let grace = grace.saturating_sub(began.elapsed());
        drain(session, ClosedBy::Client, shared, grace, cut).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn what_is_kept_what_leaves_and_what_is_dialled_is_never_more_than_a_server_takes() {
        for sessions in 1..=8 {
            let limit = LeavingSessions::new(sessions);
            let mut leaving = Vec::new();
            for _ in 0..100 {
                limit.make_room();
                leaving.push(limit.add());
                leaving.retain_mut(|cut| cut.try_recv() == Err(TryRecvError::Empty));
                assert!(sessions + leaving.len() < limits::SESSIONS, "{sessions}");
            }
            assert!(
                leaving.len() >= sessions.min(7),
                "{sessions}: a drain of all ends"
            );
            assert!(leaving.len() <= LEAVING_MAX * sessions);
            leaving.pop();
            limit.make_room();
            assert!(
                leaving
                    .iter_mut()
                    .all(|cut| cut.try_recv() == Err(TryRecvError::Empty)),
                "there was room"
            );
        }
    }
}
