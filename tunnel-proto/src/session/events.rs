//! Events that the driver delivers to the owner of a session: control messages and opened streams.
//!
//! A bounded queue that gives back its memory when it is empty, since most sessions are idle most of the
//! time. The driver never waits for the owner.

use std::{collections::VecDeque, future::poll_fn, sync::Arc, task::Poll};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::{AcceptedStream, Session, mux::MuxStream};
use crate::{control::Control, limits};

/// The receiver of a session's events. Dropping it resets the streams that it was to deliver.
pub struct SessionEvents(Arc<Events>);

/// One event of a session.
pub enum SessionEvent {
    /// The other end sent a control message.
    Control(Control),
    /// The other end opened a stream; serve it with [`crate::exchange::serve`].
    Stream(AcceptedStream),
}

/// The driver's end of the queue.
pub(super) struct EventSender(Arc<Events>);

/// The event was not queued: the owner is gone, or too many events wait.
pub(super) struct EventNotQueued;

#[derive(Default)]
struct Events {
    queue: Mutex<Queue>,
    owner: AtomicWaker,
}

#[derive(Default)]
struct Queue {
    controls: VecDeque<Control>,
    streams: VecDeque<MuxStream>,
    /// The driver, or the owner, is gone.
    has_ended: bool,
}

/// Both ends of a new queue.
pub(super) fn events() -> (EventSender, SessionEvents) {
    let events = Arc::new(Events::default());
    (EventSender(events.clone()), SessionEvents(events))
}

impl EventSender {
    /// Queues a control message.
    pub(super) fn control(&self, control: Control) -> Result<(), EventNotQueued> {
        let mut queue = self.0.queue.lock();
        if queue.has_ended || queue.controls.len() >= limits::CONTROLS_WAITING {
            return Err(EventNotQueued);
        }
        queue.controls.push_back(control);
        drop(queue);
        self.0.owner.wake();
        Ok(())
    }

    /// Queues an opened stream. If the owner is gone or the queue is full, the stream is dropped, which
    /// resets it.
    pub(super) fn stream(&self, stream: MuxStream) {
        let mut queue = self.0.queue.lock();
        if !queue.has_ended && queue.streams.len() < limits::STREAMS {
            queue.streams.push_back(stream);
            drop(queue);
            self.0.owner.wake();
        }
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        self.0.queue.lock().has_ended = true;
        self.0.owner.wake();
    }
}

impl SessionEvents {
    /// The next event; `None` when the session has ended. Control messages come before streams.
    pub async fn next(&mut self, session: &Session) -> Option<SessionEvent> {
        poll_fn(|cx| {
            self.0.owner.register(cx.waker());
            let mut queue = self.0.queue.lock();
            if let Some(control) = queue.controls.pop_front() {
                return Poll::Ready(Some(SessionEvent::Control(control)));
            }
            if let Some(stream) = queue.streams.pop_front() {
                let session = session.clone();
                let stream = AcceptedStream { stream, session };
                return Poll::Ready(Some(SessionEvent::Stream(stream)));
            }
            if queue.has_ended {
                return Poll::Ready(None);
            }
            // Gives back the memory of a burst.
            *queue = Queue::default();
            Poll::Pending
        })
        .await
    }
}

impl Drop for SessionEvents {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.has_ended = true;
        let streams = std::mem::take(&mut queue.streams);
        drop(queue);
        // Dropping resets them, which locks the multiplexer: not with this lock held.
        drop(streams);
    }
}
