//! What the driver hands to the owner of a session: control messages, and streams that were opened.
//!
//! A queue with bounds that holds nothing while nothing waits, since most sessions are idle most of
//! the time. The driver never waits for the owner.

use std::{collections::VecDeque, future::poll_fn, sync::Arc, task::Poll};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::{AcceptedStream, Session, mux::MuxStream};
use crate::{control::Control, limits};

/// What the driver hands to the owner of a session.
pub struct SessionEvents(Arc<Events>);

/// One event of a session.
pub enum SessionEvent {
    /// The other end said something.
    Control(Control),
    /// The other end opened a stream; serve it with [`crate::exchange::serve`].
    Exchanges(AcceptedStream),
}

/// The driver's end.
pub(super) struct Owner(Arc<Events>);

/// The owner does not take what is handed to it.
pub(super) struct NotTaken;

#[derive(Default)]
struct Events {
    waiting: Mutex<Waiting>,
    owner: AtomicWaker,
}

#[derive(Default)]
struct Waiting {
    controls: VecDeque<Control>,
    streams: VecDeque<MuxStream>,
    /// The driver, or the owner, is gone.
    has_ended: bool,
}

/// Both ends.
pub(super) fn events() -> (Owner, SessionEvents) {
    let events = Arc::new(Events::default());
    (Owner(events.clone()), SessionEvents(events))
}

impl Owner {
    /// Hands a control message over.
    pub(super) fn control(&self, control: Control) -> Result<(), NotTaken> {
        let mut waiting = self.0.waiting.lock();
        if waiting.has_ended || waiting.controls.len() >= limits::CONTROLS_WAITING {
            return Err(NotTaken);
        }
        waiting.controls.push_back(control);
        drop(waiting);
        self.0.owner.wake();
        Ok(())
    }

    /// Hands a stream over. An owner that no longer serves has it reset, by its being dropped.
    pub(super) fn stream(&self, stream: MuxStream) {
        let mut waiting = self.0.waiting.lock();
        if !waiting.has_ended && waiting.streams.len() < limits::STREAMS {
            waiting.streams.push_back(stream);
            drop(waiting);
            self.0.owner.wake();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.waiting.lock().has_ended = true;
        self.0.owner.wake();
    }
}

impl SessionEvents {
    /// The next event; `None` when the session has ended. Control messages come first.
    pub async fn next(&mut self, session: &Session) -> Option<SessionEvent> {
        poll_fn(|cx| {
            self.0.owner.register(cx.waker());
            let mut waiting = self.0.waiting.lock();
            if let Some(control) = waiting.controls.pop_front() {
                return Poll::Ready(Some(SessionEvent::Control(control)));
            }
            if let Some(stream) = waiting.streams.pop_front() {
                let session = session.clone();
                let stream = AcceptedStream { stream, session };
                return Poll::Ready(Some(SessionEvent::Exchanges(stream)));
            }
            if waiting.has_ended {
                return Poll::Ready(None);
            }
            // Room that a burst has left.
            *waiting = Waiting::default();
            Poll::Pending
        })
        .await
    }
}

impl Drop for SessionEvents {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        waiting.has_ended = true;
        let streams = std::mem::take(&mut waiting.streams);
        drop(waiting);
        // Resets them, for which their multiplexer is locked.
        drop(streams);
    }
}
