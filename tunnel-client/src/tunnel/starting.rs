//! The session of one slot that has begun, and that the server has not welcomed yet.
//!
//! In: a connection that the server has accepted. Out: the session, or why there is none. From the 101
//! on the server may have the session in its books, and route to it once it has said welcome: so its
//! start belongs to the slot, and goes on when the dial that it is a part of is dropped.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::time::Instant;
use tunnel_ops::task::Owned;

use crate::dial::Connected;
use crate::session::{Ended, NotWelcome, Session, SessionParts};

/// A session on its way to be welcomed.
pub(super) type Start = Owned<Result<Session, NotWelcome>>;

/// Room for one of them.
#[derive(Default)]
pub(super) struct Starting(Mutex<Option<Start>>);

impl Starting {
    /// Begins a session, and waits for its welcome. When this is dropped, the session is still here.
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
        let fault = |why: String| NotWelcome::Ended(Ended::by_fault(why, began));
        poll_fn(|cx| self.poll(cx))
            .await
            .unwrap_or_else(|why| Err(fault(why)))
    }

    /// The session that has begun, if its dial was dropped; its end is then waited for.
    pub(super) fn abandon(&self) -> Option<Start> {
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
