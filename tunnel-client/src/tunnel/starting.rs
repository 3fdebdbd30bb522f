//! A session of one slot that has begun and is not welcomed yet.
//!
//! In: an upgraded connection. Out: the session, or why it did not begin. After the 101 the server may register the session
//! and route to it once it has sent the welcome, so the slot owns the start, which continues if the dial is dropped.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::time::Instant;
use tunnel_ops::task::Owned;

use crate::dial::Connected;
use crate::session::{NotWelcome, Session, SessionEnded, SessionParts};

/// The task that starts a session, until its welcome.
pub(super) type SessionStart = Owned<Result<Session, NotWelcome>>;

/// The session that is being started, if there is one.
#[derive(Default)]
pub(super) struct StartingSession(Mutex<Option<SessionStart>>);

impl StartingSession {
    /// Starts a session, and waits for its welcome. If this is dropped, the session stays in `self`.
    pub(super) async fn start(
        &self,
        connected: Connected,
        parts: SessionParts,
    ) -> Result<Session, NotWelcome> {
        let began = Instant::now();
        let start = Owned::spawn(
            "start",
            async move { Session::start(connected, &parts).await },
        );
        *self.0.lock() = Some(start);
        let fault = |why: String| NotWelcome::Ended(SessionEnded::by_fault(why, began));
        poll_fn(|cx| self.poll(cx))
            .await
            .unwrap_or_else(|why| Err(fault(why)))
    }

    /// Takes the session whose dial was dropped, if there is one.
    pub(super) fn abandon(&self) -> Option<SessionStart> {
        self.0.lock().take()
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Result<Session, NotWelcome>, String>> {
        let mut standing = self.0.lock();
        let Some(start) = standing.as_mut() else {
            return Poll::Ready(Err("its start was given up".to_owned()));
        };
        let started = ready!(Pin::new(start).poll(cx));
        *standing = None;
        Poll::Ready(started.map_err(|error| format!("its start failed: {error}")))
    }
}
