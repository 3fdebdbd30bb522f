//! Sessions that a slot no longer uses, until they have ended.
//!
//! ```text
//!   drained by the server ── moved ─▶ stands until the server ends it ──────────┐
//!   replaced by choice ───── drain ─▶ stands until its exchanges have ended ────┼─▶ ended
//!   begun by a dropped dial ─ welcome, drain ─▶ likewise ───────────────────────┤
//!                any of them, when the tunnel ends: drain, the grace period ────┘
//! ```
//!
//! A session that is replaced may carry a stream for hours: nothing waits for its end, so none is
//! cut after a time. What bounds them is their number in the whole tunnel: the oldest is cut to make room,
//! since the server takes only so many sessions of one instance, and the next one has to fit in. Meanwhile a
//! session still follows the credential, or the server would end it when that runs out.

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
use super::starting::Start;
use crate::session::{Event, Session};

/// Most sessions that leave at once, for each that the tunnel keeps.
const LEAVING_MAX: usize = 4;

/// How long the server may take to welcome a session that is no longer needed: a server that is there welcomes it
/// right after the 101.
const WELCOME: Duration = Duration::from_secs(2);

/// Keeps leaving sessions until they end.
pub(super) struct Leaving {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

/// The owners of all leaving sessions of a tunnel.
pub(super) struct Owners {
    max: usize,
    /// One for each session that leaves, the oldest first; it is cut when this is dropped.
    owners: Mutex<VecDeque<oneshot::Sender<()>>>,
}

/// Who ends a session that another one has replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndedBy {
    /// The server, which wanted it to be replaced.
    Server,
    /// The client, when its exchanges have ended.
    Client,
}

impl Owners {
    /// Beside so many sessions that are kept, and one that is dialled.
    pub(super) fn new(sessions: usize) -> Self {
        let room = limits::SESSIONS.saturating_sub(sessions + 1);
        Self {
            max: room.min(LEAVING_MAX * sessions),
            owners: Mutex::default(),
        }
    }

    fn make_room(&self) {
        let mut owners = self.owners.lock();
        owners.retain(|owner| !owner.is_closed());
        while owners.len() >= self.max && owners.pop_front().is_some() {
            tracing::warn!("too many sessions leave at once, the oldest is cut");
        }
    }

    /// What ends when one more session is to be cut.
    fn cut(&self) -> oneshot::Receiver<()> {
        let (owner, cut) = oneshot::channel();
        self.owners.lock().push_back(owner);
        cut
    }
}

impl Leaving {
    /// None leaves yet.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            tasks: JoinSet::new(),
        }
    }

    /// This session was replaced.
    pub(super) fn replaced(&mut self, session: Session, by: EndedBy) {
        self.make_room();
        self.see_off(session, by);
    }

    /// The dial of this session was dropped.
    pub(super) fn abandoned(&mut self, start: Start) {
        self.make_room();
        self.see_in(start);
    }

    /// The tunnel ends, and with it what else the slot has. Returns when all have left.
    pub(super) async fn end(mut self, current: Option<Session>, start: Option<Start>) {
        if let Some(current) = current {
            self.see_off(current, EndedBy::Client);
        }
        if let Some(start) = start {
            self.see_in(start);
        }
        while self.tasks.join_next().await.is_some() {}
    }

    fn make_room(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.shared.leaving.make_room();
    }

    fn see_off(&mut self, session: Session, by: EndedBy) {
        let cut = self.shared.leaving.cut();
        let shared = Arc::clone(&self.shared);
        let grace = shared.grace_period;
        self.tasks.spawn(see_off(session, by, shared, grace, cut));
    }

    fn see_in(&mut self, start: Start) {
        let cut = self.shared.leaving.cut();
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(see_in(start, shared, cut));
    }
}

/// Sees a session to its end. The grace period counts from the end of the tunnel.
async fn see_off(
    mut session: Session,
    by: EndedBy,
    shared: Arc<Shared>,
    grace: Duration,
    mut cut: oneshot::Receiver<()>,
) {
    match by {
        EndedBy::Server => session.say_moved(),
        EndedBy::Client => session.say_drain(),
    }
    let at_rest = session.at_rest();
    let mut at_rest = pin!(async {
        match by {
            EndedBy::Server => pending().await,
            EndedBy::Client => at_rest.await,
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
                // It leaves already, and the session in its stead hears of a newer instance as well.
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

/// Waits for the welcome, then drains the session and waits for its end.
async fn see_in(start: Start, shared: Arc<Shared>, cut: oneshot::Receiver<()>) {
    let began = Instant::now();
    let grace = shared.grace_period;
    if let Ok(Ok(Ok(session))) = timeout(WELCOME.min(grace / 2), start).await {
        let grace = grace.saturating_sub(began.elapsed());
        see_off(session, EndedBy::Client, shared, grace, cut).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn what_is_kept_what_leaves_and_what_is_dialled_is_never_more_than_a_server_takes() {
        for sessions in 1..=8 {
            let owners = Owners::new(sessions);
            let mut leaving = Vec::new();
            for _ in 0..100 {
                owners.make_room();
                leaving.push(owners.cut());
                leaving.retain_mut(|cut| cut.try_recv() == Err(TryRecvError::Empty));
                assert!(sessions + leaving.len() < limits::SESSIONS, "{sessions}");
            }
            assert!(
                leaving.len() >= sessions.min(7),
                "{sessions}: a drain of all ends"
            );
            assert!(leaving.len() <= LEAVING_MAX * sessions);
            leaving.pop();
            owners.make_room();
            assert!(
                leaving
                    .iter_mut()
                    .all(|cut| cut.try_recv() == Err(TryRecvError::Empty)),
                "there was room"
            );
        }
    }
}
